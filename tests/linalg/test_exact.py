"""Exact polar factors, and the error that one can ask for."""

from __future__ import annotations

import math

import pytest
import torch

import oracles
from steepest.linalg import polar

EXACT = ("svd", "eigh", "qdwh")


def matrix(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def graded(condition, rows, columns, *, rank=None, dtype=torch.float64, seed=0):
    """A matrix with geometric singular values from 1 to 1/condition, and its polar factor."""
    rank = rank or min(rows, columns)
    u = torch.linalg.qr(matrix(rows, rank, seed=seed)).Q
    v = torch.linalg.qr(matrix(columns, rank, seed=seed + 1)).Q
    values = torch.logspace(0, -math.log10(condition), rank, dtype=torch.float64)
    x = (u @ torch.diag(values) @ v.T).to(dtype)
    return x, u @ v.T


def error(result, expected):
    return ((result.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (9, 9), (5, 20), (20, 5)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_well_conditioned_matrices_are_exact(method, shape, dtype, tolerance):
    x = matrix(*shape, dtype=dtype)
    result = polar(x, method=method)
    assert result.dtype == dtype
    assert error(result, oracles.polar(x)) < tolerance


@pytest.mark.parametrize(("method", "power"), [("svd", 1), ("qdwh", 1), ("eigh", 2)])
@pytest.mark.parametrize("condition", [1e1, 1e2, 1e3, 1e4])
def test_the_error_grows_with_the_condition_as_stated(method, power, condition):
    x, expected = graded(condition, 12, 16)
    assert error(polar(x, method=method), expected) < 1e-14 * condition**power


@pytest.mark.parametrize("method", ["svd", "eigh"])
@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5)])
def test_a_null_space_is_left_out(method, shape):
    x, expected = graded(10.0, *shape, rank=3)
    assert error(polar(x, method=method), expected) < 1e-10


@pytest.mark.parametrize("tolerance", [0.3, 1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("condition", [1.0, 1e1, 1e2, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("shape", [(10, 10), (6, 30), (30, 6)])
def test_the_tolerance_is_kept_for_float32_input(tolerance, condition, shape):
    x, _ = graded(condition, *shape, dtype=torch.float32)
    assert error(polar(x, tolerance=tolerance), oracles.polar(x)) <= tolerance


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("rank", [8, 3])
def test_the_tolerance_is_kept_for_float64_input(condition, rank):
    x, expected = graded(condition, 8, 11, rank=rank)
    assert error(polar(x, tolerance=1e-3), expected) <= 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_batch_of_all_kinds_keeps_the_tolerance_in_each(dtype):
    easy, hard = graded(2.0, 7, 9)[0], graded(1e5, 7, 9)[0]
    deficient, zero, bad = graded(3.0, 7, 9, rank=2)[0], torch.zeros(7, 9), matrix(7, 9)
    bad[3, 3] = math.inf
    batch = torch.stack([easy, zero.double(), hard, bad, deficient]).to(dtype)
    result = polar(batch, tolerance=1e-2)
    assert result.dtype == dtype
    assert torch.equal(result[1], torch.zeros(7, 9, dtype=dtype))
    assert result[3].isnan().all()
    rounding = torch.finfo(dtype).eps
    for place in (0, 2, 4) if dtype != torch.bfloat16 else (0,):
        # 16-bit input has lost the small singular values before it arrives
        expected = oracles.polar(batch[place])
        if place == 4 and dtype == torch.float32:
            expected = oracles.polar(batch[place], relative=9 * rounding)
        assert error(result[place], expected) <= 1e-2 + rounding


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e37])
def test_the_scale_does_not_matter(scale):
    x = matrix(6, 9).to(torch.float32)
    scaled = (x.double() * scale).to(torch.float32)
    for options in ({"method": "svd"}, {"method": "eigh"}, {"method": "qdwh"}, {"tolerance": 1e-3}):
        assert error(polar(scaled, **options), polar(x, **options).double()) < 1e-4


@pytest.mark.parametrize("options", [{"method": name} for name in EXACT] + [{"tolerance": 1e-2}])
def test_the_input_is_not_changed_and_empty_input_stays_empty(options):
    x = matrix(4, 6)
    before = x.clone()
    polar(x, **options)
    assert torch.equal(x, before)
    assert polar(torch.zeros(2, 0, 3), **options).shape == (2, 0, 3)


@pytest.mark.parametrize("kind", ["zeros", "tiny identity", "rank one"])
def test_hard_statistics_give_finite_factors(kind):
    vector = matrix(32)
    x = {
        "zeros": torch.zeros(32, 32, dtype=torch.float64),
        "tiny identity": 1e-30 * torch.eye(32, dtype=torch.float64),
        "rank one": 1e8 * torch.outer(vector, vector) + 1e-12 * torch.eye(32).double(),
    }[kind]
    for options in ({"method": "svd"}, {"method": "eigh"}, {"tolerance": 1e-3}):
        for dtype in (torch.float64, torch.float32):
            result = polar(x.to(dtype), **options)
            assert result.isfinite().all()
            assert torch.linalg.matrix_norm(result.double(), ord=2) < 1 + 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "cholesky"}, "method must be one of auto, .*'cholesky'"),
        ({"tolerance": 0.0}, "tolerance must be > 0"),
        ({"tolerance": 1e-2, "method": "svd"}, "method must be 'auto', got 'svd'"),
        ({"schedule": "best"}, "schedule must be one of"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        polar(matrix(3, 4), **options)
