"""Solves with a metric "damping + columns", by algebra on the Gram matrix of the columns alone."""

from __future__ import annotations

import torch
from torch import Tensor


def projected_coefficients(
    gram: Tensor,
    weights: Tensor,
    *,
    damping: float,
    recent: Tensor,
    newest: int,
    rho: float,
    alpha: float,
) -> Tensor:
    r"""Return the coefficients of the projection-regularized direction over the columns.

    For columns B (p × M), N = BᵀB and S = λI + B diag(w) Bᵀ, the direction

    $$d = (1-α) S^{-1}G K^{-1} G^T S^{-1} g + α S^{-1} g, \quad K = G^T S^{-1} G + ρI$$

    with G = BE the recent columns and g = Be the newest is d = Bc, where

    $$c = T[(1-α) E (E^T N T E + ρI)^{-1} E^T N T e + α e], \quad T = (λI + diag(w) N)^{-1}.$$

    T is formed from the eigendecomposition of the symmetric D N D, D = diag(√w): then
    T = D (λI + DND)⁻¹ D⁻¹, every filter x/(λ + x) lies in [0, 1), and no factorization can fail,
    however the Gram matrix is scaled and whatever its rank.

    Args:
        gram: ``(M, M)`` float64, N.
        weights: ``(M,)`` float64, w, each positive.
        damping: λ, positive.
        recent: ``(k,)`` int64, the columns E of the window.
        newest: the column e of the current gradient.
        rho: ρ, positive.
        alpha: α in [0, 1].

    Returns:
        ``(M,)`` float64, c.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> projected_coefficients(  # a single column: S⁻¹g = g/(λ + ‖g‖²)
        ...     4 * one[None], one, damping=1.0,
        ...     recent=torch.tensor([0]), newest=0, rho=0.1, alpha=1.0,
        ... )
        tensor([0.2000], dtype=torch.float64)
    """
    root = weights.sqrt()
    values, vectors = torch.linalg.eigh(gram * root[:, None] * root)
    values = values.clamp_min(0.0)  # of a Gram matrix: below zero only by rounding

    # rows of the eigenvectors for the recent columns, times their part of D⁻¹
    projected = vectors[recent] / root[recent, None]
    # NTE on the recent columns, symmetric positive semidefinite
    inner = (projected * (values / (damping + values))) @ projected.mT
    position = int((recent == newest).nonzero()[0])
    inside = projection_coefficients(inner, position=position, rho=rho, alpha=alpha)
    result: Tensor = root * (vectors @ ((projected.mT @ inside) / (damping + values)))
    return result


def projection_coefficients(inner: Tensor, *, position: int, rho: float, alpha: float) -> Tensor:
    r"""Return the coefficients of the regularized projection over the columns of the window.

    With M = GᵀS⁻¹G and e the place of the current gradient in the window, the direction is
    d = S⁻¹G y with

    $$y = (1-α)(M + ρI)^{-1} M e + α e.$$

    Args:
        inner: ``(k, k)`` float64, M, symmetric positive semidefinite.
        position: index of the current gradient.
        rho: ρ, positive.
        alpha: α in [0, 1].

    Returns:
        ``(k,)`` float64, y.

    Example:
        >>> projection_coefficients(
        ...     torch.ones(1, 1, dtype=torch.float64), position=0, rho=1.0, alpha=0.0
        ... )
        tensor([0.5000], dtype=torch.float64)
    """
    damped = inner + rho * torch.eye(inner.shape[0], dtype=inner.dtype)
    result: Tensor = (1.0 - alpha) * torch.linalg.solve(damped, inner[:, position])
    result[position] += alpha
    return result
