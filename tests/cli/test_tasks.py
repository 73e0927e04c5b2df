"""Data, splits and batches."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from steepest.cli.errors import BadInputError
from steepest.cli.tasks import (
    CONTEXT,
    TASKS,
    batches,
    load_task,
    split_rows,
    unique_text,
)
from steepest.cli.training import initial_model


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return load_task(request.param)


def test_data_are_the_same_each_time(task):
    again = load_task(task.name)
    assert task.fingerprint == again.fingerprint
    assert torch.equal(task.test.inputs, again.test.inputs)


@pytest.mark.parametrize("name", ["train", "validation", "test"])
@pytest.mark.parametrize("part", ["inputs", "targets"])
def test_the_fingerprint_sees_every_number(digits, name, part):
    split = getattr(digits, name)
    values = getattr(split, part).clone()
    values.view(-1)[-1] += 1
    changed = dataclasses.replace(digits, **{name: dataclasses.replace(split, **{part: values})})
    assert changed.fingerprint != digits.fingerprint


def test_the_model_fits_the_data_and_the_loss(task):
    few = task.train[slice(0, 5)]
    outputs = initial_model(task, 0)(few.inputs)
    assert task.loss(outputs, few.targets).isfinite()
    assert task.metric.compute(outputs, few.targets).ndim == 0


def test_initial_weights_depend_on_the_seed_alone(task):
    before = torch.get_rng_state()
    first, again, other = (initial_model(task, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert torch.equal(before, torch.get_rng_state())


def test_evaluation_of_training_loss_uses_training_data(task):
    seen = {row.contiguous().numpy().tobytes() for row in task.train.inputs}
    judged = {row.contiguous().numpy().tobytes() for row in task.train_evaluation.inputs}
    assert judged <= seen
    assert len(judged) > 250


def test_splits_share_no_row():
    parts = split_rows(1797)
    assert [len(part) for part in parts] == [1078, 360, 359]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(1797))


@pytest.mark.parametrize("name", ["digits", "digits-conv", "diabetes"])
def test_no_training_input_is_judged(name):
    task = load_task(name)
    seen = {tuple(row) for row in task.train.inputs.flatten(1).tolist()}
    for held_out in (task.validation, task.test):
        assert not seen & {tuple(row) for row in held_out.inputs.flatten(1).tolist()}


def test_text_has_no_repeated_paragraph():
    paragraphs = [" ".join(part.split()) for part in unique_text().split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs) > 1000


def test_little_of_the_test_text_stands_in_the_training_text():
    task = load_task("text")
    train = {row.numpy().tobytes() for row in task.train.inputs}
    shared = sum(row.contiguous().numpy().tobytes() in train for row in task.test.inputs)
    assert shared / len(task.test) < 0.01


def test_text_targets_are_the_next_characters():
    task = load_task("text")
    for split in (task.train, task.validation, task.test):
        assert split.inputs.shape[1] == CONTEXT
        assert torch.equal(split.inputs[7, 1:], split.targets[7, :-1])


def test_diabetes_is_standardized_by_the_training_rows_alone():
    task = load_task("diabetes")
    torch.testing.assert_close(task.train.inputs.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(task.train.targets.std(), torch.tensor(1.0))
    assert task.test.inputs.mean(0).abs().max() > 0.02


def test_batches_are_shuffled_epochs_of_the_seed():
    rows = batches(10, 4, steps=5, seed=3)
    assert rows.shape == (5, 4)
    for epoch in rows.flatten().view(2, 10):
        assert epoch.sort().values.tolist() == list(range(10))
    assert torch.equal(rows, batches(10, 4, steps=5, seed=3))
    assert not torch.equal(rows, batches(10, 4, steps=5, seed=4))


def test_an_unknown_task_names_the_tasks():
    with pytest.raises(BadInputError, match="'digit': choose from digits, digits-conv, text, dia"):
        load_task("digit")
