"""Products of matrices that are known to be symmetric, at about half the arithmetic."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def symmetric_product(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
    """Write ``left @ right`` into ``out`` where the result is known to be symmetric.

    Large single matrices on a CPU are computed by row panels, of which only the part from the
    diagonal on is multiplied and the rest mirrored; all others by one ordinary product.

    Args:
        left: ``(..., n, k)``.
        right: ``(..., k, n)``.
        out: ``(..., n, n)``, overwritten and returned; may not share memory with the factors.
    """
    size = left.shape[-2]
    panels = panel_count(left)
    if panels == 1:
        return torch.matmul(left, right, out=out)
    for start, stop in pairwise(size * panel // panels for panel in range(panels + 1)):
        torch.mm(left[start:stop], right[:, start:], out=out[start:stop, start:])
        out[stop:, start:stop] = out[start:stop, stop:].mT
    return out


def panel_count(left: Tensor) -> int:
    """Return into how many row panels ``symmetric_product`` divides its left factor.

    As measured by benchmarks/bench_polar.py: fewer, larger products are faster while they are
    small, and a long inner dimension makes them large.
    """
    if left.ndim != 2 or left.device.type != "cpu":
        return 1
    size, depth = left.shape
    if size >= 2048:
        return 8
    if size >= 768 or (size >= 512 and depth >= 2 * size):
        return 4
    return 2 if size >= 384 or (size >= 256 and depth >= 8 * size) else 1
