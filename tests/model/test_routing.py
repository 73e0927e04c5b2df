"""How parameters are told apart, and how a user decides otherwise."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from model.models import GPT, MODELS
from steepest import Muon
from steepest.model.routing import route


class Net(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.convolution = nn.Conv1d(8, 8, 3)
        self.depthwise = nn.Conv1d(8, 8, 3, groups=8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def matrices(model, **options):
    return [each.name for each in route(model, **options).by_rule("matrix")]


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_placed_once_by_the_type_of_its_module(tied):
    model = Net(tied)
    assert matrices(model) == ["convolution.weight", "hidden.weight"]
    assert [each.name for each in route(model)] == [name for name, _ in model.named_parameters()]


def test_a_matrix_tied_to_an_embedding_is_an_embedding_and_stands_once():
    plan = route(Net(tied=True), head=None)
    (embedding,) = [each for each in plan if each.view == "embedding"]
    assert embedding.name == "embedding.weight"
    assert embedding.reason == "the table of an nn.Embedding, shared with head"


def test_both_stages_of_a_pipeline_decide_alike_for_a_tied_weight():
    """Each stage has one of the two modules that share the weight."""
    first, last = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    last.weight = first.weight
    assert route(nn.Sequential(first, nn.Linear(8, 8)), head=None)["0.weight"].rule == "adamw"
    assert route(nn.Sequential(nn.Linear(8, 8), last))["1.weight"].rule == "adamw"


def test_a_first_layer_with_one_channel_is_no_depthwise_convolution():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8))
    assert matrices(model) == ["0.weight"]


def test_the_head_may_be_named_or_denied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    assert matrices(model) == ["0.weight", "1.0.weight"]
    assert matrices(model, head=model[1]) == ["0.weight"]
    assert matrices(model, head="0") == ["1.0.weight", "1.1.weight"]
    assert len(matrices(model, head=None)) == 3
    with pytest.raises(ValueError, match="head must be a module of the model, got Linear"):
        route(model, head=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"head must be the name of a module .*got 'lm_head'"):
        route(model, head="lm_head")


def test_a_layer_in_a_repeated_block_is_no_head():
    model = MODELS["transformer"]()
    assert not [each for each in route(model) if each.view == "head"]


def test_frozen_parameters_are_in_the_plan_and_stepped_by_none():
    model = Net()
    model.hidden.weight.requires_grad_(False)
    assert route(model)["hidden.weight"].rule == "frozen"
    assert matrices(model) == ["convolution.weight"]


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8), (8, 1), (1, 1), (1, 1, 1, 1), ()])
def test_gains_of_any_shape_are_vectors(shape):
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.gain = nn.Parameter(torch.ones(shape))

    plan = route(Gain(), head=None)
    assert (plan["gain"].view, plan["gain"].rule) == ("vector", "adamw")


def test_subclasses_are_known_by_what_they_are():
    class OwnLSTM(nn.LSTM):
        pass

    plan = route(nn.Sequential(OwnLSTM(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)))
    assert plan["0.weight_ih_l0"].options == {"heads": 4}


def test_a_model_on_the_meta_device_is_planned_like_any_other():
    with torch.device("meta"):
        model = GPT(tied=False)
    assert str(route(model)) == str(route(GPT(tied=False)))


def test_none_selected_is_a_warning():
    with pytest.warns(UserWarning, match="none of the 2 parameters of Sequential is a hidden"):
        route(nn.Sequential(nn.Linear(4, 2)))


def test_lazy_parameters_are_refused():
    with pytest.raises(ValueError, match="lazy and has no shape yet"):
        route(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)))


def test_overrides_by_name_type_and_predicate_the_last_counts():
    model = Net()
    plan = route(
        model,
        overrides=[
            (nn.Conv1d, "adamw"),
            ("head.*", "matrix"),
            (lambda name, param, _: param.ndim == 2 and name.startswith("hidden"), {"heads": 2}),
            ("hidden.weight", {"lr": 0.5}),
        ],
    )
    assert [each.name for each in plan.by_rule("matrix")] == ["hidden.weight", "head.weight"]
    assert plan["hidden.weight"].options == {"heads": 2, "lr": 0.5}
    assert plan["hidden.weight"].reason == "as the override 'hidden.weight' says"
    assert plan["convolution.weight"].reason == "as the override Conv1d says"
    optimizer = Muon(plan.groups(), lr=0.1)
    assert [(g["param_names"], g["lr"], g["heads"]) for g in optimizer.param_groups] == [
        (["hidden.weight"], 0.5, 2),
        (["head.weight"], 0.1, 1),
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hiden.weight": "adamw"}, "override 'hiden.weight' fits no parameter; names are embed"),
        ({nn.LSTM: "adamw"}, "override LSTM fits no parameter"),
        ({"hidden.weight": "adam"}, "must be matrix, adamw, frozen or a dictionary.*'adam'"),
        ({"hidden.weight": {"split": (4, 5)}}, "of hidden.weight: split=.4, 5. has 9 rows"),
        ({"hidden.bias": "matrix"}, "of hidden.bias: layout 'matrix' needs a parameter with 2"),
    ],
)
def test_overrides_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        route(Net(), overrides=overrides)


def test_groups_give_torch_optimizers_what_they_take():
    model = GPT(tied=True)
    plan = route(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        muon, adamw = Muon(plan.groups()), torch.optim.AdamW(plan.groups("adamw"))
    total = sum(len(g["params"]) for each in (muon, adamw) for g in each.param_groups)
    assert total == len(list(model.parameters()))
    assert muon.param_groups[0]["param_names"][0] == "blocks.0.attention.qkv.weight"
