"""What the gradient window offers for training, on top of the given formula."""

from __future__ import annotations

import pytest
import torch

from cases import parameters, run, set_gradients
from steepest import ProjectionRegularizedSGD
from window_problem import SHAPES, flat, met, oracle_for, worst_direction


@pytest.mark.parametrize("metric", ["window", "diagonal"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_power_one_half_is_the_root_of_the_metric(metric, beta, alpha):
    options = {"metric": metric, "beta": beta, "alpha": alpha, "power": 0.5}
    assert worst_direction(**options) < 1e-10


def test_power_one_half_with_alpha_one_is_a_windowed_full_matrix_adagrad():
    """GGT: d = (λI + GGᵀ/k)^(-1/2) g."""
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(
        params, lr=1.0, history_size=3, alpha=1.0, power=0.5, rho=7.0
    )
    for moved, window, gradient in met(optimizer, params, size=3, steps=5):
        metric = window @ window.T / window.shape[1] + 1e-2 * torch.eye(30).double()
        values, vectors = torch.linalg.eigh(metric)
        expected = vectors @ (vectors.T @ gradient / values.sqrt())
        torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e5])
def test_relative_ridge_equals_the_formula_at_any_scale(power, beta, scale):
    options = {"ridge_scale": "relative", "beta": beta, "power": power, "ridge": 0.3}
    assert worst_direction(scale=scale, **options) < 1e-9


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("block", ["global", "parameter"])
def test_relative_ridge_makes_the_step_independent_of_the_scale_of_the_loss(power, block):
    params, others = parameters(SHAPES), parameters(SHAPES)
    options = {"ridge_scale": "relative", "block": block, "power": power, "beta": 0.5}
    first = ProjectionRegularizedSGD(params, **options)
    second = ProjectionRegularizedSGD(others, **options)
    for step in range(8):
        for each, weights, scale in ((first, params, 1.0), (second, others, 1e-7)):
            set_gradients(weights, step)
            for param in weights:
                param.grad *= scale
            each.step()
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-9, atol=0)
    absolute = parameters(SHAPES)
    run(ProjectionRegularizedSGD(absolute, beta=0.5), absolute, range(8))
    assert (flat(absolute) - flat(params)).abs().max() > 1e-3


def test_relative_ridge_with_zero_gradients_moves_nothing():
    params = parameters(SHAPES)
    start = flat(params)
    optimizer = ProjectionRegularizedSGD(params, ridge_scale="relative")
    for _ in range(3):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert torch.equal(flat(params), start)
    run(optimizer, params, range(3))
    assert flat(params).isfinite().all()


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("scale", ["absolute", "relative"])
def test_with_a_stride_the_newest_gradient_is_replaced_until_it_is_kept(stride, beta, scale):
    options = {"history_stride": stride, "beta": beta, "ridge_scale": scale, "history_size": 3}
    assert worst_direction(**options) < 1e-10


def test_a_window_with_a_stride_holds_every_so_manyth_gradient():
    params = parameters([(4,)])
    optimizer = ProjectionRegularizedSGD(params, history_size=3, history_stride=2)
    seen = []
    for step in range(8):
        set_gradients(params, step)
        seen.append(params[0].grad.clone())
        optimizer.step()
    state = optimizer.state[params[0]]
    order = state["column_step"].argsort()
    assert torch.equal(state["history"][order], torch.stack([seen[3], seen[5], seen[7]]))


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
def test_warm_up_shortens_steps_until_the_window_is_full(metric):
    params, others = parameters(SHAPES), parameters(SHAPES)
    options = {"history_size": 4, "metric": metric, "lr": 1.0}
    first = ProjectionRegularizedSGD(params, warmup=True, **options)
    second = ProjectionRegularizedSGD(others, **options)
    for step in range(6):
        before = flat(params), flat(others)
        run(first, params, [step])
        run(second, others, [step])
        share = min(step + 1, 4) / 4
        expected = share * (flat(others) - before[1])
        torch.testing.assert_close(flat(params) - before[0], expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
def test_max_norm_is_the_longest_step_of_all_parameters_together(metric):
    params, others = parameters(SHAPES), parameters(SHAPES)
    groups = [{"params": params[:1], "lr": 3.0}, {"params": params[1:], "lr": 0.5}]
    free = [{"params": others[:1], "lr": 3.0}, {"params": others[1:], "lr": 0.5}]
    limited = ProjectionRegularizedSGD(groups, metric=metric, max_norm=1.5)
    reference = ProjectionRegularizedSGD(free, metric=metric)
    seen = set()
    for step in range(8):
        before, other = flat(params), flat(others)
        for each, weights in ((limited, params), (reference, others)):
            set_gradients(weights, step)
            for param in weights:
                param.grad *= 1.0 if step % 2 else 1e-3
            each.step()
        expected = flat(others) - other
        seen.add(bool(expected.norm() > 1.5))
        expected *= min(1.0, 1.5 / expected.norm())
        torch.testing.assert_close(flat(params) - before, expected, rtol=1e-10, atol=1e-13)
    assert seen == {False, True}


def test_max_norm_is_of_each_block():
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, lr=10.0, block="parameter", max_norm=0.5)
    before = [param.detach().clone() for param in params]
    run(optimizer, params, range(1))
    for param, old in zip(params, before, strict=True):
        assert (param - old).norm().item() == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_momentum_averages_the_directions(metric, nesterov, hooked, dtype):
    class Hooked(ProjectionRegularizedSGD):
        def pre_weight_update_fn_inplace(self, param, update):
            update.mul_(2.0)
            update.mul_(0.5)

    params = parameters(SHAPES, dtype=dtype)
    make = Hooked if hooked else ProjectionRegularizedSGD
    options = {"momentum": 0.7, "nesterov": nesterov, "metric": metric, "weight_decay": 0.1}
    optimizer = make(params, lr=0.3, **options)
    oracle, weights = oracle_for(options), flat(params)
    average = torch.zeros_like(weights)
    for step in range(6):
        set_gradients(params, step)
        direction = oracle.direction(flat([param.grad for param in params]))
        average = 0.7 * average + 0.3 * direction
        update = 0.3 * direction + 0.7 * average if nesterov else average
        weights = (1 - 0.3 * 0.1) * weights - 0.3 * update
        optimizer.step()
        tolerance = 1e-10 if dtype == torch.float64 else 1e-4 if metric == "dense" else 3e-5
        assert (flat(params) - weights).norm() < tolerance * weights.norm()


def test_momentum_of_weights_in_bf16_is_kept_in_float32():
    params = parameters(SHAPES, dtype=torch.bfloat16)
    run(ProjectionRegularizedSGD(params, momentum=0.9), params, range(2))
    optimizer = ProjectionRegularizedSGD(params, momentum=0.9)
    run(optimizer, params, range(2))
    assert optimizer.state[params[0]]["momentum_buffer"].dtype == torch.float32


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
@pytest.mark.parametrize("block", ["global", "parameter"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_gradient_that_is_not_finite_can_be_skipped(metric, block, value):
    params, clean = parameters(SHAPES), parameters(SHAPES)
    options = {"metric": metric, "block": block, "momentum": 0.5, "weight_decay": 0.1}
    optimizer = ProjectionRegularizedSGD(params, nonfinite="skip", **options)
    reference = ProjectionRegularizedSGD(clean, **options)
    for step in range(5):
        set_gradients(params, step)
        if step in (0, 2):  # also before there is any state
            params[-1].grad[0] = value
        else:
            run(reference, clean, [step])
        optimizer.step()
        assert len(optimizer.state) == len(reference.state)
    assert all(map(torch.equal, params, clean))
    assert optimizer.state[params[0]]["step"] == 3


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_vanishing_gradients_leave_the_weights_finite(dtype, power):
    params = parameters(SHAPES, dtype=dtype)
    options = {"ridge_scale": "relative", "ridge": 0.3, "momentum": 0.9, "nesterov": True}
    optimizer = ProjectionRegularizedSGD(params, lr=1.0, power=power, **options)
    for exponent in [*range(0, -320, -4), 0]:
        for param in params:
            param.grad = torch.full_like(param, 10.0**exponent)
        optimizer.step()
        assert all(param.isfinite().all() for param in params), exponent


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
def test_a_tiny_ridge_makes_no_nan_of_a_zero_gradient(metric):
    for dtype, ridge in ((torch.float32, 1e-37), (torch.float64, 1e-200)):
        params = parameters(SHAPES, dtype=dtype)
        before = flat(params)
        optimizer = ProjectionRegularizedSGD(params, ridge=ridge, metric=metric)
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(flat(params), before)


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
@pytest.mark.parametrize("history_dtype", ["float32", "bfloat16"])
def test_a_gradient_that_its_columns_cannot_hold_is_refused(history_dtype, metric):
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, metric=metric, history_dtype=history_dtype)
    run(optimizer, params, [0])
    before = flat(params)
    for param in params:
        param.grad = torch.full_like(param, 1e40)
    with pytest.raises(RuntimeError, match="too large"):
        optimizer.step()
    assert torch.equal(flat(params), before)
    run(optimizer, params, [1])
    assert flat(params).isfinite().all()


def test_a_full_window_of_the_largest_gradients_stays_finite():
    params = parameters([(4,)])
    optimizer = ProjectionRegularizedSGD(params, history_size=8, nonfinite="skip")
    for _ in range(12):
        params[0].grad = torch.full_like(params[0], 1e153)
        optimizer.step()
    assert flat(params).isfinite().all()
    assert optimizer.state[params[0]]["step"] == 12
    params[0].grad = torch.full_like(params[0], 3e153)  # eight of them would overflow together
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 12
