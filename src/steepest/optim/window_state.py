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

# where each metric keeps its part for a parameter
METRIC_STATE: dict[Metric, str] = {
    "auto": "gram",
    "window": "gram",
    "dense": "metric_rows",
    "diagonal": "metric_diagonal",
}


@dataclass(frozen=True, eq=False)
class Tracked:
    """A parameter in the window, with or without a gradient at this step."""

    param: Tensor
    moves: bool
    state: dict[str, Any]
    offset: int  # of its first entry in the vector of all parameters

    @property
    def rows(self) -> Tensor:
        """``(slots, numel)`` view of its columns."""
        history: Tensor = self.state["history"]
        return history.view(history.shape[0], self.param.numel())

    @property
    def place(self) -> slice:
        """Its entries in the vector of all parameters."""
        return slice(self.offset, self.offset + self.param.numel())


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
    """Refuse a gradient whose squares, summed over ``size`` entries, would not be finite."""
    if entry.gradient.numel() == 0:
        return
    # the window's Gram matrix is in float64; the other metrics hold squares in their own dtype
    exact = entry.group["metric"] in ("auto", "window")
    dtype = torch.float64 if exact else wide([entry.param])
    largest = math.sqrt(torch.finfo(dtype).max / (4.0 * size))
    found = float(torch.linalg.vector_norm(entry.gradient, ord=math.inf))
    if entry.group["weight_decay_method"] == "l2" and entry.group["weight_decay"]:
        weight = float(torch.linalg.vector_norm(entry.param, ord=math.inf))
        found += entry.group["weight_decay"] * weight
    if not found <= largest:  # also for NaN
        raise RuntimeError(
            f"the gradient of {entry.name} is not finite or too large: its largest entry is "
            f"{found}, and the metric can hold {largest:.1e}; it would stay in the window for many "
            "steps, so this step was not taken"
        )


def check_metric_of(state: Mapping[str, Any], metric: Metric, name: str) -> None:
    """Raise ``ValueError`` for state that another metric has made."""
    if METRIC_STATE[metric] not in state:
        raise ValueError(
            f"the state of {name} was made by another metric than {metric!r}; metric cannot change "
            "once steps have been taken"
        )


def fresh_metric(
    item: Tracked, metric: Metric, before: Columns, slots: int, size: int
) -> dict[str, Tensor]:
    """Metric of a parameter whose past gradients are all zero: λ_{t−1} I."""
    param, name = item.param, METRIC_STATE[metric]
    if name == "gram":
        return {name: torch.zeros(slots, slots, dtype=torch.float64, device=param.device)}
    dtype = wide([param])
    if name == "metric_diagonal":
        shape = (param.numel(),)
        return {name: torch.full(shape, before.damping, dtype=dtype, device=param.device)}
    rows = torch.zeros(param.numel(), size, dtype=dtype, device=param.device)
    rows[:, item.place].diagonal().fill_(before.damping)
    return {name: rows}


def wide(params: Sequence[Tensor]) -> torch.dtype:
    """Float64 if any of the parameters is, else float32."""
    return torch.float64 if any(p.dtype == torch.float64 for p in params) else torch.float32


def resize_(state: dict[str, Any], slots: int) -> None:
    """Give the state room for ``slots`` columns; new slots are zero."""
    more = slots - state["history"].shape[0]
    if more > 0:
        history = state["history"]
        state["history"] = torch.cat([history, history.new_zeros(more, *history.shape[1:])])
        if "gram" in state:
            state["gram"] = torch.nn.functional.pad(state["gram"], (0, more, 0, more))
