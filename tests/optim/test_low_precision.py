"""Weights in 16 bits: what is below their last bit is kept, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from cases import parameters, run
from steepest import Muon
from steepest.linalg.rounding import round_stochastically


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x", [1.0, -1.0, 3e-5, 1e-7, 200.1, 0.0])
def test_stochastic_rounding_is_right_in_the_mean_and_to_a_neighbour(x, dtype):
    step = torch.finfo(dtype).eps * max(abs(x), torch.finfo(dtype).tiny)
    given = torch.full((40_000,), x + 0.3 * step, dtype=torch.float32)
    rounded = round_stochastically(given, dtype=dtype, seed=1).float()
    assert len(rounded.unique()) <= 2
    assert ((rounded - given).abs() <= step * 1.001).all()
    error = (rounded.double().mean() - given[0].double()).abs()
    assert error <= 4 * step * 0.5 / 40_000**0.5


def test_what_can_be_held_is_kept_and_what_is_beyond_is_as_in_torch():
    given = torch.tensor([1.0, -0.0, 0.0, 3e38, -3e38, torch.inf, -torch.inf, torch.nan, 3.4e38])
    for dtype in (torch.bfloat16, torch.float16):
        exact = given.to(dtype).float()
        assert torch.equal(
            round_stochastically(exact, dtype=dtype, seed=0).float().nan_to_num(7.0),
            exact.nan_to_num(7.0),
        )
    assert round_stochastically(given, dtype=torch.float16, seed=0).isinf().sum() == 5


def test_a_weight_moves_by_steps_below_half_its_last_bit():
    """100 steps of −1e-3 from one, where a bfloat16 near one has a last bit of 4e-3 to 8e-3."""
    moved = {}
    for method in ("nearest", "stochastic", "float32"):
        param = Parameter(torch.ones(40, 40, dtype=torch.bfloat16))
        optimizer = Muon(
            [param], lr=1e-3, weight_decay=0.0, norm="sign", scale="none", low_precision=method
        )
        for _ in range(100):
            param.grad = torch.ones_like(param)
            optimizer.step()
        moved[method] = param.float().mean().item()
    assert moved["nearest"] == 1.0
    assert moved["stochastic"] == pytest.approx(0.9, abs=2e-3)
    assert moved["float32"] == pytest.approx(0.9, abs=2e-3)


def test_the_global_generator_is_not_touched():
    (param,) = parameters([(6, 4)], dtype=torch.bfloat16)
    before = torch.get_rng_state()
    run(Muon([param]), [param], range(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_rounding_differs_by_step_and_by_place():
    params = [Parameter(torch.ones(16, 16, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = Muon(params, lr=1e-3, weight_decay=0.0, norm="sign", scale="none")
    patterns = []
    for _ in range(2):
        before = [param.detach().clone() for param in params]
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        patterns += [(p != b).tolist() for p, b in zip(params, before, strict=True)]
    assert all(a != b for i, a in enumerate(patterns) for b in patterns[:i])


def test_a_float32_copy_follows_a_weight_that_was_changed():
    (param,) = parameters([(6, 4)], dtype=torch.bfloat16)
    optimizer = Muon([param], lr=1e-3, low_precision="float32")
    run(optimizer, [param], range(3))
    copy = optimizer.state[param]["float32_weight"]
    assert copy.dtype == torch.float32
    assert torch.equal(copy.bfloat16(), param)
    param.data[0] = 5.0
    param.grad.zero_()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert (param[0] == 5.0).all()
    assert torch.equal(optimizer.state[param]["float32_weight"][1:], copy[1:])


@pytest.mark.parametrize("method", ["stochastic", "float32"])
def test_decay_too_is_kept(method):
    param = Parameter(torch.ones(40, 40, dtype=torch.bfloat16))
    optimizer = Muon([param], lr=1e-3, weight_decay=1.0, low_precision=method)
    for _ in range(100):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    assert param.float().mean().item() == pytest.approx(0.999**100, abs=2e-3)


def test_hooks_of_a_subclass_see_the_attributes_of_the_parameter():
    class Labelled(Muon):
        seen: list[tuple[str, torch.dtype]] = []  # noqa: RUF012

        def post_weight_update_fn_inplace(self, param):
            self.seen.append((param.label, param.dtype))

    (param,) = parameters([(6, 4)], dtype=torch.bfloat16)
    param.label = "query"
    run(Labelled([param]), [param], [0])
    assert Labelled.seen == [("query", torch.float32)]
