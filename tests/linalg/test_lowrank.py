"""Coefficients over the columns against solves with the dense metric."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg.lowrank import projected_coefficients


def dense(columns, weights, *, damping, recent, newest, rho, alpha):
    identity = torch.eye(columns.shape[0], dtype=torch.float64)
    metric = damping * identity + columns @ torch.diag(weights) @ columns.T
    window, gradient = columns[:, recent], columns[:, newest]
    solved = torch.linalg.solve(metric, window)
    inner = window.T @ solved + rho * torch.eye(len(recent), dtype=torch.float64)
    plain = torch.linalg.solve(metric, gradient)
    return (1 - alpha) * solved @ torch.linalg.solve(inner, window.T @ plain) + alpha * plain


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("size", "count"), [(40, 6), (6, 6), (4, 9), (1, 3)])
def test_direction_equals_the_dense_solve(size, count, alpha):
    generator = torch.Generator().manual_seed(size)
    columns = torch.randn(size, count, generator=generator, dtype=torch.float64)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 1e-3
    recent = torch.arange(count // 2, count)
    options = {"damping": 0.03, "recent": recent, "newest": count - 1, "rho": 0.2, "alpha": alpha}
    result = columns @ projected_coefficients(columns.T @ columns, weights, **options)
    expected = dense(columns, weights, **options)
    assert (result - expected).norm() < 1e-11 * expected.norm()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("kind", ["random", "repeated", "zero"])
def test_any_scale_and_rank_gives_finite_coefficients(kind, scale):
    columns = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)).double() * scale**0.5
    if kind == "repeated":
        columns = columns[:, :1].expand(9, 5)
    if kind == "zero":
        columns = torch.zeros_like(columns)
    options = {"damping": 1e-2, "recent": torch.arange(5), "newest": 4, "rho": 0.1, "alpha": 0.1}
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    result = projected_coefficients(columns.T @ columns, weights, **options)
    assert result.isfinite().all()
    # the direction is bounded by that of the plain damped gradient
    bound = (columns[:, 4] / 1e-2).norm() + 1e-300
    assert (columns @ result).norm() <= bound * 10.1
