"""Which parameters are worked on as one batch of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch

from steepest.linalg.iteration import BATCHED_SIDE, choose_form

Matrices: TypeAlias = "tuple[int, int, int]"  # what one parameter holds: count, rows, columns

_FEWEST = 8  # a batch of fewer matrices gains less than gathering them costs
# Padding pays where the calls for one batch more cost more than the zeros, as for the convolutions
# of a ResNet-20 (benchmarks/bench_step.py, set conv): a few tens of thousands of zeros at most, and
# none of them where a matrix would be more than twice as long, or iterated in another form.
_ZEROS, _STRETCH = 1 << 16, 2


def batches(
    parameters: Sequence[Matrices], *, dtype: torch.dtype, batch_bytes: int
) -> list[list[int]]:
    """Divide parameters into batches for ``MatrixBatch``; return the positions of each.

    Matrices with equal sides share a batch, tall or wide. A few small ones that are up to half as
    long as others are padded by zeros and join these: zero columns change no singular value.

    Args:
        parameters: (count, rows, columns) of each, none of them empty.
        dtype: of the batches.
        batch_bytes: what one batch may take, if it holds more than one parameter.

    Example:
        >>> convolutions = [(1, 16, 72), (1, 16, 144), (1, 16, 144), (1, 32, 288)]
        >>> batches(convolutions, dtype=torch.float32, batch_bytes=1 << 20)
        [[3], [1, 2, 0]]
    """
    with_sides: dict[tuple[int, int], list[int]] = {}
    for position, (_, rows, columns) in enumerate(parameters):
        with_sides.setdefault((min(rows, columns), max(rows, columns)), []).append(position)
    counts = [count for count, _, _ in parameters]
    result: list[list[int]] = []
    open_batches: dict[int, tuple[list[int], int, int]] = {}  # by short side: with long side, zeros
    for (short, long), positions in sorted(with_sides.items(), key=lambda item: -item[0][1]):
        limit = batch_limit(short, long, dtype, batch_bytes=batch_bytes)
        chunks = list(_chunks(positions, counts, limit))
        if short in open_batches and len(chunks) == 1:
            batch, longest, padding = open_batches[short]
            added = sum(counts[place] for place in positions)
            padding += added * short * (longest - long)
            room = batch_limit(short, longest, dtype, batch_bytes=batch_bytes)
            alike = choose_form(short, long, dtype) == choose_form(short, longest, dtype)
            small = padding <= _ZEROS and longest <= _STRETCH * long
            if alike and small and added + sum(counts[place] for place in batch) <= room:
                batch += positions
                open_batches[short] = batch, longest, padding
                continue
        result += chunks
        open_batches[short] = chunks[-1], long, 0
    return result


def _chunks(positions: Sequence[int], counts: Sequence[int], limit: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    total = 0
    for position in positions:
        if chunk and total + counts[position] > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(position)
        total += counts[position]
    yield chunk


def batch_limit(short: int, long: int, dtype: torch.dtype, *, batch_bytes: int) -> int:
    """Return how many matrices should be iterated at once, within ``batch_bytes``."""
    size = max(1, short * long * dtype.itemsize)
    if short > BATCHED_SIDE or size > batch_bytes // _FEWEST:
        return 1
    return batch_bytes // size
