"""MuonHyperball: Muon on the sphere of the initial weight norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.hooks import hook_names
from steepest.optim.matrix import MatrixOptimizer


class MuonHyperball(MatrixOptimizer):
    r"""Muon with weights of constant norm, and steps of constant length relative to it.

    $$
    W ← R\,\frac{W - η R\,U/‖U‖_F}{‖W - η R\,U/‖U‖_F‖_F}, \qquad U = UV^T \text{ of } D
    $$

    with R the Frobenius norm of the weight at its first step: η is the angle of the step, and
    weight decay has nothing left to do.

    Args:
        params: matrices, groups or named parameters; none all zeros.
        lr: η = 1e-2.
        momentum: μ = 0.95.
        weight_decay: λ = 0.
        **options: see ``MatrixOptions``. By default ``hooks=("hyperball",)``, which must stay among
            them; with ``hooks=(("hyperball", r),)`` the radius R is r.

    State:
        ``momentum_buffer``, and ``hyperball_radius``, R, a float64 scalar.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.eye(3))
        >>> optimizer = MuonHyperball([weight], lr=0.1)
        >>> weight.grad = torch.ones(3, 3)
        >>> optimizer.step()
        >>> round(weight.norm().item() ** 2, 6)
        3.0

    Source: Wen, Dang, Lyu, Ma & Liang, Hyperball optimization (2025), https://whenwen.github.io/.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "weight_decay": 0.0,
        "hooks": ("hyperball",),
    }

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        if "hyperball" not in hook_names(group["hooks"]):
            raise ValueError(
                f"hooks of MuonHyperball must have 'hyperball' among them, got {group['hooks']!r}"
            )
