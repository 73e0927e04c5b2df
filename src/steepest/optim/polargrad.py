"""PolarGrad: the polar factor, as long as the gradient is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from steepest.optim import checks
from steepest.optim.matrix import MatrixOptimizer


class PolarGrad(MatrixOptimizer):
    r"""The polar factor times the nuclear norm: steepest descent, and not only its direction.

    $$
    M ← μM + (1-μ)G, \qquad W ← (1-ηλ)W - η\,‖M‖_*\,UV^T, \qquad UΣV^T = M
    $$

    The step minimises ⟨M, U⟩ + ‖U‖²/(2η) in the spectral norm, and vanishes with the gradient.

    ``method="left"`` computes it from the Gram matrix of the rows, (MMᵀ)^{-1/2}M, and "right" from
    that of the columns: over the range of M both are the same matrix, and the first is cheaper for
    wide ones such as a router, the second for tall ones such as a head.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-3. It multiplies the size of gradients, so that a value for another optimizer
            does not carry over.
        momentum: μ = 0.95.
        weight_decay: λ = 0.01.
        **options: see ``MatrixOptions``; and ``center``, by default False, whether the mean over
            the rows is taken out of D and of the direction, as for a router, whose softmax does
            not see it. By default ``scale="nuclear"`` and ``nesterov=False``.

    State:
        ``momentum_buffer``.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = PolarGrad([weight], lr=1.0, momentum=0.0, weight_decay=0.0, method="svd")
        >>> weight.grad = torch.diag(torch.tensor([3.0, 1.0]))
        >>> optimizer.step()
        >>> weight.data.round(decimals=4)
        tensor([[-4.,  0.],
                [ 0., -4.]])

    Source: Lau, Long & Su, PolarGrad, arXiv:2505.21799.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.01,
        "nesterov": False,
        "scale": "nuclear",
        "center": False,
    }

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        checks.flag("center", group["center"])

    def _find_directions(self, stacks: Sequence[Tensor], group: Mapping[str, Any]) -> list[Tensor]:
        if not group["center"]:
            return super()._find_directions(stacks, group)
        found = super()._find_directions([_centered(stack) for stack in stacks], group)
        return [_centered(direction) for direction in found]


def _centered(stack: Tensor) -> Tensor:
    return stack - stack.mean(dim=1, keepdim=True)
