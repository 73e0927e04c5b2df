"""How a training loop calls an optimizer."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from cases import parameters, run, set_gradients, shapes_for


def clones(params):
    return [param.detach().clone() for param in params]


def loss_of(params):
    return sum((param**2).sum() for param in params)


def test_closure_runs_once_with_gradients_and_returns_its_loss(case):
    params, reference = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer, plain = case.build(params), case.build(reference)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    with torch.no_grad():
        result = optimizer.step(closure)
        assert not torch.is_grad_enabled()
    loss_of(reference).backward()
    plain.step()

    assert calls == [True]
    assert result.item() == loss_of(parameters(shapes_for(case))).item()
    assert all(map(torch.equal, params, reference))


@pytest.mark.parametrize("call", ["none", "positional", "keyword"])
def test_step_takes_a_closure_as_torch_does(case, call):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    set_gradients(params, 0)

    def closure():
        return 16.0

    if call == "none":
        assert optimizer.step(closure=None) is None
    elif call == "positional":
        assert optimizer.step(closure) == 16.0
    else:
        assert optimizer.step(closure=closure) == 16.0


@pytest.mark.parametrize("with_closure", [False, True])
def test_step_hooks_fire_once_in_order(case, with_closure):
    params = parameters(shapes_for(case))
    optimizer = case.build(params)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("pre", clones(params))))
    optimizer.register_step_post_hook(lambda *_: seen.append(("post", clones(params))))
    for step in range(2):
        before = clones(params)
        set_gradients(params, step)
        optimizer.step((lambda: 0.0) if with_closure else None)
        (pre, old), (post, new) = seen[-2:]
        assert (pre, post) == ("pre", "post")
        assert all(map(torch.equal, old, before))
        assert all(map(torch.equal, new, params))
        assert not any(map(torch.equal, old, new))
    assert len(seen) == 4


def test_scheduler_then_compiled_step_uses_the_learning_rate(case):
    params, reference = parameters(shapes_for(case)), parameters(shapes_for(case))
    optimizer, plain = case.build(params), case.build(reference)
    schedulers = [LambdaLR(each, lambda k: 0.5**k) for each in (optimizer, plain)]
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    rates = []
    for step in range(3):
        for each, weights in ((optimizer, params), (plain, reference)):
            set_gradients(weights, step)
            each.step()
        rates.append(optimizer.param_groups[0]["lr"])
        for scheduler in schedulers:
            scheduler.step()
    start = case.options["lr"]
    assert rates == [start, start / 2, start / 4]
    for compiled, eager in zip(params, reference, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_hooks_set_on_one_object_are_honoured(case):
    shapes = [*shapes_for(case), shapes_for(case)[0]]  # two of equal sides among them
    params, same = parameters(shapes), parameters(shapes)
    optimizer, reference = case.build(params), case.build(same)
    calls = []
    optimizer.post_weight_update_fn_inplace = calls.append
    run(optimizer, params, range(2))
    run(reference, same, range(2))
    assert len(calls) == 2 * len(params)
    for param, other in zip(params, same, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-12, atol=1e-14)


def test_a_tensor_learning_rate_equals_the_number(case):
    params, reference = parameters(shapes_for(case)), parameters(shapes_for(case))
    rate = torch.tensor(0.125)
    run(case.build(params, lr=rate), params, range(3))
    run(case.build(reference, lr=0.125), reference, range(3))
    for left, right in zip(params, reference, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_scheduler_scales_each_group_by_itself(case):
    first, second = parameters(shapes_for(case)), parameters(shapes_for(case), seed=1)
    optimizer = case.build([{"params": first, "lr": 2e-2}, {"params": second, "lr": 1e-5}])
    scheduler = LambdaLR(optimizer, lambda k: 0.5**k)
    for step in range(3):
        set_gradients(first + second, step)
        optimizer.step()
        scheduler.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([2e-2 / 8, 1e-5 / 8], rel=1e-12)
