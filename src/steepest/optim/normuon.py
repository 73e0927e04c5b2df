"""NorMuon: orthogonal updates adapted neuron by neuron."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steepest.optim.matrix import MatrixOptimizer


class NorMuon(MatrixOptimizer):
    r"""Muon whose update is adapted neuron by neuron, by second moments of its rows.

    $$
    O = UV^T \text{ of } M, \quad v ← β_2v + (1-β_2)\,\text{mean}_j\,O_{ij}^2, \quad
    Ô_{ij} = O_{ij}/(\sqrt{v_i} + ε), \quad
    W ← (1-ηλ)W - η\,f\,\sqrt{\min(m, n)}\,Ô/‖Ô‖_F
    $$

    with the factor f of ``scale``: by default the update has root mean square 0.2, as AdamW's. The
    second moments take one number for each row.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-3.
        momentum: μ = 0.95.
        weight_decay: λ = 0.1.
        **options: see ``MatrixOptions``. By default ``beta2=0.95``, ``eps=1e-8``,
            ``nesterov=False`` and ``second_moment="normuon"``, the algorithm of the paper;
            "normuon_long" keeps the moments along the longer side, as in modded-nanogpt.

    State:
        ``momentum_buffer``, and ``second_moment``, v, the rows of all matrices in one vector.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(4, 3))
        >>> optimizer = NorMuon([weight], lr=1.0, weight_decay=0.0)
        >>> weight.grad = torch.eye(4, 3) + 0.1
        >>> optimizer.step()
        >>> weight.data.square().mean(1).sqrt()  # all neurons alike at the first step
        tensor([0.2000, 0.2000, 0.2000, 0.2000])

    Source: Li et al., NorMuon, arXiv:2510.05491.
    """

    own_options: ClassVar[Mapping[str, Any]] = {"second_moment": "normuon", "nesterov": False}
