"""How parameters are divided into blocks, and that Muon steps each block by itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from cases import run
from layouts import LAYOUTS, blocks_apart, step_whole_and_apart
from steepest import Muon
from steepest.geometry.blocks import Blocks, block_shapes


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_are_views_that_cover_each_entry_once(name):
    shape, options, by_hand = LAYOUTS[name]
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    blocks = Blocks.of({**defaults(), **options})(x)
    found = sorted(m.tolist() for block in blocks for m in block.matrices())
    assert found == sorted(m.tolist() for m in by_hand(x))
    for block in blocks:
        block.view.fill_(-1)
    assert (x == -1).all()


def defaults():
    return {**vars(Blocks()), "split": None, "heads": 1}


@pytest.mark.parametrize("kind", [{}, {"nesterov": False, "weight_decay_method": "l2"}])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_muon_on_a_layout_equals_its_blocks_one_by_one(name, contiguous, kind):
    shape, options, by_hand = LAYOUTS[name]
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    if not contiguous:
        start = start.mT.contiguous().mT
    whole = [Parameter(start.clone()), Parameter(2 * start)]
    apart = blocks_apart(by_hand, whole)
    together = Muon(whole, lr=0.1, **options, **kind)
    single = Muon(apart, lr=0.1, batch_bytes=0, **kind)
    results = step_whole_and_apart(
        (together, single), whole, apart, by_hand, steps=5, generator=generator
    )
    for param, expected in zip(whole, results, strict=True):
        torch.testing.assert_close(param.detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_on_a_layout_resumes_bit_equal(name):
    shape, options, _ = LAYOUTS[name]
    generator = torch.Generator().manual_seed(1)
    params = [Parameter(torch.randn(shape, generator=generator))]
    others = [Parameter(param.detach().clone()) for param in params]
    straight, first = Muon(params, **options), Muon(others, **options)
    run(straight, params, range(4))
    run(first, others, range(2))
    resumed = Muon(others, **options)
    resumed.load_state_dict(first.state_dict())
    run(resumed, others, range(2, 4))
    assert all(map(torch.equal, params, others))


@pytest.mark.parametrize(
    ("shape", "options", "wrong"),
    [
        ((8, 5), {"split": (4, 2)}, "split=.4, 2. has 6 rows, the parameter 8"),
        ((8, 5), {"split": (4, 0, 4)}, "split must hold integers >= 1"),
        ((8, 5), {"split": "ab"}, "split must hold integers"),
        ((8, 5), {"heads": 3}, "heads=3 does not divide an axis of 8"),
        ((8, 5), {"heads": 0}, "heads must hold integers >= 1"),
        ((8, 5), {"heads": (2, 2)}, "one for each of 0 blocks"),
        ((8, 5), {"groups": 2}, "groups=2 needs layout='convolution'"),
        ((8, 5), {"interleaved": 2}, "interleaved=2 needs a split"),
        ((8, 5), {"split": (2, 2), "interleaved": 2, "heads": 2}, "cannot be told apart"),
        ((8, 5), {"block_axis": "out"}, "block_axis must be 'rows' or 'columns', got 'out'"),
        ((8, 5), {"transposed": 1}, "transposed must be True or False, got 1"),
        ((4, 1, 3, 3), {"layout": "convolution", "groups": 4}, "depthwise"),
    ],
)
def test_what_does_not_fit_is_refused_when_added(shape, options, wrong):
    optimizer = Muon([Parameter(torch.zeros(3, 2))])
    with pytest.raises(ValueError, match=wrong):
        optimizer.add_param_group({"params": [Parameter(torch.zeros(shape))], **options})
    assert len(optimizer.param_groups) == 1


def test_shapes_of_blocks():
    assert block_shapes((24, 16), Blocks(split=(16, 4, 4), heads=(4, 1, 1))) == (
        (4, 4, 16),
        (1, 4, 16),
        (1, 4, 16),
    )
