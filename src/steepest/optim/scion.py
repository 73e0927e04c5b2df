"""Scion: conditional gradients in a ball of an operator norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.matrix import MatrixOptimizer


class Scion(MatrixOptimizer):
    r"""Steps towards the best point of a norm ball, so that weights stay inside it.

    $$
    M ← μM + (1-μ)G, \qquad W ← (1-ηλ)W - η\,ρ\,f\,\text{direction}(M)
    $$

    With λ = 1, weights that begin in the ball of radius ρ never leave it (the spectral direction by
    polynomials is longer than one by up to its error); λ = 0 is the unconstrained form. Each kind
    of layer has a norm, an option of its group:

    =====================  ====================  =================  ==========================
    layer                  ``norm``              ``scale``          f · direction
    =====================  ====================  =================  ==========================
    hidden                 "spectral"            "unit_rms"         √(out/in) UVᵀ
    first, of one-hot      "column" or           "unit_rms"         √out dⱼ/‖dⱼ‖
    input (embedding)      "sign"                "none"             sign(D)
    last                   "row" or "sign"       "unit_rms"         dᵢ/(√in ‖dᵢ‖), sign(D)/in
    =====================  ====================  =================  ==========================

    An ``nn.Embedding`` stores (in, out): give it ``transposed=True``.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 3e-4.
        momentum: μ = 0.9.
        weight_decay: λ = 1.
        **options: see ``MatrixOptions``. By default ``norm="spectral"``, ``scale="unit_rms"``,
            ``nesterov=False`` and ``radius=50``, ρ of hidden layers; the paper has 3000 for the
            last layer of a language model.

    State:
        ``momentum_buffer``.

    Example:
        >>> import torch
        >>> hidden, head = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False)
        >>> optimizer = Scion([
        ...     {"params": hidden.parameters()},
        ...     {"params": head.parameters(), "norm": "sign", "radius": 3000.0},
        ... ])
        >>> head(hidden(torch.ones(1, 8))).sum().backward()
        >>> optimizer.step()

    Source: Pethick et al., Training deep learning models with norm-constrained LMOs,
    arXiv:2502.07529.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "lr": 3e-4,
        "momentum": 0.9,
        "weight_decay": 1.0,
        "nesterov": False,
        "scale": "unit_rms",
        "radius": 50.0,
    }
