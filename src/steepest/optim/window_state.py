"""What the window keeps for each parameter, and the checks of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steepest.geometry.window import Metric
from steepest.linalg.window import Columns
from steepest.optim.base import Entry

# one metric for all parameters: these options cannot differ between groups
SHARED = (
    "history_size", "beta", "ridge", "rho", "alpha", "max_exact_parameters", "metric",
    "tail_tolerance",
)  # fmt: skip

_NOT_TAKEN = "it would stay in the window for many steps, so this step was not taken"

# parameters up to this size are taken together
_PACKED = 1 << 13

# where each metric keeps its part for a parameter
METRIC_STATE: dict[Metric, str] = {
    "auto": "gram",
    "window": "gram",
    "dense": "metric_rows",
    "diagonal": "metric_diagonal",
}


@dataclass(frozen=True, eq=False)
class Tracked:
    """A parameter of a window, with or without a gradient at this step.

    Attributes:
        entry: the parameter with its gradient and group; of one that does not move, the gradient
            is all zeros.
        moves: whether it has a gradient.
        state: its tensors, with room for the new column; the optimizer's own state holds them from
            ``keep_state_`` on.
        offset: of its first entry in the vector of all parameters.
    """

    entry: Entry
    moves: bool
    state: dict[str, Any]
    offset: int

    @property
    def param(self) -> Tensor:
        """The weight."""
        return self.entry.param

    @property
    def rows(self) -> Tensor:
        """``(slots, n)`` view of its columns."""
        history: Tensor = self.state["history"]
        return history.view(history.shape[0], self.param.numel())

    @property
    def place(self) -> slice:
        """Its entries in the vector of all parameters."""
        return slice(self.offset, self.offset + self.param.numel())


class Pack:
    """Parameters of one size whose columns lie side by side in one memory.

    Attributes:
        items: one parameter, or several short ones.
        history: ``(T, slots, n)``, of which each parameter's own ``history`` is a part.
        gram: ``(T, slots, slots)`` float64, likewise; None for other metrics.
    """

    def __init__(self, items: Sequence[Tracked]) -> None:
        self.items = items
        self.history = _joined([item.state for item in items], "history")
        with_gram = "gram" in items[0].state
        self.gram = _joined([item.state for item in items], "gram") if with_gram else None

    def write_gram_(self, newest: int, dots: Tensor, squares: Tensor) -> None:
        """Write the new row and column of each Gram matrix.

        Args:
            newest: the slot of the new column.
            dots: ``(T, slots)``, with the columns that are stored.
            squares: ``(T,)``, with itself.
        """
        assert self.gram is not None
        dots[:, newest] = squares
        self.gram[:, newest, :] = dots
        self.gram[:, :, newest] = dots

    def gradients(self) -> Tensor:
        """``(T, n)``, without a copy for a single parameter."""
        flat = [item.entry.gradient.reshape(-1) for item in self.items]
        return flat[0][None] if len(flat) == 1 else torch.stack(flat)


def packs(items: Sequence[Tracked]) -> list[Pack]:
    """Put short parameters of one size, dtype and device together, so that a pass is one call."""
    alike: dict[Any, list[Tracked]] = {}
    for position, item in enumerate(items):
        size = item.param.numel()
        own = position if size > _PACKED or size == 0 else -1
        key = (size, item.param.dtype, item.param.device, item.state["history"].dtype, own)
        alike.setdefault(key, []).append(item)
    return [Pack(together) for together in alike.values()]


def _joined(states: Sequence[dict[str, Any]], name: str) -> Tensor:
    """Return tensors ``(slots, …)`` of several states as one ``(T, slots, n)``.

    They are moved into one memory where they are not, and the states then hold its parts.
    """
    tensors: list[Tensor] = [state[name] for state in states]
    first = tensors[0]
    if len(tensors) == 1:
        return first.reshape(1, len(first), first.numel() // max(len(first), 1))
    step = first.numel() * first.itemsize
    storage, start = first.untyped_storage().data_ptr(), first.data_ptr()
    if all(
        tensor.data_ptr() == start + place * step and tensor.untyped_storage().data_ptr() == storage
        for place, tensor in enumerate(tensors)
    ):
        width = first.numel() // len(first)
        return first.as_strided((len(tensors), len(first), width), (first.numel(), width, 1))
    joined = torch.stack([tensor.reshape(len(tensor), -1) for tensor in tensors])
    for state, tensor, part in zip(states, tensors, joined.unbind(), strict=True):
        state[name] = part.view(tensor.shape)
    return joined


def check_shared(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``ValueError`` for an option of the common metric that differs between groups."""
    for index, group in enumerate(groups):
        for name in SHARED:
            if group[name] != groups[0][name]:
                raise ValueError(
                    f"{name} must be equal in all parameter groups, which share one metric: it is "
                    f"{groups[0][name]!r} in group 0 and {group[name]!r} in group {index}"
                )


def check_magnitude(entry: Entry, size: int) -> None:
    """Refuse a gradient whose squares, summed over ``size`` entries, would not be finite.

    For metrics that hold squares in the dtype of the parameter.
    """
    if entry.gradient.numel() == 0:
        return
    largest = math.sqrt(torch.finfo(wide([entry.param])).max / (4.0 * size))
    found = float(torch.linalg.vector_norm(entry.gradient, ord=math.inf))
    if entry.group["weight_decay_method"] == "l2" and entry.group["weight_decay"]:
        weight = float(torch.linalg.vector_norm(entry.param, ord=math.inf))
        found += entry.group["weight_decay"] * weight
    if not found <= largest:  # also for NaN
        raise RuntimeError(
            f"the gradient of {entry.name} is not finite or too large: its largest entry is "
            f"{found}, and the metric can hold {largest:.1e}; {_NOT_TAKEN}"
        )


def check_squares(items: Sequence[Tracked], squares: Tensor) -> None:
    """Refuse gradients whose square, summed over all of them, float64 cannot hold."""
    largest = torch.finfo(torch.float64).max / 4.0
    if float(squares.sum()) <= largest:
        return
    worst = int(squares.nan_to_num(math.inf).argmax())
    raise RuntimeError(
        f"the gradient of {items[worst].entry.name} is not finite or too large: its squared norm "
        f"is {float(squares[worst])}, and the metric can hold {largest:.1e}; {_NOT_TAKEN}"
    )


def check_metric_of(state: Mapping[str, Any], metric: Metric, name: str) -> None:
    """Raise ``ValueError`` for state that another metric has made."""
    if METRIC_STATE[metric] not in state:
        raise ValueError(
            f"the state of {name} was made by another metric than {metric!r}; metric cannot change "
            "once steps have been taken"
        )


def fresh_metric(
    param: Tensor, metric: Metric, before: Columns, slots: int, offset: int, size: int
) -> dict[str, Tensor]:
    """Metric of a parameter whose past gradients are all zero: λ_{t−1} I."""
    name = METRIC_STATE[metric]
    if name == "gram":
        return {name: torch.zeros(slots, slots, dtype=torch.float64, device=param.device)}
    dtype = wide([param])
    if name == "metric_diagonal":
        shape = (param.numel(),)
        return {name: torch.full(shape, before.damping, dtype=dtype, device=param.device)}
    rows = torch.zeros(param.numel(), size, dtype=dtype, device=param.device)
    rows[:, offset : offset + param.numel()].diagonal().fill_(before.damping)
    return {name: rows}


def wide(params: Sequence[Tensor]) -> torch.dtype:
    """Float64 if any of the parameters is, else float32."""
    return torch.float64 if any(p.dtype == torch.float64 for p in params) else torch.float32


def fresh_window(param: Tensor, slots: int) -> dict[str, Any]:
    """Columns of a parameter whose past gradients are all zero."""
    return {"history": param.detach().new_zeros(slots, *param.shape)}


def with_room(state: Mapping[str, Any], slots: int) -> dict[str, Any]:
    """Return the state with room for ``slots`` columns; new slots are zero."""
    result = dict(state)
    history: Tensor = state["history"]
    more = slots - history.shape[0]
    if more > 0:
        result["history"] = torch.cat([history, history.new_zeros(more, *history.shape[1:])])
        if "gram" in state:
            result["gram"] = torch.nn.functional.pad(state["gram"], (0, more, 0, more))
    return result


def keep_state_(state: dict[str, Any], item: Tracked, columns: Columns) -> None:
    """Take the tensors of a parameter and what the slots hold into the optimizer's state."""
    state.update(item.state)
    state["step"], state["damping"] = columns.step, columns.damping
    state["column_step"] = columns.column_step.to(item.param.device)
    state["weights"] = columns.weights.to(item.param.device)
