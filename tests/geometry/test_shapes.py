"""How parameters are seen as matrices, and the factor of each shape."""

from __future__ import annotations

import math

import pytest
import torch

from steepest.geometry.blocks import Blocks
from steepest.geometry.matrices import matrix_shape
from steepest.geometry.scale import shape_factor


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((4, 3), "matrix", (1, 4, 3)),
        ((64, 16, 3, 3), "convolution", (1, 64, 144)),
        ((8, 4, 5), "convolution", (1, 8, 20)),
        ((8, 4, 2, 5, 3), "convolution", (1, 8, 120)),
        ((4, 8, 16), "stack", (4, 8, 16)),
        ((2, 4, 8, 16), "stack", (8, 8, 16)),
        ((0, 4), "matrix", (1, 0, 4)),
    ],
)
def test_matrices_of_a_shape(shape, layout, expected):
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    assert matrix_shape(shape, layout) == expected
    (block,) = Blocks(layout=layout)(x)
    assert block.matrices().shape == expected
    assert torch.equal(block.matrices().reshape(shape), x)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        ((3,), "matrix", "needs a parameter with 2 axes, got shape \\(3,\\)"),
        ((4, 3), "convolution", "3 to 5 axes"),
        ((4, 3), "stack", "at least 3 axes"),
        ((4, 3), "conv", "layout must be one of matrix, convolution, stack, got 'conv'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape, layout, message):
    with pytest.raises(ValueError, match=message):
        matrix_shape(shape, layout)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("match_rms_adamw", (1.6, 1.6, 0.2 * 32**0.5)),
        ("original", (2.0, 1.0, 1.0)),
        ("spectral", (8.0, 8.0, 32**0.5)),
        ("unit_rms", (2.0, 0.5, 1.0)),
        ("none", (1.0, 1.0, 1.0)),
    ],
)
def test_factors(scale, expected):
    shapes = [(64, 16), (16, 64), (32, 32)]
    factors = tuple(shape_factor(scale, *shape) for shape in shapes)
    assert factors == pytest.approx(expected, rel=1e-15)


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match=r"scale must be one of match_rms_adamw.*got 'adam'"):
        shape_factor("adam", 2, 3)
