"""Muon: momentum orthogonalized by Newton–Schulz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.matrix import MatrixOptimizer


class Muon(MatrixOptimizer):
    r"""Momentum orthogonalized by Newton–Schulz, for the hidden matrices of a network.

    $$
    M ← μM + (1-μ)G, \qquad D = (1-μ)G + μM, \qquad W ← (1 - ηλ)W - η\,f\,UV^T
    $$

    with UΣVᵀ = D and the factor f of ``scale``. Embeddings, the output head and vectors are better
    stepped by AdamW; with the default scale, its learning rate and decay serve both.

    Args:
        params: matrices, groups or named parameters; a group with another ``layout`` may hold
            convolutions or stacks.
        lr: η = 1e-3. With the default ``scale`` a value tuned for AdamW carries over.
        momentum: μ = 0.95.
        weight_decay: λ = 0.1; decoupled decay uses the unscaled η, whatever the shape.
        **options: see ``MatrixOptions``. By default ``nesterov=True``, five steps of
            "polar_express", and ``scale="match_rms_adamw"``, f = 0.2·√max(out, in).

    Raises:
        TypeError: for an unknown keyword.
        ValueError: for an option out of range, an unknown option of a group, or a parameter whose
            shape the layout does not fit.

    State:
        ``momentum_buffer``: M, of the parameter's shape; float32 for weights in 16 bits, in which
        an average would lose what is small beside it, else of their dtype. More with some options,
        see ``MatrixOptimizer``.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(16, 64, bias=False)
        >>> optimizer = Muon(layer.parameters(), lr=1e-3)
        >>> layer(torch.ones(1, 16)).square().sum().backward()
        >>> optimizer.step()

    Source: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon/; Liu et al., Muon
    is scalable for LLM training, arXiv:2502.16982.
    """

    own_options: ClassVar[Mapping[str, Any]] = {}
