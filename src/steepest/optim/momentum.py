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


def averaged(buffer: Tensor, gradient: Tensor, *, momentum: float, nesterov: bool) -> Tensor:
    r"""Return a new tensor: the average M, or with Nesterov momentum (1 − μ)G + μM.

    Args:
        buffer: M after ``average_``; not changed.
        gradient: G, not changed.
        momentum: μ in [0, 1).
        nesterov: whether to look ahead.
    """
    return gradient.to(buffer.dtype).lerp(buffer, momentum) if nesterov else buffer.clone()


def averaged_(
    out: Tensor, buffer: Tensor, gradient: Tensor, *, momentum: float, nesterov: bool
) -> None:
    """Write what ``averaged`` returns into ``out``, which may have another dtype.

    Args:
        out: overwritten.
        buffer: M after ``average_``; not changed.
        gradient: G, not changed.
        momentum: μ in [0, 1).
        nesterov: whether to look ahead.
    """
    if not nesterov:
        out.copy_(buffer)
    elif out.dtype == buffer.dtype == gradient.dtype:
        torch.lerp(gradient, buffer, momentum, out=out)
    else:
        out.copy_(gradient).lerp_(buffer.to(out.dtype), momentum)
