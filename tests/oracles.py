"""Slow references in float64, each written out from its formula and sharing no code with src."""

from __future__ import annotations

import torch
from torch import Tensor


def newton_schulz(x: Tensor, table: list[tuple[float, float, float]]) -> Tensor:
    """X ← aX + b(XXᵀ)X + c(XXᵀ)²X from X/‖X‖_F, in float64, one matrix."""
    x = x.double()
    x = x / x.norm()
    for a, b, c in table:
        x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
    return x


def polar(x: Tensor, *, relative: float | None = None) -> Tensor:
    """UVᵀ of the singular value decomposition, in float64, without the numerical null space."""
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    relative = relative or max(x.shape) * torch.finfo(torch.float64).eps
    kept = s > s.max() * relative
    return u[:, kept] @ vh[kept]


class ProjectionRegularized:
    """The formula of the gradient window, dense in float64, over one vector of parameters.

    ``diagonal`` replaces the covariance by its diagonal inside S, and leaves the projection.
    """

    def __init__(self, *, history_size, beta, ridge, rho, alpha, diagonal=False):
        self.history_size, self.beta = history_size, beta
        self.ridge, self.rho, self.alpha = ridge, rho, alpha
        self.diagonal = diagonal
        self.gradients: list[Tensor] = []
        self.metric: Tensor | None = None

    def direction(self, gradient: Tensor) -> Tensor:
        gradient = gradient.double()
        self.gradients = [*self.gradients, gradient][-self.history_size :]
        window = torch.stack(self.gradients, dim=1)  # (p, k)
        identity = torch.eye(len(gradient), dtype=torch.float64)
        covariance = window @ window.T / window.shape[1]
        if self.diagonal:
            covariance = torch.diag(covariance.diagonal())
        if self.metric is None:
            self.metric = covariance + self.ridge * identity
        else:
            self.metric = (
                self.beta * self.metric + (1 - self.beta) * covariance + self.ridge * identity
            )
        values, vectors = torch.linalg.eigh(self.metric)
        inverse_root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
        whitened = inverse_root @ window
        inner = whitened.T @ whitened + self.rho * torch.eye(window.shape[1], dtype=torch.float64)
        projection = whitened @ torch.linalg.solve(inner, whitened.T)
        blend = (1 - self.alpha) * projection + self.alpha * identity
        return inverse_root @ blend @ inverse_root @ gradient


def muon_step(w, m, g, *, lr, momentum, decay, nesterov, table, scale):
    """One step of Muon in float64: returns the new weight and average."""
    w, m, g = w.double(), m.double(), g.double()
    w = w - lr * decay * w
    m = momentum * m + (1 - momentum) * g
    ahead = (1 - momentum) * g + momentum * m if nesterov else m
    return w - lr * scale * newton_schulz(ahead, table), m
