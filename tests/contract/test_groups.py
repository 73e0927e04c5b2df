"""Parameter groups: every form that torch takes, each group's own options, checks at the border."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.nn import Parameter

from cases import CASES, parameters, run, set_gradients, shapes_for


@pytest.mark.parametrize("form", ["list", "generator", "named", "groups", "tensor in a group"])
def test_takes_every_form_of_params_that_sgd_takes(case, form):
    reference = parameters(shapes_for(case)[:1])
    params = parameters(shapes_for(case)[:1])
    forms = {
        "list": params,
        "generator": (param for param in params),
        "named": [("weight", param) for param in params],
        "groups": [{"params": params}],
        "tensor in a group": [{"params": params[0]}],
    }
    run(case.build(forms[form]), params, range(2))
    run(case.build(reference), reference, range(2))
    assert torch.equal(params[0], reference[0])


def test_a_bare_tensor_is_refused_as_torch_does(case):
    with pytest.raises(TypeError, match="should be an iterable"):
        case.build(parameters(shapes_for(case))[0])


def test_each_group_uses_its_own_learning_rate_and_decay(case):
    shapes = shapes_for(case)
    params = parameters(shapes)
    start = [param.detach().clone() for param in params]
    optimizer = case.build(
        [
            {"params": params[:1], "lr": 0.0, "weight_decay": 0.0},
            {"params": params[1:], "lr": 0.1, "weight_decay": 0.5},
        ],
        weight_decay_method="decoupled",
    )
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert torch.equal(params[0], start[0])
    for param, before in zip(params[1:], start[1:], strict=True):
        torch.testing.assert_close(param.data, 0.95 * before, rtol=1e-12, atol=0)


# another valid value for each option that a group may set for itself
OTHER_VALUES = {
    "lr": 0.037,
    "momentum": 0.5,
    "weight_decay": 0.3,
    "nesterov": lambda value: not value,
    "weight_decay_method": lambda value: "palm" if value == "decoupled" else "decoupled",
    "spectral_cap": 0.5,
    "maximize": True,
    "norm": lambda value: "row" if value != "row" else "sign",
    "schedule": lambda value: "quintic" if value != "quintic" else "simple",
    "steps": 7,
    "method": lambda value: "eigh" if value != "eigh" else "svd",
    "tolerance": 1e-3,
    "clip": (0.2, 0.4),
    "scale": lambda value: "unit_rms" if value != "unit_rms" else "none",
    "radius": 0.7,
    "second_moment": lambda value: "adamuon" if value != "adamuon" else "normuon_long",
    "beta2": 0.8,
    "eps": 0.1,
    "period": lambda value: value + 1,
    "block_size": lambda value: 3 if value != 3 else 2,
    "hooks": (("hyperball", 0.5),),
    "iteration_dtype": "bfloat16",
    "fraction": 0.9,
    "center": True,
}
# these have tests of their own
TESTED_ELSEWHERE = {
    *("fp32_matmul_prec", "low_precision"),  # no effect on these dtypes
    *("layout", "transposed", "groups", "split", "interleaved", "heads", "block_axis"),
    *("allow_vectors", "nonfinite", "batch_bytes"),  # no effect on these parameters
}
# where an option has an effect, by the other options of the group
POLYNOMIAL = {"method": "auto", "tolerance": None, "clip": None, "norm": "spectral"}
HAS_EFFECT = {
    "spectral_cap": {"weight_decay_method": "spectral"},
    "schedule": POLYNOMIAL,
    "steps": POLYNOMIAL,
    "iteration_dtype": POLYNOMIAL,
    "method": {**POLYNOMIAL, "scale": "match_rms_adamw"},
    "radius": {"hooks": ()},
    "period": {"norm": "spectral"},
    "block_size": {"norm": "spectral"},
    "beta2": {"second_moment": ("adamuon", "normuon", "namo")},
    "eps": {"second_moment": ("adamuon", "normuon")},
    "scale": {"hooks": ()},
    "weight_decay_method": {"weight_decay": (0.01, 0.1, 1.0)},
    "second_moment": {"norm": "spectral", "hooks": ()},
}


def has_effect(name, group):
    for other, values in HAS_EFFECT.get(name, {}).items():
        if other in group and group[other] != values and group[other] not in (values or ()):
            return False
    return True


def test_every_option_of_a_group_is_its_own(case):
    shapes = shapes_for(case)
    # where a metric is shared, what changes one group's gradients changes the steps of all
    fixed = {"weight_decay_method": "decoupled"} if case.coupled else {}
    base = case.build(parameters(shapes), **fixed).param_groups[0]
    tested = 0
    for name, value in OTHER_VALUES.items():
        if name not in base or name in fixed or (case.coupled and name == "maximize"):
            continue
        other = value(base[name]) if callable(value) else value
        assert other != base[name], name
        mixed, first, second = (parameters(shapes) for _ in range(3))
        try:
            changed = case.build(second, **{**fixed, name: other})
        except ValueError:
            continue  # two options that exclude each other
        groups = [{"params": mixed[:1]}, {"params": mixed[1:], name: other}]
        optimizer, plain = case.build(groups, **fixed), case.build(first, **fixed)
        for step in range(4):
            for each, weights in ((optimizer, mixed), (plain, first), (changed, second)):
                set_gradients(weights, step)
                each.step()
        torch.testing.assert_close(mixed[0], first[0], rtol=1e-12, atol=1e-13, msg=name)
        for place in range(1, len(mixed)):
            left, right = mixed[place], second[place]
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13, msg=name)
            if not case.coupled and has_effect(name, base):
                assert (left - first[place]).abs().max() > 1e-9, name
        tested += 1
    assert tested >= 3


def test_the_table_of_other_values_knows_every_option():
    for case in CASES:
        options = case.build(parameters(shapes_for(case))).param_groups[0].keys() - {"params"}
        if case.takes == "matrices":
            assert options <= OTHER_VALUES.keys() | TESTED_ELSEWHERE


def test_scalars_of_array_libraries_become_plain_numbers(case):
    params = parameters(shapes_for(case))
    group = case.build(params, lr=numpy.float64(0.5), weight_decay=numpy.float32(0.25))
    assert type(group.param_groups[0]["lr"]) is float
    assert type(group.param_groups[0]["weight_decay"]) is float


def test_tensors_without_axes_become_numbers_but_for_the_learning_rate(case):
    (group,) = case.build(
        parameters(shapes_for(case)), lr=torch.tensor(0.5), weight_decay=torch.tensor(0.25)
    ).param_groups
    assert type(group["weight_decay"]) is float
    assert isinstance(group["lr"], torch.Tensor)


def test_given_dictionaries_are_not_written(case):
    group = {"params": parameters(shapes_for(case))}
    case.build([group])
    assert list(group) == ["params"]


def test_learning_rate_zero_without_decay_moves_nothing(case):
    params = parameters(shapes_for(case))
    start = [param.detach().clone() for param in params]
    method = "decoupled"  # "independent" decay does not depend on the learning rate
    run(case.build(params, lr=0.0, weight_decay_method=method), params, range(3))
    assert all(map(torch.equal, params, start))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -1.0),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("lr", "fast"),
        ("weight_decay", -0.1),
        ("weight_decay_method", "adamw"),
    ],
)
def test_bad_options_are_refused_by_name_and_value(case, name, value):
    params = parameters(shapes_for(case))
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        case.build(params, **{name: value})
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        case.build([{"params": params, name: value}])


def test_an_unknown_group_option_is_refused_where_options_are_closed(case):
    group = {"params": parameters(shapes_for(case)), "learning_rate": 1.0}
    if case.closed_options:
        with pytest.raises(ValueError, match=r"'learning_rate'.*known are .*lr"):
            case.build([group])
    else:
        assert case.build([group]).param_groups[0]["learning_rate"] == 1.0


def test_an_added_group_gets_defaults_and_a_fresh_start(case):
    shapes = shapes_for(case)
    params, late = parameters(shapes), parameters(shapes[:1], seed=5)
    optimizer = case.build(params)
    run(optimizer, params, range(3))
    old = {param: {**optimizer.state[param]} for param in params}
    optimizer.add_param_group({"params": late})

    options = {key: value for key, value in optimizer.param_groups[1].items() if key != "params"}
    assert options == {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    assert late[0] not in optimizer.state
    for param in params:
        assert all(optimizer.state[param][name] is value for name, value in old[param].items())

    run(optimizer, params + late, range(3, 6))
    if not case.coupled:
        alone = parameters(shapes[:1], seed=5)
        lone = case.build(alone)
        for step in range(3, 6):
            # the gradient that the late parameter gets at its place in the list
            set_gradients([*parameters(shapes), *alone], step)
            lone.step()
        # not to the last bit: matrices of equal sides are multiplied in one batch
        torch.testing.assert_close(late[0], alone[0], rtol=1e-12, atol=1e-14)


def test_adding_a_parameter_twice_is_refused_and_changes_nothing(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": params[:1]})
    fresh = parameters(shapes_for(case)[:1])
    with pytest.raises(ValueError, match="parameter 1 appears twice"):
        optimizer.add_param_group({"params": fresh * 2})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_unsupported_shapes_are_refused_when_added(case, shape):
    optimizer = case.build(parameters(shapes_for(case)))
    group = {"params": [Parameter(torch.ones(shape, dtype=torch.float64))]}
    if case.takes == "matrices":
        with pytest.raises(ValueError, match=r"parameter 0 of group 1.*\("):
            optimizer.add_param_group(group)
        assert len(optimizer.param_groups) == 1
    else:
        optimizer.add_param_group(group)
        assert len(optimizer.param_groups) == 2


def test_complex_parameters_are_refused_by_name(case):
    with pytest.raises(ValueError, match=r"parameter 'w'.*complex"):
        case.build([("w", Parameter(torch.zeros(2, 2, dtype=torch.complex64)))])


def test_a_sparse_gradient_is_refused_before_anything_has_changed(case):
    params = parameters([(4, 3), (5, 3)])
    start = [param.detach().clone() for param in params]
    optimizer = case.build([("first", params[0]), ("embedding", params[1])])
    set_gradients(params, 0)
    params[1].grad = params[1].grad.to_sparse()
    with pytest.raises(RuntimeError, match=r"sparse.*'embedding'"):
        optimizer.step()
    assert all(map(torch.equal, params, start))
    assert not optimizer.state
