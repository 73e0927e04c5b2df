"""Odd polynomial iterations on wide matrices, in two forms with the same result.

Whatever is linear is done on the short side: the first Gram matrix gives the norm, and the factors
for normalising X and for scaling the result go into the polynomials. X itself is read as often as
there are products with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from steepest.linalg.schedules import Coefficients
from steepest.linalg.symmetric import panel_count, symmetric_product

Form = Literal["plain", "gram"]
Factor: TypeAlias = "Tensor | float"

# aspect ratio from which the Gram form needs less time, for short sides below 128 and from there
# on; measured by benchmarks/bench_polar.py
_GRAM_ASPECTS = (3.0, 1.6)
# short side up to which matrices are iterated as one batch; above it, one by one is as fast and the
# symmetric products come in
BATCHED_SIDE = 384


def choose_form(x: Tensor) -> Form:
    """Return the form that needs less time for wide matrices, where it is as accurate.

    In 16 bits the accumulated product of the Gram form rounds twice as much away.
    """
    short, long = x.shape[-2:]
    far_from_square = long >= _GRAM_ASPECTS[short >= 128] * short
    return "gram" if far_from_square and x.dtype.itemsize >= 4 else "plain"


def iterate(
    x: Tensor,
    table: Sequence[Coefficients],
    *,
    form: Form,
    squared_norms: Tensor | None = None,
    factor: Factor = 1.0,
) -> Tensor:
    """Apply the polynomials to each matrix; ``x`` serves as workspace and is overwritten.

    Extra memory: one copy of ``x`` and two to four ``m × m`` matrices for each matrix that is
    worked on at once, which is all of them up to a short side of 384 and one above.

    Args:
        x: ``(b, m, n)`` with m ≤ n; contiguous, or the transpose of what is.
        table: (a, b, c) for each step.
        form: "plain" multiplies X itself at every step; "gram" works on XXᵀ and multiplies X at
            the end of each segment.
        squared_norms: ``(b, 1, 1)``, ‖X‖² of each matrix, which is normalised by it on the way;
            None, as always in 16 bits, where the spectral norm is at most one already.
        factor: of the result, a number or ``(b, 1, 1)``.

    Returns:
        ``(b, m, n)``.
    """
    step = _plain if form == "plain" else _gram
    if x.shape[0] == 1:
        norm = None if squared_norms is None else squared_norms[0]
        return step(x[0], table, norm, factor[0] if isinstance(factor, Tensor) else factor)[None]
    if x.shape[0] > 1 and x.shape[1] <= BATCHED_SIDE:
        return step(x, table, squared_norms, factor)
    for place, matrix in enumerate(x):
        norm = None if squared_norms is None else squared_norms[place]
        own = factor[place] if isinstance(factor, Tensor) else factor
        matrix.copy_(step(matrix, table, norm, own))
    return x


def _plain(
    x: Tensor, table: Sequence[Coefficients], squared_norm: Tensor | None, factor: Factor
) -> Tensor:
    """X ← aX + (bA + cA²)X with A = XXᵀ, on ``(b, m, n)`` or ``(m, n)``."""
    other = torch.empty_like(x)
    gram = x.new_empty(*x.shape[:-1], x.shape[-2])
    polynomial = torch.empty_like(gram)
    for step, (a, b, c) in enumerate(table):
        symmetric_product(x, x.mT, out=gram)
        if step == 0 and squared_norm is not None:
            gram /= squared_norm
        _polynomial(gram, b, c, out=polynomial)
        outside = a
        if x.dtype.itemsize >= 4:
            outside = 0.0
            polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
            if step == 0 and squared_norm is not None:
                polynomial *= torch.rsqrt(squared_norm)
            if step == len(table) - 1 and (isinstance(factor, Tensor) or factor != 1.0):
                polynomial *= factor
        # in 16 bits a stands outside of the product: inside, the rest would be rounded away
        _product(polynomial, x, out=other, beta=outside)
        x, other = other, x
    return x if x.dtype.itemsize >= 4 else x.mul_(factor)


def _product(left: Tensor, right: Tensor, *, out: Tensor, beta: float) -> None:
    """Write ``beta·right + left @ right`` into ``out``."""
    if beta == 0.0:
        torch.matmul(left, right, out=out)
    else:
        fused = torch.baddbmm if right.ndim == 3 else torch.addmm
        fused(right, left, right, beta=beta, out=out)


def _gram(
    x: Tensor, table: Sequence[Coefficients], squared_norm: Tensor | None, factor: Factor
) -> Tensor:
    """X ← QX with Q the product of the P = aI + bA + cA², and A ← PAP, all of one eigenbasis.

    The small eigenvalues of A carry the rounding of the large ones, and every step raises both; so
    after each segment A is formed from X anew.
    """
    segments = list(_segments(table, x.dtype))
    for segment in segments:
        gram = x.new_empty(*x.shape[:-1], x.shape[-2])
        symmetric_product(x, x.mT, out=gram)
        if squared_norm is not None:
            gram /= squared_norm
        total, polynomial, work = (torch.empty_like(gram) for _ in range(3))
        for step, (a, b, c) in enumerate(segment):
            target = total if step == 0 else polynomial
            _polynomial(gram, b, c, out=target)
            target.diagonal(dim1=-2, dim2=-1).add_(a)
            if step > 0:
                symmetric_product(polynomial, total, out=work)
                total, work = work, total
            if step < len(segment) - 1:
                symmetric_product(target, gram, out=work)
                symmetric_product(work, target, out=gram)
        if squared_norm is not None:
            total *= torch.rsqrt(squared_norm)
            squared_norm = None
        if segment is segments[-1] and (isinstance(factor, Tensor) or factor != 1.0):
            total *= factor
        x = torch.matmul(total, x, out=torch.empty_like(x))
    return x


def _polynomial(gram: Tensor, b: float, c: float, *, out: Tensor) -> None:
    """Write bA + cA² into ``out``."""
    if c == 0.0:
        torch.mul(gram, b, out=out)
    elif gram.ndim == 3:
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=out)
    elif panel_count(gram) == 1:
        torch.addmm(gram, gram, gram, beta=b, alpha=c, out=out)
    else:
        symmetric_product(gram, gram, out=out)
        out.mul_(c).add_(gram, alpha=b)


def _segments(
    table: Sequence[Coefficients], dtype: torch.dtype
) -> Iterator[Sequence[Coefficients]]:
    """Divide the steps where the Gram form must start anew.

    Five steps in float32 need no new start (error below 3e-3 even on ill-conditioned input);
    longer schedules need one after the third step, and 16-bit iterations after the second.
    """
    narrow = dtype.itemsize < 4
    if len(table) <= (2 if narrow else 5):
        yield table
        return
    first, length = (2, 3) if narrow else (3, 5)
    yield table[:first]
    for start in range(first, len(table), length):
        yield table[start : start + length]
