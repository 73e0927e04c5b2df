"""The time of one step of each optimizer on a model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim import Muon as TorchMuon

from steepest.cli.errors import BadInputError
from steepest.cli.record import versions
from steepest.cli.whole_model import state_bytes
from steepest.model.combined import CombinedOptimizer
from steepest.model.create import MATRIX_OPTIMIZERS, create_optimizer
from steepest.model.routing import route

NAMES = ("adamw", "torch-muon", *MATRIX_OPTIMIZERS, "projected")
_ROUNDS, _MIB = 3, 1 << 20


@dataclass(frozen=True)
class Timing:
    """What one optimizer took.

    Attributes:
        name: of the optimizer.
        milliseconds: of a step, median.
        over_adamw: the median ratio to a step of AdamW in the same round.
        state_bytes: of all tensors in its state.
        rounds: how many steps were timed.
    """

    name: str
    milliseconds: float
    over_adamw: float
    state_bytes: int
    rounds: int


def bench(
    model: nn.Module,
    names: Sequence[str],
    *,
    seconds: float,
    on_round: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time steps in turn, round after round, with gradients of random numbers.

    Args:
        model: whose parameters are stepped; its weights change.
        names: of ``NAMES``; AdamW is timed too, for the ratios.
        seconds: for all rounds, at least three.
        on_round: called with the share that is done.

    Raises:
        BadInputError: for an unknown name, or an optimizer that refuses the model.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise BadInputError(f"unknown optimizer {unknown[0]!r}: choose from {', '.join(NAMES)}")
    generator = torch.Generator().manual_seed(0)
    for param in model.parameters():
        if param.requires_grad:
            noise = torch.randn(param.shape, generator=generator)
            param.grad = (1e-2 * noise).to(param.device, param.dtype)
    optimizers = {name: _build(name, model) for name in dict.fromkeys(["adamw", *names])}
    for optimizer in optimizers.values():
        optimizer.step()
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or len(times["adamw"]) < _ROUNDS:
        for name, optimizer in optimizers.items():
            times[name].append(_timed(optimizer))
        if on_round:
            on_round(min(1.0, spent / seconds))
    return [_timing(name, times, optimizers[name]) for name in names]


def _build(name: str, model: nn.Module) -> Optimizer:
    params = [param for param in model.parameters() if param.requires_grad]
    try:
        if name == "adamw":
            return AdamW(params, lr=1e-6)
        if name != "torch-muon":
            return create_optimizer(model, name, lr=1e-6)
        plan = route(model)
        matrices = [each for each in plan.by_rule("matrix") if len(each.shape) == 2]
        plain = [each.param for each in matrices if each.param is not None]
        taken = {id(param) for param in plain}
        rest = [param for param in params if id(param) not in taken]
        parts: list[Optimizer] = [TorchMuon(plain, lr=1e-6)] if plain else []
        return CombinedOptimizer([*parts, AdamW(rest, lr=1e-6)] if rest else parts)
    except (ValueError, RuntimeError) as error:
        raise BadInputError(f"{name}: {error}") from error


def _timed(optimizer: Optimizer) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    before = time.perf_counter()
    optimizer.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - before


def _timing(name: str, times: dict[str, list[float]], optimizer: Optimizer) -> Timing:
    ratios = [a / b for a, b in zip(times[name], times["adamw"], strict=True)]
    memory = state_bytes([optimizer])
    return Timing(name, 1e3 * median(times[name]), median(ratios), memory, len(ratios))


def timings_table(timings: Sequence[Timing]) -> Table:
    """Return the table that the command shows.

    Args:
        timings: of each optimizer.
    """
    table = Table("optimizer", "ms/step", "over adamw", "state MiB")
    for each in timings:
        table.add_row(
            each.name,
            f"{each.milliseconds:.3g}",
            f"{each.over_adamw:.2f}",
            f"{each.state_bytes / _MIB:.2f}",
        )
    return table


def write_bench(folder: Path, model: str, entries: int, timings: Sequence[Timing]) -> list[Path]:
    """Write ``bench.json`` and the bar chart ``bench.png``; return their paths.

    Args:
        folder: for both.
        model: what the user calls it.
        entries: number of its parameters' entries.
        timings: of each optimizer.
    """
    record: dict[str, Any] = {
        "versions": versions(),
        "model": model,
        "entries": entries,
        "threads": torch.get_num_threads(),
        "optimizers": [asdict(each) for each in timings],
    }
    json_path, picture = folder / "bench.json", folder / "bench.png"
    json_path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    figure = Figure(figsize=(7, 1.2 + 0.35 * len(timings)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [each.name for each in timings][::-1]
    bars = axes.barh(names, [each.milliseconds for each in timings][::-1], color="#0072B2")
    labels = [f"{each.milliseconds:.3g} ms, {each.over_adamw:.1f}×" for each in timings][::-1]
    axes.bar_label(bars, labels, padding=3)
    axes.set_xlabel("milliseconds per step (× AdamW)")
    axes.set_xlim(right=1.3 * max(each.milliseconds for each in timings))
    axes.set_title(f"{model}, {entries:,} entries")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)
    return [json_path, picture]
