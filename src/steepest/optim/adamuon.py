"""AdaMuon: orthogonal updates adapted entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.matrix import MatrixOptimizer


class AdaMuon(MatrixOptimizer):
    r"""Muon whose update is adapted entry by entry, by the second moments of orthogonal updates.

    $$
    O = UV^T \text{ of } \operatorname{sign}(M), \quad V ← β_2V + (1-β_2)\,O⊙O, \quad
    Ô = O ⊘ (\sqrt V + ε), \quad W ← (1-ηλ)W - η\,f\,\sqrt{\min(m, n)}\,Ô/‖Ô‖_F
    $$

    with the factor f of ``scale``: by default the update has root mean square 0.2, as AdamW's.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-3.
        momentum: μ = 0.95.
        weight_decay: λ = 0.1.
        **options: see ``MatrixOptions``. By default ``beta2=0.95``, ``eps=1e-8``,
            ``nesterov=False`` and ``second_moment="adamuon_sign"``, the algorithm of the paper;
            "adamuon" leaves the sign out, as implementations of the same name do.

    State:
        ``momentum_buffer`` and ``second_moment``, V, of the parameter's shape.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(4, 3))
        >>> optimizer = AdaMuon([weight], lr=1.0, weight_decay=0.0)
        >>> weight.grad = torch.eye(4, 3) + 0.1
        >>> optimizer.step()
        >>> round(weight.square().mean().sqrt().item(), 6)
        0.2

    Source: Si, Zhang & Shen, AdaMuon: Adaptive Muon Optimizer, arXiv:2507.11005.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "second_moment": "adamuon_sign",
        "nesterov": False,
    }
