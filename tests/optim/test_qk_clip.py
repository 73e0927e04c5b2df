"""QK-clip on a real attention layer: the largest logit of each head stays bounded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steepest import qk_clip_

HEADS, SIZE, WIDTH = 4, 8, 32


def logits(query, key, inputs, groups):
    """Scaled logits ``(batch, heads, length, length)``; a key head serves several query heads."""
    q = query(inputs).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
    k = key(inputs).unflatten(-1, (groups, SIZE)).transpose(1, 2)
    return q @ k.repeat_interleave(HEADS // groups, dim=1).mT / SIZE**0.5


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_no_head_exceeds_the_threshold_and_small_ones_are_left(groups, bias, alpha):
    query = nn.Linear(WIDTH, HEADS * SIZE, bias=bias).double()
    key = nn.Linear(WIDTH, groups * SIZE, bias=bias).double()
    inputs = torch.randn(3, 16, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        query.weight.unflatten(0, (HEADS, SIZE)).mul_(
            torch.tensor([1.0, 30, 300, 3])[:, None, None]
        )
        before = logits(query, key, inputs, groups)
        largest = before.amax(dim=(0, 2, 3))
        threshold = float(largest[0]) * 1.5
        gamma = qk_clip_(query.weight, key.weight, largest, threshold=threshold, alpha=alpha)
        if bias:
            qk_clip_(query.bias, key.bias, largest, threshold=threshold, alpha=alpha)
        after = logits(query, key, inputs, groups)
    expected = (threshold / largest).clamp_max(1.0)
    torch.testing.assert_close(gamma.double(), expected, rtol=1e-6, atol=0)
    assert after.amax() <= threshold * (1 + 1e-6)
    if groups == HEADS or alpha == 1.0:
        torch.testing.assert_close(after, before * expected[:, None, None], rtol=1e-6, atol=1e-9)


def test_both_weights_take_the_share_that_alpha_says():
    query, key = torch.ones(2, 3), torch.ones(2, 3)
    qk_clip_(query, key, torch.tensor([16.0]), threshold=1.0, alpha=0.25)
    torch.testing.assert_close(query, torch.full((2, 3), 16.0**-0.25))
    torch.testing.assert_close(key, torch.full((2, 3), 16.0**-0.75))


def test_slices_of_a_fused_weight_are_clipped_in_place():
    fused = nn.Parameter(torch.ones(12, 3))
    qk_clip_(fused[:4], fused[4:8], torch.tensor([4.0, 1.0]), threshold=1.0)
    expected = torch.ones(12, 1)
    expected[[0, 1, 4, 5]] = 0.5
    torch.testing.assert_close(fused.detach(), expected.expand(12, 3))


def test_what_is_below_the_threshold_is_not_touched():
    query, key = torch.randn(4, 3), torch.randn(4, 3)
    before = query.clone(), key.clone()
    gamma = qk_clip_(query, key, torch.tensor([0.5, -3.0]), threshold=1.0)
    assert torch.equal(gamma, torch.ones(2))
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


@pytest.mark.parametrize(
    ("rows", "most", "options", "message"),
    [
        ((4, 4), torch.ones(3), {}, "query has 4 rows, which 3 heads do not divide"),
        ((8, 6), torch.ones(4), {}, "with heads of size 2 and 4 query heads"),
        ((8, 3), torch.ones(4), {}, "key has 3 rows"),
        ((8, 0), torch.ones(4), {}, "key has 0 rows"),
        ((8, 8), torch.ones(2, 2), {}, r"max_logits must be of shape \(heads,\)"),
        ((8, 8), torch.ones(4), {"threshold": 0.0}, "threshold must be > 0, got 0.0"),
        ((8, 8), torch.ones(4), {"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
    ],
)
def test_what_does_not_fit_is_refused(rows, most, options, message):
    query, key = torch.ones(rows[0], 5), torch.ones(rows[1], 5)
    with pytest.raises(ValueError, match=message):
        qk_clip_(query, key, 1e6 * most, **options)
    assert bool((query == 1).all())
    assert bool((key == 1).all())


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_logits_that_are_not_finite_are_refused(value):
    query, key = torch.ones(4, 3), torch.ones(4, 3)
    with pytest.raises(ValueError, match="max_logits must be finite"):
        qk_clip_(query, key, torch.tensor([1.0, value]))
    assert bool((query == 1).all())
