"""The bookkeeping of columns."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg.window import Columns, advance, full_size


def advanced(steps, **options):
    columns = Columns.empty()
    for _ in range(steps):
        columns = advance(columns, **options)
    return columns


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("history_size", [1, 3, 50])
def test_weights_equal_the_recursion_written_out(beta, history_size):
    columns = advanced(12, history_size=history_size, beta=beta, tail_tolerance=0.0)
    weights: dict[int, float] = {}
    for step in range(1, 13):
        weights = {old: beta * weight for old, weight in weights.items()}
        window = range(max(step - history_size, 0) + 1, step + 1)
        for each in window:
            share = (1.0 if step == 1 else 1 - beta) / len(window)
            weights[each] = weights.get(each, 0.0) + share
    held = dict(zip(columns.column_step.tolist(), columns.weights.tolist(), strict=True))
    held.pop(0, None)
    assert held == pytest.approx({step: w for step, w in weights.items() if w > 0}, rel=1e-14)
    assert columns.column_step[columns.newest] == 12


def test_without_beta_the_window_needs_no_slot_beyond_its_size():
    columns = advanced(20, history_size=4, beta=0.0, tail_tolerance=0.0)
    assert columns.slots == 4
    assert sorted(columns.column_step.tolist()) == [17, 18, 19, 20]
    assert columns.weights.tolist() == [0.25] * 4


def test_a_window_that_shrinks_or_grows_between_steps():
    options = {"beta": 0.0, "tail_tolerance": 0.0}
    columns = advanced(6, history_size=4, **options)
    columns = advance(columns, history_size=2, **options)
    assert sorted(columns.column_step.tolist()) == [0, 0, 6, 7]
    for _ in range(6):
        columns = advance(columns, history_size=6, **options)
    assert [step for step in sorted(columns.column_step.tolist()) if step] == [8, 9, 10, 11, 12, 13]


def test_with_a_stride_the_newest_column_is_replaced_until_it_is_kept():
    columns = advanced(1, history_size=3, beta=0.5, tail_tolerance=0.0, stride=3)
    seen = []
    for _ in range(8):
        before = columns
        columns = advance(columns, history_size=3, beta=0.5, tail_tolerance=0.0, stride=3)
        seen.append((columns.step, columns.since))
        if columns.since > 1:
            assert columns.newest == before.newest
            assert torch.equal(columns.weights, before.weights)
    assert seen == [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]
    plain = advanced(3, history_size=3, beta=0.5, tail_tolerance=0.0)
    assert torch.equal(columns.weights, plain.weights)


def test_mixtures_are_of_the_tail_for_ever():
    options = {"history_size": 2, "beta": 0.5, "tail_tolerance": 0.0, "most": 6}
    columns = advanced(6, **options)
    assert columns.slots == 6
    tail = columns.tail(2)
    assert sorted(columns.column_step[tail].tolist()) == [1, 2, 3, 4]
    largest = columns.weights[tail].max()
    mixed = columns.mixed(tail, 2)
    assert mixed.weights[tail].tolist() == [largest, largest, 0.0, 0.0]
    assert columns.weights[tail].min() > 0.0  # not changed
    after = advance(mixed, **{**options, "history_size": 50})
    assert after.slots == 6
    assert sorted(after.column_step.tolist()) == [-1, -1, 0, 5, 6, 7]
    assert after.weights[after.column_step == -1].tolist() == [0.5 * largest] * 2


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("history_size", [1, 4, 30])
def test_the_predicted_number_of_slots_is_enough_and_reached(history_size, beta):
    options = {"history_size": history_size, "beta": beta, "tail_tolerance": 1e-6}
    columns = advanced(400, **options)
    assert columns.slots == full_size(**options, rank=None)
    assert full_size(history_size=4, beta=0.5, tail_tolerance=0.0, rank=None) is None
