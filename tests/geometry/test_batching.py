"""Dividing parameters into batches, and padding within one."""

from __future__ import annotations

import pytest
import torch

from steepest.geometry.batching import batches
from steepest.geometry.matrices import MatrixBatch

MIB = 1 << 20


def divided(*parameters, dtype=torch.float32, batch_bytes=8 * MIB):
    return batches(parameters, dtype=dtype, batch_bytes=batch_bytes)


def test_tall_and_wide_of_equal_sides_share_a_batch():
    assert divided((1, 8, 4), (1, 4, 8), (3, 8, 4)) == [[0, 1, 2]]


def test_other_short_sides_never_share_one():
    assert divided((1, 8, 8), (1, 4, 8)) == [[0], [1]]


def test_few_small_matrices_share_one_with_longer_ones():
    assert divided((1, 16, 72), (1, 16, 144), (1, 144, 16)) == [[1, 2, 0]]


def test_a_matrix_near_to_square_is_not_padded_into_another_form_of_the_iteration():
    assert divided((1, 16, 16), (1, 16, 31)) == [[1, 0]]
    assert divided((1, 16, 27), (1, 16, 54)) == [[1], [0]]


def test_a_matrix_is_not_stretched_to_many_times_its_length():
    assert divided((1, 1, 10), (1, 1, 1000)) == [[1], [0]]


def test_many_or_large_matrices_are_not_padded():
    assert divided((100, 32, 128), (1, 32, 256)) == [[1], [0]]
    assert divided((1, 512, 520), (1, 512, 521)) == [[1], [0]]
    assert divided((1, 256, 1024), (1, 256, 2000)) == [[1], [0]]


def test_a_batch_stays_within_its_memory():
    size = 16 * 16 * 4
    assert divided(*[(1, 16, 16)] * 20, batch_bytes=8 * size) == [
        [*range(8)],
        [*range(8, 16)],
        [*range(16, 20)],
    ]
    assert divided(*[(1, 16, 16)] * 8, (1, 16, 15), batch_bytes=8 * size) == [[*range(8)], [8]]
    assert divided((1, 16, 16), (1, 16, 16), batch_bytes=0) == [[0], [1]]


@pytest.mark.parametrize("count", [1, 3])
def test_every_position_is_in_one_batch(count):
    generator = torch.Generator().manual_seed(count)
    sides = torch.randint(1, 40, (60, 2), generator=generator).tolist()
    parts = divided(*[(count, m, n) for m, n in sides], batch_bytes=1 << 14)
    assert sorted(place for part in parts for place in part) == list(range(60))


def test_the_rest_beside_a_shorter_matrix_is_zero():
    shapes = [(1, 2, 5), (2, 3, 2), (1, 2, 2)]
    batch = MatrixBatch(shapes, dtype=torch.float32, device=torch.device("cpu"))
    given = [torch.randn(shape) for shape in shapes]
    batch.fill_(given)
    assert batch.data.shape == (4, 2, 5)
    assert int((batch.data != 0).sum()) == sum(x.numel() for x in given)
    for back, x in zip(batch.stacks(batch.data), given, strict=True):
        assert torch.equal(back, x)
