"""The stages of a step of a gradient window, for the blocks of a cohort together.

First the new columns are looked at, and nothing is changed; then they are taken into the metric,
which gives the direction of each parameter, as coefficients over its columns where the metric works
by their Gram matrix; last, old columns are compressed where no slot is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steepest.geometry.window import (
    dense_direction,
    dense_metric,
    diagonal_direction,
    diagonal_metric_,
    mean_square,
    window_coefficients,
)
from steepest.linalg.lowrank import projection_coefficients, tail_mixture
from steepest.linalg.rows import combine_, combine_each, mix_, row_dots, wide_dtype
from steepest.linalg.window import Columns, advance
from steepest.optim.base import Entry
from steepest.optim.decay import decay_, kept_in
from steepest.optim.window_blocks import Cohort, States, block_sums
from steepest.optim.window_checks import by_gram, magnitude_fault, squares_fault
from steepest.optim.window_memory import check_room
from steepest.optim.window_state import Pack, Tracked, joined_, keep_state_, packs, tracked

# mean squared gradient norm below which a relative λ falls no further: with it the coefficients,
# which grow as gradients vanish, stay in the range of float32, and steps fade out
_LEAST_UNIT = 1e-60


@dataclass(eq=False)
class Extension:
    """A cohort with its new columns, which are not stored yet.

    Attributes:
        cohort: the blocks.
        columns: what the slots hold with the new columns.
        items: the parameters.
        fault: what is wrong with the gradients, if anything is.
        packs: the parameters as they are passed over, in the order of ``items``.
        gram: ``(len(items), slots, slots)``, of which each parameter's own ``gram`` is a part.
        dots: ``(len(items), slots)``, products of the new columns with those that are stored.
        squares: ``(len(items),)``, with themselves.
    """

    cohort: Cohort
    columns: Columns
    items: list[Tracked]
    fault: str | None
    packs: list[Pack]
    gram: Tensor
    dots: Tensor
    squares: Tensor

    @property
    def by_gram(self) -> bool:
        """Whether the metric works on the Gram matrix of the columns."""
        return by_gram(self.cohort.options["metric"])

    @property
    def share(self) -> float:
        """What warm-up leaves of the direction."""
        options = self.cohort.options
        if not options["warmup"]:
            return 1.0
        return len(self.columns.recent(options["history_size"])) / float(options["history_size"])


def extend(cohort: Cohort, states: States, moving: Mapping[Tensor, Entry]) -> Extension:
    """Look at the new columns of a cohort; nothing is changed."""
    options = cohort.options
    gram_alone = by_gram(options["metric"])
    rank = options["rank"]
    columns = advance(
        cohort.before,
        history_size=options["history_size"],
        beta=options["beta"],
        # other metrics keep their past in S, and need no columns but the window's
        tail_tolerance=options["tail_tolerance"] if gram_alone else 1.0,
        stride=options["history_stride"],
        most=None if rank is None else options["history_size"] + 2 * rank,
    )
    check_room(cohort, states, columns.slots)
    items = tracked(cohort, states, moving, columns)
    if not gram_alone:
        entries = [item.entry for item in items if item.entry is not None]
        fault = magnitude_fault(entries, max(cohort.sizes))
        return Extension(cohort, columns, items, fault, [], *[torch.empty(0)] * 3)
    together = packs(items)
    items = [item for pack in together for item in pack.items]
    histories, vectors = [], []
    for pack in together:
        idle = not pack.moves  # its products are zero: nothing is read
        histories.append(pack.history[..., :0] if idle else pack.history)
        vectors.append(pack.history[:, 0, :0] if idle else pack.gradients())
    dots, squares = row_dots(histories, vectors, slot=columns.newest)
    fault = squares_fault([item.member for item in items], squares, slots=columns.slots)
    gram = joined_([item.state for item in items], "gram")
    return Extension(cohort, columns, items, fault, together, gram, dots, squares)


def take_(extension: Extension, states: States) -> tuple[Tensor, Tensor]:
    """Take new columns into the Gram matrices, and what the slots hold into the state.

    Returns:
        The coefficients of the direction ``(len(items), slots)``, and the Gram matrix of each
        block.
    """
    cohort, columns, options = extension.cohort, extension.columns, extension.cohort.options
    newest, count = columns.newest, len(cohort.damping)
    numbers = torch.tensor([item.member.block for item in extension.items])
    before = extension.gram[:, newest, newest].clone()
    extension.gram[:, newest, :] = extension.dots
    extension.gram[:, :, newest] = extension.dots
    if count == 1:
        total = extension.gram.sum(dim=0, keepdim=True)
    else:
        total = block_sums(extension.gram, numbers, count)
    damping = torch.tensor(cohort.damping, dtype=torch.float64)
    unit = torch.ones_like(damping)
    if options["ridge_scale"] == "relative":
        unit = mean_square(total, columns, history_size=options["history_size"])
        unit = unit.clamp_min(_LEAST_UNIT)
    if columns.since == 1:
        damping = options["beta"] * damping + options["ridge"] * unit
    elif options["ridge_scale"] == "relative":
        kept = len(columns.recent(options["history_size"]))
        change = block_sums(extension.squares - before, numbers, count) / kept
        damping = torch.maximum(damping + options["ridge"] * change, options["ridge"] * unit)
    known = damping.tolist()
    for item in extension.items:
        keep_state_(states[item.param], item, columns, known[item.member.block])
    coefficients = window_coefficients(
        total,
        columns,
        damping=torch.where(damping > 0.0, damping, 1.0),  # else all columns are zero
        history_size=options["history_size"],
        rho=options["rho"],
        alpha=options["alpha"],
        power=options["power"],
    )
    coefficients *= extension.share
    if options["ridge_scale"] == "relative":
        coefficients *= unit[:, None] ** (options["power"] - 0.5)
    spread = coefficients[numbers] if count > 1 else coefficients.expand(len(numbers), -1)
    if options["max_norm"] is not None:
        spread = _within(options["max_norm"], spread, extension, numbers)
    return spread, total


def _within(most: float, spread: Tensor, extension: Extension, numbers: Tensor) -> Tensor:
    """Shorten the coefficients of blocks whose step would be longer than ``most``."""
    squares = torch.einsum("ti,tij,tj->t", spread, extension.gram, spread).clamp_min(0.0)
    rates = [0.0 if one.entry is None else float(one.member.group["lr"]) for one in extension.items]
    squares = squares * torch.tensor(rates, dtype=torch.float64).square()
    lengths = block_sums(squares, numbers, len(extension.cohort.damping)).sqrt()
    return spread * (most / lengths.clamp_min(most))[numbers, None]


def compress_(extension: Extension, states: States, total: Tensor) -> None:
    """Replace the columns older than the window by a few, where no slot is free."""
    columns, options = extension.columns, extension.cohort.options
    rank = options["rank"]
    if rank is None or not bool(columns.column_step.all()):
        return
    tail = columns.tail(options["history_size"])
    if len(tail) <= rank:
        return
    mixtures = [
        tail_mixture(
            gram[tail[:, None], tail],
            columns.weights[tail],
            rank=rank,
            shrink=options["cut"] == "ridge",
        )
        for gram in total
    ]
    columns = columns.mixed(tail, rank)
    for item in extension.items:
        mixture, cut = mixtures[item.member.block]
        dots = mix_(item.rows, tail, mixture).cpu()
        gram = item.state["gram"]
        gram[tail[:rank]] = dots
        gram[:, tail[:rank]] = dots.mT
        state = states[item.param]
        keep_state_(state, item, columns, state["damping"] + cut)


def pack_directions_(pack: Pack, coefficients: Tensor, newest: int) -> list[Tensor]:
    """Store the new columns of a pack, and return the direction of each parameter that moves."""
    if len(pack.items) > 1:
        flat = combine_each(pack.history, coefficients, vectors=pack.gradients(), slot=newest)
        return [
            direction.view(item.param.shape)
            for item, direction in zip(pack.items, flat.unbind(), strict=True)
            if item.entry is not None
        ]
    item, rows = pack.items[0], pack.history[0]
    if item.entry is None:
        rows[newest] = 0.0
        return []
    direction = torch.empty(rows.shape[1], dtype=wide_dtype(rows.dtype), device=item.param.device)
    combine_(direction, rows, coefficients[0], vector=item.gradient.reshape(-1), slot=newest)
    return [direction.view(item.param.shape)]


def pack_step_(pack: Pack, coefficients: Tensor, newest: int, average: Tensor | None) -> None:
    """Store the new column of a single parameter, decay its weights and move them, in one pass.

    With momentum, the pass goes over its average.
    """
    item = pack.items[0]
    assert item.entry is not None
    group = item.member.group
    rate, keep = float(group["lr"]), kept_in(item.entry.group)
    vector, rows = item.entry.gradient.reshape(-1), pack.history[0]
    weight = item.member.param.view(-1)
    if average is None:
        scalars = coefficients[0] * -rate
        combine_(weight, rows, scalars, vector=vector, slot=newest, keep=keep)
        return
    momentum = group["momentum"]
    scalars = coefficients[0] * (1.0 - momentum)
    combine_(average.view(-1), rows, scalars, vector=vector, slot=newest, keep=momentum)
    if keep != 1.0:
        weight.mul_(keep)
    weight.add_(average.view(-1), alpha=-rate)


def coupled(entry: Entry) -> Entry:
    """Return the entry with the gradient of coupled weight decay, if it has that."""
    group = entry.group
    if group["weight_decay_method"] != "l2" or group["weight_decay"] == 0.0:
        return entry
    (gradient,) = decay_(
        [entry.param],
        [entry.gradient],
        lr=0.0,
        weight_decay=group["weight_decay"],
        method="l2",
    )
    return entry._replace(gradient=gradient)


def metric_directions_(extension: Extension, states: States) -> dict[Tensor, Tensor]:
    """Store new columns, update a metric that holds S itself, and return the directions.

    For the dense and the diagonal metric, block by block.
    """
    cohort, options = extension.cohort, extension.cohort.options
    columns = extension.columns
    directions: dict[Tensor, Tensor] = {}
    for item in extension.items:
        item.rows[columns.newest].copy_(item.gradient.reshape(-1))
    for number, size in enumerate(cohort.sizes):
        items = [item for item in extension.items if item.member.block == number]
        if options["metric"] == "dense":
            before = cohort.damping[number]
            found = _dense_directions(items, columns, options, before=before, size=size)
        else:
            found = _diagonal_directions(items, columns, options)
        factor = extension.share
        if options["max_norm"] is not None:
            squares = [
                (item.member.group["lr"] * found[item.param].double().norm()).square().cpu()
                for item in items
                if item.param in found
            ]
            length = factor * float(torch.stack(squares).sum().sqrt())
            factor *= options["max_norm"] / max(length, options["max_norm"])
        for param, direction in found.items():
            directions[param] = (direction if factor == 1.0 else direction * factor).view_as(param)
        damping = options["beta"] * cohort.damping[number] + options["ridge"]
        for item in items:
            keep_state_(states[item.param], item, columns, damping)
    return directions


def _diagonal_directions(
    items: list[Tracked], columns: Columns, options: Mapping[str, Any]
) -> dict[Tensor, Tensor]:
    """By the diagonal of S, with the projection on the columns as it stands."""
    recent = columns.recent(options["history_size"])
    position = int((recent == columns.newest).nonzero()[0])
    of_window = {"recent": recent, "position": position, "power": options["power"]}
    parts = [
        diagonal_metric_(
            item.state["metric_diagonal"],
            item.rows,
            first=columns.step == 1,
            beta=options["beta"],
            ridge=options["ridge"],
            **of_window,
        )
        for item in items
    ]
    scalars = projection_coefficients(
        torch.stack([inner for inner, _ in parts]).sum(dim=0),
        torch.stack([right for _, right in parts]).sum(dim=0),
        rho=options["rho"],
        alpha=options["alpha"],
    )
    return {
        item.param: diagonal_direction(
            item.state["metric_diagonal"], item.rows, scalars, alpha=options["alpha"], **of_window
        )
        for item in items
        if item.entry is not None
    }


def _dense_directions(
    items: list[Tracked],
    columns: Columns,
    options: Mapping[str, Any],
    *,
    before: float,
    size: int,
) -> dict[Tensor, Tensor]:
    """By the p × p matrix S, kept in rows with the parameters that they belong to."""
    recent = columns.recent(options["history_size"])
    dtypes = [wide_dtype(item.param.dtype) for item in items]
    like = torch.empty(0, dtype=max(dtypes, key=lambda d: d.itemsize), device=items[0].param.device)
    metric = before * torch.eye(size, dtype=like.dtype, device=like.device)
    window = like.new_zeros(len(recent), size)
    for item in items:
        rows = item.state["metric_rows"]
        metric[item.place, : rows.shape[1]] = rows.to(like)
        window[:, item.place] = item.rows[recent.to(item.rows.device)].to(like)
    metric = dense_metric(
        metric, window, first=columns.step == 1, beta=options["beta"], ridge=options["ridge"]
    )
    gradient = window[int((recent == columns.newest).nonzero()[0])]
    direction = dense_direction(
        metric, window, gradient, rho=options["rho"], alpha=options["alpha"]
    )
    for item in items:
        item.state["metric_rows"] = metric[item.place].to(item.state["metric_rows"].device)
    return {
        item.param: direction[item.place].to(item.param.device)
        for item in items
        if item.entry is not None
    }
