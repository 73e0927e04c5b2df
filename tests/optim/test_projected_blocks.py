"""Blocks, compressed tails, and where the columns of a gradient window are kept."""

from __future__ import annotations

import pytest
import torch

from cases import assert_same_state, parameters, run, set_gradients
from steepest import ProjectionRegularizedSGD
from steepest.optim import window_memory
from window_problem import SHAPES, flat, oracle_for, worst_direction

# with shapes that repeat, so that some are packed
MANY = [*SHAPES, (7,), (5, 3), (7,)]


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_metric_for_each_parameter_equals_an_optimizer_for_each(metric, beta):
    params, others = parameters(MANY), parameters(MANY)
    options = {"metric": metric, "beta": beta, "history_size": 3, "momentum": 0.5}
    together = ProjectionRegularizedSGD(params, block="parameter", **options)
    apart = [ProjectionRegularizedSGD([param], **options) for param in others]
    for step in range(8):
        for weights in (params, others):
            set_gradients(weights, step)
            if step % 3 == 1:
                weights[1].grad = None  # so that windows are at different steps
        together.step()
        for each in apart:
            each.step()
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("metric", ["window", "diagonal"])
def test_a_metric_for_each_group_has_the_options_of_the_group(metric):
    params, others = parameters(MANY), parameters(MANY)
    own = {"beta": 0.5, "ridge": 0.3, "history_size": 2}
    together = ProjectionRegularizedSGD(
        [{"params": params[:2]}, {"params": params[2:], **own}], block="group", metric=metric
    )
    apart = [
        ProjectionRegularizedSGD(others[:2], metric=metric),
        ProjectionRegularizedSGD(others[2:], metric=metric, **own),
    ]
    for step in range(8):
        set_gradients(params, step)
        set_gradients(others, step)
        together.step()
        for each in apart:
            each.step()
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-11, atol=1e-13)


def test_no_block_is_changed_when_the_gradient_of_another_is_refused():
    params = parameters(MANY)
    optimizer = ProjectionRegularizedSGD(params, block="parameter")
    run(optimizer, params, range(2))
    before = flat(params)
    set_gradients(params, 2)
    params[-1].grad[0] = float("nan")
    with pytest.raises(RuntimeError, match="parameter 5 of group 0"):
        optimizer.step()
    assert torch.equal(flat(params), before)
    assert all(optimizer.state[param]["step"] == 2 for param in params)


@pytest.mark.parametrize("cut", ["ridge", "drop"])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_a_compressed_tail_takes_no_more_slots_and_errs_less_with_more_rank(beta, cut):
    options = {"beta": beta, "cut": cut, "steps": 40}
    errors = [worst_direction(rank=rank, **options) for rank in (1, 8, 26)]
    assert errors[2] < 1e-9  # rank and window together span all 30 parameters
    assert errors[2] < errors[1] < errors[0]
    params = parameters(SHAPES)
    optimizer = ProjectionRegularizedSGD(params, beta=beta, cut=cut, rank=3)
    run(optimizer, params, range(60))
    assert optimizer.state[params[0]]["history"].shape[0] == 4 + 2 * 3


def assert_resumes(stepped, made, options, *, stop, end):
    """A run that is saved and loaded after ``stop`` of ``end`` steps is the straight one."""
    params, others = made(), made()
    straight, first = (ProjectionRegularizedSGD(weights, **options) for weights in (params, others))
    stepped(straight, params, range(end))
    stepped(first, others, range(stop))
    resumed = ProjectionRegularizedSGD(others, **options)
    resumed.load_state_dict(first.state_dict())
    stepped(resumed, others, range(stop, end))
    assert_same_state(straight, resumed)
    assert all(map(torch.equal, params, others))


@pytest.mark.parametrize("block", ["global", "parameter"])
def test_a_run_with_a_compressed_tail_resumes_bit_equal(block):
    options = {"beta": 0.9, "rank": 2, "block": block, "momentum": 0.5, "history_stride": 2}
    assert_resumes(run, lambda: parameters(MANY), options, stop=23, end=40)


@pytest.mark.parametrize("metric", ["window", "diagonal", "dense"])
def test_a_window_in_bf16_is_the_formula_on_what_is_stored(metric):
    params = parameters(SHAPES, dtype=torch.float32)
    optimizer = ProjectionRegularizedSGD(params, history_dtype="bfloat16", metric=metric, lr=1.0)
    stored, exact = oracle_for({"metric": metric}), oracle_for({"metric": metric})
    for step in range(8):
        for param in params:
            param.data.zero_()
        set_gradients(params, step)
        gradient = flat([param.grad for param in params])
        optimizer.step()
        expected = -stored.direction(gradient.bfloat16())
        tolerance = 1e-3 if metric == "dense" else 1e-5  # which loses digits in float32
        assert (flat(params) - expected).norm() < tolerance * expected.norm()
        away = -exact.direction(gradient)
        assert 0 < (flat(params) - away).norm() < 2e-2 * away.norm()
    assert optimizer.state[params[0]]["history"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"rank": 4}, "rank must be None with beta=0"),
        ({"rank": 0, "beta": 0.5}, "rank.*0"),
        ({"rank": 4, "beta": 0.5, "metric": "dense"}, "rank must be None with metric='dense'"),
        ({"ridge_scale": "relative", "metric": "diagonal"}, "ridge_scale must be 'absolute'"),
        ({"history_stride": 2, "metric": "dense"}, "history_stride must be 1"),
        ({"power": 0.5, "metric": "dense"}, "power must be 1 with metric='dense'"),
        ({"power": 2.0}, "power must be 1 or 0.5, got 2.0"),
        ({"block": "layer"}, "block.*'layer'"),
        ({"cut": "all"}, "cut.*'all'"),
        ({"nonfinite": "ignore"}, "nonfinite.*'ignore'"),
        ({"history_dtype": "int8"}, "history_dtype.*'int8'"),
        ({"history_device": "nowhere"}, "history_device.*'nowhere'"),
        ({"max_norm": 0.0}, "max_norm.*0"),
        ({"momentum": 1.0}, "momentum.*1"),
        ({"history_stride": 0}, "history_stride.*0"),
    ],
)
def test_bad_options_and_combinations_are_refused(options, wrong):
    with pytest.raises(ValueError, match=wrong):
        ProjectionRegularizedSGD(parameters(SHAPES), **options)


def test_a_window_that_cannot_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(window_memory, "free_bytes", lambda _: 10 << 20)
    params = parameters([(1 << 10, 1 << 10)], dtype=torch.float32)
    wrong = r"history_size=4 .*16777216 bytes.*10485760 bytes.*2 columns, or 4 with .*'bfloat16'"
    with pytest.raises(ValueError, match=wrong):
        ProjectionRegularizedSGD(params)
    optimizer = ProjectionRegularizedSGD(params, history_size=2)
    run(optimizer, params, range(1))
    monkeypatch.setattr(window_memory, "free_bytes", lambda _: 1 << 20)
    run(optimizer, params, range(1, 4))  # what is there needs no more
    late = parameters([(1 << 10, 1 << 10)], dtype=torch.float32)
    with pytest.raises(ValueError, match="8388608 bytes"):
        optimizer.add_param_group({"params": late})
    assert len(optimizer.param_groups) == 1


def test_free_memory_of_this_machine_is_known():
    free = window_memory.free_bytes(torch.device("cpu"))
    assert free is None or 0 < free < 1 << 50


@pytest.mark.parametrize("seed", range(20))
def test_windows_that_part_resume_bit_equal(seed):
    """A parameter that leaves the pack it shared must not compute by where it lies in memory."""
    options = {"block": "parameter", "history_size": 5, "lr": 0.1}

    def stepped(optimizer, weights, steps):
        for step in steps:
            set_gradients(weights, step, seed=seed)
            if step == 3:
                weights[0].grad = None
            optimizer.step()

    def made():
        return parameters([(7,), (7,)], dtype=torch.float32, seed=seed)

    assert_resumes(stepped, made, options, stop=7, end=14)
