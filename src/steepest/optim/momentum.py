"""Momentum as an exponential moving average."""

from __future__ import annotations

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
