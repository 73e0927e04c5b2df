"""The polar factor by direct methods: singular values, Gram eigenvalues, and Cholesky-based QDWH.

All take finite wide matrices ``(b, m, n)``, m ≤ n, of norm one or zero, and return the partial
isometry U_r V_rᵀ over the numerical range: the singular values above ``range_tolerance`` times the
largest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_QDWH_STEPS = 9  # six bring 1e-16 to one; the rest is for rounding
_QR_ABOVE = 100.0  # weight from which Cholesky would square too large a condition number


def range_tolerance(rows: int, columns: int, dtype: torch.dtype) -> float:
    """Return the relative size of a singular value that rounding of ``dtype`` alone can make."""
    return max(rows, columns) * torch.finfo(dtype).eps


def polar_svd(x: Tensor, *, tolerance: float) -> Tensor:
    """Return the polar factor by singular value decomposition.

    Args:
        x: ``(b, m, n)``.
        tolerance: relative singular value up to which a direction counts as null space.
    """
    u, values, vh = torch.linalg.svd(x, full_matrices=False)
    kept = values > tolerance * values[..., :1]
    factor: Tensor = (u * kept[..., None, :].to(x.dtype)) @ vh
    return factor


def polar_eigh(x: Tensor, *, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the polar factor (XXᵀ)^{-1/2} X by the eigenvalues of XXᵀ, and its expected error.

    Squaring the matrix squares its condition number: the relative error is about ε (s_max/s)² over
    the singular values in the mean square.

    Args:
        x: ``(b, m, n)``.
        tolerance: relative singular value up to which a direction counts as null space.

    Returns:
        The factors, and ``(b,)`` estimates of their relative error; infinite where the smallest
        eigenvalues are rounding alone, so that the range cannot be told.
    """
    rounding = 8.0 * torch.finfo(x.dtype).eps * x.shape[-2] ** 0.5
    values, vectors = torch.linalg.eigh(x @ x.mT)
    largest = values[..., -1:]
    kept = values > max(tolerance**2, rounding) * largest
    root = torch.where(kept, values, 1.0).rsqrt() * kept
    factor = (vectors * root[..., None, :]) @ (vectors.mT @ x)

    ratios = largest / torch.where(kept, values, largest)
    error = rounding * ratios.square().mean(dim=-1).sqrt()
    if tolerance**2 < rounding:  # what was cut may be noise, or belong to the range
        error = torch.where(kept.all(dim=-1), error, math.inf)
    return factor, torch.where(largest[..., 0] > 0, error, 0.0)


def polar_qdwh(x: Tensor, *, lower: float) -> Tensor:
    r"""Return the polar factor of full-rank matrices by dynamically weighted Halley iteration.

    $$
    X ← \frac{b}{c} X + (a - \frac{b}{c}) (I + c\,XX^T)^{-1} X
    $$

    with the weights that are best for the interval [l, 1], which the iteration maps to the next.
    While c is large the inverse is taken by QR, which does not square the condition number.

    Args:
        x: ``(b, m, n)``.
        lower: l, a lower bound of the singular values relative to the largest.

    Source: Nakatsukasa, Bai & Gygi, Optimizing Halley's iteration for computing the matrix polar
    decomposition, SIAM J. Matrix Anal. Appl. 31 (2010).
    """
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    low = lower
    for _ in range(_QDWH_STEPS):
        if 1.0 - low < torch.finfo(x.dtype).eps:
            break
        d = (4.0 * (1.0 - low**2) / low**4) ** (1.0 / 3.0)
        root = math.sqrt(1.0 + d)
        a = root + 0.5 * math.sqrt(8.0 - 4.0 * d + 8.0 * (2.0 - low**2) / (low**2 * root))
        b = (a - 1.0) ** 2 / 4.0
        c = a + b - 1.0
        x = b / c * x + (a - b / c) * _damped_inverse_times(x, c, identity)
        low = min(1.0, low * (a + b * low**2) / (1.0 + c * low**2))
    return x


def _damped_inverse_times(x: Tensor, c: float, identity: Tensor) -> Tensor:
    """Return (I + cXXᵀ)⁻¹ X."""
    if c <= _QR_ABOVE:
        gram = torch.baddbmm(identity.expand(x.shape[0], -1, -1), x, x.mT, beta=1.0, alpha=c)
        return torch.cholesky_solve(x, torch.linalg.cholesky(gram))
    # the rows of [√c Xᵀ; I] = [Q₁; Q₂]R give Q₂ Q₁ᵀ = √c (I + cXXᵀ)⁻¹ X
    stacked = torch.cat([math.sqrt(c) * x.mT, identity.expand(x.shape[0], -1, -1)], dim=-2)
    q = torch.linalg.qr(stacked).Q
    first, second = q[..., : x.shape[-1], :], q[..., x.shape[-1] :, :]
    product: Tensor = second @ first.mT / math.sqrt(c)
    return product
