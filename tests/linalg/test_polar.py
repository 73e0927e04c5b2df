"""Newton–Schulz against the written-out iteration in float64."""

from __future__ import annotations

import pytest
import torch

import oracles
from steepest.linalg import SCHEDULES, coefficients, gram_newton_schulz, newton_schulz, polar

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 5), (3, 9), (9, 3), (33, 20)]


def matrix(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def with_singular_values(values, rows, columns, seed=0):
    u = torch.linalg.qr(matrix(rows, len(values), seed=seed)).Q
    v = torch.linalg.qr(matrix(columns, len(values), seed=seed + 1)).Q
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_equals_the_iteration_in_float64(schedule, shape, dtype, tolerance):
    x = matrix(*shape, dtype=dtype)
    steps = len(SCHEDULES[schedule].coefficients)
    expected = oracles.newton_schulz(x, coefficients(schedule, steps))
    if min(shape) == 1:
        tolerance *= 100  # steep polynomials cancel ten to one at s = 1, where a row is
    # eight steps of one table do not converge, and carry rounding on; the interval of another ends
    # at s = 1, where it is steepest
    tolerance *= {"deepseek_v4": 30, "cans": 10}.get(schedule, 1)
    for function in (newton_schulz, gram_newton_schulz, polar):
        result = function(x, schedule=schedule, steps=steps)
        assert result.dtype == dtype
        assert (result.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("shape", [(20, 20), (8, 30), (30, 8)])
def test_enough_steps_give_the_polar_factor(shape):
    x = matrix(*shape)
    result = newton_schulz(x, schedule="polar_express", steps=14)
    torch.testing.assert_close(result, oracles.polar(x), rtol=0, atol=1e-10)


def test_singular_values_of_the_simple_schedule_lie_in_its_band():
    values = [1.0, 0.5, 0.3, 0.1, 0.03, 0.0125]  # normalised: all above 0.01
    result = newton_schulz(with_singular_values(values, 12, 9), schedule="simple", steps=5)
    moved = torch.linalg.svdvals(result)[:6]
    assert moved.min() >= 0.68
    assert moved.max() <= 1.14


@pytest.mark.parametrize(("value", "expected"), [(1e-3, 0.47), (1e-4, 0.048)])
def test_small_singular_values_are_not_taken_for_one(value, expected):
    x = with_singular_values([1.0, value], 6, 6)
    moved = torch.linalg.svdvals(newton_schulz(x, schedule="simple", steps=5))[1]
    assert moved.item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_rank_one_matrix_stays_of_rank_one(dtype):
    x = torch.outer(matrix(6), matrix(4, seed=1)).to(dtype)
    values = torch.linalg.svdvals(newton_schulz(x, schedule="simple", steps=5).double())
    assert values[0].item() == pytest.approx(0.696, abs=2e-3)
    assert values[1:].max() < (1e-12 if dtype == torch.float64 else 2e-4)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-12, 1e-9, 1e-6, 1e6, 1e20, 1e38])
def test_the_scale_of_the_input_does_not_matter(scale):
    x = matrix(24, 16).clamp_(-3, 3).to(torch.float32)
    scaled = (x.double() * scale).to(torch.float32)
    result, expected = newton_schulz(scaled), newton_schulz(x)
    # 1e-38 is a subnormal float32 with fewer digits of its own
    tolerance = 1e-5 if scale > 1e-37 else 1e-4
    assert (result - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_sixteen_bit_input_is_iterated_in_float32(dtype, scale):
    x = (matrix(16, 8) * scale).clamp_(-6e4, 6e4).to(dtype)
    result = newton_schulz(x)
    expected = oracles.newton_schulz(x, coefficients("polar_express", 5))
    assert result.dtype == dtype
    rounding = torch.finfo(dtype).eps
    assert (result.double() - expected).norm() < rounding * expected.norm()


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e15])
def test_a_narrow_iteration_of_wide_input_does_not_overflow(scale):
    x = matrix(16, 16, dtype=torch.float32)
    narrow = newton_schulz(x * scale, dtype=torch.bfloat16)
    expected = newton_schulz(x)
    assert (narrow - expected).norm() < 5e-2 * expected.norm()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (3, 0, 4)])
def test_empty_matrices_stay_empty(shape):
    assert newton_schulz(torch.zeros(shape)).shape == shape


def test_zero_matrices_give_exact_zeros_alone_and_in_a_batch():
    batch = matrix(3, 5, 4)
    batch[1] = 0
    result = newton_schulz(batch)
    assert torch.equal(result[1], torch.zeros(5, 4, dtype=torch.float64))
    assert torch.equal(newton_schulz(torch.zeros(5, 4)), torch.zeros(5, 4))
    assert torch.linalg.svdvals(result[0]).min() > 0.5


def test_a_matrix_that_is_not_finite_does_not_touch_its_neighbours():
    batch = matrix(3, 5, 4)
    clean = newton_schulz(batch)
    batch[1, 2, 2] = float("nan")
    result = newton_schulz(batch)
    assert not result[1].isfinite().any()
    torch.testing.assert_close(result[::2], clean[::2], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 3, 3, 5)])
def test_a_batch_equals_its_matrices_one_by_one(shape):
    batch = matrix(*shape)
    result = newton_schulz(batch).reshape(-1, *shape[-2:])
    for each, x in zip(result, batch.reshape(-1, *shape[-2:]), strict=True):
        torch.testing.assert_close(each, newton_schulz(x), rtol=1e-12, atol=1e-13)


def test_the_input_is_not_changed_whatever_its_strides():
    x = matrix(6, 5).t()
    before = x.clone()
    result = newton_schulz(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(result, newton_schulz(x.contiguous()), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(result, newton_schulz(x.t()).t(), rtol=1e-12, atol=1e-13)


def test_weights_that_require_gradients_are_taken_as_they_are():
    x = matrix(4, 3).requires_grad_()
    for result in (newton_schulz(x), gram_newton_schulz(x), polar(x), polar(x, tolerance=1e-2)):
        assert not result.requires_grad
    torch.testing.assert_close(polar(x), polar(x.detach()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("x", "message"),
    [(torch.zeros(3), "two dimensions"), (torch.zeros(2, 2, dtype=torch.int64), "floating")],
)
def test_what_is_no_real_matrix_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        newton_schulz(x)
