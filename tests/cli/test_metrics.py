"""Figures of merit against hand-made ones."""

from __future__ import annotations

import math

import pytest
import torch

from steepest.cli.metrics import ACCURACY, BITS_PER_CHARACTER, R_SQUARED


def test_accuracy():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 3.0]])
    assert ACCURACY.compute(logits, torch.tensor([0, 1, 1, 1])) == pytest.approx(0.75)


def test_bits_of_an_even_guess():
    logits = torch.zeros(2, 3, 8)
    targets = torch.zeros(2, 3, dtype=torch.long)
    assert BITS_PER_CHARACTER.compute(logits, targets) == pytest.approx(3.0)


def test_r_squared_of_the_truth_the_mean_and_a_guess():
    targets = torch.tensor([[1.0], [2.0], [6.0]])
    assert R_SQUARED.compute(targets, targets) == pytest.approx(1.0)
    assert R_SQUARED.compute(torch.full((3, 1), 3.0), targets) == pytest.approx(0.0)
    guess = torch.tensor([[1.0], [2.0], [4.0]])
    assert R_SQUARED.compute(guess, targets) == pytest.approx(1.0 - 4.0 / 14.0)


def test_rank_puts_the_better_first_and_the_missing_last():
    assert ACCURACY.cost([0.9]) < ACCURACY.cost([0.8]) < ACCURACY.cost([]) == math.inf
    assert BITS_PER_CHARACTER.cost([2.0]) < BITS_PER_CHARACTER.cost([3.0])


def test_format():
    assert BITS_PER_CHARACTER.format([2.0, 3.0]) == "2.500 ± 0.707"
    assert ACCURACY.format([0.5]) == "50.00 %"
    assert ACCURACY.format([]) == "–"
