"""Numeric range: scales, 16-bit iterations, and hard matrices, for every schedule."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

import oracles
from steepest.linalg import SCHEDULES, gram_newton_schulz, newton_schulz, polar

DATA = Path(__file__).parent.parent / "data" / "momentum.pt"


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-9, 1e-12, 1e-20, 1e-30, 1e20, 1e35])
@pytest.mark.parametrize("function", [newton_schulz, gram_newton_schulz, polar])
def test_scaled_gradients_give_the_same_direction(function, scale):
    x = matrix(64, 64) / 64
    result, expected = function(x * scale), function(x)
    # the Gram form is not meant for square matrices, and rounds more of them away
    tolerance = 5e-5 if function is gram_newton_schulz else 1e-5
    assert (result - expected).norm() < tolerance * expected.norm()


def test_a_scaled_gradient_keeps_its_norm_under_the_classic_coefficients():
    # 64 × 64 standard normal entries at norm 1: the norm of the result is 6.96
    x = torch.from_numpy(numpy.random.default_rng(5).standard_normal((64, 64)))
    x = x / x.norm()
    for scale in (1.0, 1e-9, 1e-12):
        result = newton_schulz((x * scale).float(), schedule="simple", steps=5)
        assert result.norm().item() == pytest.approx(6.96, abs=5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e4, 1e6, 1e15])
def test_a_sixteen_bit_iteration_of_large_float32_input_does_not_overflow(dtype, scale):
    x = matrix(16, 16)
    result = newton_schulz(x * scale, dtype=dtype)
    expected = newton_schulz(x, dtype=dtype)
    assert (result - expected).norm() < 5e-3 * expected.norm()


def hard_matrices():
    outer = torch.outer(matrix(24), matrix(40, seed=1))
    u, _, vh = torch.linalg.svd(matrix(24, 40), full_matrices=False)
    return {
        "random": matrix(24, 40),
        "rank one": outer,
        "one dominant": matrix(24, 40) + 100 * outer,
        "condition 1e6": u * torch.logspace(0, -6, 24) @ vh,
        "8 x 1024": matrix(8, 1024),
    }


@pytest.mark.parametrize("kind", list(hard_matrices()))
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("more", [0, 5])
def test_sixteen_bit_iterations_stay_finite_and_bounded(kind, schedule, dtype, more):
    x = hard_matrices()[kind]
    steps = len(SCHEDULES[schedule].coefficients) + more
    result = polar(x, schedule=schedule, steps=steps, dtype=dtype)
    assert result.isfinite().all()
    assert torch.linalg.matrix_norm(result.double(), ord=2) <= 1.3
    if kind in ("random", "8 x 1024"):
        reference = polar(x.double(), schedule=schedule, steps=steps)
        # 8 and 11 bits of mantissa; of other kinds, rounding of the input alone is lifted to one
        allowed = {torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
        assert (result - reference).norm() < allowed * reference.norm()


def test_momenta_of_real_training_reach_the_error_that_is_asked_for():
    for label, x in torch.load(DATA, weights_only=True).items():
        cut = max(x.shape) * torch.finfo(torch.float32).eps
        expected = oracles.polar(x, relative=cut)
        for tolerance in (0.2, 1e-2, 1e-3):
            result = polar(x, tolerance=tolerance)
            assert (result.double() - expected).norm() <= tolerance * expected.norm(), label


def test_the_gram_form_is_as_good_on_momenta_of_real_training():
    for label, x in torch.load(DATA, weights_only=True).items():
        plain = newton_schulz(x.double())
        for function in (newton_schulz, gram_newton_schulz):
            error = (function(x).double() - plain).norm() / plain.norm()
            assert error < 2e-3, label
