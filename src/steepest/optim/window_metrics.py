"""One step of each form of the metric: update its state, and return the directions.

Each function takes the parameters of the window with the new columns written, and returns the
direction of every parameter that moves, flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steepest.geometry.window import (
    dense_direction,
    dense_metric,
    diagonal_coefficients,
    diagonal_inner,
    diagonal_metric,
    window_coefficients,
)
from steepest.linalg.window import Columns, combine, dots
from steepest.optim.window_state import Tracked, wide


def window_directions(
    tracked: Sequence[Tracked], columns: Columns, options: Mapping[str, Any]
) -> dict[Tensor, Tensor]:
    """By the Gram matrix of the columns, of which one row is new."""
    newest = columns.newest
    for item in tracked:
        row = dots(item.rows, item.rows[newest])
        item.state["gram"][newest, :] = row
        item.state["gram"][:, newest] = row
    coefficients = window_coefficients(
        [item.state["gram"] for item in tracked],
        columns,
        history_size=options["history_size"],
        rho=options["rho"],
        alpha=options["alpha"],
    )
    return {item.param: combine(item.rows, coefficients) for item in tracked if item.moves}


def diagonal_directions(
    tracked: Sequence[Tracked], columns: Columns, options: Mapping[str, Any]
) -> dict[Tensor, Tensor]:
    """By the diagonal of S, with the projection on the columns as it stands."""
    recent = columns.recent(options["history_size"])
    inners = []
    for item in tracked:
        window = item.rows[recent.to(item.param.device)]
        item.state["metric_diagonal"] = diagonal_metric(
            item.state["metric_diagonal"].to(wide([item.param])),
            window,
            first=columns.step == 1,
            beta=options["beta"],
            ridge=options["ridge"],
        )
        inners.append(diagonal_inner(item.state["metric_diagonal"], window))
    coefficients = torch.zeros(columns.slots, dtype=torch.float64)
    coefficients[recent] = diagonal_coefficients(
        inners,
        position=int((recent == columns.newest).nonzero()[0]),
        rho=options["rho"],
        alpha=options["alpha"],
    )
    return {
        item.param: combine(item.rows, coefficients) / item.state["metric_diagonal"]
        for item in tracked
        if item.moves
    }


def dense_directions(
    tracked: Sequence[Tracked],
    before: Columns,
    columns: Columns,
    options: Mapping[str, Any],
    *,
    size: int,
) -> dict[Tensor, Tensor]:
    """By the p × p matrix S, kept in rows with the parameters that they belong to."""
    recent = columns.recent(options["history_size"])
    like = torch.empty(
        0, dtype=wide([item.param for item in tracked]), device=tracked[0].param.device
    )
    metric = before.damping * torch.eye(size, dtype=like.dtype, device=like.device)
    window = like.new_zeros(len(recent), size)
    for item in tracked:
        rows = item.state["metric_rows"]
        metric[item.place, : rows.shape[1]] = rows.to(like)
        window[:, item.place] = item.rows[recent.to(item.param.device)].to(like)
    metric = dense_metric(
        metric, window, first=columns.step == 1, beta=options["beta"], ridge=options["ridge"]
    )
    gradient = window[int((recent == columns.newest).nonzero()[0])]
    direction = dense_direction(
        metric, window, gradient, rho=options["rho"], alpha=options["alpha"]
    )
    for item in tracked:
        item.state["metric_rows"] = metric[item.place].to(item.state["metric_rows"].device)
    return {
        item.param: direction[item.place].to(item.param.device) for item in tracked if item.moves
    }
