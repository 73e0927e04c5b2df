"""Checks of the options, gradients and state of a gradient window."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from steepest.geometry.window import Metric
from steepest.linalg.rows import wide_dtype
from steepest.optim import checks
from steepest.optim.base import Entry

Block = Literal["global", "parameter", "group"]
Cut = Literal["drop", "ridge"]
HistoryDtype = Literal["auto", "float32", "bfloat16", "float64"]
Nonfinite = Literal["raise", "skip"]
RidgeScale = Literal["absolute", "relative"]

# parameters of one metric: these options cannot differ between their groups
SHARED = (
    "history_size", "beta", "ridge", "rho", "alpha", "max_exact_parameters", "metric",
    "tail_tolerance", "rank", "cut", "power", "ridge_scale", "history_stride", "max_norm", "warmup",
)  # fmt: skip

# and these not between any groups
_COMMON = ("block", "nonfinite")

# where each metric keeps its part for a parameter
METRIC_STATE: dict[Metric, str] = {
    "auto": "gram",
    "window": "gram",
    "dense": "metric_rows",
    "diagonal": "metric_diagonal",
}


def by_gram(metric: Metric) -> bool:
    """Whether the metric works by the Gram matrix of the columns."""
    return METRIC_STATE[metric] == "gram"


# what works by the Gram matrix of the columns, with the value that other metrics need
_BY_GRAM = {"rank": None, "ridge_scale": "absolute", "history_stride": 1}

_NOT_TAKEN = "it would stay in the window for many steps, so this step was not taken"


def check_options(group: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an option of the window that is out of range or has no effect."""
    checks.count("history_size", group["history_size"])
    checks.below_one("beta", group["beta"])
    checks.positive("ridge", group["ridge"])
    checks.positive("rho", group["rho"])
    checks.fraction("alpha", group["alpha"])
    checks.count("max_exact_parameters", group["max_exact_parameters"], least=0)
    checks.choice("metric", group["metric"], get_args(Metric))
    checks.below_one("tail_tolerance", group["tail_tolerance"])
    checks.choice("block", group["block"], get_args(Block))
    if group["rank"] is not None:
        checks.count("rank", group["rank"])
    checks.choice("cut", group["cut"], get_args(Cut))
    checks.choice("ridge_scale", group["ridge_scale"], get_args(RidgeScale))
    checks.choice("history_dtype", group["history_dtype"], get_args(HistoryDtype))
    checks.count("history_stride", group["history_stride"])
    checks.below_one("momentum", group["momentum"])
    checks.flag("nesterov", group["nesterov"])
    checks.flag("warmup", group["warmup"])
    if group["max_norm"] is not None:
        checks.positive("max_norm", group["max_norm"])
    if group["power"] not in (0.5, 1.0):
        raise ValueError(f"power must be 1 or 0.5, got {group['power']!r}")
    _check_device(group["history_device"])
    _check_combination(group)


def _check_device(device: object) -> None:
    if device is None:
        return
    try:
        torch.empty(0, device=torch.device(str(device)))
    except (RuntimeError, AssertionError) as error:  # a name or a device that there is not
        raise ValueError(
            f"history_device must be None or a device of this machine, got {device!r}: {error}"
        ) from error


def _check_combination(group: Mapping[str, Any]) -> None:
    metric = group["metric"]
    if not by_gram(metric):
        for name, needed in _BY_GRAM.items():
            if group[name] != needed:
                raise ValueError(
                    f"{name} must be {needed!r} with metric={metric!r}, got {group[name]!r}; "
                    "metric='window' has it"
                )
    if metric == "dense" and group["power"] != 1.0:
        raise ValueError(
            f"power must be 1 with metric='dense', got {group['power']!r}; metric='window' has it"
        )
    if group["rank"] is not None and group["beta"] == 0.0:
        raise ValueError(
            f"rank must be None with beta=0.0, got {group['rank']!r}: no column is older than the "
            "window then"
        )


def check_shared(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``ValueError`` for an option of a common metric that differs between groups."""
    shared = _COMMON if groups[0]["block"] != "global" else (*_COMMON, *SHARED)
    for index, group in enumerate(groups):
        for name in shared:
            if group[name] != groups[0][name]:
                why = "" if name in _COMMON else ", which share one metric"
                raise ValueError(
                    f"{name} must be equal in all parameter groups{why}: it is "
                    f"{groups[0][name]!r} in group 0 and {group[name]!r} in group {index}"
                )


def stored_dtype(param: Tensor, group: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype of the columns of a parameter."""
    name = group["history_dtype"]
    dtype: torch.dtype = param.dtype if name == "auto" else getattr(torch, name)
    return dtype


def magnitude_fault(entries: Sequence[Entry], size: int) -> str | None:
    """Say which gradient has squares that, summed over ``size`` entries, would not be finite.

    For metrics that hold squares in the dtype of the parameter, or of its columns.
    """
    for entry in entries:
        if entry.gradient.numel() == 0:
            continue
        dtypes = entry.param.dtype, stored_dtype(entry.param, entry.group)
        most = min(torch.finfo(wide_dtype(dtype)).max for dtype in dtypes)
        largest = math.sqrt(most / (4.0 * size))
        found = float(torch.linalg.vector_norm(entry.gradient, ord=math.inf))
        if not found <= largest:  # also for NaN
            return (
                f"the gradient of {entry.name} is not finite or too large: its largest entry is "
                f"{found}, and the metric can hold {largest:.1e}; {_NOT_TAKEN}"
            )
    return None


class Named(Protocol):
    """What messages can call by name."""

    @property
    def name(self) -> str:
        """The name."""


def squares_fault(params: Sequence[Named], squares: Tensor, *, slots: int) -> str | None:
    """Say which gradient is so large that float64 cannot hold the squares of a full window."""
    largest = torch.finfo(torch.float64).max / (4.0 * slots)
    if float(squares.sum()) <= largest:
        return None
    worst = int(squares.nan_to_num(math.inf).argmax())
    return (
        f"the gradient of {params[worst].name} is not finite or too large: its squared norm is "
        f"{float(squares[worst])}, and the metric can hold {largest:.1e}; {_NOT_TAKEN}"
    )


def check_metric_of(state: Mapping[str, Any], metric: Metric, name: str) -> None:
    """Raise ``ValueError`` for state that another metric has made."""
    if METRIC_STATE[metric] not in state:
        raise ValueError(
            f"the state of {name} was made by another metric than {metric!r}; metric cannot change "
            "once steps have been taken"
        )
