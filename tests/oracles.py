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
    ``power`` is q in S^(-q/2); ``relative`` counts λ in the mean squared norm τ of the window, and
    scales the direction by τ^(q - 1/2); with ``stride`` the newest gradient of the window is
    replaced until it has been so for as many steps.
    """

    def __init__(
        self, *, history_size, beta, ridge, rho, alpha, diagonal=False, power=1.0,
        relative=False, stride=1,
    ):  # fmt: skip
        self.history_size, self.beta = history_size, beta
        self.ridge, self.rho, self.alpha = ridge, rho, alpha
        self.diagonal, self.power, self.relative, self.stride = diagonal, power, relative, stride
        self.gradients: list[Tensor] = []
        self.metric: Tensor | None = None
        self.before: Tensor | None = None
        self.since = stride

    def direction(self, gradient: Tensor) -> Tensor:
        gradient = gradient.double()
        if self.since < self.stride:
            self.since += 1
            self.gradients[-1] = gradient
        else:
            self.since = 1
            self.gradients = [*self.gradients, gradient][-self.history_size :]
            self.before = self.metric
        window = torch.stack(self.gradients, dim=1)  # (p, k)
        identity = torch.eye(len(gradient), dtype=torch.float64)
        covariance = window @ window.T / window.shape[1]
        squares = window.square().sum(0)
        unit = squares.mean() if self.relative else torch.ones_like(squares[0])
        if self.diagonal:
            covariance = torch.diag(covariance.diagonal())
        damping = self.ridge * unit * identity
        if self.before is None:
            self.metric = covariance + damping
        else:
            self.metric = self.beta * self.before + (1 - self.beta) * covariance + damping
        values, vectors = torch.linalg.eigh(self.metric)
        inverse_root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
        outer = vectors @ torch.diag(values ** (-self.power / 2)) @ vectors.T
        whitened = inverse_root @ window
        inner = whitened.T @ whitened + self.rho * torch.eye(window.shape[1], dtype=torch.float64)
        projection = whitened @ torch.linalg.solve(inner, whitened.T)
        blend = (1 - self.alpha) * projection + self.alpha * identity
        scale = unit ** (self.power - 0.5) if self.relative else 1.0
        return scale * (outer @ blend @ outer @ gradient)


def muon_step(w, m, g, *, lr, momentum, decay, nesterov, table, scale):
    """One step of Muon in float64: returns the new weight and average."""
    w, m, g = w.double(), m.double(), g.double()
    w = w - lr * decay * w
    m = momentum * m + (1 - momentum) * g
    ahead = (1 - momentum) * g + momentum * m if nesterov else m
    return w - lr * scale * newton_schulz(ahead, table), m
