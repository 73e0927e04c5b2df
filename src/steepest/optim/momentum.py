"""Momentum as an exponential moving average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def average_(buffers: Sequence[Tensor], gradients: Sequence[Tensor], *, momentum: float) -> None:
    r"""Update the moving averages in place: M ← μM + (1 − μ)G.

    Args:
        buffers: M of each parameter, changed in place; its dtype is kept.
        gradients: G of each parameter, not changed.
        momentum: μ in [0, 1).
    """
    torch._foreach_lerp_(list(buffers), _fitting(gradients, buffers), 1.0 - momentum)


def averaged(
    buffers: Sequence[Tensor], gradients: Sequence[Tensor], *, momentum: float, nesterov: bool
) -> list[Tensor]:
    r"""Return the averages M themselves, or with Nesterov momentum new tensors (1 − μ)G + μM.

    Args:
        buffers: M of each parameter after ``average_``; not changed.
        gradients: G of each parameter, not changed.
        momentum: μ in [0, 1).
        nesterov: whether to look ahead.
    """
    if not nesterov:
        return list(buffers)
    return list(torch._foreach_lerp(_fitting(gradients, buffers), list(buffers), momentum))


def _fitting(gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[Tensor]:
    """The gradients in the dtype of the buffers, which a checkpoint may have changed."""
    return [
        g if g.dtype == m.dtype else g.to(m.dtype) for g, m in zip(gradients, buffers, strict=True)
    ]
