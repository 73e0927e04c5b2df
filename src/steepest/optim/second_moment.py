"""Second moments of orthogonalized updates, which adapt them by entry, by neuron or by matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from steepest.geometry.blocks import Block
from steepest.linalg.normalize import iteration_dtype

SecondMoment = Literal["adamuon", "adamuon_sign", "normuon", "normuon_long", "namo", "namo_raw"]

ENTRYWISE = ("adamuon", "adamuon_sign")
SCALAR = ("namo", "namo_raw")


def moment_shape(
    method: SecondMoment, shape: Sequence[int], blocks: Sequence[tuple[int, int, int]]
) -> tuple[int, ...]:
    """Return the shape of the second moments of a parameter.

    Args:
        method: name of the rule.
        shape: of the parameter.
        blocks: (count, rows, columns) of its blocks.
    """
    if method in ENTRYWISE:
        return tuple(shape)
    return (sum(_length(method, block) for block in blocks),)


def moment_dtype(method: SecondMoment, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the second moments of a parameter of ``dtype``.

    Squared norms of gradients are kept in float64, in which they do not overflow.
    """
    return torch.float64 if method in SCALAR else iteration_dtype(dtype)


def _length(method: SecondMoment, block: tuple[int, int, int]) -> int:
    count, rows, columns = block
    if method in SCALAR:
        return count
    return count * (rows if method == "normuon" else max(rows, columns))


def adapt_(
    directions: Sequence[Tensor],
    moments: Tensor,
    blocks: Sequence[Block],
    *,
    method: SecondMoment,
    beta2: float,
    eps: float,
    lengths: Sequence[float | Tensor],
    averages: Sequence[Tensor],
    gradients: Sequence[Tensor],
    correction: float,
) -> None:
    r"""Update the second moments V of a parameter, and adapt its directions O in place.

    ============  =====================================  ======================================
    ``method``    V ← β₂V + (1 − β₂)·…                   O ←
    ============  =====================================  ======================================
    adamuon       O⊙O                                    ℓ Ô/‖Ô‖, Ô = O/(√V + ε)
    adamuon_sign  O⊙O, with O the direction of sign(D)   the same
    normuon       mean of O⊙O over each row              the same
    normuon_long  mean of O⊙O over the shorter side      the same
    namo          ‖G‖²                                   O·c‖D‖/(√V + ε)
    namo_raw      ‖G‖²                                   O·‖D‖/(√V + ε)
    ============  =====================================  ======================================

    ℓ is the Frobenius norm that a direction without second moments has, √min(m, n) for an
    orthogonal one, so that the factor of ``scale`` means the same; c is Adam's bias correction.

    Args:
        directions: O of each block, ``(count, rows, columns)``, changed in place.
        moments: V of the parameter, of ``moment_shape``, changed in place.
        blocks: of ``moments`` where these are of the parameter's shape; else not read.
        method: name of the rule.
        beta2: β₂ in [0, 1).
        eps: ε.
        lengths: ℓ of each block, a number or ``(count, 1, 1)``.
        averages: D of each block.
        gradients: G of each block.
        correction: c.

    Source: Si, Zhang & Shen, AdaMuon, arXiv:2507.11005, whose algorithm takes the sign first;
    implementations without it go by the same name. Li et al., NorMuon, arXiv:2510.05491, by row;
    the longer side is that of modded-nanogpt. NAMO, arXiv:2602.17080.
    """
    start = 0
    for place, direction in enumerate(directions):
        count, rows, columns = direction.shape
        if method in SCALAR:
            own = moments[start : start + count]
            start += count
            norms = [
                torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float64)
                for x in (gradients[place], averages[place])
            ]
            own.lerp_(norms[0].square().to(own.dtype), 1.0 - beta2)
            factor = norms[1] / (own.double().sqrt() + eps)
            if method == "namo":
                factor = factor * correction
            direction.mul_(factor.to(direction.dtype)[:, None, None])
            continue
        if method in ENTRYWISE:
            own = blocks[place].matrices()
        else:
            along = 2 if method == "normuon" or rows >= columns else 1
            sizes = (count, rows, 1) if along == 2 else (count, 1, columns)
            own = moments[start : start + math.prod(sizes)].view(sizes)
            start += math.prod(sizes)
        squares = direction.square()
        if method not in ENTRYWISE:
            squares = squares.mean(along, keepdim=True)
        own.lerp_(squares.to(own.dtype), 1.0 - beta2)  # a checkpoint may have changed its dtype
        if method in ENTRYWISE:
            blocks[place].write_(own)
        direction.div_(own.to(direction.dtype).sqrt().add_(eps))
        length = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
        direction.mul_(lengths[place] / torch.where(length > 0.0, length, 1.0))


def bias_correction(step: int, *, momentum: float, nesterov: bool, beta2: float) -> float:
    """Return Adam's correction of ‖D‖/√V for averages that began with zeros.

    Args:
        step: number of steps, this one among them.
        momentum: μ.
        nesterov: whether D looks ahead, which averages once more.
        beta2: β₂.
    """
    seen = step + 1 if nesterov else step
    correction: float = (1.0 - beta2**step) ** 0.5 / (1.0 - momentum**seen)
    return correction
