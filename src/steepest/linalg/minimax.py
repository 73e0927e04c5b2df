"""Minimax odd polynomials: the fastest iteration for singular values in a known interval."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from steepest.linalg.schedules import Coefficients

_EXCHANGES = 100


@lru_cache(maxsize=64)
def minimax(*, l: float = 1e-3, steps: int = 5, safety: float = 1.0) -> tuple[Coefficients, ...]:
    r"""Return the odd quintics whose composition is nearest to one on [``l``, 1].

    Step i has the interval [l_i, u_i], starting with [l, 1]; its polynomial p = as + bs³ + cs⁵
    minimizes $\max |1 - p(s)|$ there, and maps the interval to the next, $[p(l_i), 2 - p(l_i)]$.
    The composition of these is the best of all compositions of as many odd quintics, and its
    largest error on [l, 1] is $1 - l_n$, see ``minimax_error``.

    Args:
        l: lower end of the interval of singular values, in (0, 1).
        steps: number of polynomials, at least 1.
        safety: at least 1; every polynomial but the last sees its argument divided by it, so that
            values which rounding pushed above the interval do not grow.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> [tuple(round(number, 3) for number in row) for row in minimax(l=0.1, steps=2)]
        [(5.604, -13.884, 9.733), (2.131, -1.512, 0.402)]

    Source: Amsel, Persson, Musco & Gower, The Polar Express, arXiv:2505.16932, theorem 3.1; the
    exchange algorithm is Remez's.
    """
    if not 0.0 < l < 1.0:
        raise ValueError(f"l must be in (0, 1), got {l!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, got {steps!r}")
    if not 1.0 <= safety < 2.0:
        raise ValueError(f"safety must be in [1, 2), got {safety!r}")
    lower, upper = l, 1.0
    table: list[Coefficients] = []
    for step in range(steps):
        a, b, c = _best_quintic(lower, upper)
        factor = safety if step < steps - 1 else 1.0
        table.append((a / factor, b / factor**3, c / factor**5))
        lower = a * lower + b * lower**3 + c * lower**5
        upper = 2.0 - lower
    return tuple(table)


def minimax_error(*, l: float, steps: int) -> float:
    """Return max |1 − s'| over [``l``, 1] for the schedule ``minimax(l=l, steps=steps)``.

    Args:
        l: lower end of the interval, in (0, 1).
        steps: number of polynomials, at least 1.

    Example:
        >>> round(minimax_error(l=1e-3, steps=5), 4)
        0.1134
    """
    low = l
    for a, b, c in minimax(l=l, steps=steps):
        low = a * low + b * low**3 + c * low**5
    return 1.0 - low


def _best_quintic(lower: float, upper: float) -> Coefficients:
    """Remez: exchange the two inner extrema until the four errors alternate with equal size."""
    if lower / upper > 1.0 - 1e-5:  # the exchange would work with the last digits; Taylor is exact
        middle = 0.5 * (lower + upper)
        return 1.875 / middle, -1.25 / middle**3, 0.375 / middle**5
    inner = (0.75 * lower + 0.25 * upper, 0.25 * lower + 0.75 * upper)
    error = math.inf
    for _ in range(_EXCHANGES):
        points = torch.tensor([lower, *inner, upper], dtype=torch.float64)
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
        system = torch.stack([points, points**3, points**5, signs], dim=1)
        a, b, c, level = torch.linalg.solve(system, torch.ones_like(points)).tolist()
        # zeros of a + 3bx + 5cx² in x = s²
        root = math.sqrt(9.0 * b * b - 20.0 * a * c)
        inner = (
            math.sqrt((-3.0 * b - root) / (10.0 * c)),
            math.sqrt((-3.0 * b + root) / (10.0 * c)),
        )
        if abs(abs(level) - error) <= 1e-15:
            break
        error = abs(level)
    return a, b, c
