"""Coefficient tables: what they promise on their interval, and how they are continued."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg import SCHEDULES, coefficients


def scalar(table, s):
    for a, b, c in table:
        s = a * s + b * s**3 + c * s**5
    return s


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("steps", [5, 8, 12])
def test_every_table_stays_near_one_on_its_interval_and_below_its_bound_outside(name, steps):
    s = torch.linspace(1e-2, 1, 100_001, dtype=torch.float64)
    moved = scalar(coefficients(name, steps), s)
    assert moved.min() > 0.65
    assert moved.max() < 1.3
    small = scalar(coefficients(name, steps), torch.linspace(0, 1e-2, 10_001).double())
    assert small.min() >= 0
    assert small.max() < 1.3


@pytest.mark.parametrize(("steps", "error"), [(5, 0.25), (6, 0.04), (8, 1e-4), (10, 1e-12)])
def test_polar_express_converges(steps, error):
    s = torch.linspace(1e-3 * 2, 1, 100_001, dtype=torch.float64)
    assert (scalar(coefficients("polar_express", steps), s) - 1).abs().max() < error


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_each_table_names_its_source(name):
    assert "http" in SCHEDULES[name].source or "arXiv" in SCHEDULES[name].source


def test_longer_schedules_repeat_the_last_step_and_shorter_ones_start_the_same():
    assert coefficients("polar_express", 3) == coefficients("polar_express", 10)[:3]
    assert coefficients("polar_express", 10)[8:] == ((1.875, -1.25, 0.375),) * 2
    assert coefficients("quintic", 7)[5:] == (coefficients("quintic", 5)[-1],) * 2


def test_a_table_that_works_as_a_whole_is_not_cut():
    with pytest.raises(ValueError, match="steps must be at least 5"):
        coefficients("quintic", 4)


def test_own_coefficients_are_taken_and_continued():
    own = [(2.0, -1.5, 0.5), (1.5, -0.5, 0.0)]
    assert coefficients(own, 3) == ((2.0, -1.5, 0.5), (1.5, -0.5, 0.0), (1.5, -0.5, 0.0))
    with pytest.raises(ValueError, match="at least 2"):
        coefficients(own, 1)
