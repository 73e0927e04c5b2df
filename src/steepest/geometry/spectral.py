"""The steepest direction in the spectral norm: the polar factor, in batches or onto a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from steepest.geometry.batching import batch_limit, batches
from steepest.geometry.matrices import MatrixBatch
from steepest.linalg.iteration import Factor
from steepest.linalg.polar import newton_schulz_
from steepest.linalg.schedules import Schedule

IterationDtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]


def in_batches(
    stacks: Sequence[Tensor],
    function: Callable[[Tensor, Factor], Tensor],
    factors: Sequence[float],
    *,
    dtype: torch.dtype,
    batch_bytes: int,
) -> list[Tensor]:
    """Apply a function of wide matrices, ``(b, m, n)`` with m ≤ n, to stacks of any shapes.

    The function must commute with transposition, and with the appending of zero columns.

    Args:
        stacks: ``(count, rows, columns)`` each, not empty, on one device; not changed.
        function: gets memory that it may overwrite, and a factor to multiply its result by, a
            number or ``(b, 1, 1)``; returns a tensor of the shape of the memory.
        factors: one for each stack.
        dtype: which it gets.
        batch_bytes: what a batch may take, if it holds more than one matrix.

    Returns:
        A tensor of its own for each stack, of its shape and of ``dtype``.
    """
    results = list(stacks)
    shapes: list[tuple[int, int, int]] = [(len(x), x.shape[1], x.shape[2]) for x in stacks]
    for places in batches(shapes, dtype=dtype, batch_bytes=batch_bytes):
        own = [shapes[place] for place in places]
        batch = MatrixBatch(own, dtype=dtype, device=stacks[places[0]].device)
        batch.fill_([stacks[place] for place in places])
        short, long = batch.data.shape[-2:]
        limit = batch_limit(short, long, dtype, batch_bytes=batch_bytes)
        factor = _each([factors[place] for place in places], batch)
        found = batch.stacks(_in_pieces(batch.data, function, factor, limit))
        for place, result in zip(places, found, strict=True):
            results[place] = result
    return results


def _in_pieces(
    data: Tensor, function: Callable[[Tensor, Factor], Tensor], factor: Factor, limit: int
) -> Tensor:
    """Apply a function to at most ``limit`` matrices at once; overwrites ``data``."""
    places = divide(len(data), limit)
    if len(places) == 1:
        return function(data, factor)
    for place in places:
        own = factor[place] if isinstance(factor, Tensor) else factor
        data[place] = function(data[place], own)
    return data


def _each(factors: Sequence[float], batch: MatrixBatch) -> Factor:
    """The factor of each matrix, or one number where all are the same, as mostly."""
    if len(set(factors)) == 1:
        return factors[0]
    counts = [count for count, _, _ in batch.shapes]
    each = [factor for factor, count in zip(factors, counts, strict=True) for _ in range(count)]
    return torch.tensor(each, dtype=batch.data.dtype, device=batch.data.device)[:, None, None]


def spectral_step_(
    batch: MatrixBatch,
    onto: Tensor,
    *,
    factor: float,
    keep: float,
    schedule: Schedule,
    steps: int,
    limit: int | None = None,
) -> None:
    """Change a weight in place to keep · W + factor · UVᵀ, without a tensor for the update.

    Args:
        batch: gradient or momentum of one parameter; its memory is overwritten.
        onto: the weight as ``view_as_batch`` gives it, of the dtype of the batch.
        factor: of the polar factor, with the sign of the step.
        keep: what weight decay leaves, see ``kept_share``.
        schedule: coefficient table of the Newton–Schulz iteration.
        steps: number of its steps.
        limit: largest number of matrices to iterate at once; default all.
    """
    for place in divide(len(onto), limit):
        newton_schulz_(
            batch.data[place],
            schedule=schedule,
            steps=steps,
            factor=factor,
            onto=onto[place],
            keep=keep,
        )


def divide(count: int, limit: int | None) -> list[slice]:
    """Divide a batch into pieces of at most ``limit`` matrices."""
    step = count if limit is None else max(limit, 1)
    return [slice(start, start + step) for start in range(0, count, max(step, 1))]


def resolve_dtype(x: Tensor, name: IterationDtype) -> torch.dtype:
    """Return the dtype to iterate in.

    "auto" is float64 for float64 input. For all other input it is float32 on a CPU, where 16-bit
    products are slow and gain nothing, and bfloat16 on accelerators, whose matrix units are made
    for it.
    """
    if name == "auto":
        if x.dtype == torch.float64:
            return torch.float64
        return torch.float32 if x.device.type == "cpu" else torch.bfloat16
    return {
        "float64": torch.float64,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[name]
