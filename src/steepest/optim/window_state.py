"""What a gradient window keeps for each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steepest.linalg.rows import wide_dtype
from steepest.linalg.window import Columns
from steepest.optim.base import Entry
from steepest.optim.window_blocks import Cohort, Member
from steepest.optim.window_checks import METRIC_STATE, stored_dtype

# parameters up to this size are taken together
_PACKED = 1 << 13
_ALIGNMENT = 64  # bytes, to which torch aligns new memory on a CPU


@dataclass(frozen=True, eq=False, slots=True)
class Tracked:
    """A parameter of a window, with or without a gradient at this step.

    Attributes:
        member: the parameter and its place.
        entry: with its gradient; None for one that has none, and does not move.
        state: its tensors, with room for the new column: the optimizer's own state, or another
            dictionary until ``keep_state_``.
    """

    member: Member
    entry: Entry | None
    state: dict[str, Any]

    @property
    def param(self) -> Tensor:
        """The weight."""
        return self.member.param

    @property
    def gradient(self) -> Tensor:
        """Its gradient, all zeros for one that has none."""
        return torch.zeros_like(self.member.param) if self.entry is None else self.entry.gradient

    @property
    def rows(self) -> Tensor:
        """``(slots, n)`` view of its columns."""
        history: Tensor = self.state["history"]
        return history.view(history.shape[0], self.param.numel())

    @property
    def place(self) -> slice:
        """Its entries in the vector of all parameters of its block."""
        return slice(self.member.offset, self.member.offset + self.param.numel())


class Pack:
    """Parameters of one shape whose columns lie side by side in one memory.

    Attributes:
        items: one parameter, or several short ones.
        history: ``(T, slots, n)``, of which each parameter's own ``history`` is a part.
        moves: whether any of them has a gradient.
    """

    __slots__ = ("history", "items", "moves")

    def __init__(self, items: Sequence[Tracked]) -> None:
        self.items = items
        self.history = joined_([item.state for item in items], "history")
        self.moves = any(item.entry is not None for item in items)

    def gradients(self) -> Tensor:
        """``(T, n)``, without a copy for a single parameter."""
        if len(self.items) == 1:
            return self.items[0].gradient.reshape(1, -1)
        return torch.stack([item.gradient for item in self.items]).view(len(self.items), -1)


def tracked(
    cohort: Cohort,
    states: Mapping[Tensor, dict[str, Any]],
    moving: Mapping[Tensor, Entry],
    columns: Columns,
) -> list[Tracked]:
    """List the parameters that have columns; the state of new ones is made, but not kept yet."""
    result = []
    for member in cohort.members:
        param = member.param
        entry, state = moving.get(param), states.get(param)
        if not state:
            if entry is None:
                continue
            state = fresh_window(param, member.group, columns.slots)
            state |= fresh_metric(cohort, member, columns.slots)
        elif state["history"].shape[0] < columns.slots:
            state = with_room(state, columns.slots)
        result.append(Tracked(member, entry, state))
    return result


def packs(items: Sequence[Tracked]) -> list[Pack]:
    """Put short parameters of one shape, dtype and device together, so that a pass is one call."""
    alike: dict[object, list[Tracked]] = {}
    for position, item in enumerate(items):
        param = item.member.param
        size = param.numel()
        key: object = position
        if 0 < size <= _PACKED:
            history = item.state["history"]
            key = (param.shape, param.dtype, param.device, history.dtype, history.device)
        alike.setdefault(key, []).append(item)
    return [Pack(together) for together in alike.values()]


def joined_(states: Sequence[dict[str, Any]], name: str) -> Tensor:
    """Return tensors ``(slots, …)`` of several states as one ``(T, slots, n)``.

    They are moved into one memory where they are not, and the states then hold its parts, with the
    values that they had. It starts where torch would put new memory: the last digits of products
    depend on that, and a resumed run, whose state is new, must give those of a straight one.
    """
    tensors: list[Tensor] = [state[name] for state in states]
    first = tensors[0]
    slots, size = first.shape[0], first.numel()
    step, start = size * first.itemsize, first.data_ptr()
    aligned = start % _ALIGNMENT == 0
    if len(tensors) == 1:
        if not aligned:
            states[0][name] = first = first.clone()
        return first.view(1, slots, size // slots)
    together = aligned and all(
        tensor.data_ptr() == start + place * step for place, tensor in enumerate(tensors)
    )
    if together and len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1:
        width = size // slots
        return first.as_strided((len(tensors), slots, width), (size, width, 1))
    joined = torch.stack([tensor.reshape(len(tensor), -1) for tensor in tensors])
    for state, tensor, part in zip(states, tensors, joined.unbind(), strict=True):
        state[name] = part.view(tensor.shape)
    return joined


def fresh_window(param: Tensor, group: Mapping[str, Any], slots: int) -> dict[str, Any]:
    """Columns of a parameter whose past gradients are all zero."""
    dtype, device = history_place(param, group)
    return {"history": torch.zeros(slots, *param.shape, dtype=dtype, device=device)}


def history_place(param: Tensor, group: Mapping[str, Any]) -> tuple[torch.dtype, torch.device]:
    """Return the dtype and device of the columns of a parameter."""
    device = group["history_device"]
    return stored_dtype(param, group), param.device if device is None else torch.device(device)


def fresh_metric(cohort: Cohort, member: Member, slots: int) -> dict[str, Tensor]:
    """Metric of a parameter whose past gradients are all zero: λ_{t−1} I."""
    name = METRIC_STATE[cohort.options["metric"]]
    if name == "gram":  # for algebra on the CPU
        return {name: torch.zeros(slots, slots, dtype=torch.float64)}
    param, damping = member.param, cohort.damping[member.block]
    dtype = wide_dtype(param.dtype)
    if name == "metric_diagonal":
        return {name: torch.full((param.numel(),), damping, dtype=dtype, device=param.device)}
    size = cohort.sizes[member.block]
    rows = torch.zeros(param.numel(), size, dtype=dtype, device=param.device)
    rows[:, member.offset : member.offset + param.numel()].diagonal().fill_(damping)
    return {name: rows}


def with_room(state: Mapping[str, Any], slots: int) -> dict[str, Any]:
    """Return the state with room for ``slots`` columns; new slots are zero."""
    result = dict(state)
    history: Tensor = state["history"]
    more = slots - history.shape[0]
    result["history"] = torch.cat([history, history.new_zeros(more, *history.shape[1:])])
    if "gram" in state:
        result["gram"] = torch.nn.functional.pad(state["gram"], (0, more, 0, more))
    return result


def keep_state_(state: dict[str, Any], item: Tracked, columns: Columns, damping: float) -> None:
    """Take the tensors of a parameter and what the slots hold into the optimizer's state."""
    if state is not item.state:
        state.update(item.state)
    state["step"], state["since"], state["damping"] = columns.step, columns.since, damping
    state["column_step"], state["weights"] = columns.column_step, columns.weights
