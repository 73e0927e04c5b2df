"""MOP: momentum orthogonalized by the exact polar decomposition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.matrix import MatrixOptimizer


class MOP(MatrixOptimizer):
    r"""The exact polar factor of the momentum, times its nuclear norm.

    $$
    M ← μM + (1-μ)G, \qquad W ← (1-ηλ)W - η\,‖M‖_*\,UV^T, \qquad UΣV^T = M
    $$

    by a singular value decomposition: what PolarGrad approximates by polynomials. The decomposition
    takes many times as long as they do; use it for small matrices, or to see whether the
    approximation matters.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-3. It multiplies the size of gradients, so that a value for another optimizer
            does not carry over.
        momentum: μ = 0.95.
        weight_decay: λ = 0.01.
        **options: see ``MatrixOptions``. By default ``method="svd"``, ``scale="nuclear"`` and
            ``nesterov=False``.

    State:
        ``momentum_buffer``.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = MOP([weight], lr=1.0, momentum=0.0, weight_decay=0.0)
        >>> weight.grad = torch.diag(torch.tensor([2.0, 1e-3]))
        >>> optimizer.step()
        >>> weight.data.round(decimals=4)
        tensor([[-2.0010,  0.0000],
                [ 0.0000, -2.0010]])

    Source: Carlson et al., Preconditioned spectral descent for deep learning (NIPS 2015), whose
    step has this length; Emerging-Optimizers has an optimizer of this name.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.01,
        "nesterov": False,
        "method": "svd",
        "scale": "nuclear",
    }
