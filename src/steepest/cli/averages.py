"""Means over parameters of what is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

# what is drawn, where it is told of, with the title of its panel
PANELS = {
    "update_ratio": "size of the update / size of the weight",
    "momentum_rank": "effective rank of the momentum",
    "orthogonality_error": "orthogonality error of the update",
}


def averaged(records: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the mean over all parameters at each step of what is drawn.

    Args:
        records: what ``steepest.Diagnostics`` has read.

    Example:
        >>> averaged([{"step": 0, "update_ratio": 1.0}, {"step": 0, "update_ratio": 3.0}])
        {'step': [0], 'update_ratio': [2.0]}
    """
    by_step: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        by_step.setdefault(record["step"], []).append(record)
    result: dict[str, list[float]] = {"step": list(by_step)}
    for name in PANELS:
        told = [
            [each[name] for each in group if each.get(name) is not None]
            for group in by_step.values()
        ]
        if all(told) and told:
            result[name] = [fmean(values) for values in told]
    return result
