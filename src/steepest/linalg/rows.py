"""Passes over columns that are stored as rows.

A window is read twice at a step: for the dot products of its columns with a new one, and for a
combination of them. Both passes take pieces of the columns. A piece of a sum is accumulated in
float32 and the pieces in float64, which keeps ten million terms within 2e-7; what is converted or
made on the way stays as short as a piece.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# entries of a column in a piece: few enough for the accuracy of a float32 sum, and enough that a
# piece of all rows takes far longer than the call
_LONGEST, _SHORTEST, _ENTRIES = 1 << 17, 1 << 16, 1 << 21
# entries of a piece that is converted, which should stay in the cache; of a column, so few that
# the biased rounding of products of 16-bit numbers stays below 1e-6
_CONVERTED, _LONGEST_CONVERTED = 1 << 18, 1 << 14
_ON_DEVICE = 1 << 22  # off the CPU, where the sums are trees and calls are dear
# mean square below which products leave the range of float32
_TINY = 1e-26


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32: what columns of a dtype are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pieces(rows: Tensor, *, converted: bool = False) -> Iterator[slice]:
    """Divide the entries of rows ``(T, slots, n)``, or ``(slots, n)``, for a pass.

    Args:
        rows: the columns.
        converted: whether a copy of each piece is made.
    """
    count = rows.shape[:-1].numel()
    if converted:
        length = min(_LONGEST_CONVERTED, max(256, _CONVERTED // max(count, 1)))
    else:
        length = min(_LONGEST, max(_SHORTEST, _ENTRIES // max(count, 1)))
    if rows.device.type != "cpu":
        length = _ON_DEVICE
    for start in range(0, rows.shape[-1], length):
        yield slice(start, start + length)


def as_stored(vector: Tensor, like: Tensor) -> Tensor:
    """Return a vector as a column keeps it, on its device and in the dtype of computation."""
    return vector.to(like.device, like.dtype).to(wide_dtype(like.dtype))


def row_dots(rows: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the dot products of rows with a vector, and the vector's own square.

    The vector counts as the rows' dtype would store it.

    Args:
        rows: ``(T, slots, n)``, the columns of T parameters.
        vectors: ``(T, n)``, one for each.

    Returns:
        ``(T, slots)`` and ``(T,)``, float64. Infinite or NaN where a vector is.
    """
    dtype = wide_dtype(rows.dtype)
    dots, squares = _accumulate(rows, vectors, dtype)
    if dtype == torch.float32 and not _in_range(dots, squares, vectors):
        return _accumulate(rows, vectors, torch.float64)
    return dots, squares


def _accumulate(rows: Tensor, vectors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    dots = torch.zeros(rows.shape[:2], dtype=torch.float64, device=rows.device)
    squares = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    single = rows.shape[0] == 1
    for piece in pieces(rows, converted=rows.dtype != dtype):
        vector = as_stored(vectors[:, piece], rows).to(dtype)
        part = rows[..., piece].to(dtype)
        if single:
            dots[0] += torch.mv(part[0], vector[0])
        else:
            dots += torch.bmm(part, vector[..., None])[..., 0]
        squares += vector.square().sum(dim=1)
    return dots, squares


def _in_range(dots: Tensor, squares: Tensor, vectors: Tensor) -> bool:
    """Whether no product of float32 numbers has over- or underflowed to a degree that counts."""
    if not bool(dots.isfinite().all() & squares.isfinite().all()):
        return False
    low = squares < _TINY * max(vectors.shape[1], 1)
    return not bool(low.any()) or not bool(vectors[low].any())


def combine_(
    target: Tensor,
    rows: Tensor,
    coefficients: Tensor,
    vector: Tensor,
    *,
    own: float,
    slot: int | None = None,
    keep: float = 0.0,
) -> None:
    """Change ``target`` to keep · target + Σ coefficients · rows + own · vector, in one pass.

    Args:
        target: ``(n,)``, changed in place; not read where ``keep`` is 0.
        rows: ``(slots, n)``, the columns.
        coefficients: ``(slots,)`` float64, 0 for empty slots and for ``slot``.
        vector: ``(n,)``, the newest column; it counts as the rows' dtype would store it.
        own: its coefficient.
        slot: where to store it; None leaves the rows as they are.
        keep: the share of ``target`` that stays.
    """
    dtype = wide_dtype(rows.dtype)
    scalars = coefficients.to(rows.device, dtype)
    if slot is not None:
        scalars = scalars.clone()
        scalars[slot] = own
    direct = target.dtype == dtype and target.device == rows.device
    for piece in pieces(rows, converted=rows.dtype != dtype):
        if slot is not None:
            rows[slot, piece].copy_(vector[piece])
        into, part = target[piece], rows[:, piece].to(dtype)
        if direct:
            into.addmv_(part.mT, scalars, beta=keep)
            if slot is None:
                into.add_(as_stored(vector[piece], rows), alpha=own)
            continue
        total = torch.mv(part.mT, scalars)
        if slot is None:
            total.add_(as_stored(vector[piece], rows), alpha=own)
        if keep != 0.0:  # a narrower target is rounded once
            total = total.to(into.device).add_(into, alpha=keep)
        into.copy_(total)


def combine_each(
    rows: Tensor,
    coefficients: Tensor,
    vectors: Tensor,
    *,
    own: float,
    slot: int | None = None,
) -> Tensor:
    """Return Σ coefficients · rows + own · vector for several short parameters at once.

    Args:
        rows: ``(T, slots, n)``.
        coefficients: ``(slots,)`` float64.
        vectors: ``(T, n)``, stored in ``slot`` where that is given.
        own: their coefficient.
        slot: see ``combine_``.

    Returns:
        ``(T, n)``, float64 for float64 rows, else float32.
    """
    dtype = wide_dtype(rows.dtype)
    stored = as_stored(vectors, rows)
    if slot is not None:
        rows[:, slot].copy_(stored)
    scalars = coefficients.to(rows.device, dtype).expand(rows.shape[0], 1, -1)
    before = torch.bmm(scalars, rows.to(dtype))[:, 0]
    return before.add_(stored, alpha=own)


def combine(rows: Tensor, coefficients: Tensor) -> Tensor:
    """Return Σ coefficients · rows as a new ``(n,)`` tensor.

    Args:
        rows: ``(slots, n)``.
        coefficients: ``(slots,)`` float64.

    Returns:
        ``(n,)``, float64 for float64 rows, else float32.
    """
    total = torch.empty(rows.shape[1], dtype=wide_dtype(rows.dtype), device=rows.device)
    scalars = coefficients.to(total)
    for piece in pieces(rows, converted=rows.dtype != total.dtype):
        torch.mv(rows[:, piece].to(total.dtype).mT, scalars, out=total[piece])
    return total
