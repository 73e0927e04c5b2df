"""The one table of layouts: how parameters hold matrices, and the same matrices by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

# by name: shape of the parameter, options, and the same matrices written out by hand
LAYOUTS = {
    "matrix": ((6, 4), {}, lambda w: [w]),
    "convolution": (
        (6, 2, 3),
        {"layout": "convolution"},
        lambda w: [w.reshape(6, 6)],
    ),
    "experts": ((3, 4, 5), {"layout": "stack"}, lambda w: [w[0], w[1], w[2]]),
    "transposed": ((3, 5), {"transposed": True}, lambda w: [w.T]),
    "heads on rows": ((6, 5), {"heads": 3}, lambda w: [w[:2], w[2:4], w[4:]]),
    "heads on columns": (
        (5, 6),
        {"heads": 2, "block_axis": "columns"},
        lambda w: [w[:, :3], w[:, 3:]],
    ),
    "fused projections": (
        (8, 5),
        {"split": (4, 2, 2)},
        lambda w: [w[:4], w[4:6], w[6:]],
    ),
    "grouped queries by head": (
        (8, 5),
        {"split": (4, 2, 2), "heads": (2, 1, 1)},
        lambda w: [w[:2], w[2:4], w[4:6], w[6:]],
    ),
    "split columns": (
        (4, 7),
        {"split": (3, 4), "block_axis": "columns"},
        lambda w: [w[:, :3], w[:, 3:]],
    ),
    "alternating gate and up": (
        (8, 5),
        {"split": (1, 1), "interleaved": 4},
        lambda w: [w[::2], w[1::2]],
    ),
    "patterns of unequal blocks": (
        (8, 5),
        {"split": (2, 1, 1), "interleaved": 2},
        lambda w: [w[[0, 1, 4, 5]], w[[2, 6]], w[[3, 7]]],
    ),
    "fused experts": (
        (2, 6, 4),
        {"layout": "stack", "split": (4, 2)},
        lambda w: [w[0, :4], w[0, 4:], w[1, :4], w[1, 4:]],
    ),
    "experts stored (in, out), alternating": (
        (2, 4, 6),
        {"layout": "stack", "transposed": True, "split": (1, 1), "interleaved": 3},
        lambda w: [w[e, :, k::2].T for e in (0, 1) for k in (0, 1)],
    ),
    "grouped convolution": (
        (6, 2, 3, 3),
        {"layout": "convolution", "groups": 3},
        lambda w: [w[k : k + 2].reshape(2, 18) for k in (0, 2, 4)],
    ),
    "transposed convolution": (
        (4, 3, 2, 2),
        {"layout": "convolution", "transposed": True},
        lambda w: [w.transpose(0, 1).reshape(3, 16)],
    ),
    "grouped transposed convolution": (
        (4, 3, 2),
        {"layout": "convolution", "transposed": True, "groups": 2},
        lambda w: [w[k : k + 2].transpose(0, 1).reshape(3, 4) for k in (0, 2)],
    ),
    "split convolution": (
        (6, 2, 3),
        {"layout": "convolution", "split": (4, 2)},
        lambda w: [w[:4].reshape(4, 6), w[4:].reshape(2, 6)],
    ),
}


def from_matrices(by_hand, matrices: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the parameter whose matrices these are."""
    places = torch.arange(torch.Size(shape).numel()).reshape(shape)
    result = torch.zeros(places.numel(), dtype=matrices[0].dtype)
    for matrix, place in zip(matrices, by_hand(places), strict=True):
        result[place.flatten()] = matrix.flatten()
    return result.reshape(shape)


def blocks_apart(by_hand, whole: Sequence[Tensor]) -> list[Parameter]:
    """Return the matrices of some parameters as parameters of their own."""
    return [Parameter(m.clone()) for param in whole for m in by_hand(param.detach())]


def step_whole_and_apart(
    optimizers: Sequence[Optimizer],
    whole: Sequence[Parameter],
    apart: Sequence[Parameter],
    by_hand,
    *,
    steps: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """Step parameters and their matrices with the same random gradients.

    Returns what the steps of the matrices make of each parameter.
    """
    for _ in range(steps):
        for param in whole:
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        parts = [m.contiguous() for param in whole for m in by_hand(param.grad)]
        for param, gradient in zip(apart, parts, strict=True):
            param.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    each = len(apart) // len(whole)
    return [
        from_matrices(
            by_hand, [m.detach() for m in apart[place * each : (place + 1) * each]], param.shape
        )
        for place, param in enumerate(whole)
    ]
