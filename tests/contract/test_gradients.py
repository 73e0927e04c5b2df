"""Missing, zero, frozen and untouched gradients."""

from __future__ import annotations

import pytest
import torch

from cases import DTYPES, parameters, run, set_gradients, shapes_for


def test_a_parameter_without_gradient_is_left_alone(case):
    params = parameters(shapes_for(case))
    idle = params[1]
    before = idle.detach().clone()
    optimizer = case.build(params, weight_decay=0.1)
    for step in range(10):
        set_gradients(params, step)
        idle.grad = None
        optimizer.step()
    assert torch.equal(idle, before)
    assert idle.grad is None
    assert idle not in optimizer.state
    assert list(optimizer.state_dict()["state"]) == [
        place for place, param in enumerate(params) if param is not idle
    ]


def test_without_any_gradient_nothing_happens(case):
    params = parameters(shapes_for(case))
    start = [param.detach().clone() for param in params]
    optimizer = case.build(params, weight_decay=0.1)
    optimizer.step()
    assert all(map(torch.equal, params, start))
    assert not optimizer.state


def test_a_first_gradient_at_a_later_step(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    set_gradients(params, 0)
    params[1].grad = None
    optimizer.step()
    run(optimizer, params, [1])
    if not case.coupled:
        fresh = parameters(shapes_for(case))
        run(case.build(fresh), fresh, [1])
        assert torch.equal(params[1], fresh[1])
    assert all(param.isfinite().all() for param in params)


def test_gradients_that_come_and_go(case):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    for step in range(8):
        set_gradients(params, step)
        idle = params[step % len(params)]
        idle.grad = None
        before = idle.detach().clone()
        optimizer.step()
        assert torch.equal(idle, before)
    assert all(param.isfinite().all() for param in params)


@pytest.mark.parametrize("scale", [0.0, 1e-12])
def test_zero_and_tiny_first_gradients_stay_finite(case, scale):
    params = parameters(shapes_for(case))
    start = [param.detach().clone() for param in params]
    optimizer = case.build(params, weight_decay=0.0)
    set_gradients(params, 0)
    for param in params:
        param.grad *= scale
    optimizer.step()
    if scale == 0.0:
        assert all(map(torch.equal, params, start))
    run(optimizer, params, range(1, 4))
    if (
        scale == 0.0 and not case.coupled and not case.counts
    ):  # as if the run had started at the second step
        late = parameters(shapes_for(case))
        run(case.build(late, weight_decay=0.0), late, range(1, 4))
        assert all(map(torch.equal, params, late))
    for param, before in zip(params, start, strict=True):
        assert param.isfinite().all()
        assert 0.0 < (param - before).abs().max() < 10.0


def test_decay_applies_to_zero_gradients_as_in_adamw(case):
    params, adamw_params = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer = case.build(params, lr=0.1, weight_decay=0.1, weight_decay_method="decoupled")
    adamw = torch.optim.AdamW(adamw_params, lr=0.1, weight_decay=0.1)
    for each, weights in ((optimizer, params), (adamw, adamw_params)):
        for _ in range(2):
            for param in weights:
                param.grad = torch.zeros_like(param)
            each.step()
    for param, expected in zip(params, adamw_params, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("method", ["decoupled", "independent", "l2"])
def test_decay_is_exact(case, method):
    params = parameters(shapes_for(case))
    start = [param.detach().clone() for param in params]
    optimizer = case.build(params, lr=0.5, weight_decay=0.25, weight_decay_method=method)
    if method == "l2":  # the step is that of the gradient G + 0.25·W without decay
        same = parameters(shapes_for(case))
        reference = case.build(same, lr=0.5, weight_decay=0.0)
        for step in range(3):
            set_gradients(params, step)
            for param, other in zip(params, same, strict=True):
                other.grad = param.grad + 0.25 * other.detach()
            optimizer.step()
            reference.step()
        for param, other in zip(params, same, strict=True):
            torch.testing.assert_close(param, other, rtol=1e-12, atol=1e-13)
        return
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    factor = {"decoupled": 1 - 0.5 * 0.25, "independent": 1 - 0.25}
    for param, before in zip(params, start, strict=True):
        assert torch.equal(param, before * factor[method])


def test_a_stale_gradient_on_a_frozen_parameter_is_stepped_as_in_torch(case):
    params, same = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer, reference = case.build(params), case.build(same)
    set_gradients(params, 0)
    params[0].requires_grad_(False)
    optimizer.step()
    run(reference, same, [0])
    assert all(map(torch.equal, params, same))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", ["decoupled", "l2"])
def test_gradients_are_not_written(case, dtype, method):
    params = parameters(shapes_for(case), dtype=dtype)
    optimizer = case.build(params, weight_decay=0.1, weight_decay_method=method)
    set_gradients(params, 0)
    objects = [param.grad for param in params]
    values = [param.grad.clone() for param in params]
    for _ in range(2):
        optimizer.step()
    for param, gradient, value in zip(params, objects, values, strict=True):
        assert param.grad is gradient
        assert torch.equal(gradient, value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_keep_their_dtype_and_stay_finite(case, dtype):
    params = parameters(shapes_for(case), dtype=dtype)
    run(case.build(params), params, range(12))
    assert all(param.dtype == dtype and param.isfinite().all() for param in params)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (2, 1, 0, 3), (3, 2, 1, 0)])
def test_empty_parameters_do_not_disturb_the_others(case, order):
    shapes = [(3, 2), (0, 4), (0, 8), (2, 4)]
    params, alone = parameters(shapes), parameters(shapes)
    run(case.build([params[place] for place in order]), params, range(3))
    kept = [place for place in order if alone[place].numel()]
    run(case.build([alone[place] for place in kept]), alone, range(3))
    for param, expected, shape in zip(params, alone, shapes, strict=True):
        assert param.shape == shape
        torch.testing.assert_close(param, expected, rtol=1e-12, atol=1e-14)


def test_strides_of_weights_and_gradients_do_not_matter(case):
    shape = (6, 4)
    params, plain = parameters([shape]), parameters([shape])
    params[0].data = params[0].data.t().contiguous().t()
    strides = params[0].stride()
    optimizer, reference = case.build(params), case.build(plain)
    for step in range(3):
        set_gradients(params, step)
        set_gradients(plain, step)
        if step % 2:
            params[0].grad = params[0].grad.t().contiguous().t()
        optimizer.step()
        reference.step()
    assert params[0].stride() == strides
    torch.testing.assert_close(params[0], plain[0], rtol=1e-12, atol=1e-14)
