"""Passes over stored columns against float64."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg.rows import combine_, combine_each, mix_, row_dots

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def expected_dots(rows, vectors, slot):
    """Products in float64 with the rows, of which ``slot`` counts as the vector."""
    exact = vectors.to(rows.dtype).double()
    rows = rows.double()
    rows[:, slot] = exact
    return (rows @ exact[..., None])[..., 0]


def made(count, slots, length, dtype, *, scale=1.0, mean=0.0):
    generator = torch.Generator().manual_seed(length + slots)
    rows = torch.randn(count, slots, length, generator=generator, dtype=torch.float64)
    vectors = torch.randn(count, length, generator=generator, dtype=torch.float64)
    return ((rows + mean) * scale).to(dtype), ((vectors + mean) * scale).to(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("slots", [1, 5])
@pytest.mark.parametrize("length", [0, 1, 100, (1 << 17) + 3])
def test_dot_products_equal_float64_of_what_is_stored(length, slots, count, dtype):
    rows, vectors = made(count, slots, length, dtype)
    slot = slots // 2
    dots, squares = row_dots([rows], [vectors], slot=slot)
    assert dots.dtype == squares.dtype == torch.float64
    exact = vectors.to(dtype).double()
    size = max(exact.square().sum().item(), 1.0)
    expected = expected_dots(rows, vectors, slot)
    # products of 16-bit numbers round with a bias
    bound = 2e-6 if dtype == torch.bfloat16 else 2e-7
    torch.testing.assert_close(dots, expected, rtol=0, atol=bound * size)
    torch.testing.assert_close(squares, exact.square().sum(dim=1), rtol=bound, atol=0)


def test_a_long_sum_of_equal_signs_keeps_its_digits():
    rows, vectors = made(1, 3, 3_000_000, torch.float32, mean=1.0)
    dots, squares = row_dots([rows], [vectors], slot=1)
    exact = vectors[0].double()
    torch.testing.assert_close(dots, expected_dots(rows, vectors, 1), rtol=3e-7, atol=0)
    torch.testing.assert_close(squares[0], exact @ exact, rtol=3e-7, atol=0)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-15, 1e15, 1e25])
def test_products_beyond_the_range_of_float32(scale, count):
    rows, vectors = made(count, 3, 300, torch.float32, scale=scale)
    dots, squares = row_dots([rows], [vectors], slot=1)
    exact = vectors.double()
    expected = expected_dots(rows, vectors, 1)
    bound = 1e-6 * exact.square().sum().item()
    torch.testing.assert_close(dots, expected, rtol=0, atol=bound)
    torch.testing.assert_close(squares, exact.square().sum(dim=1), rtol=1e-6, atol=0)


def test_parameters_of_several_sizes_dtypes_and_ranges_in_one_call():
    made_of = [(1, 300, torch.float32, 1.0), (2, 7, torch.bfloat16, 1.0), (1, 0, torch.float32, 1)]
    made_of += [(3, 33, torch.float64, 1e-100), (1, 33, torch.float32, 1e-30)]
    pairs = [made(count, 4, length, dtype, scale=scale) for count, length, dtype, scale in made_of]
    dots, squares = row_dots([rows for rows, _ in pairs], [vectors for _, vectors in pairs], slot=1)
    start = 0
    for (rows, vectors), (count, *_) in zip(pairs, made_of, strict=True):
        own, square = row_dots([rows], [vectors], slot=1)
        assert torch.equal(dots[start : start + count], own)
        assert torch.equal(squares[start : start + count], square)
        start += count
    assert start == len(dots) == len(squares)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_own_square_alone(value):
    rows, vectors = made(2, 3, 50, torch.float32)
    vectors[1, 7] = value
    _, squares = row_dots([rows], [vectors], slot=1)
    assert squares.isfinite().tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target_dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("length", [0, 1, 70_001])
def test_a_combination_is_added_in_one_pass(length, stores, target_dtype, dtype):
    rows, vectors = made(1, 5, length, dtype)
    rows, vector = rows[0], vectors[0]
    expected_rows = rows.clone()
    if stores:
        expected_rows[2] = vector.to(dtype)
    scalars = torch.tensor([0.5, -1.0, -3.0, 2.0, 0.0], dtype=torch.float64)
    target = torch.ones(length, dtype=target_dtype)
    combine_(target, rows, scalars, vector=vector if stores else None, slot=2, keep=0.5)
    expected = 0.5 + scalars @ expected_rows.double()
    tolerance = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2}[target_dtype]
    if dtype == target_dtype == torch.float64:
        tolerance = 1e-13
    torch.testing.assert_close(target.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(rows, expected_rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_parameters_together_equal_one_by_one(dtype):
    rows, vectors = made(4, 5, 33, dtype)
    scalars = torch.randn(4, 5, generator=torch.Generator().manual_seed(3)).double()
    expected = []
    for own_rows, vector, own in zip(rows.clone(), vectors, scalars, strict=True):
        target = torch.zeros(33, dtype=torch.float64)
        combine_(target, own_rows, own, vector=vector, slot=2)
        expected.append(target)
    result = combine_each(rows, scalars, vectors=vectors, slot=2)
    torch.testing.assert_close(result.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert torch.equal(rows[:, 2], vectors.to(dtype))
    again = combine_each(rows, scalars)
    assert torch.equal(result, again)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [0, 1, 40_003])
def test_mixed_rows_equal_float64_and_give_their_own_products(length, dtype):
    rows = made(1, 6, length, dtype)[0][0]
    before, tail = rows.double().clone(), torch.tensor([4, 0, 3])
    mixture = torch.randn(3, 2, generator=torch.Generator().manual_seed(3)).double()
    dots = mix_(rows, tail, mixture)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    expected = mixture.T @ before[tail]
    torch.testing.assert_close(rows[tail[:2]].double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(rows[[1, 2, 3, 5]].double(), before[[1, 2, 3, 5]])
    torch.testing.assert_close(
        dots, rows[tail[:2]].double() @ rows.double().T, rtol=1e-11, atol=1e-9
    )
