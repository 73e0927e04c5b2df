"""Coefficient tables: what they promise on their interval, and how they are continued."""

from __future__ import annotations

import math
import re

import pytest
import torch

from steepest.linalg import SCHEDULES, coefficients, minimax, minimax_error


def scalar(table, s):
    for a, b, c in table:
        s = a * s + b * s**3 + c * s**5
    return s


def interval(lower):
    return torch.cat(
        [
            torch.linspace(lower, 1, 100_001, dtype=torch.float64),
            torch.logspace(math.log10(lower), 0, 100_001, dtype=torch.float64).clamp(lower, 1.0),
        ]
    )


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_table_keeps_the_error_that_it_declares_on_its_interval(name):
    table = SCHEDULES[name]
    moved = scalar(table.coefficients, interval(table.interval[0]))
    error = (moved - 1).abs().max()
    assert error <= table.error
    assert error >= 0.9 * table.error or table.error < 1e-11


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("more", [0, 1, 4])
def test_values_below_the_interval_are_lifted_and_none_changes_sign_or_grows(name, more):
    table = coefficients(name, len(SCHEDULES[name].coefficients) + more)
    moved = scalar(table, torch.linspace(0, 1, 200_001, dtype=torch.float64))
    assert moved.min() >= 0
    assert moved.max() < 1.3
    start = torch.tensor([1e-6], dtype=torch.float64)
    assert scalar(table, start) > 10 * start


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].converges])
def test_tables_that_converge_do_so_with_more_steps(name):
    table = coefficients(name, len(SCHEDULES[name].coefficients) + 25)
    assert (scalar(table, interval(1e-3)) - 1).abs().max() < 1e-12


@pytest.mark.parametrize(("steps", "error"), [(5, 0.25), (6, 0.04), (8, 1e-4), (10, 1e-12)])
def test_polar_express_converges(steps, error):
    s = torch.linspace(1e-3 * 2, 1, 100_001, dtype=torch.float64)
    assert (scalar(coefficients("polar_express", steps), s) - 1).abs().max() < error


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_each_table_names_its_source(name):
    assert re.search(r"\(?(19|20)\d\d\b|arXiv:\d{4}\.\d{5}", SCHEDULES[name].source)


def test_longer_schedules_repeat_the_last_step_and_shorter_ones_start_the_same():
    assert coefficients("polar_express", 3) == coefficients("polar_express", 10)[:3]
    assert coefficients("polar_express", 10)[8:] == ((1.875, -1.25, 0.375),) * 2
    assert coefficients("quintic", 7)[5:] == (coefficients("quintic", 5)[-1],) * 2


def test_a_table_that_works_as_a_whole_is_not_cut():
    with pytest.raises(ValueError, match="steps must be at least 5"):
        coefficients("quintic", 4)


@pytest.mark.parametrize("lower", [1e-6, 1e-3, 1e-2, 0.3, 0.9, 0.99999999])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_minimax_has_the_error_that_it_declares_and_none_is_smaller(lower, steps):
    table = minimax(l=lower, steps=steps)
    s = interval(lower)
    error = (scalar(table, s) - 1).abs().max().item()
    assert error == pytest.approx(minimax_error(l=lower, steps=steps), rel=1e-6, abs=1e-13)
    for name in ("cans", "polar_express", "simple", "cubic"):
        other = (scalar(coefficients(name, steps), s) - 1).abs().max()
        assert error <= other + 1e-4  # published tables are rounded to four digits


def test_minimax_equioscillates():
    """Chebyshev: the best quintic touches its error four times with alternating sign."""
    s = torch.linspace(0.1, 1, 1_000_001, dtype=torch.float64)
    error = 1 - scalar(minimax(l=0.1, steps=1), s)
    level = error.abs().max()
    touching = error[error.abs() > level * (1 - 1e-9)].sign()
    signs = [touching[0].item()]
    for sign in touching.tolist():
        if sign != signs[-1]:
            signs.append(sign)
    assert signs == [1, -1, 1, -1]


def test_a_published_table_is_the_minimax_of_its_interval():
    ours = minimax(l=1e-3, steps=5, safety=1.01)
    for row, published in zip(ours, coefficients("cans", 5), strict=True):
        assert row == pytest.approx(published, abs=6e-5)


def test_safety_keeps_values_above_the_interval_from_growing():
    s = torch.linspace(1.0, 1.01, 101, dtype=torch.float64)
    assert scalar(minimax(l=1e-3, steps=5, safety=1.01), s).max() < 1.2


@pytest.mark.parametrize(
    ("options", "name"),
    [({"l": 0.0}, "l"), ({"l": 1.0}, "l"), ({"steps": 0}, "steps"), ({"safety": 0.9}, "safety")],
)
def test_bad_arguments_of_minimax_are_refused(options, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        minimax(**options)


def test_own_coefficients_are_taken_and_continued():
    own = [(2.0, -1.5, 0.5), (1.5, -0.5, 0.0)]
    assert coefficients(own, 3) == ((2.0, -1.5, 0.5), (1.5, -0.5, 0.0), (1.5, -0.5, 0.0))
    with pytest.raises(ValueError, match="at least 2"):
        coefficients(own, 1)
