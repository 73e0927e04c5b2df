"""Numbers about weights, state and updates, against singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cases import parameters, run, set_gradients
from steepest import (
    Diagnostics,
    Muon,
    ProjectionRegularizedSGD,
    Spel,
    create_optimizer,
    diagnose,
)


def effective_rank(x):
    s = torch.linalg.svdvals(x.detach().double())
    return float(s.square().sum() ** 2 / s.pow(4).sum())


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_ranks_and_singular_values_of_weights_and_momentum(scale):
    params = parameters([(8, 5), (3, 9)], dtype=torch.float32)
    for param in params:
        param.data *= scale
    optimizer = Muon([("a", params[0]), ("b", params[1])], lr=0.0)
    run(optimizer, params, range(2))
    for record, param in zip(diagnose(optimizer), params, strict=True):
        assert record["weight_rank"] == pytest.approx(effective_rank(param), rel=1e-4)
        momentum = optimizer.state[param]["momentum_buffer"]
        assert record["momentum_rank"] == pytest.approx(effective_rank(momentum), rel=1e-4)
        largest = torch.linalg.matrix_norm(param.detach().double(), 2).item()
        assert 0.97 * largest <= record["largest_singular_value"] <= largest * (1 + 1e-5)
        rms = param.detach().double().square().mean().sqrt().item()
        assert record["weight_rms"] == pytest.approx(rms, rel=1e-5)
        assert all(isinstance(value, (float, str)) for value in record.values())


def test_blocks_are_matrices_of_their_own():
    (param,) = parameters([(8, 5)])
    (record,) = diagnose(Muon([param], split=(4, 2, 2)))
    expected = [effective_rank(block) for block in param.split((4, 2, 2))]
    assert record["weight_rank"] == pytest.approx(sum(expected) / 3, rel=1e-9)
    assert "momentum_rank" not in record


def test_updates_of_every_second_step():
    params = parameters([(8, 5), (6, 6)])
    optimizer = Muon([("a", params[0]), ("b", params[1])], lr=0.01, weight_decay=0.1, method="svd")
    with Diagnostics(optimizer, every=2) as diagnostics:
        for step in range(4):
            before = [param.detach().clone() for param in params]
            set_gradients(params, step)
            optimizer.step()
            if step == 2:
                pairs = zip(params, before, strict=True)
                moved = [(p.detach() - b).square().mean().sqrt() for p, b in pairs]
                old = [b.square().mean().sqrt() for b in before]
    records = diagnostics.read()
    assert [(r["step"], r["parameter"]) for r in records] == [
        (0, "a"),
        (0, "b"),
        (2, "a"),
        (2, "b"),
    ]
    for record, change, size in zip(records[2:], moved, old, strict=True):
        assert record["update_rms"] == pytest.approx(change.item(), rel=1e-5)
        assert record["update_ratio"] == pytest.approx((change / size).item(), rel=1e-5)
        assert record["orthogonality_error"] < 1e-9
    assert diagnostics.read() == []
    run(optimizer, params, [5])
    assert diagnostics.read() == []


def test_the_orthogonality_error_is_the_spread_of_squared_singular_values():
    (param,) = parameters([(4, 6)])
    optimizer = Muon([param], schedule="simple", weight_decay=0.0, lr=1.0)
    before = param.detach().clone()
    with Diagnostics(optimizer, every=1) as diagnostics:
        run(optimizer, [param], [0])
    squares = torch.linalg.svdvals(before - param.detach()).square()
    expected = (squares / squares.mean() - 1).square().mean().sqrt().item()
    assert diagnostics.read()[0]["orthogonality_error"] == pytest.approx(expected, rel=1e-6)
    assert expected > 0.01


@pytest.mark.parametrize("name", ["muon", "spel", "muonhyperball", "projected"])
def test_collecting_changes_no_step(name):
    def train(diagnose_it):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
        optimizer = create_optimizer(model, name)
        diagnostics = Diagnostics(optimizer, every=2)
        if diagnose_it:
            diagnostics.start()
        for step in range(5):
            set_gradients(list(model.parameters()), step)
            optimizer.step()
        diagnostics.stop()
        return list(model.parameters()), diagnostics.read()

    (plain, nothing), (watched, records) = train(False), train(True)
    assert nothing == []
    assert {r["step"] for r in records} == {0, 2, 4}
    for left, right in zip(plain, watched, strict=True):
        # a single weight is else written by the last product itself, which rounds otherwise
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-7)


def test_the_window_has_a_spectrum():
    params = parameters([(3, 2), (4,)])
    optimizer = ProjectionRegularizedSGD(params, history_size=3, lr=0.0)
    columns = []
    for step in range(2):
        set_gradients(params, step)
        columns.append(torch.cat([p.grad.flatten() for p in params]))
        optimizer.step()
    expected = torch.linalg.svdvals(torch.stack(columns, dim=1)).square() / 2
    (record,) = [r for r in diagnose(optimizer) if "window" in r]
    assert record["window_spectrum"] == pytest.approx(expected.tolist(), rel=1e-9)


def test_weights_in_16_bits_and_missing_gradients():
    params = parameters([(6, 4), (4, 6)], dtype=torch.bfloat16)
    optimizer = Spel(params, lr=0.1)
    with Diagnostics(optimizer, every=1) as diagnostics:
        set_gradients(params, 0)
        params[1].grad = None
        optimizer.step()
    (record,) = diagnostics.read()
    assert record["parameter"] == "0"
    assert math.isfinite(record["update_ratio"])


def test_every_must_be_a_count():
    with pytest.raises(ValueError, match="every must be an integer >= 1, got 0"):
        Diagnostics(Muon(parameters([(4, 3)])), every=0)
