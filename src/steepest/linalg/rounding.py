"""Rounding to 16 bits that keeps, on average, what is smaller than the last bit."""

from __future__ import annotations

import torch
from torch import Tensor


def round_stochastically(x: Tensor, *, dtype: torch.dtype, seed: int) -> Tensor:
    r"""Return ``x`` in a narrower dtype, rounded up or down at random so that the mean is x.

    With the neighbours a ≤ x ≤ b of x in ``dtype``, the result is b with probability
    (x − a)/(b − a). What ``dtype`` can hold is kept as it is; what is beyond its largest number, or
    not finite, is rounded to nearest.

    Args:
        x: of a wider dtype; not changed.
        dtype: torch.bfloat16 or torch.float16.
        seed: of a generator of its own: equal seeds give equal results, and torch's global
            generator is not touched.

    Example:
        >>> x = torch.full((10_000,), 1.0 + 2.0**-10)  # an eighth of the way to the next bfloat16
        >>> rounded = round_stochastically(x, dtype=torch.bfloat16, seed=0).float()
        >>> rounded.unique().tolist(), (rounded > 1.0).float().mean().round(decimals=1).item()
        ([1.0, 1.0078125], 0.10000000149011612)
    """
    nearest = x.to(dtype)
    error = x - nearest
    towards = torch.full_like(nearest, torch.inf).copysign(error.to(dtype))
    other = torch.nextafter(nearest, towards)
    gap = (other.to(x.dtype) - nearest.to(x.dtype)).abs()
    generator = torch.Generator(device=x.device).manual_seed(seed)
    chance = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32)
    moved = (chance * gap < error.abs()) & other.isfinite() & nearest.isfinite()
    return torch.where(moved, other, nearest)
