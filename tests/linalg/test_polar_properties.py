"""Properties of the polar factor over generated shapes, spectra, scales and dtypes."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from steepest.linalg import SCHEDULES, gram_newton_schulz, newton_schulz, polar

SIDES = st.integers(1, 12)
SEEDS = st.integers(0, 10_000)
EASY = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def matrices(draw, dtype=torch.float64):
    """Random, graded (condition 1 to 1e12), repeated and rank-deficient matrices."""
    rows, columns, seed = draw(SIDES), draw(SIDES), draw(SEEDS)
    side = min(rows, columns)
    generator = torch.Generator().manual_seed(seed)
    u, v = (
        torch.linalg.qr(torch.randn(n, side, generator=generator, dtype=torch.float64)).Q
        for n in (rows, columns)
    )
    kind = draw(st.sampled_from(["random", "graded", "repeated", "deficient"]))
    values = torch.rand(side, generator=generator, dtype=torch.float64) + 0.1
    if kind == "graded":
        values = torch.logspace(0, -draw(st.integers(0, 12)), side, dtype=torch.float64)
    elif kind == "repeated":
        values = torch.ones(side, dtype=torch.float64)
    elif kind == "deficient":
        values[side // 2 :] = 0.0
    return (u * values @ v.T).to(dtype)


@EASY
@given(matrices())
def test_singular_values_stay_in_the_declared_band(x):
    if not x.any():
        return
    values = torch.linalg.svdvals(x) / x.norm()
    for name, table in SCHEDULES.items():
        if values.min() < table.interval[0]:
            continue
        moved = torch.linalg.svdvals(polar(x, schedule=name, steps=len(table.coefficients)))
        assert (moved - 1).abs().max() <= table.error + 1e-9


@EASY
@given(matrices(), SEEDS)
def test_equivariance_under_permutation_transposition_and_padding(x, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(x.shape[0], generator=generator)
    columns = torch.randperm(x.shape[1], generator=generator)
    for function in (newton_schulz, gram_newton_schulz):
        result = function(x, steps=5)
        # the map is smooth, with slope 10³ at most, on singular values
        tolerance = {"rtol": 0.0, "atol": 1e-9}
        torch.testing.assert_close(function(x[rows]), result[rows], **tolerance)
        torch.testing.assert_close(function(x[:, columns]), result[:, columns], **tolerance)
        torch.testing.assert_close(function(x.T), result.T, **tolerance)
        padded = torch.nn.functional.pad(x, (0, 3, 0, 2))
        inside = function(padded)[: x.shape[0], : x.shape[1]]
        torch.testing.assert_close(inside, result, **tolerance)


@EASY
@given(st.lists(SEEDS, min_size=1, max_size=5), SIDES, SIDES)
def test_a_batch_equals_its_matrices(seeds, rows, columns):
    batch = torch.stack(
        [
            torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]
    ).double()
    for function in (newton_schulz, gram_newton_schulz, polar):
        alone = torch.stack([function(x) for x in batch])
        torch.testing.assert_close(function(batch), alone, rtol=0.0, atol=1e-10)


@EASY
@given(matrices(dtype=torch.float32))
def test_the_gram_form_equals_the_plain_one_in_float32(x):
    plain, gram = newton_schulz(x), gram_newton_schulz(x)
    assert (plain - gram).norm() <= 2e-3 * plain.norm()


@EASY
@given(matrices(dtype=torch.float32))
def test_long_gram_iterations_start_anew_and_stay_near_the_plain_ones(x):
    for schedule, steps in (("deepseek_v4", 10), ("polar_express", 8)):
        plain = newton_schulz(x, schedule=schedule, steps=steps)
        gram = gram_newton_schulz(x, schedule=schedule, steps=steps)
        expected = oracles.newton_schulz(x, _table(schedule, steps)) if x.any() else plain.double()
        scale = math.sqrt(min(x.shape))
        # both lift rounding of null directions; neither may exceed the band by more than that
        assert torch.linalg.matrix_norm(gram.double(), ord=2) < 1.3
        well = torch.linalg.svdvals(x.double())
        if x.any() and well.min() > 1e-3 * well.max():
            assert (gram.double() - expected).norm() < 2e-2 * scale


def _table(schedule, steps):
    return SCHEDULES[schedule].coefficients[:steps]


@EASY
@given(matrices(), st.integers(-37, 37))
def test_scale_invariance(x, exponent):
    small = x.to(torch.float32).clamp_(-3, 3)
    scaled = (small.double() * 10.0**exponent).to(torch.float32)
    if (scaled.abs() < 1e-37).logical_and(scaled != 0).any():
        return  # subnormal entries have lost digits of their own
    back = (scaled.double() / 10.0**exponent).to(torch.float32)  # what the scaling kept
    result, expected = newton_schulz(scaled), newton_schulz(back)
    assert (result - expected).norm() <= 1e-4 * expected.norm() + 1e-30


@EASY
@given(matrices(dtype=torch.float32))
def test_the_asked_error_is_kept(x):
    if not x.any():
        return
    cut = max(x.shape) * torch.finfo(torch.float32).eps
    values = torch.linalg.svdvals(x.double())
    if ((values < 4 * cut * values[0]) & (values > 0.25 * cut * values[0])).any():
        return  # a value at the edge of the numerical range belongs to either side
    expected = oracles.polar(x, relative=cut)
    result = polar(x, tolerance=1e-2)
    assert (result.double() - expected).norm() <= 1e-2 * expected.norm()
