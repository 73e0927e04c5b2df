"""Every class of the family, with every option, on every layout."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.nn import Parameter

import family_table
from family_table import CLASSES, OPTIONS, refusal
from layouts import LAYOUTS, blocks_apart, from_matrices, step_whole_and_apart
from steepest import Spel
from steepest.linalg import polar

CELLS = [
    pytest.param(kind, name, id=f"{kind.__name__}-{name}")
    for kind in CLASSES
    for name, options in OPTIONS.items()
    if refusal(kind, options) is None
]
BLOCKWISE = [cell for cell in CELLS if not {"hook", "low_precision"} & {*cell.values[1].split()}]
HOOKED = [cell for cell in CELLS if "hook" in cell.values[1]]
NARROW = [cell for cell in CELLS if "low_precision" in cell.values[1]]


def weights(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [Parameter(x.to(dtype)) for x in start], generator


def set_gradients(params, generator):
    for param in params:
        gradient = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.grad = gradient.to(param.dtype)


@pytest.mark.parametrize(("kind", "name"), BLOCKWISE)
def test_a_layout_equals_its_blocks_one_by_one(kind, name):
    given = OPTIONS[name]
    for layout, (shape, options, by_hand) in LAYOUTS.items():
        whole, generator = weights(shape)
        apart = blocks_apart(by_hand, whole)
        together = kind(whole, lr=0.05, **options, **given)
        single = kind(apart, lr=0.05, batch_bytes=0, **given)
        for group in together.param_groups + single.param_groups:
            group["hooks"] = ()  # they see the whole parameter, and have a test of their own
        results = step_whole_and_apart(
            (together, single), whole, apart, by_hand, steps=3, generator=generator
        )
        for param, expected in zip(whole, results, strict=True):
            torch.testing.assert_close(param.detach(), expected, rtol=1e-6, atol=1e-8, msg=layout)


def hooked_step(name, weight, update, lr, radius):
    """The formula of a hook, with the numbers of the table."""
    if name == "hook hyperball":
        moved = weight - lr * radius * update / update.norm()
        return radius * moved / moved.norm()
    if name == "hook relative_update":
        return weight - lr * 0.5 * weight.norm() / update.norm() * update
    moved, before = weight - lr * update, weight.norm()
    growth = moved.norm() - before
    return moved * (before + 0.3 * growth) / moved.norm() if growth > 0 else moved


@pytest.mark.parametrize(("kind", "name"), HOOKED)
def test_a_hook_sees_the_whole_parameter_on_every_layout(kind, name):
    for shape, options, by_hand in LAYOUTS.values():
        (param, _), generator = weights(shape)
        plain, updates = Parameter(param.detach().clone()), []

        @contextmanager
        def capture(_, update, __, updates=updates):
            updates.append(update.clone())
            yield

        common = {"lr": 0.05, "weight_decay": 0.0, **options}
        optimizer = kind([param], **common, **OPTIONS[name])
        reference = kind([plain], **common)
        reference.param_groups[0]["hooks"] = ()
        reference.register_weight_update_hook(capture)
        radius = param.detach().norm()
        for _ in range(3):
            before = param.detach().clone()
            set_gradients([param], generator)
            plain.data.copy_(before)
            plain.grad = param.grad
            optimizer.step()
            reference.step()
            expected = hooked_step(name, before, updates[-1], 0.05, radius)
            if kind is Spel:
                projected = [polar(m, method="svd") for m in by_hand(expected)]
                expected = from_matrices(by_hand, projected, shape)
            torch.testing.assert_close(param.detach(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kind", "name"), NARROW)
def test_weights_in_16_bits_follow_a_float32_step_on_every_layout(kind, name):
    for shape, options, _ in LAYOUTS.values():
        for dtype in (torch.bfloat16, torch.float16):
            (narrow, _), generator = weights(shape, dtype)
            wide = Parameter(narrow.detach().float())
            ours = kind([narrow], lr=1e-3, **options, **OPTIONS[name])
            reference = kind([wide], lr=1e-3, **options)
            unit = torch.finfo(dtype).eps
            for step in range(4):
                if name == "low_precision stochastic" and step > 0:
                    wide.data.copy_(narrow)
                set_gradients([narrow], generator)
                wide.grad = narrow.grad.float()
                ours.step()
                reference.step()
                error = (narrow.float() - wide).abs()
                # between neighbours, or rounded to nearest
                most = 1.0 if name == "low_precision stochastic" else 0.5
                allowed = most * unit * wide.abs() * 1.01 + 1e-6
                assert (error <= allowed).all(), (shape, step)


def test_the_table_in_the_documents_is_this_one():
    assert family_table.written() == family_table.table()
