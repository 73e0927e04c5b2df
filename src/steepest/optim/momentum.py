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
    fitting = [g.to(m.dtype) for m, g in zip(buffers, gradients, strict=True)]
    torch._foreach_lerp_(list(buffers), fitting, 1.0 - momentum)


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
    fitting = [g.to(m.dtype) for m, g in zip(buffers, gradients, strict=True)]
    return list(torch._foreach_lerp(fitting, list(buffers), momentum))
