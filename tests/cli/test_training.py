"""One run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from steepest.cli import training
from steepest.cli.registry import KINDS
from steepest.cli.tasks import load_task
from steepest.cli.training import initial_model, rehearse, train_once


def run(task, name="adamw", *, lr=0.003, steps=3, seed=0, **settings):
    return train_once(task, KINDS[name], {"lr": lr, **settings}, steps=steps, seed=seed)


@pytest.mark.parametrize("name", ["muon", "projected", "adamw", "lbfgs"])
def test_a_run_repeats_bit_for_bit(digits, name):
    first, again = run(digits, name), run(digits, name)
    assert first.losses == again.losses
    assert first.test_metric == again.test_metric
    assert run(digits, name, seed=1).losses[0] != first.losses[0]


def test_all_optimizers_see_the_same_weights_and_batches(digits, monkeypatch):
    names = ("muon", "sgd", "projected", "torch-muon")
    real, batches = training._step, []

    def record(task, model, optimizer, rows):
        batches.append(rows.tolist())
        return real(task, model, optimizer, rows)

    monkeypatch.setattr(training, "_step", record)
    first_losses = {run(digits, name, seed=5).losses[0] for name in names}
    assert len(first_losses) == 1
    assert len(batches) == 3 * len(names)
    assert batches == batches[:3] * len(names)


def test_figures_of_the_run_are_those_of_the_model(digits):
    result = run(digits, "sgd", lr=0.0)
    model = initial_model(digits, 0)
    for name, split in (("train_loss", digits.train), ("validation_loss", digits.validation)):
        loss = digits.loss(model(split.inputs), split.targets).item()
        assert getattr(result, name) == pytest.approx(loss, rel=1e-5)
    guesses = model(digits.test.inputs).argmax(1)
    accuracy = (guesses == digits.test.targets).double().mean().item()
    assert result.test_metric == pytest.approx(accuracy, rel=1e-6)
    assert len(result.losses) == len(result.step_seconds) == 3
    assert not result.diverged


@pytest.mark.parametrize("name", ["sgd", "muon", "projected", "lbfgs"])
def test_a_loss_that_is_not_finite_stops_the_run(digits, name):
    result = run(digits, name, lr=1e30, steps=50)
    assert result.diverged
    assert len(result.losses) < 10
    assert (result.train_loss, result.test_metric) == (None, None)


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step(digits):
    def loss(outputs, _targets):
        return (outputs - outputs.detach()).square().sum().sqrt()  # 0, with gradient 0/0

    result = run(dataclasses.replace(digits, loss=loss), "projected")
    assert result.diverged
    assert result.losses == []


def test_a_model_that_cannot_be_judged_has_diverged(digits):
    bad = dataclasses.replace(digits.test, inputs=digits.test.inputs * torch.inf)
    result = run(dataclasses.replace(digits, validation=bad))
    assert result.diverged
    assert len(result.losses) == 3
    assert result.train_loss is None
    # test data decide on nothing
    assert not run(dataclasses.replace(digits, test=bad)).diverged


@pytest.mark.parametrize("name", ["digits", "diabetes", "text", "digits-conv"])
def test_training_learns(name):
    task = load_task(name)
    settings = {"lr": 0.01, "steps": 25 if name == "text" else 60}
    result = run(task, "muon", **settings)
    assert result.train_loss < 0.8 * result.losses[0]
    few = run(task, "muon", lr=0.01, steps=1)
    assert task.metric.cost([result.test_metric]) < task.metric.cost([few.test_metric])


def test_a_rehearsal_finds_what_only_a_step_can_find(digits):
    rehearse(digits, KINDS["lbfgs"], {"lr": 1.0})
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        rehearse(digits, KINDS["lbfgs"], {"lr": 1.0, "line_search_fn": "weak"})


def test_qk_clip_bounds_the_attention_logits_of_the_text_task(monkeypatch):
    """With a rate under which they grow large; those of the last batch, after the last clip."""
    task, largest = load_task("text"), []

    def judge(_, __, model):
        largest.append(max(float(layer.max_logits.max()) for layer in model.layers))

    monkeypatch.setattr(training, "_judge", judge)
    for threshold in (1e9, 5.0):
        run(task, "muon", lr=0.1, steps=40, qk_clip=threshold)
    assert largest[0] > 15.0
    assert largest[1] < 6.0


def test_qk_clip_needs_attention(digits):
    with pytest.raises(ValueError, match="qk_clip=5 needs a model with attention, as in the task"):
        run(digits, "muon", qk_clip=5.0)
