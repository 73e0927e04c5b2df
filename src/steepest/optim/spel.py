"""Spel: spectral steepest descent with weights that stay orthogonal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from steepest.geometry.blocks import Blocks
from steepest.linalg.polar import polar
from steepest.optim.base import Entry
from steepest.optim.matrix import MatrixOptimizer


class Spel(MatrixOptimizer):
    r"""Muon's step, then back to the nearest orthogonal weight.

    $$
    M ← μM + (1-μ)G, \qquad W ← \operatorname{polar}(W - η\operatorname{polar}(M))
    $$

    Each matrix of the weight has orthonormal rows, or columns if it is tall: from the first step
    on, which also brings a weight there that began elsewhere. The direction is that of ``schedule``
    and ``steps``; the weight is projected exactly, by QDWH, which also completes a weight without
    full rank to an orthogonal one. A step without an update leaves the weight as it is.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-2, the length of the step in the spectral norm, in which the weight has one.
        momentum: μ = 0.95.
        weight_decay: λ = 0; decay of a weight of fixed length only turns the step.
        **options: see ``MatrixOptions``. By default ``scale="none"`` and ``nesterov=False``.

    State:
        ``momentum_buffer``.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.nn.init.orthogonal_(torch.empty(6, 4)))
        >>> optimizer = Spel([weight], lr=0.1)
        >>> weight.grad = torch.ones(6, 4)
        >>> optimizer.step()
        >>> torch.linalg.svdvals(weight.data)
        tensor([1.0000, 1.0000, 1.0000, 1.0000])

    Source: Manifold constrained steepest descent, arXiv:2601.21487.
    """

    own_options: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "weight_decay": 0.0,
        "nesterov": False,
        "scale": "none",
    }

    def _contexts(self, entry: Entry, update: Tensor) -> Iterator[AbstractContextManager[object]]:
        if float(entry.group["lr"]) != 0.0:
            yield _kept_orthogonal(entry.weight, update, Blocks.of(entry.group))
        yield from super()._contexts(entry, update)


@contextmanager
def _kept_orthogonal(weight: Tensor, update: Tensor, blocks: Blocks) -> Iterator[None]:
    moved = bool(update.any())
    yield
    if moved and bool(weight.isfinite().all()):
        result = torch.empty_like(weight)
        for source, target in zip(blocks(weight), blocks(result), strict=True):
            target.write_(polar(source.matrices(), method="qdwh"))
        weight.copy_(result)
