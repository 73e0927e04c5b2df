"""Solves with a metric "damping + columns", by algebra on the Gram matrix of the columns alone."""

from __future__ import annotations

import torch
from torch import Tensor


def projected_coefficients(
    gram: Tensor,
    weights: Tensor,
    *,
    damping: Tensor,
    recent: Tensor,
    newest: int,
    rho: float,
    alpha: float,
    power: float = 1.0,
) -> Tensor:
    r"""Return the coefficients of the projection-regularized direction over the columns.

    For columns B (p × M), N = BᵀB and S = λI + B diag(w) Bᵀ, the direction

    $$d = S^{-q/2}[(1-α)P + αI]S^{-q/2}g, \quad P = S^{-1/2}G K^{-1}G^T S^{-1/2},
      \quad K = G^T S^{-1} G + ρI$$

    with G = BE the recent columns, g = Be the newest and q the ``power`` is d = Bc. For q = 1

    $$c = T[(1-α) E (E^T N T E + ρI)^{-1} E^T N T e + α e], \quad T = (λI + diag(w) N)^{-1}.$$

    It is formed from the eigendecomposition D N D = V diag(x) Vᵀ, D = diag(√w): with R = VᵀD⁻¹E,
    of which r belongs to g, and s = λ + x,

    $$c = D V [s^{-(1+q)/2} R\,y + α s^{-q} r], \quad
      y = (1-α)(R^T \tfrac{x}{s} R + ρI)^{-1} R^T x s^{-(1+q)/2} r$$

    so that nothing cancels and no factorization can fail, however the Gram matrix is scaled and
    whatever its rank.

    Args:
        gram: ``(…, M, M)`` float64, N of each metric.
        weights: ``(M,)`` float64, w, each positive.
        damping: ``(…)`` float64, λ, positive.
        recent: ``(k,)`` int64, the columns E of the window.
        newest: the column e of the current gradient.
        rho: ρ, positive.
        alpha: α in [0, 1].
        power: q, above 0: 1 for the metric itself, 0.5 for its root.

    Returns:
        ``(…, M)`` float64, c.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> projected_coefficients(  # a single column: S⁻¹g = g/(λ + ‖g‖²)
        ...     4 * one[None], one, damping=torch.tensor(1.0),
        ...     recent=torch.tensor([0]), newest=0, rho=0.1, alpha=1.0,
        ... )
        tensor([0.2000], dtype=torch.float64)
    """
    root = weights.sqrt()
    values, vectors = torch.linalg.eigh(gram * root[:, None] * root)
    values = values.clamp_min(0.0)  # of a Gram matrix: below zero only by rounding
    shifted = damping[..., None] + values
    half = shifted ** (-(1.0 + power) / 2.0)
    if len(recent) == len(weights) and bool((weights == weights[0]).all()):
        # β = 0: K has the same eigenvectors
        squares = values / weights[0]
        # in this order, which is finite where an eigenvalue of zero meets a tiny λ
        filtered = half * (half * squares / (squares / shifted + rho))
        blend: Tensor = (1.0 - alpha) * filtered + alpha * shifted**-power
        return _times(vectors, blend * vectors[..., newest, :])
    own = vectors[..., newest, :] / root[newest]  # r
    projected = vectors[..., recent, :] / root[recent, None]  # Rᵀ
    inner = (projected * (values / shifted)[..., None, :]) @ projected.mT
    inside = projection_coefficients(
        inner, _times(projected, values * half * own), rho=rho, alpha=alpha
    )
    across = half * _times(projected.mT, inside) + alpha * shifted**-power * own
    return root * _times(vectors, across)


def projection_coefficients(inner: Tensor, right: Tensor, *, rho: float, alpha: float) -> Tensor:
    r"""Return $(1-α)(M + ρI)^{-1} v$, the regularized projection over the columns of the window.

    Args:
        inner: ``(…, k, k)`` float64, M = GᵀS⁻¹G, symmetric positive semidefinite.
        right: ``(…, k)`` float64, v.
        rho: ρ, positive.
        alpha: α in [0, 1].

    Returns:
        ``(…, k)`` float64.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> projection_coefficients(one[None], one, rho=1.0, alpha=0.0)
        tensor([0.5000], dtype=torch.float64)
    """
    values, vectors = torch.linalg.eigh(inner)
    filtered = _times(vectors.mT, right) / (values.clamp_min(0.0) + rho)
    return (1.0 - alpha) * _times(vectors, filtered)


def tail_mixture(gram: Tensor, weights: Tensor, *, rank: int, shrink: bool) -> tuple[Tensor, float]:
    r"""Return the combinations of columns that stand for all of them in a metric.

    For columns B (p × T), N = BᵀB and D = diag(√w), the eigendecomposition D N D = V diag(x) Vᵀ
    gives B D² Bᵀ = Σ x_j u_j u_jᵀ with orthonormal u_j. The R largest terms are kept: the best
    approximation of rank R. With ``shrink`` they are reduced by δ = x_{R+1}, as in frequent
    directions, so that after any number of such steps

    $$0 ⪯ A - \tilde A ⪯ Δ I, \qquad Δ = \sum δ ≤ \|A - A_k\|_* / (R + 1 - k), \quad k ≤ R,$$

    with A the sum that is approximated and A_k its best approximation of rank k; adding δ to the
    damping makes up for it.

    Args:
        gram: ``(T, T)`` float64, N.
        weights: ``(T,)`` float64, w, each positive.
        rank: R, below T.
        shrink: whether to reduce what is kept by what is cut.

    Returns:
        ``(T, R)`` float64, C, with Ã = max(w) · B C Cᵀ Bᵀ; and δ, or 0 without ``shrink``.

    Example:
        >>> gram = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
        >>> mixture, cut = tail_mixture(gram, torch.ones(2).double(), rank=1, shrink=True)
        >>> round((mixture.T @ gram @ mixture).item(), 9), cut
        (3.0, 1.0)

    Source: Ghashami et al., Frequent directions (arXiv:1501.01711); the damping as in Feinberg et
    al., Sketchy (arXiv:2302.03764).
    """
    root = weights.sqrt()
    values, vectors = torch.linalg.eigh(gram * root[:, None] * root)
    values = values.clamp_min(0.0)
    cut = float(values[-rank - 1]) if shrink else 0.0
    kept = values[-rank:]
    share = ((kept - cut).clamp_min(0.0) / kept.clamp_min(torch.finfo(kept.dtype).tiny)).sqrt()
    return root[:, None] * vectors[:, -rank:] * share / root.max(), cut


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Product of matrices ``(…, m, n)`` with vectors ``(…, n)``."""
    product: Tensor = (matrix @ vector[..., None])[..., 0]
    return product
