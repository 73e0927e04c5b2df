"""QK-clip: attention logits that stay bounded."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def qk_clip_(
    query: Tensor,
    key: Tensor,
    max_logits: Tensor,
    *,
    threshold: float = 100.0,
    alpha: float = 0.5,
) -> Tensor:
    r"""Shrink the query and key weights of heads whose attention logits have grown too large.

    For each query head h with the largest logit S_h,

    $$
    γ_h = \min(1, τ/S_h), \qquad W_q^h ← γ_h^{α}\,W_q^h, \qquad W_k^h ← γ_h^{1-α}\,W_k^h
    $$

    so that the same input gives a largest logit of τ at most. With grouped queries a key head
    serves several query heads: it is shrunk by the smallest γ among them, and each of these heads
    by what its own γ then needs. Call it after the optimizer's step.

    Args:
        query: W_q, ``(heads · size, in)``, or its bias ``(heads · size,)``; changed in place. A
            slice of a fused weight will do.
        key: W_k, ``(key heads · size, in)``, or its bias; changed in place. With biases, call once
            for the weights and once for the biases.
        max_logits: S, ``(heads,)``: the largest scaled logit of each query head, over batch and
            positions, as the forward pass has them.
        threshold: τ > 0.
        alpha: α in [0, 1], the share that the query takes.

    Returns:
        γ, ``(heads,)``, in float32.

    Raises:
        ValueError: for shapes that do not fit, or numbers out of range; nothing has been changed.

    Example:
        >>> query, key = torch.full((4, 2), 4.0), torch.ones(4, 2)
        >>> qk_clip_(query, key, torch.tensor([50.0, 400.0]), threshold=100.0)
        tensor([1.0000, 0.2500])
        >>> query[:, 0], key[:, 0]
        (tensor([4., 4., 2., 2.]), tensor([1.0000, 1.0000, 0.5000, 0.5000]))

    Source: Kimi Team, Kimi K2, arXiv:2507.20534.
    """
    heads, groups = _check(query, key, max_logits, threshold, alpha)
    largest = max_logits.detach().float()
    gamma = torch.where(largest > threshold, threshold / largest, 1.0)
    shared = gamma.view(groups, -1).amin(dim=1) ** (1.0 - alpha)
    own = gamma / shared.repeat_interleave(heads // groups)
    # a head that needs less than its key gets is not made larger for it
    _scale_heads_(query, own.clamp_max(1.0))
    _scale_heads_(key, shared)
    return gamma


def _scale_heads_(weight: Tensor, factors: Tensor) -> None:
    parts = torch.unflatten(weight, 0, (len(factors), -1))
    parts.mul_(factors.to(weight.device, weight.dtype).view(-1, *[1] * (parts.ndim - 1)))


def _check(
    query: Tensor, key: Tensor, max_logits: Tensor, threshold: float, alpha: float
) -> tuple[int, int]:
    """Return the numbers of query heads and of key heads."""
    if max_logits.ndim != 1 or max_logits.numel() == 0:
        raise ValueError(
            f"max_logits must be of shape (heads,), got shape {tuple(max_logits.shape)}"
        )
    if not bool(max_logits.isfinite().all()):
        raise ValueError(f"max_logits must be finite, got {max_logits.tolist()}")
    if not threshold > 0.0:
        raise ValueError(f"threshold must be > 0, got {threshold!r}")
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be in [0, 1], got {alpha!r}")
    heads = len(max_logits)
    if query.shape[0] % heads != 0 or query.shape[0] == 0:
        raise ValueError(f"query has {query.shape[0]} rows, which {heads} heads do not divide")
    size = query.shape[0] // heads
    groups = key.shape[0] // size
    if key.shape[0] % size != 0 or groups == 0 or heads % groups != 0:
        raise ValueError(
            f"key has {key.shape[0]} rows: with heads of size {size} and {heads} query heads, it "
            f"must have {size} times a divisor of {heads}"
        )
    return heads, groups
