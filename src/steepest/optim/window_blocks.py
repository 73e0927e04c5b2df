"""Which parameters share a metric, and which metrics are stepped together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steepest.linalg.window import Columns
from steepest.optim import checks
from steepest.optim.window_checks import SHARED

Groups = Sequence[dict[str, Any]]
States = Mapping[Tensor, dict[str, Any]]


class Member(NamedTuple):
    """A parameter of a block.

    Attributes:
        param: the weight.
        group: its parameter group.
        place: its position in the group, and the group's.
        block: which block of its cohort it belongs to.
        offset: of its first entry in the vector of all parameters of the block.
    """

    param: Tensor
    group: dict[str, Any]
    place: tuple[int, int]
    block: int
    offset: int

    @property
    def name(self) -> str:
        """How messages call it."""
        return checks.parameter_name(self.group, *self.place)


@dataclass(eq=False)
class Cohort:
    """Blocks with equal options whose windows hold columns of the same steps.

    Attributes:
        options: of the metric.
        before: what the slots hold before the step, the same in all blocks.
        members: the parameters, block by block.
        damping: λ_{t−1} of each block.
        sizes: number of entries of each block.
    """

    options: Mapping[str, Any]
    before: Columns
    members: list[Member] = field(default_factory=list)
    damping: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def blocks(groups: Groups) -> list[list[tuple[Tensor, dict[str, Any], tuple[int, int]]]]:
    """Return the parameters that share a metric, with group and place, for each metric."""
    by_group = [
        [(param, group, (position, index)) for position, param in enumerate(group["params"])]
        for index, group in enumerate(groups)
    ]
    if groups[0]["block"] == "group":
        return [block for block in by_group if block]
    everything = [one for block in by_group for one in block]
    return [[one] for one in everything] if groups[0]["block"] == "parameter" else [everything]


def cohorts(groups: Groups, states: States, moving: Iterable[Tensor]) -> list[Cohort]:
    """Divide the blocks in which a parameter moves into those that are stepped together."""
    moving = set(moving)
    result: dict[object, Cohort] = {}
    known: dict[int, object] = {}
    for block in blocks(groups):
        if not any(param in moving for param, _, _ in block):
            continue
        columns, damping = held((param for param, _, _ in block), states)
        options = block[0][1]
        key: object = None
        if options["block"] != "global":
            key = (_values(columns, known), tuple(options[name] for name in SHARED))
        cohort = result.setdefault(key, Cohort(options, columns))
        number, offset = len(cohort.damping), 0
        for param, group, place in block:
            cohort.members.append(Member(param, group, place, number, offset))
            offset += param.numel()
        cohort.damping.append(damping)
        cohort.sizes.append(offset)
    return list(result.values())


def held(params: Iterable[Tensor], states: States) -> tuple[Columns, float]:
    """Return what the slots of a block hold and its damping, the same for all its parameters."""
    for param in params:
        state = states.get(param)
        if state:
            columns = Columns(
                state["step"], state["column_step"], state["weights"], state.get("since", 1)
            )
            return columns, state["damping"]
    return Columns.empty(), 0.0


def _values(columns: Columns, known: dict[int, object]) -> object:
    """Return what tells columns apart; tensors that are shared are looked at once."""
    tensors = (columns.column_step, columns.weights)
    for tensor in tensors:
        if id(tensor) not in known:
            known[id(tensor)] = tuple(tensor.tolist()) if tensor.numel() else ()
    return (columns.step, columns.since, *(known[id(tensor)] for tensor in tensors))


def block_sums(parts: Tensor, numbers: Tensor, count: int) -> Tensor:
    """Sum ``(T, …)`` parts into the ``(count, …)`` blocks that they belong to."""
    return torch.zeros(count, *parts.shape[1:], dtype=parts.dtype).index_add_(0, numbers, parts)
