"""Weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

WeightDecayMethod = Literal["decoupled", "independent", "l2", "palm", "cautious", "spectral"]

# those that need nothing but the entries of weight, gradient and update
ELEMENTWISE_METHODS = tuple(m for m in get_args(WeightDecayMethod) if m != "spectral")


def decay_(
    params: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    lr: float,
    weight_decay: float,
    method: WeightDecayMethod,
) -> list[Tensor]:
    r"""Decay the weights in place and return the gradients to go on with.

    ===========  ============================================  ================================
    ``method``   formula                                       source
    ===========  ============================================  ================================
    decoupled    W ← W − ηλW                                   Loshchilov & Hutter,
                                                               arXiv:1711.05101
    independent  W ← W − λW                                    the same, without η
    l2           G ← G + λW                                    the gradient of λ‖W‖²/2
    palm         W ← W − η²λW                                  Chowdhery et al.,
                                                               arXiv:2204.02311
    cautious     W ← W − ηλW where the signs of W and of the   Chen et al., arXiv:2510.12402
                 update are not opposite
    spectral     W ← W − ηλ·U max(Σ − cap, 0)Vᵀ, W = UΣVᵀ,      a decay that spares what a
                 each matrix of the parameter by itself        matrix needs
    ===========  ============================================  ================================

    The last two do nothing here: "cautious" is applied with the update, by ``decay_cautiously_``,
    and "spectral" by the optimizers that know the matrices of a parameter.

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
    keep = kept_share(lr=lr, weight_decay=weight_decay, method=method)
    if method not in ("cautious", "spectral"):
        torch._foreach_mul_(list(params), keep)
    return list(gradients)


def decay_cautiously_(param: Tensor, update: Tensor, *, lr: float, weight_decay: float) -> None:
    """W ← W − ηλW in place, where the update does not move the weight away from zero.

    Args:
        param: W.
        update: U, of the same shape.
        lr: η.
        weight_decay: λ.
    """
    agree = (param.sign() * update.sign() >= 0).to(param.dtype)
    param.mul_(agree.mul_(-float(lr * weight_decay)).add_(1.0))


def kept_share(*, lr: float, weight_decay: float, method: WeightDecayMethod) -> float:
    """Return the number that decay multiplies all weights by; 1 where it is not that simple.

    Example:
        >>> kept_share(lr=0.5, weight_decay=0.5, method="decoupled")
        0.75
    """
    rates = {"decoupled": lr, "independent": 1.0, "palm": lr * lr}
    return 1.0 - float(rates.get(method, 0.0) * weight_decay)


def kept_in(group: Mapping[str, Any]) -> float:
    """Return ``kept_share`` for the options of a parameter group."""
    if group["weight_decay"] == 0.0:
        return 1.0
    return kept_share(
        lr=float(group["lr"]),
        weight_decay=group["weight_decay"],
        method=group["weight_decay_method"],
    )
