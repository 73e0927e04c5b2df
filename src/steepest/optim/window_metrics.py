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
)
from steepest.linalg.rows import combine, combine_, combine_each
from steepest.linalg.window import Columns
from steepest.optim.base import Entry
from steepest.optim.decay import decay_, kept_share
from steepest.optim.window_state import Pack, Tracked, wide


def window_update_(pack: Pack, coefficients: Tensor, newest: int) -> dict[Tensor, Tensor]:
    """Store the new columns of a pack, and return the directions of its parameters."""
    own = float(coefficients[newest])
    before = coefficients.clone()
    before[newest] = 0.0
    directions = combine_each(pack.history, before, pack.gradients(), own=own, slot=newest)
    return {
        item.param: direction.view(item.param.shape)
        for item, direction in zip(pack.items, directions, strict=True)
        if item.moves
    }


def window_step_(pack: Pack, coefficients: Tensor, newest: int) -> None:
    """Store the new columns of a pack, decay its weights and move them, in one pass."""
    item = pack.items[0]
    if len(pack.items) > 1 or not item.moves or not item.param.is_contiguous():
        directions = window_update_(pack, coefficients, newest)
        movers = [item.entry for item in pack.items if item.moves]
        if movers:
            decayed = [kept(entry) for entry in movers]
            params = [entry.param for entry in movers]
            if any(keep != 1.0 for keep in decayed):
                torch._foreach_mul_(params, decayed)
            rates = [-float(entry.group["lr"]) for entry in movers]
            updates = [directions[param] for param in params]
            torch._foreach_mul_(updates, rates)
            torch._foreach_add_(params, updates)
        return
    scaled = coefficients * -float(item.entry.group["lr"])
    own = float(scaled[newest])
    scaled[newest] = 0.0
    combine_(
        item.param.view(-1),
        pack.history[0],
        scaled,
        item.entry.gradient.reshape(-1),
        own=own,
        slot=newest,
        keep=kept(item.entry),
    )


def coupled(entry: Entry) -> Entry:
    """Return the entry with the gradient of coupled weight decay, if it has that."""
    group = entry.group
    if group["weight_decay_method"] != "l2":
        return entry
    (gradient,) = decay_(
        [entry.param],
        [entry.gradient],
        lr=0.0,
        weight_decay=group["weight_decay"],
        method="l2",
    )
    return entry._replace(gradient=gradient)


def kept(entry: Entry) -> float:
    """Return what weight decay leaves of a weight."""
    group = entry.group
    return kept_share(
        lr=float(group["lr"]),
        weight_decay=group["weight_decay"],
        method=group["weight_decay_method"],
    )


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
