"""The figures that are reported on held-out data, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Metric:
    """A figure of merit.

    Attributes:
        name: in words.
        short_name: as in the table's head.
        compute: from outputs and targets of the whole set.
        higher_is_better: which end is good.
        scale: factor for display.
        digits: after the point, for display.
        unit: after the number, for display.
    """

    name: str
    short_name: str
    compute: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool
    scale: float = 1.0
    digits: int = 3
    unit: str = ""

    def format(self, values: Sequence[float]) -> str:
        """Return mean ± spread in the unit of display.

        Example:
            >>> ACCURACY.format([0.96, 0.98])
            '97.00 ± 1.41 %'
        """
        if not values:
            return "–"
        return spread([self.scale * value for value in values], f".{self.digits}f") + self.unit

    def cost(self, values: Sequence[float]) -> float:
        """Return a number to rank by, less for better; infinite without values."""
        if not values:
            return math.inf
        return -fmean(values) if self.higher_is_better else fmean(values)


def spread(values: Sequence[float], form: str, spread_form: str | None = None) -> str:
    """Return mean ± standard deviation of a sample, or the one value.

    Args:
        values: one for each seed.
        form: format of the mean.
        spread_form: format of the deviation, if another.

    Example:
        >>> spread([1.0, 3.0], ".1f"), spread([1.0], ".1f"), spread([], ".1f")
        ('2.0 ± 1.4', '1.0', '–')
    """
    if not values:
        return "–"
    mean = format(fmean(values), form)
    return f"{mean} ± {stdev(values):{spread_form or form}}" if len(values) > 1 else mean


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(-1) == targets).float().mean()


def _bits(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / math.log(2.0)


def _r_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    residual = (targets - outputs).square().sum()
    return 1.0 - residual / (targets - targets.mean()).square().sum()


ACCURACY = Metric("accuracy", "accuracy", _accuracy, True, scale=100.0, digits=2, unit=" %")
BITS_PER_CHARACTER = Metric("bits per character", "bits/char", _bits, False)
R_SQUARED = Metric("R²", "R²", _r_squared, True)
