"""Copies, checkpoints and resumed runs are bit-equal continuations."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases import (
    CASES,
    DTYPES,
    assert_same_state,
    flat_state,
    parameters,
    run,
    set_gradients,
    shapes_for,
)

TESTS = Path(__file__).parent.parent


def saved_and_loaded(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.fixture(params=DTYPES, ids=str)
def started(request, case):
    """An optimizer with three steps behind it, and its parameters."""
    params = parameters(shapes_for(case), dtype=request.param)
    optimizer = case.build(params)
    run(optimizer, params, range(3))
    return optimizer, params


def twin(case, params):
    """A fresh optimizer on copies of the weights."""
    others = [torch.nn.Parameter(param.detach().clone()) for param in params]
    return case.build(others), others


def options(optimizer):
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def assert_continues(first, params, second, others):
    assert_same_state(first, second)
    assert options(first) == options(second)
    assert first.defaults == second.defaults
    run(first, params, range(3, 6))
    run(second, others, range(3, 6))
    assert all(map(torch.equal, params, others))
    assert_same_state(first, second)


def test_state_dict_continues_bit_equal(case, started):
    optimizer, params = started
    other, others = twin(case, params)
    other.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert_continues(optimizer, params, other, others)


def test_pickle_continues_bit_equal(started):
    optimizer, params = started
    others, other = pickle.loads(pickle.dumps((params, optimizer)))
    assert_continues(optimizer, params, other, others)


def test_deepcopy_continues_bit_equal_and_shares_nothing(started):
    optimizer, params = started
    others, other = copy.deepcopy((params, optimizer))
    storages = {id(value.untyped_storage()) for *_, value in flat_state(optimizer) if _is(value)}
    assert not storages & {id(v.untyped_storage()) for *_, v in flat_state(other) if _is(v)}
    assert_continues(optimizer, params, other, others)


def _is(value):
    return isinstance(value, Tensor)


def test_copies_survive_a_scheduler(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)
    run(optimizer, params, range(3))
    others, other = pickle.loads(pickle.dumps((params, optimizer)))
    assert_continues(optimizer, params, other, others)


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
def test_a_copy_of_a_copy_is_saved_and_loaded_like_the_first(case, way):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    run(optimizer, params, range(3))
    others, other = params, optimizer
    for _ in range(2):
        if way == "state_dict":
            fresh, weights = twin(case, others)
            fresh.load_state_dict(saved_and_loaded(other.state_dict()))
            other, others = fresh, weights
        elif way == "pickle":
            others, other = pickle.loads(pickle.dumps((others, other)))
        else:
            others, other = copy.deepcopy((others, other))
    last, weights = twin(case, others)
    last.load_state_dict(saved_and_loaded(other.state_dict()))
    assert_continues(optimizer, params, last, weights)


def test_reading_the_state_of_a_parameter_changes_nothing(case):
    params, same = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer, reference = case.build(params), case.build(same)
    assert not optimizer.state[params[0]]
    assert not optimizer.state[params[1]]
    for step in range(3):
        for each, weights in ((optimizer, params), (reference, same)):
            set_gradients(weights, step)
            if step == 0:
                weights[1].grad = None
            each.step()
    assert all(map(torch.equal, params, same))
    dictionary = case.build(parameters(shapes_for(case))).state_dict()
    dictionary["state"] = {0: {}}
    other, others = twin(case, parameters(shapes_for(case)))
    other.load_state_dict(dictionary)
    run(other, others, range(2))


def test_state_holds_only_tensors_and_numbers(started):
    optimizer, _ = started
    assert flat_state(optimizer)
    for place in flat_state(optimizer):
        assert isinstance(place[-1], (Tensor, int, float)), place
    for group in optimizer.state_dict()["param_groups"]:
        for name, value in group.items():
            assert isinstance(value, (bool, int, float, str, list, tuple, type(None))), name


def test_loaded_state_is_not_shared_with_a_live_optimizer(case, started):
    optimizer, params = started
    other, _ = twin(case, params)
    other.load_state_dict(optimizer.state_dict())
    before = copy.deepcopy(flat_state(other))
    run(optimizer, params, range(3, 6))
    for (*_, old), (*_, new) in zip(before, flat_state(other), strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new


@pytest.mark.parametrize(
    ("weights", "state"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
    ids=["wider state", "narrower state"],
)
def test_state_of_another_dtype_is_used_as_it_is(case, weights, state):
    params = parameters(shapes_for(case), dtype=weights)
    optimizer = case.build(params)
    run(optimizer, params, range(3))
    dictionary = optimizer.state_dict()
    for values in dictionary["state"].values():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dtype == weights:
                values[name] = value.to(state)
    other, others = twin(case, params)
    other.load_state_dict(dictionary)
    for place, name, value in flat_state(other):
        assert not isinstance(value, Tensor) or torch.equal(value, dictionary["state"][place][name])
    run(other, others, range(3, 5))
    assert all(param.dtype == weights and param.isfinite().all() for param in others)
    # the loaded past still counts: a run without it goes elsewhere
    fresh, forgetful = twin(case, params)
    run(fresh, forgetful, range(3, 5))
    assert not any(map(torch.equal, others, forgetful))


def test_options_that_an_older_checkpoint_lacks_get_defaults(case, started):
    optimizer, params = started
    for option in set(optimizer.param_groups[0]) - {"params"}:
        dictionary = optimizer.state_dict()
        for group in dictionary["param_groups"]:
            del group[option]
        other, others = twin(case, params)
        other.load_state_dict(dictionary)
        assert other.param_groups[0][option] == optimizer.param_groups[0][option]
        run(other, others, [3])


@pytest.mark.parametrize("foreign", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_foreign_state_dict_is_refused_at_load(case, foreign):
    params = parameters(shapes_for(case))
    stranger = foreign(params, lr=0.1)
    run(stranger, params, range(2))
    optimizer, others = twin(case, params)
    run(optimizer, others, range(2))
    before = copy.deepcopy(flat_state(optimizer))
    options = copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(ValueError, match=r"unknown option|not that of"):
        optimizer.load_state_dict(stranger.state_dict())
    assert options == optimizer.state_dict()["param_groups"]
    for (*_, old), (*_, new) in zip(before, flat_state(optimizer), strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new


def test_state_of_a_parameter_that_is_in_no_group_is_refused_at_load(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    run(optimizer, params, range(2))
    dictionary = optimizer.state_dict()
    dictionary["state"][17] = dictionary["state"][0]
    other, _ = twin(case, params)
    with pytest.raises(ValueError, match=r"\[17\] belongs to no parameter"):
        other.load_state_dict(dictionary)
    assert not other.state


def test_state_of_the_whole_optimizer_is_kept(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    optimizer.state["calls"] = 3
    run(optimizer, params, range(2))
    other, _ = twin(case, params)
    other.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert other.state["calls"] == optimizer.state["calls"] == 3


def test_a_state_of_other_shapes_is_refused_at_load(case):
    shapes = shapes_for(case)
    params = parameters(shapes)
    optimizer = case.build(params)
    run(optimizer, params, range(2))
    others = parameters([shapes[1], shapes[0], *shapes[2:]])
    with pytest.raises(ValueError, match="parameter 0"):
        case.build(others).load_state_dict(optimizer.state_dict())


def test_a_group_added_during_training_resumes(case):
    shapes = shapes_for(case)
    params, late = parameters(shapes), parameters(shapes[:1], seed=5)
    optimizer = case.build(params)
    run(optimizer, params, range(3))
    optimizer.add_param_group({"params": late})
    run(optimizer, params + late, range(3, 6))
    dictionary = saved_and_loaded(optimizer.state_dict())

    other, others = twin(case, params)
    with pytest.raises(ValueError, match="parameter groups"):
        other.load_state_dict(dictionary)
    late_copy = [torch.nn.Parameter(param.detach().clone()) for param in late]
    other.add_param_group({"params": late_copy})
    other.load_state_dict(dictionary)
    run(optimizer, params + late, range(6, 8))
    run(other, others + late_copy, range(6, 8))
    assert all(map(torch.equal, params + late, others + late_copy))


def test_state_dict_works_after_a_parameter_has_been_dropped(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    run(optimizer, params, range(2))
    optimizer.param_groups[0]["params"].pop()
    assert len(optimizer.state_dict()["state"]) == len(params) - 1
    assert len(optimizer.state) == len(params)  # asking for it changes nothing


_CHILD = """
import sys, torch
sys.path.insert(0, {tests!r})
from cases import CASES, parameters, run, shapes_for
torch.manual_seed(12345)
saved = torch.load({path!r}, weights_only=True)
for case in CASES:
    params = parameters(shapes_for(case), dtype=torch.float32)
    with torch.no_grad():
        for param, value in zip(params, saved[case.name]["weights"], strict=True):
            param.copy_(value)
    optimizer = case.build(params)
    optimizer.load_state_dict(saved[case.name]["optimizer"])
    run(optimizer, params, range(10, 20))
    saved[case.name] = [param.detach() for param in params]
torch.save(saved, {path!r})
"""


def test_a_new_process_continues_bit_equal(tmp_path):
    straight, saved, path = {}, {}, str(tmp_path / "checkpoint.pt")
    for case in CASES:
        params = parameters(shapes_for(case), dtype=torch.float32)
        optimizer = case.build(params)
        run(optimizer, params, range(10))
        weights = [param.detach().clone() for param in params]
        saved[case.name] = {"weights": weights, "optimizer": copy.deepcopy(optimizer.state_dict())}
        run(optimizer, params, range(10, 20))
        straight[case.name] = params
    torch.save(saved, path)
    script = _CHILD.format(tests=str(TESTS), path=path)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    resumed = torch.load(path, weights_only=True)
    for name, params in straight.items():
        assert all(map(torch.equal, params, resumed[name])), name
