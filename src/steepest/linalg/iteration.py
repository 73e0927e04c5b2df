"""Odd polynomial iterations on wide matrices, in two forms with the same result.

Whatever is linear is done on the short side: the first Gram matrix gives the norm, and the factors
for normalising X and for scaling the result go into the polynomials. X itself is read as often as
there are products with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from steepest.linalg.normalize import normalize_
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


def choose_form(short: int, long: int, dtype: torch.dtype) -> Form:
    """Return the form that needs less time for wide matrices, where it is as accurate.

    In 16 bits the accumulated product of the Gram form rounds twice as much away, and on matrices
    that are near to square the Gram form loses the digits of small singular values.
    """
    far_from_square = long >= (_GRAM_ASPECTS[1] if short >= 128 else _GRAM_ASPECTS[0]) * short
    return "gram" if far_from_square and dtype.itemsize >= 4 else "plain"


def iterate(
    x: Tensor,
    table: Sequence[Coefficients],
    *,
    form: Form,
    normalized: bool = False,
    factor: Factor = 1.0,
    onto: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """Normalise each matrix and apply the polynomials; ``x`` is workspace and is overwritten.

    Extra memory: one copy of ``x`` and two to four ``m × m`` matrices for each matrix that is
    worked on at once, which is all of them up to a short side of 384 and one above.

    Args:
        x: ``(b, m, n)`` with m ≤ n; contiguous, or the transpose of what is.
        table: (a, b, c) for each step.
        form: "plain" multiplies X itself at every step; "gram" works on XXᵀ and multiplies X at
            the end of each segment.
        normalized: whether the spectral norms are at most one already.
        factor: of the result, a number or ``(b, 1, 1)``.
        onto: where given, ``(b, m, n)``, which becomes ``keep·onto + result``; above 16 bits
            the last product itself writes it.
        keep: see ``onto``.

    Returns:
        ``(b, m, n)``; ``onto`` where that is given.
    """
    if not normalized and not _measured_by_gram(x):
        normalize_(x)
        normalized = True
    iterated = _plain if form == "plain" else _gram
    if x.shape[0] > 1 and x.shape[1] <= BATCHED_SIDE:
        return _multiply_(iterated(x, table, normalized), factor, onto, keep)
    for place, matrix in enumerate(x):
        own = factor[place] if isinstance(factor, Tensor) else factor
        target = None if onto is None else onto[place]
        result = _multiply_(iterated(matrix, table, normalized), own, target, keep)
        if x.shape[0] == 1:
            return result[None]
        if onto is None:
            matrix.copy_(result)
    return x if onto is None else onto


class _Product(NamedTuple):
    """The result of an iteration, not yet multiplied: outside·X + PX."""

    left: Tensor  # P, (…, m, m)
    right: Tensor  # X, (…, m, n)
    outside: float
    spare: Tensor | None  # memory for the result


def _multiply_(product: _Product, factor: Factor, onto: Tensor | None, keep: float) -> Tensor:
    """Return the product times ``factor``; with ``onto``, ``onto ← keep·onto + factor·product``."""
    left, right, outside, spare = product
    batched = right.ndim == 3
    if outside == 0.0 and onto is not None:
        if isinstance(factor, Tensor):
            left, factor = left.mul_(factor), 1.0
        add_ = onto.baddbmm_ if batched else onto.addmm_
        return add_(left, right, beta=keep, alpha=factor)
    out = torch.empty_like(right) if spare is None else spare
    scaled = isinstance(factor, Tensor) or factor != 1.0
    if outside == 0.0:
        return torch.matmul(left.mul_(factor) if scaled else left, right, out=out)
    fused = torch.baddbmm if batched else torch.addmm
    result = fused(right, left, right, beta=outside, out=out)
    if scaled:
        result *= factor
    return result if onto is None else onto.mul_(keep).add_(result)


def _measured_by_gram(x: Tensor) -> bool:
    """Whether the trace of XXᵀ may stand for ‖X‖².

    Not in 16 bits, and not off the CPU, where looking at it would wait for the device.
    """
    return x.device.type == "cpu" and x.dtype.itemsize >= 4


def _gram_matrix_(x: Tensor, gram: Tensor, *, normalized: bool) -> Tensor | None:
    """Write the Gram matrix of X/‖X‖ into ``gram``; return ‖X‖² unless X itself is normalised."""
    symmetric_product(x, x.mT, out=gram)
    if normalized:
        return None
    squared: Tensor = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    if not bool(((squared > 1e-24) & (squared < 1e24)).all()):
        # huge, tiny, zero or not finite, where squares leave the range of floats
        normalize_(x)
        symmetric_product(x, x.mT, out=gram)
        return None
    gram /= squared
    return squared


def _plain(x: Tensor, table: Sequence[Coefficients], normalized: bool) -> _Product:
    """X ← aX + (bA + cA²)X with A = XXᵀ, on ``(b, m, n)`` or ``(m, n)``."""
    spare = None
    gram = x.new_empty(*x.shape[:-1], x.shape[-2])
    polynomial = torch.empty_like(gram)
    product = None
    for a, b, c in table:
        if product is not None:
            x, spare = _multiply_(product, 1.0, None, 0.0), x
        squared_norm = _gram_matrix_(x, gram, normalized=normalized)
        normalized = True
        _polynomial(gram, b, c, out=polynomial)
        # in 16 bits a stands outside of the product: inside, the rest would be rounded away
        outside = a
        if x.dtype.itemsize >= 4:
            outside = 0.0
            polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
            if squared_norm is not None:
                polynomial *= torch.rsqrt(squared_norm)
        product = _Product(polynomial, x, outside, spare)
    assert product is not None  # a table has at least one step
    return product


def _gram(x: Tensor, table: Sequence[Coefficients], normalized: bool) -> _Product:
    """X ← QX with Q the product of the P = aI + bA + cA², and A ← PAP, all of one eigenbasis.

    The small eigenvalues of A carry the rounding of the large ones, and every step raises both; so
    after each segment A is formed from X anew.
    """
    product = None
    for segment in _segments(table, x.dtype):
        if product is not None:
            x = _multiply_(product, 1.0, None, 0.0)
        gram = x.new_empty(*x.shape[:-1], x.shape[-2])
        squared_norm = _gram_matrix_(x, gram, normalized=normalized)
        normalized = True
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
        product = _Product(total, x, 0.0, None)
    assert product is not None
    return product


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
