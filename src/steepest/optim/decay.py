"""Weight decay."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

WeightDecayMethod = Literal["decoupled", "independent", "l2"]


def decay_(
    param: Tensor, gradient: Tensor, *, lr: float, weight_decay: float, method: WeightDecayMethod
) -> Tensor:
    r"""Decay the weight in place and return the gradient to go on with.

    ===========  ==================  ==========================================
    ``method``   formula             source
    ===========  ==================  ==========================================
    decoupled    W ← W − ηλW         Loshchilov & Hutter, arXiv:1711.05101
    independent  W ← W − λW          the same, without the learning rate
    l2           G ← G + λW          the gradient of λ‖W‖²/2
    ===========  ==================  ==========================================

    Args:
        param: W, changed in place unless ``method`` is "l2".
        gradient: G, not changed; "l2" returns a new tensor.
        lr: η.
        weight_decay: λ; zero does nothing.
        method: name of the rule.

    Example:
        >>> import torch
        >>> weight = torch.ones(1)
        >>> gradient = torch.zeros(1)
        >>> _ = decay_(weight, gradient, lr=0.1, weight_decay=1.0, method="decoupled")
        >>> weight
        tensor([0.9000])
    """
    if weight_decay == 0.0:
        return gradient
    if method == "l2":
        return gradient.add(param, alpha=weight_decay)
    param.mul_(1.0 - (lr * weight_decay if method == "decoupled" else weight_decay))
    return gradient
