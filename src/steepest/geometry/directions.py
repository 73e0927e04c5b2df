"""Which direction is steepest: the matrix of unit norm with the largest inner product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from steepest.geometry.scale import Norm
from steepest.geometry.spectral import IterationDtype, in_batches, resolve_dtype
from steepest.linalg.iteration import Factor
from steepest.linalg.normalize import iteration_dtype
from steepest.linalg.polar import Method, check_method, newton_schulz_, polar
from steepest.linalg.schedules import Schedule, coefficients
from steepest.linalg.spectrum import clip_spectrum, one_sided_polar

PolarMethod = Literal[
    "auto", "newton_schulz", "gram_newton_schulz", "svd", "eigh", "qdwh", "left", "right"
]


@dataclass(frozen=True)
class Geometry:
    r"""A norm of matrices, and how its steepest direction is computed: plain data.

    The steepest direction in a norm is the matrix of norm one whose inner product with D is
    largest. With D = UΣVᵀ and its rows dᵢ and columns dⱼ:

    ==========  ===========================================  =====================
    ``norm``    largest                                      direction
    ==========  ===========================================  =====================
    spectral    singular value                               UVᵀ
    sign        absolute value of an entry                   sign(D)
    row         length of a row                              dᵢ/‖dᵢ‖, row by row
    column      length of a column                           dⱼ/‖dⱼ‖, column by column
    ==========  ===========================================  =====================

    Attributes:
        norm: name of the norm; the options below are for "spectral".
        schedule: coefficient table of the polynomials.
        steps: number of polynomials.
        method: as of ``linalg.polar``, or "left" or "right" for the Gram matrix of the rows or of
            the columns.
        tolerance: error of the polar factor, for ``method="auto"``; None for ``steps`` polynomials.
        clip: (low, high) to clip the singular values to this interval, instead of setting all to
            one; None for the polar factor.
        iteration_dtype: dtype of the polynomials, see ``resolve_dtype``.
        batch_bytes: what a batch of small matrices may take.

    Source: Carlson, Cevher & Carin (AISTATS 2015) for the spectral norm; Pethick et al.,
    arXiv:2502.07529, for all.
    """

    norm: Norm
    schedule: Schedule
    steps: int
    method: PolarMethod
    tolerance: float | None
    clip: tuple[float, float] | None
    iteration_dtype: IterationDtype
    batch_bytes: int

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Geometry:
        """Return what the options of a parameter group say; not checked."""
        return cls(
            norm=group["norm"],
            schedule=group["schedule"],
            steps=group["steps"],
            method=group["method"],
            tolerance=group["tolerance"],
            clip=group["clip"],
            iteration_dtype=group["iteration_dtype"],
            batch_bytes=group["batch_bytes"],
        )

    @property
    def iterates(self) -> bool:
        """Whether directions are those of the batched polynomials."""
        return self.norm == "spectral" and self._is_common

    @property
    def _is_common(self) -> bool:
        """Whether none of the options is given that only the spectral norm has."""
        return self.method == "auto" and self.tolerance is None and self.clip is None

    def check(self) -> None:
        """Raise ``ValueError`` for an option out of range, or two that do not go together."""
        for name, value, allowed in (
            ("norm", self.norm, Norm),
            ("method", self.method, PolarMethod),
            ("iteration_dtype", self.iteration_dtype, IterationDtype),
        ):
            if value not in get_args(allowed):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}"
                )
        coefficients(self.schedule, self.steps)
        if self.method in get_args(Method):
            check_method(self.method, self.tolerance)
        elif self.tolerance is not None:
            raise ValueError(
                f"tolerance={self.tolerance!r} needs method='auto', got {self.method!r}"
            )
        if self.norm != "spectral" and not self._is_common:
            raise ValueError(
                f"method, tolerance and clip need norm='spectral', got norm={self.norm!r}"
            )
        if self.clip is None:
            return
        pair = isinstance(self.clip, Sequence) and len(self.clip) == 2
        numbers = pair and all(isinstance(bound, (int, float)) for bound in self.clip)
        if not numbers or not 0.0 <= self.clip[0] <= self.clip[1] < torch.inf:
            raise ValueError(
                "clip must be two finite numbers (low, high) with 0 <= low <= high, "
                f"got {self.clip!r}"
            )
        if self.method != "auto" or self.tolerance is not None:
            raise ValueError("clip is exact: it needs method='auto' and tolerance=None")

    def directions(
        self, stacks: Sequence[Tensor], factors: Sequence[float] | None = None
    ) -> list[Tensor]:
        """Return the steepest direction of each matrix.

        Args:
            stacks: ``(count, rows, columns)`` each, of one dtype and device; not changed.
            factors: of the directions of each stack; default 1.

        Returns:
            A tensor of its own for each stack, of its shape, at least in float32 or as wide as it.
        """
        if factors is None:
            factors = [1.0] * len(stacks)
        filled = [place for place, stack in enumerate(stacks) if stack.numel() > 0]
        if len(filled) < len(stacks):
            found = [torch.zeros_like(stack) for stack in stacks]
            full, own = [stacks[place] for place in filled], [factors[place] for place in filled]
            for place, direction in zip(filled, self.directions(full, own), strict=True):
                found[place] = direction
            return found
        if not stacks:
            return []
        if self.norm == "spectral" and self.method not in ("left", "right"):
            return self._in_batches(stacks, factors)
        wide = [stack.to(iteration_dtype(stack.dtype)) for stack in stacks]
        return [self._one_by_one(x).mul_(f) for x, f in zip(wide, factors, strict=True)]

    def _one_by_one(self, x: Tensor) -> Tensor:
        """What transposition, or zero columns beside it, would change."""
        if self.norm == "sign":
            return x.sign()
        if self.norm == "spectral":
            return one_sided_polar(x, side="left" if self.method == "left" else "right")
        return _unit(x, dim=2 if self.norm == "row" else 1)

    def _in_batches(self, stacks: Sequence[Tensor], factors: Sequence[float]) -> list[Tensor]:
        dtype = iteration_dtype(stacks[0].dtype)
        if self.iterates:
            dtype = resolve_dtype(stacks[0], self.iteration_dtype)
        found = in_batches(
            stacks, self._of_batch, factors, dtype=dtype, batch_bytes=self.batch_bytes
        )
        return found if dtype.itemsize >= 4 else [x.to(iteration_dtype(x.dtype)) for x in found]

    def _of_batch(self, x: Tensor, factor: Factor) -> Tensor:
        if self.iterates:
            return newton_schulz_(x, schedule=self.schedule, steps=self.steps, factor=factor)
        if self.clip is not None:
            low, high = self.clip
            return clip_spectrum(x, low=low, high=high).mul_(factor)
        method: Method = self.method  # type: ignore[assignment]
        return polar(
            x, method=method, schedule=self.schedule, steps=self.steps, tolerance=self.tolerance
        ).mul_(factor)


def _unit(x: Tensor, *, dim: int) -> Tensor:
    """Return ``x`` over its length along a dimension, at any scale; zeros stay."""
    largest = x.abs().amax(dim=dim, keepdim=True)
    scaled = x / torch.where(largest == 0.0, 1.0, largest)
    length = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    unit: Tensor = scaled / torch.where(length == 0.0, 1.0, length)
    return unit
