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
_ONE_CALL = 1 << 18  # entries of a piece whose reading is shorter than a second call
_ON_DEVICE = 1 << 22  # off the CPU, where the sums are trees and calls are dear
# mean square below which products leave the range of float32
_TINY = 1e-26


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32: what columns of a dtype are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def piece_length(rows: Tensor, *, converted: bool = False) -> int:
    """Return how many entries of each column a piece of a pass has.

    Args:
        rows: ``(T, slots, n)``, or ``(slots, n)``, the columns.
        converted: whether a copy of each piece is made.
    """
    if rows.device.type != "cpu":
        return _ON_DEVICE
    count = max(1, rows.shape[:-1].numel())
    if converted:
        return min(_LONGEST_CONVERTED, max(256, _CONVERTED // count))
    return min(_LONGEST, max(_SHORTEST, _ENTRIES // count))


def pieces(rows: Tensor, *, converted: bool = False) -> Iterator[slice]:
    """Divide the entries of rows for a pass; arguments as for ``piece_length``."""
    length = piece_length(rows, converted=converted)
    for start in range(0, rows.shape[-1], length):
        yield slice(start, start + length)


def as_stored(vector: Tensor, like: Tensor) -> Tensor:
    """Return a vector as a column keeps it, on its device and in the dtype of computation."""
    return vector.to(like.device, like.dtype).to(wide_dtype(like.dtype))


def row_dots(
    rows: Sequence[Tensor], vectors: Sequence[Tensor], *, slot: int
) -> tuple[Tensor, Tensor]:
    """Return the dot products of rows with vectors, and the vectors' own squares.

    A vector counts as the dtype of its rows would store it, in ``slot``: what that holds now need
    not be read.

    Args:
        rows: each ``(T, slots, n)``, the columns of T parameters of one size.
        vectors: each ``(T, n)``, one vector for each parameter.
        slot: the place of the vector among the rows, where its product is its own square.

    Returns:
        ``(ΣT, slots)`` and ``(ΣT,)``, float64 on the CPU, in the order of the arguments. Infinite
        or NaN where a vector is.
    """
    results = [_products(own, given, slot) for own, given in zip(rows, vectors, strict=True)]
    total = torch.cat([result.cpu() for result in results]).double()
    longest = max(given.shape[1] for given in vectors)
    low, high = (float(bound) for bound in total[:, -1].aminmax())
    if low >= _TINY * longest and high < math.inf and bool(total.isfinite().all()):
        return _with_squares(total, slot)
    for place, (own, given) in enumerate(zip(rows, vectors, strict=True)):
        if not _in_range(results[place], given):
            results[place] = _products(own, given, slot, dtype=torch.float64)
    return _with_squares(torch.cat([result.cpu().double() for result in results]), slot)


def _with_squares(products: Tensor, slot: int) -> tuple[Tensor, Tensor]:
    dots, squares = products[:, :-1], products[:, -1]
    dots[:, slot] = squares
    return dots, squares


def _products(
    rows: Tensor, vectors: Tensor, slot: int, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``(T, slots + 1)`` dot products with the rows and, last, with the vector itself."""
    count, slots, entries = rows.shape
    dtype = dtype or wide_dtype(rows.dtype)
    direct = rows.dtype == dtype and vectors.dtype == dtype and rows.device == vectors.device
    length = piece_length(rows, converted=not direct)
    if direct and entries <= length:
        result = torch.empty(count, slots + 1, dtype=dtype, device=rows.device)
        _piece_products_(result, rows, vectors, slot)
        return result
    number = max(1, -(-entries // length))
    parts = torch.empty(number, count, slots + 1, dtype=dtype, device=rows.device)
    for into, part, vector in zip(
        parts.unbind(),
        torch.split(rows, length, -1),
        torch.split(vectors, length, -1),
        strict=True,
    ):
        if direct:
            _piece_products_(into, part, vector, slot)
        else:
            _piece_products_(into, part.to(dtype), as_stored(vector, rows).to(dtype), slot)
    return parts.sum(dim=0, dtype=torch.float64)


def _piece_products_(into: Tensor, rows: Tensor, vectors: Tensor, slot: int) -> None:
    if len(rows) > 1:
        into[:, :-1] = torch.bmm(rows, vectors[..., None])[..., 0]
        torch.sum(vectors.square(), dim=1, out=into[:, -1])
        return
    into, own, vector = into[0], rows[0], vectors[0]
    if own.numel() <= _ONE_CALL:
        torch.mv(own, vector, out=into[:-1])
    else:
        torch.mv(own[:slot], vector, out=into[:slot])
        torch.mv(own[slot + 1 :], vector, out=into[slot + 1 : -1])
    # not torch.dot, whose few running sums lose digits
    torch.sum(vector.square(), dim=0, out=into[-1])


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
    if direct and rows.dtype == dtype and rows.shape[1] <= piece_length(rows):
        if vector is not None:
            rows[slot].copy_(vector)
        target.addmv_(rows.mT, scalars, beta=keep)
        return
    length = piece_length(rows, converted=rows.dtype != dtype)
    # a vector that is not stored stands in for itself
    news = torch.split(rows[slot] if vector is None else vector, length)
    for into, part, new in zip(
        torch.split(target, length), torch.split(rows, length, 1), news, strict=True
    ):
        if vector is not None:
            part[slot].copy_(new)
        if direct:
            into.addmv_(part.to(dtype).mT, scalars, beta=keep)
            continue
        total = torch.mv(part.to(dtype).mT, scalars)
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
