"""Which parameters are hidden matrices."""

from __future__ import annotations

import pytest
from torch import nn

from steepest.model.routing import hidden_matrix_groups


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


def names(model, params):
    known = {param: name for name, param in model.named_parameters()}
    return [known[param] for param in params]


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_placed_once_by_the_type_of_its_module(tied):
    model = Net(tied)
    groups, rest = hidden_matrix_groups(model, head=model.head)
    assert [(names(model, g["params"]), g["layout"]) for g in groups] == [
        (["hidden.weight"], "matrix"),
        (["convolution.weight"], "convolution"),
    ]
    expected = ["embedding.weight", "convolution.bias", "depthwise.weight", "depthwise.bias"]
    expected += ["norm.weight", "norm.bias", "hidden.bias"] + ([] if tied else ["head.weight"])
    assert sorted(names(model, rest)) == sorted(expected)


def test_a_matrix_tied_to_an_embedding_is_never_a_matrix():
    model = Net(tied=True)
    groups, rest = hidden_matrix_groups(model, head=None)
    assert "embedding.weight" in names(model, rest)
    assert all("embedding.weight" not in names(model, group["params"]) for group in groups)


def test_a_first_layer_with_one_channel_is_no_depthwise_convolution():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8))
    groups, _ = hidden_matrix_groups(model, head=None)
    assert names(model, groups[0]["params"]) == ["0.weight"]


def test_a_head_of_several_modules_is_left_out_whole_and_a_strange_one_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    groups, _ = hidden_matrix_groups(model, head=model[1])
    assert names(model, groups[0]["params"]) == ["0.weight"]
    with pytest.raises(ValueError, match="head must be a module of the model, got Linear"):
        hidden_matrix_groups(model, head=nn.Linear(4, 2))


def test_frozen_parameters_are_left_out():
    model = Net()
    model.hidden.weight.requires_grad_(False)
    groups, rest = hidden_matrix_groups(model, head=model.head)
    assert [group["layout"] for group in groups] == ["convolution"]
    assert "hidden.weight" not in names(model, rest)
