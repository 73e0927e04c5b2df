"""The gradient window against the dense formula in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import Parameter

import oracles
from cases import parameters, run, set_gradients
from steepest import ProjectionRegularizedSGD
from window_problem import SHAPES, flat, met, oracle_for

RATES = (0.1, 0.03, 0.1)


def trajectory_error(metric, *, dtype=torch.float64, steps=25, scale=1.0, seed=0, **options):
    """Largest relative error of the weights over a run, both fed with the same gradients."""
    params = parameters(SHAPES, dtype=dtype, seed=seed)
    groups = [{"params": params[:1], "lr": RATES[0]}, {"params": params[1:2], "lr": RATES[1]}]
    groups.append({"params": params[2:]})
    optimizer = ProjectionRegularizedSGD(groups, lr=RATES[2], metric=metric, **options)
    oracle = oracle_for({**options, "metric": metric})
    rates = torch.cat(
        [
            torch.full((param.numel(),), rate, dtype=torch.float64)
            for param, rate in zip(params, RATES, strict=True)
        ]
    )
    weights, worst = flat(params), 0.0
    curvature = torch.randn(30, 30, generator=torch.Generator().manual_seed(seed)).double()
    for step in range(steps):
        noise = torch.randn(30, generator=torch.Generator().manual_seed(99 + step)).double()
        gradient = scale * (curvature.T @ (curvature @ weights) / 30 + noise)
        start = 0
        for param in params:
            piece = gradient[start : start + param.numel()]
            param.grad = piece.view(param.shape).to(dtype)
            start += param.numel()
        optimizer.step()
        weights = weights - rates * oracle.direction(flat([param.grad for param in params]))
        worst = max(worst, ((flat(params) - weights).norm() / weights.norm()).item())
    return worst


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("history_size", [1, 2, 4, 13, 40])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
def test_twenty_five_steps_in_float64_equal_the_formula(metric, beta, history_size, alpha):
    options = {"beta": beta, "history_size": history_size, "alpha": alpha}
    assert trajectory_error(metric, **options) < 1e-11


@pytest.mark.parametrize("beta", [0.3, 0.9])
def test_with_zero_tail_tolerance_all_columns_are_kept(beta):
    assert trajectory_error("window", beta=beta, tail_tolerance=0.0) < 1e-11


@pytest.mark.parametrize(("tolerance", "expected"), [(1e-3, 1e-1), (1e-6, 1e-4), (1e-9, 1e-7)])
def test_dropping_the_tail_costs_about_what_it_weighs(tolerance, expected):
    error = trajectory_error("window", beta=0.5, tail_tolerance=tolerance)
    assert 0.0 < error < expected


def test_tail_tolerance_bounds_the_number_of_columns():
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, beta=0.5, history_size=3, tail_tolerance=2**-8)
    run(optimizer, params, range(60))
    state = optimizer.state[params[0]]
    occupied = int((state["column_step"] > 0).sum())
    # a column leaves the window with the largest weight at most, then eight halvings are left
    assert occupied == pytest.approx(3 + 8, abs=1)
    assert state["history"].shape[0] <= 2 * (3 + 8)


def test_float32_window_is_not_worse_than_dense_in_float32():
    for beta in (0.0, 0.3, 0.9):
        for history_size in (1, 4, 13, 40):
            options = {"beta": beta, "history_size": history_size, "dtype": torch.float32}
            window = trajectory_error("window", **options)
            dense = trajectory_error("dense", **options)
            assert window < 5e-6
            assert window < 2 * dense  # both may be at the rounding of the weights


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e3])  # above, the dense oracle loses its digits
@pytest.mark.parametrize("metric", ["window", "diagonal"])
def test_gradients_of_any_scale(metric, scale):
    assert trajectory_error(metric, scale=scale, steps=8, history_size=6, beta=0.3) < 1e-8


def test_auto_is_the_window():
    first, second = parameters(SHAPES), parameters(SHAPES)
    run(ProjectionRegularizedSGD(first), first, range(6))
    run(ProjectionRegularizedSGD(second, metric="window"), second, range(6))
    assert all(map(torch.equal, first, second))


def test_alpha_one_is_the_damped_empirical_fisher_step():
    """d = (λI + GGᵀ/k)⁻¹ g, whatever rho."""
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, lr=1.0, history_size=3, alpha=1.0, rho=123.0)
    for moved, window, gradient in met(optimizer, params, size=3, steps=5):
        fisher = window @ window.T / window.shape[1] + 1e-2 * torch.eye(30).double()
        expected = torch.linalg.solve(fisher, gradient)
        torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_missing_gradients_count_as_zeros_and_do_not_move(metric, beta):
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, lr=0.1, beta=beta, history_size=3, metric=metric)
    oracle = oracles.ProjectionRegularized(
        history_size=3, beta=beta, ridge=1e-2, rho=0.1, alpha=0.1, diagonal=metric == "diagonal"
    )
    weights = flat(params)
    for step in range(9):
        set_gradients(params, step)
        idle = step % 4  # the last place is beyond the list: no gradient is missing
        if step < 2:
            idle = 0  # a parameter whose first gradient comes late
        for place, param in enumerate(params):
            if place == idle:
                param.grad = None
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        moves = flat([torch.full_like(p, p.grad is not None) for p in params])
        optimizer.step()
        weights = weights - 0.1 * moves * oracle.direction(flat(parts))
        torch.testing.assert_close(flat(params), weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
def test_a_group_added_later_had_zero_gradients_before(metric):
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params[:1], lr=0.1, beta=0.3, metric=metric)
    oracle = oracles.ProjectionRegularized(
        history_size=4, beta=0.3, ridge=1e-2, rho=0.1, alpha=0.1, diagonal=metric == "diagonal"
    )
    weights = flat(params)
    for step in range(8):
        set_gradients(params, step)
        if step == 3:
            optimizer.add_param_group({"params": params[1:], "lr": 0.05})
        known = params if step >= 3 else params[:1]
        parts = [p.grad if any(p is q for q in known) else torch.zeros_like(p) for p in params]
        rates = flat([torch.full_like(p, 0.1 if p is params[0] else 0.05) for p in params])
        moves = flat([torch.full_like(p, any(p is q for q in known)) for p in params])
        optimizer.step()
        weights = weights - rates * moves * oracle.direction(flat(parts))
        torch.testing.assert_close(flat(params), weights, rtol=1e-10, atol=1e-12)


def test_coupled_decay_counts_in_the_check_of_magnitudes():
    params = parameters(SHAPES)
    params[0].data.fill_(1e200)
    optimizer = ProjectionRegularizedSGD(params, weight_decay=1.0, weight_decay_method="l2")
    set_gradients(params, 0)
    with pytest.raises(RuntimeError, match="too large"):
        optimizer.step()
    assert not optimizer.state


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
def test_gradients_as_large_as_the_metric_can_hold(metric):
    largest = 1e153 if metric == "window" else 1e18
    params = parameters(SHAPES, dtype=torch.float64 if metric == "window" else torch.float32)
    optimizer = ProjectionRegularizedSGD(params, metric=metric, beta=0.3, ridge=1.0)
    for scale in (1.0, largest, 1.0):
        for param in params:
            param.grad = torch.full_like(param, scale / 10)
        optimizer.step()
        assert all(param.isfinite().all() for param in params)
    start = flat(params)
    for param in params:
        param.grad = torch.full_like(param, 100 * largest)
    with pytest.raises(RuntimeError, match="too large"):
        optimizer.step()
    assert torch.equal(flat(params), start)


@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
def test_options_may_change_between_steps(metric):
    """The formula holds with the options of each step; a wider window fills from then on."""
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, lr=0.1, history_size=2, metric=metric)
    diagonal = metric == "diagonal"
    oracle = oracles.ProjectionRegularized(
        history_size=2, beta=0.0, ridge=1e-2, rho=0.1, alpha=0.1, diagonal=diagonal
    )
    weights = flat(params)
    changes = {3: {"alpha": 0.5, "rho": 0.3}, 5: {"history_size": 4}, 9: {"history_size": 1}}
    for step in range(12):
        for name, value in changes.get(step, {}).items():
            optimizer.param_groups[0][name] = value
            setattr(oracle, name, value)
        set_gradients(params, step)
        weights = weights - 0.1 * oracle.direction(flat([param.grad for param in params]))
        optimizer.step()
        torch.testing.assert_close(flat(params), weights, rtol=1e-10, atol=1e-12)


def test_an_option_of_the_metric_that_changes_in_one_group_alone_is_refused():
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD([{"params": params[:1]}, {"params": params[1:]}])
    run(optimizer, params, range(2))
    optimizer.param_groups[1]["ridge"] = 1.0
    start = flat(params)
    with pytest.raises(ValueError, match=r"ridge.*0\.01 in group 0 and 1\.0 in group 1"):
        run(optimizer, params, [2])
    assert torch.equal(flat(params), start)
    with pytest.raises(ValueError, match="ridge"):
        optimizer.load_state_dict(optimizer.state_dict())


def test_state_of_parameters_at_different_steps_is_refused_at_load():
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params)
    run(optimizer, params, range(2))
    dictionary = copy.deepcopy(optimizer.state_dict())
    dictionary["state"][1]["step"] = 7
    with pytest.raises(ValueError, match=r"different numbers of steps \(\[2, 7\]\)"):
        optimizer.load_state_dict(dictionary)


def test_a_parameter_that_leaves_takes_its_part_of_the_metric_along():
    params, alone = parameters(SHAPES), parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, history_size=6)
    reference = ProjectionRegularizedSGD(alone[1:], history_size=6)
    run(optimizer, params, range(3))
    for step in range(3):
        set_gradients(alone, step)
        reference.step()
    optimizer.param_groups[0]["params"].pop(0)
    for param, other in zip(params, alone, strict=True):
        other.data.copy_(param)
    for step in range(3, 8):
        for each, weights in ((optimizer, params), (reference, alone)):
            set_gradients(weights, step)
            each.step()
    for param, other in zip(params[1:], alone[1:], strict=True):
        torch.testing.assert_close(param, other, rtol=1e-12, atol=1e-13)
    assert torch.equal(params[0], alone[0])


def test_parameters_of_several_dtypes_share_one_metric():
    mixed = parameters(SHAPES)
    mixed[1].data, mixed[2].data = mixed[1].data.float(), mixed[2].data.bfloat16()
    exact = [Parameter(param.detach().double()) for param in mixed]
    optimizer, reference = ProjectionRegularizedSGD(mixed), ProjectionRegularizedSGD(exact)
    for step in range(5):
        set_gradients(mixed, step)
        for param, other in zip(mixed, exact, strict=True):
            other.grad = param.grad.double()
        optimizer.step()
        reference.step()
    assert [param.dtype for param in mixed] == [torch.float64, torch.float32, torch.bfloat16]
    torch.testing.assert_close(mixed[0], exact[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(mixed[1].double(), exact[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mixed[2].double(), exact[2], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
@pytest.mark.parametrize("kind", ["repeated", "zero", "rank one", "huge then tiny"])
def test_degenerate_windows_stay_finite(metric, kind):
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, lr=0.1, history_size=6, metric=metric)
    for step in range(12):
        set_gradients(params, 0 if kind != "huge then tiny" else step)
        for param in params:
            param.grad *= {
                "repeated": 1.0,
                "zero": 0.0,
                "rank one": (-1.0) ** step * (step + 1),
                "huge then tiny": 1e8 if step == 0 else 1e-8,
            }[kind]
        optimizer.step()
        assert all(param.isfinite().all() for param in params)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("metric", ["dense", "window", "diagonal"])
def test_a_gradient_that_is_not_finite_is_refused_before_anything_has_changed(metric, value):
    params, clean = parameters(SHAPES), parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, metric=metric, weight_decay=0.1)
    reference = ProjectionRegularizedSGD(clean, metric=metric, weight_decay=0.1)
    run(optimizer, params, range(2))
    set_gradients(params, 2)
    params[1].grad[0] = value
    with pytest.raises(RuntimeError, match="parameter 1 of group 0 is not finite or too large"):
        optimizer.step()
    run(optimizer, params, range(2, 4))
    run(reference, clean, range(4))
    assert all(map(torch.equal, params, clean))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", -0.1),
        ("history_size", 0),
        ("history_size", 2.0),
        ("beta", 1.0),
        ("beta", -0.1),
        ("ridge", 0.0),
        ("rho", 0.0),
        ("alpha", -0.1),
        ("alpha", 1.1),
        ("metric", "exact"),
        ("tail_tolerance", 1.0),
        ("max_exact_parameters", -1),
    ],
)
def test_bad_options_are_refused_by_name_and_value(option, value):
    with pytest.raises(ValueError, match=f"{option}.*{value}"):
        ProjectionRegularizedSGD(parameters(SHAPES), **{option: value})


def test_arguments_have_the_promised_order_and_defaults():
    optimizer = ProjectionRegularizedSGD(parameters(SHAPES), 1.0, 2, 0.3, 4.0, 5.0, 0.6, 700)
    names = ("lr", "history_size", "beta", "ridge", "rho", "alpha", "max_exact_parameters")
    assert tuple(optimizer.defaults[name] for name in names) == (1.0, 2, 0.3, 4.0, 5.0, 0.6, 700)
    plain = ProjectionRegularizedSGD(parameters(SHAPES)).defaults
    assert tuple(plain[name] for name in names) == (1e-2, 4, 0.0, 1e-2, 0.1, 0.1, 4096)


def test_options_of_the_shared_metric_cannot_differ_between_groups():
    first, second = parameters(SHAPES[:2])
    with pytest.raises(ValueError, match=r"beta.*0\.0 in group 0 and 0\.5 in group 1"):
        ProjectionRegularizedSGD([{"params": [first]}, {"params": [second], "beta": 0.5}])


def test_too_many_parameters_for_the_dense_form_are_refused_with_advice():
    large = [Parameter(torch.zeros(65, 64))]
    with pytest.raises(RuntimeError, match=r"4160.*max_exact_parameters is 4096.*metric='window'"):
        ProjectionRegularizedSGD(large, metric="dense")
    ProjectionRegularizedSGD(large)
    ProjectionRegularizedSGD(large, metric="dense", max_exact_parameters=4160)


def test_the_metric_cannot_change_once_there_is_state():
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params)
    run(optimizer, params, range(2))
    start = flat(params)
    optimizer.param_groups[0]["metric"] = "diagonal"
    with pytest.raises(ValueError, match="another metric than 'diagonal'"):
        run(optimizer, params, [2])
    assert torch.equal(flat(params), start)
    fresh = ProjectionRegularizedSGD(parameters(SHAPES), metric="diagonal")
    optimizer.param_groups[0]["metric"] = "auto"
    dictionary = optimizer.state_dict()
    dictionary["param_groups"][0]["metric"] = "diagonal"
    with pytest.raises(ValueError, match="another metric"):
        fresh.load_state_dict(dictionary)


def test_the_counter_of_a_bf16_run_survives_a_checkpoint():
    params = parameters(SHAPES, dtype=torch.bfloat16)
    optimizer = ProjectionRegularizedSGD(params, lr=1e-3)
    run(optimizer, params, range(300))
    other = ProjectionRegularizedSGD(params, lr=1e-3)
    other.load_state_dict(optimizer.state_dict())
    run(other, params, range(300, 310))
    assert other.state[params[0]]["step"] == 310
    assert type(other.state[params[0]]["step"]) is int


def test_memory_of_the_window_is_its_columns():
    params = parameters([(64, 32)], dtype=torch.float32)
    optimizer = ProjectionRegularizedSGD(params, history_size=5)
    run(optimizer, params, range(12))
    state = optimizer.state[params[0]]
    assert state["history"].shape == (5, 64, 32)
    assert state["history"].dtype == torch.float32
