"""Momentum as an exponential moving average."""

from __future__ import annotations

import torch
from torch import Tensor


def average_(buffer: Tensor, gradient: Tensor, *, momentum: float) -> None:
    r"""Update the moving average in place: M ← μM + (1 − μ)G.

    Args:
        buffer: M, changed in place; its dtype is kept.
        gradient: G, not changed.
        momentum: μ in [0, 1).
    """
    buffer.lerp_(gradient.to(buffer.dtype), 1.0 - momentum)


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
