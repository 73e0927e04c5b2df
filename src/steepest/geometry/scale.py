"""How long the step is: the factor of a direction, by its norm and the shape of the matrix."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from steepest.linalg.normalize import iteration_dtype

Scale = Literal["match_rms_adamw", "original", "spectral", "unit_rms", "none", "nuclear"]
Norm = Literal["spectral", "sign", "row", "column"]


def shape_factor(scale: Scale, rows: int, columns: int, norm: Norm = "spectral") -> float:
    r"""Return the factor of a direction of unit ``norm``, ``rows × columns``, rows being outputs.

    ==================  ========================  =====================================
    ``scale``           factor of UVᵀ             source
    ==================  ========================  =====================================
    match_rms_adamw     0.2·√max(out, in)         Liu et al., arXiv:2502.16982
    original            √max(1, out/in)           Jordan et al., Muon (2024)
    spectral            √max(out, in)             Liu et al., without the 0.2
    unit_rms            √(out/in)                 Bernstein & Newhouse, arXiv:2409.20325
    none                1
    nuclear             ‖D‖_* = ⟨D, UVᵀ⟩          Lau et al., PolarGrad, arXiv:2505.21799
    ==================  ========================  =====================================

    An orthogonal matrix has root mean square 1/√max(out, in), so "match_rms_adamw" gives an update
    of root mean square 0.2, about that of AdamW, whatever the shape. For the other norms:

    ==================  =============  =============  =============
    ``scale``           sign           row            column
    ==================  =============  =============  =============
    match_rms_adamw     0.2            0.2·√in        0.2·√out
    spectral            1              √in            √out
    unit_rms            1/in           1/√in          √out
    ==================  =============  =============  =============

    and "original" and "none" as above; "nuclear" is the dual norm ⟨D, direction⟩, which depends
    on D and not on the shape: here it counts as 1.

    Args:
        scale: name of the rule.
        rows: number of outputs, at least 1.
        columns: number of inputs, at least 1.
        norm: in which the direction has length one.

    Raises:
        ValueError: for an unknown rule.

    Example:
        >>> shape_factor("original", 64, 16)
        2.0
        >>> shape_factor("match_rms_adamw", 64, 16)
        1.6
    """
    if scale in ("match_rms_adamw", "spectral"):
        squares = {
            "spectral": max(rows, columns), "sign": 1, "row": columns, "column": rows
        }  # fmt: skip
        return (0.2 if scale == "match_rms_adamw" else 1.0) * math.sqrt(squares[norm])
    if scale == "original":
        return math.sqrt(max(1.0, rows / columns))
    if scale == "unit_rms":
        if norm == "sign":
            return 1.0 / columns
        return math.sqrt({"spectral": rows / columns, "row": 1 / columns, "column": rows}[norm])
    if scale in ("none", "nuclear"):
        return 1.0
    raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")


def step_factor(
    direction: Tensor, average: Tensor, *, scale: Scale, norm: Norm, radius: float
) -> Tensor | float:
    """Return what a stack of directions is multiplied by.

    Args:
        direction: ``(count, rows, columns)``.
        average: D, of the same shape, for "nuclear".
        scale: name of the rule.
        norm: in which the directions have length one.
        radius: another factor.

    Returns:
        A number, or ``(count, 1, 1)``.
    """
    _, rows, columns = direction.shape
    if scale == "nuclear":
        return radius * (direction * average).sum(dim=(1, 2), keepdim=True)
    if rows == 0 or columns == 0:
        return 1.0
    return radius * shape_factor(scale, rows, columns, norm)


def full_length(direction: Tensor, *, norm: Norm | None) -> Tensor | float:
    """Return the Frobenius norm of directions of full rank and of length one in a norm.

    Args:
        direction: ``(count, rows, columns)``.
        norm: its name; None for the length that each direction has.

    Returns:
        A number, or ``(count, 1, 1)``.
    """
    _, rows, columns = direction.shape
    if norm is None:
        length: Tensor = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
        return length
    squares = {
        "spectral": min(rows, columns), "sign": rows * columns, "row": rows, "column": columns
    }  # fmt: skip
    return math.sqrt(squares[norm])


def as_long_as_orthogonal(stack: Tensor) -> Tensor:
    """Return matrices scaled to the Frobenius norm of orthogonal ones, √min(rows, columns).

    Args:
        stack: ``(count, rows, columns)``; not changed.
    """
    wide = stack.to(iteration_dtype(stack.dtype))
    length = torch.linalg.vector_norm(wide, dim=(1, 2), keepdim=True, dtype=torch.float64)
    factor = math.sqrt(min(stack.shape[1:])) / torch.where(length > 0.0, length, 1.0)
    return (wide * factor).to(wide.dtype)
