"""The contract of the base class, step by step against its formula."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys

import pytest
import torch

import oracles
from cases import double, parameters, run, set_gradients
from steepest import OrthogonalizedOptimizer

SHAPES = [(4, 3), (2, 5)]
OPTIONS = {
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.05,
    "nesterov": False,
    "weight_decay_method": "decoupled",
    "fp32_matmul_prec": "highest",
}


def build(params, cls=OrthogonalizedOptimizer, **options):
    options = {"scaled_orthogonalize_fn": torch.clone, **OPTIONS, **options}
    return cls(params, **options)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("method", ["decoupled", "independent", "l2"])
def test_five_steps_equal_the_formula(method, nesterov):
    params = parameters(SHAPES)
    optimizer = build(
        params,
        nesterov=nesterov,
        weight_decay_method=method,
        scaled_orthogonalize_fn=lambda x: 3.0 * oracles.polar(x),
    )
    weights = [param.detach().clone() for param in params]
    averages = [torch.zeros_like(param) for param in params]
    for step in range(5):
        set_gradients(params, step)
        optimizer.step()
        for place, param in enumerate(params):
            w, g = weights[place], param.grad
            if method == "decoupled":
                w = w - 0.1 * 0.05 * w
            elif method == "independent":
                w = w - 0.05 * w
            else:
                g = g + 0.05 * w
            m = averages[place] = 0.9 * averages[place] + 0.1 * g
            d = 0.1 * g + 0.9 * m if nesterov else m
            weights[place] = w - 0.1 * 3.0 * oracles.polar(d)
            torch.testing.assert_close(param.data, weights[place], rtol=1e-12, atol=1e-12)
            buffer = optimizer.state[param]["momentum_buffer"]
            torch.testing.assert_close(buffer, m, rtol=1e-12, atol=1e-12)


def test_arguments_have_the_promised_order():
    (param,) = parameters(SHAPES[:1])
    optimizer = OrthogonalizedOptimizer(
        [param],
        0.1,
        0.9,
        0.01,
        nesterov=False,
        weight_decay_method="l2",
        fp32_matmul_prec="high",
        scaled_orthogonalize_fn=torch.clone,
        split=(1, 3),
    )
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0.01)
    assert (group["weight_decay_method"], group["split"]) == ("l2", (1, 3))


def test_without_a_map_a_warning_is_logged_and_the_step_is_momentum_sgd(caplog):
    params, reference = parameters(SHAPES), parameters(SHAPES)
    with caplog.at_level(logging.WARNING):
        optimizer = build(params, scaled_orthogonalize_fn=None, weight_decay=0.0)
    assert "identity" in caplog.text
    sgd = torch.optim.SGD(reference, lr=0.1, momentum=0.9, dampening=0.9)
    # torch starts the buffer at G instead of (1 − μ)G: the first gradient of SGD is scaled down
    for step in range(4):
        set_gradients(params, step)
        set_gradients(reference, step)
        if step == 0:
            for param in reference:
                param.grad *= 0.1
        optimizer.step()
        sgd.step()
    for param, expected in zip(params, reference, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-12, atol=1e-12)


def test_no_warning_where_orthogonalize_is_overridden(caplog):
    class Own(OrthogonalizedOptimizer):
        def orthogonalize(self, param, grad, **kwargs):
            return grad

    build(parameters(SHAPES), cls=Own, scaled_orthogonalize_fn=None)
    assert not caplog.text


def test_orthogonalize_receives_the_decayed_weight_and_the_options_of_its_group():
    received = []

    class Spy(OrthogonalizedOptimizer):
        def orthogonalize(self, param, grad, **kwargs):
            received.append((param.detach().clone(), grad.clone(), kwargs))
            return grad

    params = parameters(SHAPES)
    start = [param.detach().clone() for param in params]
    optimizer = build(
        [{"params": params[:1], "split": (1, 3)}, {"params": params[1:]}], cls=Spy, split=None, k=7
    )
    run(optimizer, params, [0])
    (w0, d0, options0), (_, _, options1) = received
    assert torch.equal(w0, start[0] * (1 - 0.1 * 0.05))
    torch.testing.assert_close(d0, 0.1 * params[0].grad, rtol=1e-12, atol=0)
    assert options0["split"] == (1, 3)
    assert options1["split"] is None
    assert options0["k"] == options1["k"] == 7
    assert "params" not in options0


def test_hooks_run_around_the_update_in_order():
    calls = []

    class Hooked(OrthogonalizedOptimizer):
        def pre_weight_update_fn_inplace(self, param, update):
            calls.append(("pre", param.detach().clone(), update.clone()))
            update.mul_(2.0)

        def post_weight_update_fn_inplace(self, param):
            calls.append(("post", param.detach().clone()))
            param.add_(1.0)

    (param,) = parameters(SHAPES[:1])
    start = param.detach().clone()
    run(build([param], cls=Hooked, weight_decay=0.0), [param], [0])
    (_, before, update), (_, after) = calls
    assert torch.equal(before, start)
    torch.testing.assert_close(after, start - 0.1 * 2.0 * update, rtol=1e-14, atol=0)
    assert torch.equal(param, after + 1.0)


@pytest.mark.parametrize("fn", [None, lambda x: x, lambda x: x.view(-1).view(x.shape)])
def test_an_update_that_is_changed_in_place_does_not_reach_the_state(fn):
    class Hooked(OrthogonalizedOptimizer):
        def pre_weight_update_fn_inplace(self, param, update):
            update.zero_()

    (param,) = parameters(SHAPES[:1])
    optimizer = build([param], cls=Hooked, scaled_orthogonalize_fn=fn)
    run(optimizer, [param], [0])
    expected = 0.1 * param.grad
    torch.testing.assert_close(optimizer.state[param]["momentum_buffer"], expected)


@pytest.mark.parametrize("kept", ["gradient", "buffer"])
def test_a_hook_cannot_write_to_what_an_override_returns_by_mistake(kept):
    class Careless(OrthogonalizedOptimizer):
        def orthogonalize(self, param, grad, **kwargs):
            return param.grad if kept == "gradient" else self.state[param]["momentum_buffer"]

        def pre_weight_update_fn_inplace(self, param, update):
            update.zero_()

    (param,) = parameters(SHAPES[:1])
    optimizer = build([param], cls=Careless)
    set_gradients([param], 0)
    gradient = param.grad.clone()
    optimizer.step()
    assert torch.equal(param.grad, gradient)
    torch.testing.assert_close(optimizer.state[param]["momentum_buffer"], 0.1 * gradient)


def test_an_update_of_another_shape_is_refused_instead_of_broadcast():
    optimizer = build([("w", parameters(SHAPES[:1])[0])], scaled_orthogonalize_fn=torch.sum)
    with pytest.raises(ValueError, match=r"'w' has shape \(\), the parameter \(4, 3\)"):
        run(optimizer, optimizer.param_groups[0]["params"], [0])


def test_an_override_may_delegate_to_the_identity_where_no_map_was_given():
    class Delegating(OrthogonalizedOptimizer):
        def orthogonalize(self, param, grad, **kwargs):
            return self.scaled_orthogonalize_fn(grad.reshape(-1)).reshape(grad.shape)

    params, same = parameters(SHAPES), parameters(SHAPES)
    run(build(params, cls=Delegating, scaled_orthogonalize_fn=None), params, range(2))
    run(build(same, scaled_orthogonalize_fn=None), same, range(2))
    assert all(map(torch.equal, params, same))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_map_that_works_in_place_changes_neither_state_nor_gradient(nesterov):
    (param,) = parameters(SHAPES[:1])
    optimizer = build(
        [param], nesterov=nesterov, scaled_orthogonalize_fn=lambda x: x.div_(x.norm())
    )
    set_gradients([param], 0)
    gradient = param.grad.clone()
    optimizer.step()
    assert torch.equal(param.grad, gradient)
    torch.testing.assert_close(optimizer.state[param]["momentum_buffer"], 0.1 * gradient)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision_is_set_inside_and_restored(precision):
    seen = []

    def fn(x):
        seen.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("medium")  # a map may change it and forget it
        if len(seen) == 2:
            raise KeyError("from the user's map")
        return x

    before = torch.get_float32_matmul_precision()
    (param,) = parameters(SHAPES[:1])
    optimizer = build(
        [{"params": [param], "fp32_matmul_prec": precision}], scaled_orthogonalize_fn=fn
    )
    run(optimizer, [param], [0])
    with pytest.raises(KeyError):
        run(optimizer, [param], [1])
    assert seen == [precision, precision]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("nesterov", 1),
        ("fp32_matmul_prec", "tf32"),
        ("weight_decay_method", "coupled"),
    ],
)
def test_bad_options_are_refused_at_construction(option, value):
    with pytest.raises(ValueError, match=f"{option}.*{value}"):
        build(parameters(SHAPES), **{option: value})


def test_other_tensors_than_matrices_are_refused():
    with pytest.raises(ValueError, match=r"'bias'.*\(3,\)"):
        build([("bias", torch.nn.Parameter(torch.zeros(3)))])
    optimizer = build(parameters(SHAPES))
    with pytest.raises(ValueError, match=r"\(2, 3, 4\)"):
        optimizer.orthogonalize(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))


def test_options_may_not_take_the_names_of_the_arguments_of_orthogonalize():
    with pytest.raises(ValueError, match="cannot be called grad"):
        build([{"params": parameters(SHAPES), "grad": 1}])


def test_matmul_precision_works_beside_the_settings_of_each_backend():
    """Torch refuses its global setting once a backend's own has been used."""
    script = (
        "import torch, steepest; torch.backends.cuda.matmul.fp32_precision = 'tf32'; "
        "p = torch.nn.Parameter(torch.ones(3, 2)); p.grad = torch.ones(3, 2); "
        "steepest.Muon([p]).step(); "
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_the_map_is_not_an_option_of_a_group():
    with pytest.raises(ValueError, match="whole optimizer"):
        build([{"params": parameters(SHAPES), "scaled_orthogonalize_fn": torch.clone}])


def test_copies_keep_the_map_and_attributes_of_a_subclass():
    optimizer = build(parameters(SHAPES), scaled_orthogonalize_fn=double)
    optimizer.note, optimizer.step_count = "kept", 3
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.scaled_orthogonalize_fn is double
        assert (other.note, other.step_count) == ("kept", 3)


def test_a_backward_inside_the_closure_works_repeatedly():
    (param,) = parameters(SHAPES[:1])
    optimizer = build([param], weight_decay=0.0, scaled_orthogonalize_fn=double)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
