"""A small problem for the gradient window, and its run beside the dense formula."""

from __future__ import annotations

import torch

import oracles
from cases import parameters, set_gradients
from steepest import ProjectionRegularizedSGD

SHAPES = [(5, 3), (7,), (2, 2, 2)]
GIVEN = {"history_size": 4, "beta": 0.0, "ridge": 1e-2, "rho": 0.1, "alpha": 0.1}


def flat(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def oracle_for(options):
    """The formula for the optimizer's options, as far as it knows them."""
    known = {name: options.get(name, value) for name, value in GIVEN.items()}
    return oracles.ProjectionRegularized(
        **known,
        diagonal=options.get("metric") == "diagonal",
        power=options.get("power", 1.0),
        relative=options.get("ridge_scale") == "relative",
        stride=options.get("history_stride", 1),
    )


def met(optimizer, params, *, size, steps):
    """Take steps with η = 1; yield what each moved, the window ``(p, k)`` and the gradient."""
    gradients = []
    for step in range(steps):
        before = flat(params)
        set_gradients(params, step)
        gradients.append(flat([param.grad for param in params]))
        optimizer.step()
        yield before - flat(params), torch.stack(gradients[-size:], dim=1), gradients[-1]


def worst_direction(*, steps=15, scale=1.0, dtype=torch.float64, lr=1.0, **options):
    """Largest relative error of the steps of a run, with gradients given from outside."""
    params = parameters(SHAPES, dtype=dtype)
    optimizer = ProjectionRegularizedSGD(params, lr=lr, **options)
    oracle, worst = oracle_for(options), 0.0
    for step in range(steps):
        for param in params:
            param.data.zero_()
        set_gradients(params, step)
        for param in params:
            param.grad *= scale
        optimizer.step()
        expected = -lr * oracle.direction(flat([param.grad for param in params]))
        worst = max(worst, ((flat(params) - expected).norm() / expected.norm()).item())
    return worst
