"""Optimizers of one or two parts, their schedule and their memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import steepest
from steepest.cli.models import ConvolutionalNetwork, Perceptron, Transformer
from steepest.cli.registry import KINDS
from steepest.cli.whole_model import build_optimizer, schedule


def names_of(model, part):
    names = {param: name for name, param in model.named_parameters()}
    return {names[param] for group in part.param_groups for param in group["params"]}


def take_step(model, optimizer, inputs):
    def closure():
        model.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    return optimizer.step(closure)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_parameter_has_one_optimizer_and_moves(kind):
    model = ConvolutionalNetwork(2, 3)
    before = {name: param.clone() for name, param in model.named_parameters()}
    optimizer = build_optimizer(kind, {"lr": 0.1}, model, steps=1)
    named = [names_of(model, part) for part in optimizer.parts]
    assert sorted(name for names in named for name in names) == sorted(before)
    inputs = torch.randn(4, 1, 8, 8)
    loss = take_step(model, optimizer, inputs)
    assert isinstance(loss, float)
    still = [name for name, param in model.named_parameters() if torch.equal(param, before[name])]
    assert still == []


@pytest.mark.parametrize(
    ("name", "convolutions"), [("muon", {"first.weight", "second.weight"}), ("torch-muon", set())]
)
def test_matrices_and_the_rest(name, convolutions):
    model = ConvolutionalNetwork(2, 3)
    main, rest = build_optimizer(KINDS[name], {"lr": 0.1}, model, steps=1).parts
    assert type(main) is KINDS[name].make
    assert type(rest) is torch.optim.AdamW
    matrices, others = names_of(model, main), names_of(model, rest)
    assert matrices == {"hidden.weight"} | convolutions
    assert {"head.weight", "head.bias", "first.bias", "hidden.bias"} <= others


def test_embeddings_and_head_of_the_transformer_are_the_rest():
    model = Transformer(11, 8, width=8, layers=1, heads=2)
    main, rest = build_optimizer(KINDS["muon"], {"lr": 0.1}, model, steps=1).parts
    assert {"characters.weight", "positions.weight", "head.weight"} <= names_of(model, rest)
    layers = ("query", "key", "value", "output", "up", "down")
    assert names_of(model, main) == {f"blocks.0.{layer}.weight" for layer in layers}


def test_the_rest_shares_rate_and_decay_unless_told_otherwise():
    model = Perceptron((3, 4, 2))
    shared = {"lr": 0.1, "weight_decay": 0.3}
    main, rest = build_optimizer(KINDS["muon"], shared, model, steps=1).parts
    assert type(main) is steepest.Muon
    assert (rest.defaults["lr"], rest.defaults["weight_decay"]) == (0.1, 0.3)
    own = {**shared, "rest_lr": 0.01, "rest_weight_decay": 0.0}
    main, rest = build_optimizer(KINDS["muon"], own, model, steps=1).parts
    assert (main.defaults["lr"], main.defaults["weight_decay"]) == (0.1, 0.3)
    assert (rest.defaults["lr"], rest.defaults["weight_decay"]) == (0.01, 0.0)


def test_state_bytes_of_adamw_are_two_copies_and_the_step_counts():
    model = Perceptron((3, 4, 2))
    optimizer = build_optimizer(KINDS["adamw"], {"lr": 0.1}, model, steps=1)
    assert optimizer.state_bytes() == 0
    take_step(model, optimizer, torch.randn(5, 3))
    entries, tensors = 3 * 4 + 4 + 4 * 2 + 2, 4
    assert optimizer.state_bytes() == 4 * (2 * entries + tensors)


def test_state_bytes_of_two_parts_are_their_sum():
    model = Perceptron((3, 4, 2))
    optimizer = build_optimizer(KINDS["muon"], {"lr": 0.1}, model, steps=1)
    take_step(model, optimizer, torch.randn(5, 3))
    rest, rest_tensors = 4 + 4 * 2 + 2, 3
    assert optimizer.state_bytes() == 4 * (3 * 4 + 2 * rest + rest_tensors)


def test_state_bytes_see_lists_of_tensors():
    model = Perceptron((3, 4, 2))
    optimizer = build_optimizer(KINDS["lbfgs"], {"lr": 0.1}, model, steps=1)
    take_step(model, optimizer, torch.randn(5, 3))
    (state,) = optimizer.parts[0].state.values()
    lists = 4 * sum(t.numel() for t in [*state["old_dirs"], *state["old_stps"]])
    assert lists > 0
    assert optimizer.state_bytes() > lists


def test_schedule_rises_then_falls_to_nearly_nothing():
    factors = [schedule(step, 100) for step in range(100)]
    assert factors[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert all(a > b for a, b in pairwise(factors[5:]))
    assert 0.0 < factors[-1] < 0.001
    assert schedule(0, 1) == 1.0


def test_all_parts_follow_the_schedule():
    model = Perceptron((3, 4, 2))
    optimizer = build_optimizer(KINDS["muon"], {"lr": 0.1}, model, steps=40)
    rates = []
    for _ in range(3):
        rates.append([part.param_groups[0]["lr"] for part in optimizer.parts])
        take_step(model, optimizer, torch.randn(5, 3))
    assert rates == [[pytest.approx(0.1 * f)] * 2 for f in (0.5, 1.0, 1.0)]


@pytest.mark.parametrize("name", ["muon", "torch-muon"])
def test_frozen_parameters_have_no_optimizer(name):
    model = ConvolutionalNetwork(2, 3)
    model.second.weight.requires_grad_(False)
    model.first.bias.requires_grad_(False)
    parts = build_optimizer(KINDS[name], {"lr": 0.1}, model, steps=1).parts
    named = {n for part in parts for n in names_of(model, part)}
    assert named == {n for n, p in model.named_parameters() if p.requires_grad}
