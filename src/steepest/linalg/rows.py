"""Passes over columns that are stored as rows.

A window is read twice at a step: for the dot products of its columns with a new one, and for a
combination of them. Both passes take pieces of the columns. A piece of a sum is accumulated in
float32 and the pieces in float64, which keeps ten million terms within 2e-7; what is converted or
made on the way stays as short as a piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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


def row_dots(rows: Sequence[Tensor], vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the dot products of rows with vectors, and the vectors' own squares.

    A vector counts as the dtype of its rows would store it.

    Args:
        rows: each ``(T, slots, n)``, the columns of T parameters of one size.
        vectors: each ``(T, n)``, one vector for each parameter.

    Returns:
        ``(ΣT, slots)`` and ``(ΣT,)``, float64 on the CPU, in the order of the arguments. Infinite
        or NaN where a vector is.
    """
    results = [_products(own, given) for own, given in zip(rows, vectors, strict=True)]
    total = torch.cat([result.cpu() for result in results]).double()
    longest = max(given.shape[1] for given in vectors)
    low, high = (float(bound) for bound in total[:, -1].aminmax())
    if low >= _TINY * longest and high < math.inf and bool(total.isfinite().all()):
        return total[:, :-1], total[:, -1]
    for place, (own, given) in enumerate(zip(rows, vectors, strict=True)):
        if not _in_range(results[place], given):
            results[place] = _products(own, given, dtype=torch.float64)
    total = torch.cat([result.cpu().double() for result in results])
    return total[:, :-1], total[:, -1]


def _products(rows: Tensor, vectors: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``(T, slots + 1)`` dot products with the rows and, last, with the vector itself."""
    count, slots, length = rows.shape
    dtype = dtype or wide_dtype(rows.dtype)
    direct = rows.dtype == dtype and vectors.dtype == dtype and rows.device == vectors.device
    if direct and 0 < length <= _SHORTEST:
        return _piece_products(rows, vectors)
    total = torch.zeros(count, slots + 1, dtype=torch.float64, device=rows.device)
    for piece in pieces(rows, converted=not direct):
        part, vector = rows[..., piece], vectors[:, piece]
        if not direct:
            part, vector = part.to(dtype), as_stored(vector, rows).to(dtype)
        total += _piece_products(part, vector)
    return total


def _piece_products(rows: Tensor, vectors: Tensor) -> Tensor:
    if len(rows) > 1:
        dots = torch.bmm(rows, vectors[..., None])[..., 0]
        return torch.cat([dots, vectors.square().sum(dim=1, keepdim=True)], dim=1)
    vector = vectors[0]
    result = vector.new_empty(1, rows.shape[1] + 1)
    torch.mv(rows[0], vector, out=result[0, :-1])
    torch.dot(vector, vector, out=result[0, -1])
    return result


def _in_range(products: Tensor, vectors: Tensor) -> bool:
    """Whether no product of float32 numbers has over- or underflowed to a degree that counts."""
    if not bool(products.isfinite().all()):
        return False
    low = products[:, -1] < _TINY * vectors.shape[1]
    return not bool(low.any()) or not bool(vectors[low.to(vectors.device)].any())


def combine_(
    target: Tensor,
    rows: Tensor,
    scalars: Tensor,
    *,
    vector: Tensor | None = None,
    slot: int = 0,
    keep: float = 0.0,
) -> None:
    """Change ``target`` to keep · target + Σ scalars · rows, in one pass.

    Args:
        target: ``(n,)``, changed in place; not read where ``keep`` is 0.
        rows: ``(slots, n)``, the columns.
        scalars: ``(slots,)``, 0 for empty slots.
        vector: ``(n,)``, a new column that is stored in ``slot`` on the way.
        slot: its place.
        keep: the share of ``target`` that stays.
    """
    dtype = wide_dtype(rows.dtype)
    scalars = scalars.to(rows.device, dtype)
    direct = target.dtype == dtype and target.device == rows.device
    if direct and rows.dtype == dtype and rows.shape[1] <= _SHORTEST:
        if vector is not None:
            rows[slot].copy_(vector)
        target.addmv_(rows.mT, scalars, beta=keep)
        return
    for piece in pieces(rows, converted=rows.dtype != dtype):
        if vector is not None:
            rows[slot, piece].copy_(vector[piece])
        into, part = target[piece], rows[:, piece].to(dtype)
        if direct:
            into.addmv_(part.mT, scalars, beta=keep)
            continue
        total = torch.mv(part.mT, scalars)
        if keep != 0.0:  # a narrower target is rounded once
            total = total.to(into.device).add_(into, alpha=keep)
        into.copy_(total)


def combine_each(
    rows: Tensor, scalars: Tensor, *, vectors: Tensor | None = None, slot: int = 0
) -> Tensor:
    """Return Σ scalars · rows for several short parameters at once.

    Args:
        rows: ``(T, slots, n)``.
        scalars: ``(T, slots)``.
        vectors: ``(T, n)``, new columns that are stored in ``slot`` first.
        slot: their place.

    Returns:
        ``(T, n)``, float64 for float64 rows, else float32.
    """
    dtype = wide_dtype(rows.dtype)
    if vectors is not None:
        rows[:, slot].copy_(vectors)
    scalars = scalars.to(rows.device, dtype)
    return torch.bmm(scalars[:, None], rows.to(dtype))[:, 0]


def mix_(rows: Tensor, tail: Tensor, mixture: Tensor) -> Tensor:
    """Replace rows by combinations of them, in place; return these' dot products with all rows.

    Args:
        rows: ``(slots, n)``, changed: row ``tail[j]`` becomes Σ_i mixture[i, j] · row ``tail[i]``.
        tail: ``(T,)`` int64, distinct.
        mixture: ``(T, R)`` float64, R ≤ T.

    Returns:
        ``(R, slots)`` float64, of what is stored.
    """
    rank = mixture.shape[1]
    tail, mixture = tail.to(rows.device), mixture.to(rows.device)
    dots = torch.zeros(rank, rows.shape[0], dtype=torch.float64, device=rows.device)
    for piece in pieces(rows, converted=True):
        part = rows[:, piece]
        part[tail[:rank]] = (mixture.mT @ part[tail].double()).to(rows.dtype)
        dots += part[tail[:rank]].double() @ part.double().mT
    return dots
