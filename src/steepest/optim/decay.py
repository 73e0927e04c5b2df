"""Weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

WeightDecayMethod = Literal["decoupled", "independent", "l2"]


def decay_(
    params: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    lr: float,
    weight_decay: float,
    method: WeightDecayMethod,
) -> list[Tensor]:
    r"""Decay the weights in place and return the gradients to go on with.

    ===========  ==================  ==========================================
    ``method``   formula             source
    ===========  ==================  ==========================================
    decoupled    W ← W − ηλW         Loshchilov & Hutter, arXiv:1711.05101
    independent  W ← W − λW          the same, without the learning rate
    l2           G ← G + λW          the gradient of λ‖W‖²/2
    ===========  ==================  ==========================================

    Args:
        params: W of each parameter, changed in place unless ``method`` is "l2".
        gradients: G of each parameter, not changed; "l2" returns new tensors.
        lr: η.
        weight_decay: λ; zero does nothing.
        method: name of the rule.

    Example:
        >>> weight, gradient = torch.ones(1), torch.zeros(1)
        >>> _ = decay_([weight], [gradient], lr=0.1, weight_decay=1.0, method="decoupled")
        >>> weight
        tensor([0.9000])
    """
    if weight_decay == 0.0:
        return list(gradients)
    if method == "l2":
        return list(torch._foreach_add(list(gradients), list(params), alpha=weight_decay))
    torch._foreach_mul_(list(params), kept_share(lr=lr, weight_decay=weight_decay, method=method))
    return list(gradients)


def kept_share(*, lr: float, weight_decay: float, method: WeightDecayMethod) -> float:
    """Return the number that decay multiplies the weights by; 1 for "l2".

    Example:
        >>> kept_share(lr=0.5, weight_decay=0.5, method="decoupled")
        0.75
    """
    if method == "l2":
        return 1.0
    return 1.0 - float(lr * weight_decay if method == "decoupled" else weight_decay)
