"""The steepest direction in the spectral norm: the polar factor, scaled by the matrix's shape."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from steepest.geometry.matrices import Layout, as_matrices, matrix_shape
from steepest.geometry.scale import Scale, shape_factor
from steepest.linalg.polar import newton_schulz
from steepest.linalg.schedules import Schedule

IterationDtype = Literal["auto", "float64", "float32", "bfloat16"]


def spectral_direction(
    x: Tensor,
    *,
    layout: Layout,
    schedule: Schedule,
    steps: int,
    scale: Scale,
    iteration_dtype: IterationDtype = "auto",
) -> Tensor:
    r"""Return scale · UVᵀ for each matrix UΣVᵀ that ``x`` holds.

    Among all matrices of spectral norm one, UVᵀ has the largest inner product with the gradient.

    Args:
        x: a gradient or momentum of the parameter's shape; not changed.
        layout: how it is seen as matrices.
        schedule: coefficient table of the Newton–Schulz iteration.
        steps: number of its steps.
        scale: rule for the length, applied to the shape of each matrix.
        iteration_dtype: dtype of the iteration, see ``resolve_dtype``.

    Returns:
        A new tensor of the shape and dtype of ``x``.

    Source: Carlson, Cevher & Carin, Stochastic spectral descent (AISTATS 2015).
    """
    if x.numel() == 0:
        return x.clone()
    _, rows, columns = matrix_shape(x.shape, layout)
    polar = newton_schulz(
        as_matrices(x, layout),
        schedule=schedule,
        steps=steps,
        dtype=resolve_dtype(x, iteration_dtype),
    )
    return polar.mul_(shape_factor(scale, rows, columns)).reshape(x.shape)


def resolve_dtype(x: Tensor, name: IterationDtype) -> torch.dtype:
    """Return the dtype to iterate in.

    "auto" is float64 for float64 input. For all other input it is float32 on a CPU, where 16-bit
    products are slow and gain nothing, and bfloat16 on accelerators, whose matrix units are made
    for it.
    """
    if name != "auto":
        named: dict[str, torch.dtype] = {
            "float64": torch.float64,
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
        }
        return named[name]
    if x.dtype == torch.float64:
        return torch.float64
    return torch.float32 if x.device.type == "cpu" else torch.bfloat16
