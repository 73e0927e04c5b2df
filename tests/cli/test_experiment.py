"""Runs, seeds, sweeps, choice and interruption."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from steepest.cli import experiment
from steepest.cli.defaults import TRIALS, TUNED, learning_rate_grid, settings_for
from steepest.cli.errors import BadInputError
from steepest.cli.experiment import Contender, Trial, carry_out, prepare
from steepest.cli.registry import KINDS
from steepest.cli.specs import parse_specs
from steepest.cli.tasks import TASKS
from steepest.cli.training import Run


def trial(lr, *validation_losses):
    runs = [
        Run(seed, diverged=loss is None, validation_loss=loss)
        for seed, loss in enumerate(validation_losses)
    ]
    return Trial({"lr": lr}, runs)


def contender(*trials):
    return Contender(parse_specs("sgd", sweep=True)[0], list(trials))


def test_seeds_come_round_by_round(digits, watcher):
    specs = parse_specs("sgd,adamw", sweep=False)
    comparison = prepare(digits, specs, steps=2, seeds=2, sweep=False, threads=1)
    carry_out(comparison, watcher)
    assert [e[1::2] for e in watcher.events if e[0] == "started"] == [
        ("sgd", 0), ("adamw", 0), ("sgd", 1), ("adamw", 1),
    ]  # fmt: skip
    assert sum(event[0] == "step" for event in watcher.events) == 2 * comparison.run_count() == 8
    assert comparison.status == "finished"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_optimizer_has_the_same_number_of_trials_of_equal_ratio(kind):
    grid = learning_rate_grid(kind)
    assert len(grid) == TRIALS
    ratios = [b / a for a, b in pairwise(grid)]
    assert ratios == pytest.approx([math.sqrt(10)] * (TRIALS - 1), rel=0.05)


def test_a_sweep_tries_the_grid_of_every_optimizer_with_every_seed(compare):
    comparison = compare("muon,sgd:momentum=0.5", steps=1, sweep=True)
    for contender in comparison.contenders:
        rates = [trial.settings["lr"] for trial in contender.trials]
        assert rates == learning_rate_grid(contender.spec.kind)
        assert [[run.seed for run in trial.runs] for trial in contender.trials] == [[0, 1]] * TRIALS
    used = comparison.contenders[1].trials[0].runs[0].settings[0]
    assert (used["lr"], used["momentum"]) == (learning_rate_grid(KINDS["sgd"])[0], 0.5)


def test_least_mean_validation_loss_is_chosen_and_divergence_is_worst():
    best = trial(0.1, 1.0, 2.0)
    chosen_from = contender(trial(0.01, 1.8, 1.8), best, trial(1.0, 0.1, None))
    assert chosen_from.chosen() is best
    assert not chosen_from.chosen_at_edge()
    assert contender(best, trial(1.0, 2.0, 2.0)).chosen_at_edge()
    assert not contender(best).chosen_at_edge()


def test_trials_that_an_interrupt_cut_short_are_not_chosen():
    complete = trial(0.1, 1.0, 1.0)
    assert contender(complete, trial(1.0, 0.1)).chosen() is complete


def test_the_best_test_metric_comes_first_and_the_diverged_last(compare):
    comparison = compare("sgd:lr=1e30,sgd:lr=0,adamw:lr=0.01", steps=20)
    labels = [contender.spec.label for contender in comparison.started()]
    assert labels == ["adamw:lr=0.01", "sgd:lr=0", "sgd:lr=1e30"]


def test_an_interrupt_keeps_the_finished_runs(digits, watcher, monkeypatch):
    real, calls = experiment.train_once, []

    def interrupted(*args, **kwargs):
        calls.append(kwargs["seed"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    specs = parse_specs("sgd,adamw", sweep=False)
    comparison = prepare(digits, specs, steps=2, seeds=3, sweep=False, threads=1)
    monkeypatch.setattr(experiment, "train_once", interrupted)
    carry_out(comparison, watcher)
    assert comparison.status == "interrupted"
    assert [len(c.trials[0].runs) for c in comparison.contenders] == [2, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("muon:steps=0", "muon:steps=0: steps must"),
        ("adamw:lr=-1", "adamw:lr=-1: Invalid learning rate"),
        ("projected:metric=dense", "projected:metric=dense: .*max_exact_parameters"),
        ("lbfgs:line_search_fn=weak", "strong_wolfe"),
        ("sgd,muon:scale=big", "muon:scale=big: .*unit_rms"),
    ],
)
def test_what_a_constructor_refuses_is_bad_input(digits, text, message):
    with pytest.raises(BadInputError, match=message):
        prepare(digits, parse_specs(text, sweep=False), steps=1, seeds=1, sweep=False, threads=1)


def test_settings_are_usual_then_tuned_then_given():
    sgd = KINDS["sgd"]
    tuned = TUNED["digits"]["sgd"]["lr"]
    assert settings_for("digits", sgd, {}) == {"lr": tuned, "momentum": 0.9}
    assert settings_for("digits", sgd, {"lr": 7.0, "momentum": 0.0}) == {"lr": 7.0, "momentum": 0.0}
    assert settings_for("digits", KINDS["adagrad"], {}) == {"lr": 0.01}


def test_defaults_name_known_tasks_optimizers_and_options():
    assert TUNED.keys() == TASKS.keys()
    for table in TUNED.values():
        assert {"muon", "adamw", "sgd", "projected"} <= table.keys()
        for name, settings in table.items():
            assert settings.keys() <= KINDS[name].options().keys()
