"""The picture."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import image

from steepest.cli.plot import smooth, write_picture


@pytest.mark.parametrize("width", [1, 2, 5, 50])
def test_smoothing_is_the_mean_over_a_window_around(width):
    losses = np.random.default_rng(0).random(12)
    before, after = width - 1 - (width - 1) // 2, (width - 1) // 2
    means = [losses[max(0, i - before) : i + after + 1].mean() for i in range(12)]
    np.testing.assert_allclose(smooth(losses, width), means)


def colours_in(path):
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    return {tuple(pixel) for pixel in np.unique(pixels.reshape(-1, 3), axis=0).tolist()}


def test_picture_has_a_line_for_each_optimizer(compare, tmp_path):
    path = write_picture(compare("sgd,adamw,sgd:lr=0.1:momentum=0", steps=10), tmp_path / "x.png")
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)} <= colours_in(path)
    height, width = image.imread(path).shape[:2]
    assert width > 1000
    assert height > 500


@pytest.mark.parametrize(
    "optimizers", ["sgd:lr=1e30", "sgd:lr=1e30," + ",".join(f"sgd:lr=0.{i}" for i in range(1, 9))]
)
def test_divergence_and_many_optimizers_can_be_drawn(compare, tmp_path, optimizers):
    path = write_picture(compare(optimizers, seeds=1), tmp_path / "x.png")
    assert len(colours_in(path)) > 20
