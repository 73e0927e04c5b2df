"""Optimizers as a user writes them."""

from __future__ import annotations

import pytest
from torch import optim

import steepest
from steepest.cli.errors import BadInputError
from steepest.cli.registry import KINDS
from steepest.cli.specs import parse_specs


def test_names_options_and_values():
    specs = parse_specs(
        "muon:lr=0.02:nesterov=False:scale=unit_rms:rest_lr=1e-3, AdamW:betas=(0.9,0.99),"
        "muon:schedule=[(3,-4,2),(3,-4,2)]:nesterov=true",
        sweep=False,
    )
    assert [spec.kind.make for spec in specs] == [steepest.Muon, optim.AdamW, steepest.Muon]
    assert [spec.options for spec in specs] == [
        {"lr": 0.02, "nesterov": False, "scale": "unit_rms", "rest_lr": 1e-3},
        {"betas": (0.9, 0.99)},
        {"schedule": [(3, -4, 2), (3, -4, 2)], "nesterov": True},
    ]
    assert [spec.label for spec in specs][1] == "AdamW:betas=(0.9,0.99)"


def test_every_optimizer_of_torch_but_the_sparse_one_is_known():
    classes = {getattr(optim, name) for name in optim.__all__ if name[0].isupper()}
    known = {kind.make for kind in KINDS.values()}
    assert classes - known == {optim.Optimizer, optim.SparseAdam}
    assert KINDS["torch-muon"].make is optim.Muon
    assert KINDS["muon"].make is steepest.Muon


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("adamx", ["'adamx'", "muon", "projected", "adamw", "torch-muon"]),
        ("sparseadam", ["'sparseadam'", "adamw"]),
        ("adamw,", ["''", "adamw"]),
        ("muon:lrr=1", ["muon", "'lrr'", "momentum", "rest_lr"]),
        ("adamw:rest_lr=1", ["adamw", "'rest_lr'", "betas"]),
        ("sgd:params=1", ["sgd", "'params'", "momentum"]),
        ("sgd:lr", ["key=value", "'lr'", "momentum"]),
        ("sgd:lr=", ["key=value", "'lr='"]),
        ("sgd:lr=fast", ["sgd:lr=fast", "number", "'fast'"]),
        ("sgd:lr=true", ["lr", "number", "True"]),
        ("sgd:nesterov=maybe", ["nesterov", "true or false", "'maybe'"]),
        ("adamw:betas=0.9", ["betas", "2 values", "0.9"]),
        ("muon:rest_lr=-1", ["rest_lr", ">= 0", "-1"]),
        ("sgd:lr=1:lr=2", ["lr", "twice"]),
        ("sgd,adamw,sgd", ["'sgd'", "twice"]),
    ],
)
def test_bad_specs_say_what_is_wrong_and_what_is_right(text, parts):
    with pytest.raises(BadInputError) as caught:
        parse_specs(text, sweep=False)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message


def test_a_sweep_takes_no_learning_rate():
    assert parse_specs("sgd:momentum=0.5", sweep=True)[0].options == {"momentum": 0.5}
    with pytest.raises(BadInputError, match="lr or --sweep"):
        parse_specs("sgd:lr=0.1", sweep=True)
