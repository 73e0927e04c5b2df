"""Dion2: a fraction of each matrix, with error feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from steepest.geometry.blocks import Blocks
from steepest.optim import checks
from steepest.optim.base import Entry
from steepest.optim.matrix import MatrixOptimizer

# what would choose other rows than those that decay
_ONLY: Mapping[str, Any] = {"nesterov": False, "period": 1, "block_size": None}


class Dion2(MatrixOptimizer):
    r"""Muon on the largest rows or columns of the momentum; what is left out is kept for later.

    $$
    M ← M + G, \qquad O_K = \operatorname{polar}(M_K), \qquad M_K ← μM_K, \qquad
    W_K ← (1-ηλ)W_K - η\,f\,O_K
    $$

    K are the ⌈αs⌉ rows of largest length, or columns where these are fewer, s being their number.
    Only M_K is orthogonalized, at about α² of the cost for square matrices; only M_K decays, so
    that a row that waits gains weight until it is taken. Weight decay is for all of W, and f is
    that of the whole matrix.

    Args:
        params: matrices, groups or named parameters.
        lr: η = 1e-3.
        momentum: μ = 0.95, what of the momentum is left after use.
        weight_decay: λ = 0.1.
        **options: see ``MatrixOptions``; and ``fraction``, α in (0, 1], by default 0.25. There is
            no Nesterov form, and no ``period`` or ``block_size``.

    State:
        ``momentum_buffer``, M: a sum, where that of Muon is an average.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(4, 8))
        >>> optimizer = Dion2([weight], lr=1.0, weight_decay=0.0, fraction=0.5)
        >>> weight.grad = torch.eye(4, 8) * torch.tensor([[3.0], [1.0], [4.0], [2.0]])
        >>> optimizer.step()
        >>> weight.any(dim=1)
        tensor([ True, False,  True, False])

    Source: Ahn, Amsel & Langford, Dion2, arXiv:2512.16928.
    """

    own_options: ClassVar[Mapping[str, Any]] = {"nesterov": False, "fraction": 0.25}

    def _check_options(self, group: Mapping[str, Any]) -> None:
        super()._check_options(group)
        checks.positive("fraction", group["fraction"])
        checks.fraction("fraction", group["fraction"])
        for name, value in _ONLY.items():
            if group[name] != value:
                raise ValueError(
                    f"{name}={group[name]!r} is not defined for Dion2, which takes rows by their "
                    f"length in the momentum; it must be {value!r}"
                )
        if group["second_moment"] == "adamuon_sign":
            raise ValueError(
                "second_moment='adamuon_sign' makes all rows equally long, and Dion2 takes the "
                "longest; choose 'adamuon'"
            )

    def _averages(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        buffers = [self._buffer(entry.param) for entry in part]
        for buffer, gradient in zip(buffers, gradients, strict=True):
            buffer.add_(gradient)
        return buffers

    def _find_directions(self, stacks: Sequence[Tensor], group: Mapping[str, Any]) -> list[Tensor]:
        chosen = [_largest(stack, group["fraction"]) for stack in stacks]
        parts = [stack.gather(*index) for stack, index in zip(stacks, chosen, strict=True)]
        found = super()._find_directions(parts, group)
        return [
            torch.zeros_like(stack, dtype=direction.dtype).scatter_(*index, direction)
            for stack, index, direction in zip(stacks, chosen, found, strict=True)
        ]

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        updates = super()._directions(part, gradients)
        for entry in part:
            momentum, fraction = entry.group["momentum"], entry.group["fraction"]
            for block in Blocks.of(entry.group)(self._buffer(entry.param)):
                stack = block.matrices()
                index = _largest(stack, fraction)
                block.write_(stack.scatter_(*index, stack.gather(*index).mul_(momentum)))
        return updates


def _largest(stack: Tensor, fraction: float) -> tuple[int, Tensor]:
    """Return the shorter axis, and where on it the longest lines of each matrix are.

    The positions are expanded to ``(count, k, columns)`` or ``(count, rows, k)``, for ``gather``.
    """
    _, rows, columns = stack.shape
    axis = 1 if rows <= columns else 2
    lengths = torch.linalg.vector_norm(stack, dim=3 - axis, dtype=torch.float64)
    places = lengths.topk(math.ceil(fraction * min(rows, columns)), dim=1).indices
    if axis == 1:
        return axis, places[:, :, None].expand(-1, -1, columns)
    return axis, places[:, None, :].expand(-1, rows, -1)
