"""Several optimizers as one: calling, schedules, scalers, copies and checkpoints."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from model.models import GPT
from steepest import CombinedOptimizer, Muon, create_optimizer, route
from steepest.model.create import MATRIX_OPTIMIZERS

NAMES = [*MATRIX_OPTIMIZERS, "projected"]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def set_gradients(model, step):
    for place, param in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(1000 * step + place)
        param.grad = torch.randn(param.shape, generator=generator)


def run(model, optimizer, steps):
    for step in steps:
        set_gradients(model, step)
        optimizer.step()


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def saved_and_loaded(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("name", NAMES)
def test_one_line_steps_every_parameter_as_its_parts_would(name):
    model, same = network(), network()
    optimizer = create_optimizer(model, name)
    if name != "projected":
        plan = route(same)
        kind = MATRIX_OPTIMIZERS[name]
        parts = [kind(plan.groups())]
        rest = {}
        if name in ("muon", "adamuon", "normuon", "dion2"):
            rest = {"lr": parts[0].defaults["lr"], "weight_decay": 0.1}
        parts.append(torch.optim.AdamW(plan.groups("adamw"), **rest))
        for step in range(3):
            set_gradients(same, step)
            for part in parts:
                part.step()
    start = weights(model)
    run(model, optimizer, range(3))
    assert not any(map(torch.equal, start, weights(model)))
    if name != "projected":
        assert all(map(torch.equal, weights(model), weights(same)))


@pytest.mark.parametrize("call", ["none", "positional", "keyword"])
@pytest.mark.parametrize("name", NAMES)
def test_the_closure_runs_once_with_gradients(name, call):
    model, calls = network(), []
    optimizer = create_optimizer(model, name)
    x = torch.ones(4, 6)

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    expected = model(x).square().sum().item()
    with torch.no_grad():
        if call == "none":
            set_gradients(model, 0)
            assert optimizer.step(closure=None) is None
            return
        loss = optimizer.step(closure) if call == "positional" else optimizer.step(closure=closure)
        assert not torch.is_grad_enabled()
    assert calls == [True]
    assert loss.item() == expected


@pytest.mark.parametrize("with_closure", [False, True])
def test_step_hooks_fire_once_around_all_parts(with_closure):
    model = network()
    optimizer, seen = create_optimizer(model), []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("pre", weights(model))))
    optimizer.register_step_post_hook(lambda *_: seen.append(("post", weights(model))))
    for step in range(2):
        before = weights(model)
        set_gradients(model, step)
        optimizer.step((lambda: 0.0) if with_closure else None)
        (pre, old), (post, new) = seen[-2:]
        assert (pre, post) == ("pre", "post")
        assert all(map(torch.equal, old, before))
        assert all(map(torch.equal, new, weights(model)))
    assert len(seen) == 4


def test_groups_and_state_are_live_views():
    model = network()
    optimizer = create_optimizer(model)
    run(model, optimizer, range(2))
    inner = [g for part in optimizer.parts.values() for g in part.param_groups]
    assert all(a is b for a, b in zip(optimizer.param_groups, inner, strict=True))
    optimizer.param_groups[0]["lr"] = 0.25
    assert optimizer.parts["matrices"].param_groups[0]["lr"] == 0.25
    param = model[2].weight
    assert optimizer.state[param] is optimizer.parts["matrices"].state[param]
    assert set(optimizer.state) == set(model.parameters())
    assert len(optimizer.state) == 6
    del optimizer.state[param]
    assert param not in optimizer.parts["matrices"].state


def schedulers():
    return {
        "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.5**k),
        "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
        "one cycle": lambda o: lr_scheduler.OneCycleLR(
            o, [g["lr"] for g in o.param_groups], total_steps=10, cycle_momentum=False
        ),
        "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    }


@pytest.mark.parametrize("name", schedulers())
def test_schedules_multiply_each_learning_rate_by_itself(name):
    model = network()
    optimizer = create_optimizer(model, lr=2e-2, adamw={"lr": 1e-5})
    scheduler = schedulers()[name](optimizer)
    for step in range(3):
        set_gradients(model, step)
        optimizer.step()
        scheduler.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates[0] / rates[1] == pytest.approx(2000, rel=1e-9)
    before = weights(model)
    set_gradients(model, 9)
    optimizer.step()
    moved = (
        (before[1] - model[0].bias.detach()).abs().max().item()
    )  # AdamW's step is about its rate
    assert moved == pytest.approx(rates[1], rel=0.7)


def test_a_plateau_lowers_all_rates():
    optimizer = create_optimizer(network(), lr=2e-2, adamw={"lr": 1e-5})
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for _ in range(3):
        scheduler.step(1.0)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([2e-4, 1e-7])


def test_a_scaler_skips_a_bad_batch_without_a_trace():
    model, same = network(), network()
    optimizer, reference = create_optimizer(model), create_optimizer(same)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        set_gradients(model, step)
        for param in model.parameters():
            param.grad *= scaler.get_scale()
        if step == 1:
            model[0].bias.grad[0] = torch.inf
        scaler.scale(torch.ones(()))  # as a loss would be, which initialises the scaler
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
    run(same, reference, [0, 2])
    for left, right in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)
    assert len(optimizer.state) == 6


@pytest.mark.parametrize("action", ["raise", "skip"])
@pytest.mark.parametrize("place", ["0.weight", "2.weight", "4.bias"])
def test_a_gradient_that_is_not_finite_stops_all_parts_before_any(place, action):
    model, same = network(), network()
    optimizer, reference = create_optimizer(model, nonfinite=action), create_optimizer(same)
    run(model, optimizer, range(2))
    set_gradients(model, 5)
    dict(model.named_parameters())[place].grad.view(-1)[0] = torch.nan
    if action == "raise":
        with pytest.raises(RuntimeError, match=f"'{place}' is not finite; no part has stepped"):
            optimizer.step()
    else:
        optimizer.step()
    run(model, optimizer, range(2, 4))
    run(same, reference, range(4))
    assert all(map(torch.equal, weights(model), weights(same)))


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_or_copied_run_is_bit_equal(name, way):
    model = network()
    optimizer = create_optimizer(model, name)
    run(model, optimizer, range(3))
    if way == "state_dict":
        other = copy.deepcopy(model)
        twin = create_optimizer(other, name)
        twin.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    elif way == "pickle":
        other, twin = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        other, twin = copy.deepcopy((model, optimizer))
    storages = {
        value.untyped_storage().data_ptr()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel()
    }
    for state in twin.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.numel():
                assert value.untyped_storage().data_ptr() not in storages
    run(model, optimizer, range(3, 6))
    run(other, twin, range(3, 6))
    assert all(map(torch.equal, weights(model), weights(other)))


def test_a_state_dict_has_the_form_of_torch():
    model = network()
    optimizer = create_optimizer(model)
    run(model, optimizer, range(2))
    saved = optimizer.state_dict()
    assert sorted(saved) == ["param_groups", "state"]
    ids = [key for group in saved["param_groups"] for key in group["params"]]
    assert ids == list(range(6)) == sorted(saved["state"])
    names = [name for group in saved["param_groups"] for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def pair(model, order, names=True):
    params = dict(model.named_parameters())
    chosen = [(name, params[name]) if names else params[name] for name in order]
    rest = [params["4.weight"]] if not names else [("4.weight", params["4.weight"])]
    return CombinedOptimizer([Muon(chosen), torch.optim.AdamW(rest)])


def square(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(5, 5, bias=False), nn.ReLU())])


def test_reordered_parameters_are_matched_by_name():
    model, other = square(), square()
    first, second = pair(model, ["0.weight", "2.weight"]), pair(other, ["2.weight", "0.weight"])
    run(model, first, range(3))
    other.load_state_dict(model.state_dict())
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    run(model, first, range(3, 6))
    run(other, second, range(3, 6))
    assert all(map(torch.equal, weights(model), weights(other)))


def test_renamed_parameters_are_an_error_and_nothing_has_changed():
    model = square()
    optimizer = pair(model, ["0.weight", "2.weight"])
    run(model, optimizer, range(2))
    saved = saved_and_loaded(optimizer.state_dict())
    saved["param_groups"][0]["param_names"][1] = "renamed"
    other = pair(square(), ["0.weight", "2.weight"])
    with pytest.raises(ValueError, match=r"has no parameter '2.weight'; it has .*renamed"):
        other.load_state_dict(saved)
    assert not other.state


def test_a_part_that_refuses_its_state_leaves_the_others_as_they_were():
    model = square()
    optimizer = pair(model, ["0.weight", "2.weight"], names=False)
    run(model, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    wrong = copy.deepcopy(before)
    wrong["param_groups"][1]["params"] = [2, 3]
    with pytest.raises(ValueError, match="does not match"):
        optimizer.load_state_dict(wrong)
    foreign = copy.deepcopy(before)
    foreign["state"][0] = foreign["state"][2]
    with pytest.raises(ValueError, match="not that of Muon"):
        optimizer.load_state_dict(foreign)
    for key, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(before["state"][key][name]))


def test_groups_are_added_to_the_part_that_takes_them():
    optimizer = create_optimizer(network())
    matrix, vector = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4))
    optimizer.add_param_group({"params": [("late.weight", matrix)], "lr": 0.5})
    optimizer.add_param_group({"params": [("late.bias", vector)]})
    optimizer.add_param_group(
        {"params": [("table", nn.Parameter(torch.ones(5, 3)))], "part": "rest"}
    )
    owner = {
        name: part
        for part, inner in optimizer.parts.items()
        for group in inner.param_groups
        for name in group["param_names"]
    }
    assert (owner["late.weight"], owner["late.bias"], owner["table"]) == (
        "matrices",
        "rest",
        "rest",
    )
    assert optimizer.parts["matrices"].param_groups[-1]["lr"] == 0.5
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [("again", matrix)], "part": "rest"})
    with pytest.raises(ValueError, match="part must be one of matrices, rest, got 'adam'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "part": "adam"})
    sizes = [len(part.param_groups) for part in optimizer.parts.values()]
    complex_ = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises((ValueError, TypeError)):
        optimizer.add_param_group(
            {"params": [("z", complex_)], "colour": "red", "part": "matrices"}
        )
    assert [len(part.param_groups) for part in optimizer.parts.values()] == sizes


def test_each_part_uses_its_own_options():
    model = network()
    optimizer = create_optimizer(
        model,
        "normuon",
        lr=0.1,
        weight_decay=0.3,
        beta2=0.8,
        adamw={"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.2, "no_decay": True},
        overrides={"2.weight": {"lr": 0.05}},
    )
    matrices, own, others, vectors = optimizer.param_groups
    assert (matrices["lr"], matrices["weight_decay"], matrices["beta2"]) == (0.1, 0.3, 0.8)
    assert (own["lr"], own["param_names"]) == (0.05, ["2.weight"])
    assert (others["lr"], others["betas"], others["eps"]) == (0.01, (0.8, 0.9), 1e-5)
    assert (others["weight_decay"], others["param_names"]) == (0.2, ["4.weight"])
    assert (vectors["weight_decay"], vectors["param_names"]) == (
        0.0,
        ["0.bias", "2.bias", "4.bias"],
    )


def test_learning_rates_of_other_units_do_not_reach_adamw():
    optimizer = create_optimizer(network(), "spel", lr=0.7)
    assert (
        optimizer.parts["rest"].defaults["lr"] == torch.optim.AdamW([nn.Parameter()]).defaults["lr"]
    )
    assert create_optimizer(network(), "muon", lr=0.7).parts["rest"].defaults["lr"] == 0.7


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = create_optimizer(model)
    before = model[0].weight.detach().clone()
    run(model, optimizer, range(2))
    assert torch.equal(before, model[0].weight)


def test_a_tied_model_is_created_and_its_plan_shows_it():
    model = GPT(tied=True)
    optimizer = create_optimizer(model, lr=1e-3)
    assert "shared with head" in str(optimizer.plan)
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    assert count == len(list(model.parameters()))
    again, twin = copy.deepcopy((model, optimizer))
    assert twin.plan["tokens.weight"].param is again.tokens.weight


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adam"}, "name must be one of muon, .*projected, got 'adam'"),
        ({"name": "projected", "adamw": {}}, "adamw has no part in 'projected'"),
        ({"name": "projected", "nonfinite": "pass"}, "must be 'raise' or 'skip'"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of raise, skip, pass"),
        ({"lr": -1.0}, "lr must be a finite number >= 0"),
        ({"overrides": {"nothing": "adamw"}}, "fits no parameter"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        create_optimizer(network(), **options)
    with pytest.raises(TypeError, match="ns_steps"):
        create_optimizer(network(), ns_steps=5)


def test_parts_are_checked():
    param = nn.Parameter(torch.ones(3, 3))
    with pytest.raises(ValueError, match=r"shape \(3, 3\) is in parts '0' and '1'"):
        CombinedOptimizer([Muon([param]), torch.optim.SGD([param])])
    with pytest.raises(ValueError, match="at least one"):
        CombinedOptimizer([])
    with pytest.raises(ValueError, match="LBFGS evaluates a closure itself"):
        CombinedOptimizer({"all": torch.optim.LBFGS([param])})
    with pytest.raises(ValueError, match="part '0' must be an optimizer, got int"):
        CombinedOptimizer([3])
