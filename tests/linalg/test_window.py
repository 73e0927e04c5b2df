"""The bookkeeping of columns."""

from __future__ import annotations

import pytest

from steepest.linalg.window import Columns, advance


def advanced(steps, **options):
    columns = Columns.empty()
    for _ in range(steps):
        columns = advance(columns, **options)
    return columns


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("history_size", [1, 3, 50])
def test_weights_and_damping_equal_the_recursion_written_out(beta, history_size):
    columns = advanced(12, history_size=history_size, beta=beta, ridge=0.5, tail_tolerance=0.0)
    damping, weights = 0.0, {}
    for step in range(1, 13):
        damping = 0.5 + beta * damping
        weights = {old: beta * weight for old, weight in weights.items()}
        window = range(max(step - history_size, 0) + 1, step + 1)
        for each in window:
            share = (1.0 if step == 1 else 1 - beta) / len(window)
            weights[each] = weights.get(each, 0.0) + share
    held = dict(zip(columns.column_step.tolist(), columns.weights.tolist(), strict=True))
    held.pop(0, None)
    assert held == pytest.approx({step: w for step, w in weights.items() if w > 0}, rel=1e-14)
    assert columns.damping == pytest.approx(damping, rel=1e-14)
    assert columns.column_step[columns.newest] == 12


def test_without_beta_the_window_needs_no_slot_beyond_its_size():
    columns = advanced(20, history_size=4, beta=0.0, ridge=1.0, tail_tolerance=0.0)
    assert columns.slots == 4
    assert sorted(columns.column_step.tolist()) == [17, 18, 19, 20]
    assert columns.weights.tolist() == [0.25] * 4


def test_a_window_that_shrinks_or_grows_between_steps():
    options = {"beta": 0.0, "ridge": 1.0, "tail_tolerance": 0.0}
    columns = advanced(6, history_size=4, **options)
    columns = advance(columns, history_size=2, **options)
    assert sorted(columns.column_step.tolist()) == [0, 0, 6, 7]
    for _ in range(6):
        columns = advance(columns, history_size=6, **options)
    assert [step for step in sorted(columns.column_step.tolist()) if step] == [8, 9, 10, 11, 12, 13]
