"""Coefficients over the columns against solves with the dense metric."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg.lowrank import projected_coefficients, tail_mixture


def dense(columns, weights, *, damping, recent, newest, rho, alpha, power=1.0):
    identity = torch.eye(columns.shape[0], dtype=torch.float64)
    metric = damping * identity + columns @ torch.diag(weights) @ columns.T
    values, vectors = torch.linalg.eigh(metric)
    root = vectors @ torch.diag(values**-0.5) @ vectors.T
    outer = vectors @ torch.diag(values ** (-power / 2)) @ vectors.T
    whitened = root @ columns[:, recent]
    inner = whitened.T @ whitened + rho * torch.eye(len(recent), dtype=torch.float64)
    plain = outer @ columns[:, newest]
    projected = whitened @ torch.linalg.solve(inner, whitened.T @ plain)
    return outer @ ((1 - alpha) * projected + alpha * plain)


def made(size, count):
    generator = torch.Generator().manual_seed(size)
    columns = torch.randn(size, count, generator=generator, dtype=torch.float64)
    return columns, torch.rand(count, generator=generator, dtype=torch.float64) + 1e-3


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("size", "count"), [(40, 6), (6, 6), (4, 9), (1, 3)])
def test_direction_equals_the_dense_solve(size, count, equal, alpha, power):
    columns, weights = made(size, count)
    recent = torch.arange(count // 2, count)
    if equal:  # as with β = 0
        weights, recent = torch.full_like(weights, 1 / count), torch.arange(count)
    options = {"recent": recent, "newest": count - 1, "rho": 0.2, "alpha": alpha, "power": power}
    damping = torch.tensor(0.03, dtype=torch.float64)
    gram = columns.T @ columns
    result = columns @ projected_coefficients(gram, weights, damping=damping, **options)
    expected = dense(columns, weights, damping=0.03, **options)
    assert (result - expected).norm() < 1e-11 * expected.norm()


@pytest.mark.parametrize("equal", [False, True])
def test_several_metrics_at_once_equal_one_by_one(equal):
    columns, weights = made(12, 5)
    recent = torch.arange(2, 5)
    if equal:
        weights, recent = torch.full_like(weights, 0.2), torch.arange(5)
    grams = torch.stack([columns[:k].T @ columns[:k] for k in (1, 4, 12)])
    dampings = torch.tensor([1.0, 1e-3, 5.0], dtype=torch.float64)
    options = {"recent": recent, "newest": 3, "rho": 0.2, "alpha": 0.3}
    together = projected_coefficients(grams, weights, damping=dampings, **options)
    for gram, damping, result in zip(grams, dampings, together, strict=True):
        single = projected_coefficients(gram, weights, damping=damping, **options)
        torch.testing.assert_close(result, single, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_what_the_mixture_leaves_out_is_at_most_what_is_cut(rank, shrink):
    columns, weights = made(9, 8)
    exact = columns @ torch.diag(weights) @ columns.T
    mixture, cut = tail_mixture(columns.T @ columns, weights, rank=rank, shrink=shrink)
    mixed = columns @ mixture
    left = torch.linalg.eigvalsh(exact - weights.max() * mixed @ mixed.T)
    values = torch.linalg.eigvalsh(exact).flip(0)
    assert left.min() > -1e-12
    assert left.max() == pytest.approx(values[rank].item(), rel=1e-9)
    assert cut == pytest.approx(values[rank].item() if shrink else 0.0, rel=1e-9)


def test_a_tail_of_less_than_the_rank_is_kept_whole():
    columns = torch.zeros(4, 3, dtype=torch.float64)
    columns[0, :2] = torch.tensor([3.0, 4.0], dtype=torch.float64)
    gram, ones = columns.T @ columns, torch.ones(3, dtype=torch.float64)
    mixture, cut = tail_mixture(gram, ones, rank=2, shrink=True)
    mixed = columns @ mixture
    torch.testing.assert_close(mixed @ mixed.T, columns @ columns.T, rtol=1e-12, atol=1e-12)
    assert cut == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("kind", ["random", "repeated", "zero"])
def test_any_scale_and_rank_gives_finite_coefficients(kind, scale):
    columns = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)).double() * scale**0.5
    if kind == "repeated":
        columns = columns[:, :1].expand(9, 5)
    if kind == "zero":
        columns = torch.zeros_like(columns)
    options = {
        "damping": torch.tensor(1e-2),
        "recent": torch.arange(5),
        "newest": 4,
        "rho": 0.1,
        "alpha": 0.1,
    }
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    result = projected_coefficients(columns.T @ columns, weights, **options)
    assert result.isfinite().all()
    # the direction is bounded by that of the plain damped gradient
    bound = (columns[:, 4] / 1e-2).norm() + 1e-300
    assert (columns @ result).norm() <= bound * 10.1
