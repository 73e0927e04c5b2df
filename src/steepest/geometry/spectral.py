"""The steepest direction in the spectral norm: the polar factor, scaled by the matrix's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from steepest.geometry.batching import batch_limit, batches
from steepest.geometry.blocks import Blocks
from steepest.geometry.matrices import MatrixBatch
from steepest.geometry.scale import Scale, shape_factor
from steepest.linalg.polar import newton_schulz_
from steepest.linalg.schedules import Schedule

IterationDtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]


def spectral_directions(
    tensors: Sequence[Tensor],
    blocks: Blocks,
    *,
    schedule: Schedule,
    steps: int,
    scale: Scale,
    iteration_dtype: IterationDtype = "auto",
    batch_bytes: int = 0,
) -> list[Tensor]:
    r"""Return scale · UVᵀ for each matrix UΣVᵀ that the tensors hold.

    Among all matrices of spectral norm one, UVᵀ has the largest inner product with the gradient.

    Args:
        tensors: gradients or momenta of the parameters' shapes, of one dtype and device.
        blocks: how each is seen as matrices.
        schedule: coefficient table of the Newton–Schulz iteration.
        steps: number of its steps.
        scale: rule for the length, applied to the shape of each matrix.
        iteration_dtype: dtype of the iteration, see ``resolve_dtype``.
        batch_bytes: what a batch may take, if it holds more than one block.

    Returns:
        New tensors of the same shapes and dtype.

    Source: Carlson, Cevher & Carin, Stochastic spectral descent (AISTATS 2015).
    """
    results = [torch.empty_like(x) for x in tensors]
    pairs = [
        (source, target)
        for x, result in zip(tensors, results, strict=True)
        for source, target in zip(blocks(x), blocks(result), strict=True)
        if source.view.numel() > 0
    ]
    if not pairs:
        return results
    dtype = resolve_dtype(tensors[0], iteration_dtype)
    shapes = [source.shape for source, _ in pairs]
    for places in batches(shapes, dtype=dtype, batch_bytes=batch_bytes):
        own = [shapes[place] for place in places]
        batch = MatrixBatch(own, layout="stack", dtype=dtype, device=tensors[0].device)
        batch.fill_([pairs[place][0].matrices() for place in places])
        directions = spectral_directions_(
            batch,
            schedule=schedule,
            steps=steps,
            scale=scale,
            limit=batch_limit(min(own[0][1:]), max(own[0][1:]), dtype, batch_bytes=batch_bytes),
        )
        for place, direction in zip(places, directions, strict=True):
            view = pairs[place][1].view
            view.copy_(direction.reshape(view.shape))
    return results


def spectral_directions_(
    batch: MatrixBatch, *, schedule: Schedule, steps: int, scale: Scale, limit: int | None = None
) -> list[Tensor]:
    """Return scale · UVᵀ for the matrices of a batch, in the shape of each parameter.

    Args:
        batch: gradients or momenta; its memory is overwritten.
        schedule: coefficient table of the Newton–Schulz iteration.
        steps: number of its steps.
        scale: rule for the length, applied to the shape of each matrix.
        limit: largest number of matrices to iterate at once; default all.
    """
    polar, factor = batch.data, _factor(batch, scale)
    places = _places(len(polar), limit)
    for place in places:
        result = newton_schulz_(
            polar[place], schedule=schedule, steps=steps, factor=_at(factor, place)
        )
        if len(places) == 1:
            return batch.parameters(result)
        polar[place] = result
    return batch.parameters(polar)


def spectral_step_(
    batch: MatrixBatch,
    onto: Tensor,
    *,
    lr: float,
    keep: float,
    schedule: Schedule,
    steps: int,
    scale: Scale,
    limit: int | None = None,
) -> None:
    """Change a weight in place to keep · W − lr · scale · UVᵀ, without a tensor for the update.

    Args:
        batch: gradient or momentum of one parameter; its memory is overwritten.
        onto: the weight as ``view_as_batch`` gives it, of the dtype of the batch.
        lr: η.
        keep: what weight decay leaves, see ``kept_share``.
        schedule: coefficient table of the Newton–Schulz iteration.
        steps: number of its steps.
        scale: rule for the length, applied to the shape of each matrix.
        limit: largest number of matrices to iterate at once; default all.
    """
    factor = -lr * _factor(batch, scale)
    for place in _places(len(onto), limit):
        newton_schulz_(
            batch.data[place],
            schedule=schedule,
            steps=steps,
            factor=_at(factor, place),
            onto=onto[place],
            keep=keep,
        )


def _places(count: int, limit: int | None) -> list[slice]:
    """Divide a batch into pieces of at most ``limit`` matrices."""
    step = count if limit is None else max(limit, 1)
    return [slice(start, start + step) for start in range(0, count, max(step, 1))]


def _at(factor: Tensor | float, place: slice) -> Tensor | float:
    return factor[place] if isinstance(factor, Tensor) else factor


def _factor(batch: MatrixBatch, scale: Scale) -> Tensor | float:
    """The factor of each matrix, or one number where all are the same, as mostly."""
    factors = [shape_factor(scale, rows, columns) for _, rows, columns in batch.matrices]
    if len(set(factors)) == 1:
        return factors[0]
    counts = [count for count, _, _ in batch.matrices]
    each = [factor for factor, count in zip(factors, counts, strict=True) for _ in range(count)]
    return torch.tensor(each, dtype=batch.data.dtype, device=batch.data.device)[:, None, None]


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
