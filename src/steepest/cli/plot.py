"""The comparison as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from steepest.cli.experiment import Comparison, Contender, Trial

# Okabe and Ito, distinct for the colour-blind, without yellow, which is faint on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":")  # for more optimizers than colours
_LONGEST_LINE = 60  # of a label, in characters
_SMOOTHED = 25  # windows of the moving average in a run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Curve:
    """Mean and spread of the smoothed loss after each step, and the time of it."""

    steps: Array
    seconds: Array
    mean: Array
    spread: Array
    whole: bool


def smooth(losses: Sequence[float], width: int) -> Array:
    """Return the centred moving average; windows at the ends are shorter.

    Args:
        losses: of each step.
        width: of the window.

    Example:
        >>> smooth([0.0, 3.0, 6.0], 3).tolist()
        [1.5, 3.0, 4.5]
    """
    sums = np.convolve(losses, np.ones(width))
    counts = np.convolve(np.ones(len(losses)), np.ones(width))
    start = (width - 1) // 2
    middle: Array = (sums / counts)[start : start + len(losses)]
    return middle


def write_picture(comparison: Comparison, path: Path) -> Path:
    """Draw training loss against steps and against seconds.

    Args:
        comparison: with at least one run.
        path: of the PNG.

    Returns:
        The path.
    """
    figure = Figure(figsize=(11.0, 5.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.06})
    contenders = comparison.started()
    curves = [_curve(contender.chosen(), comparison.steps) for contender in contenders]
    for contender, curve in zip(contenders, curves, strict=True):
        if curve is None:
            continue
        look = _look(comparison.contenders.index(contender), curve)
        for axes, places in ((by_step, curve.steps), (by_time, curve.seconds)):
            axes.plot(places, curve.mean, label=_label(comparison, contender), **look)
            axes.fill_between(
                places,
                np.maximum(curve.mean - curve.spread, 0.1 * curve.mean),
                curve.mean + curve.spread,
                color=look["color"],
                alpha=0.15,
                linewidth=0,
            )
    _set_axes(by_step, by_time, [curve for curve in curves if curve])
    _set_texts(figure, comparison, by_step)
    figure.savefig(path)
    return path


def _curve(trial: Trial, steps: int) -> _Curve | None:
    """Return the curve of the runs that did not diverge, or of the diverged if there are none."""
    whole = trial.finished()
    runs = [run for run in whole or trial.runs if run.losses]
    if not runs:
        return None
    length = min(len(run.losses) for run in runs)
    width = max(1, steps // _SMOOTHED)
    losses = np.stack([smooth(run.losses[:length], width) for run in runs])
    seconds = np.stack([np.cumsum(run.step_seconds[:length]) for run in runs])
    spread = losses.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(length)
    return _Curve(
        steps=np.arange(1.0, length + 1),
        seconds=np.median(seconds, axis=0),
        mean=losses.mean(axis=0),
        spread=spread,
        whole=bool(whole),
    )


def _look(position: int, curve: _Curve) -> dict[str, Any]:
    dashes = _DASHES[position // len(COLOURS) % len(_DASHES)]
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": dashes if curve.whole else ":",
        "linewidth": 1.8,
        "zorder": 10 - 0.1 * position,
    }


def _label(comparison: Comparison, contender: Contender) -> str:
    trial = contender.chosen()
    finished, runs = len(trial.finished()), len(trial.runs)
    result = comparison.task.metric.format(trial.figures("test_metric")) if finished else ""
    diverged = "" if finished == runs else f" {runs - finished} of {runs} diverged"
    rate = "" if "lr" in contender.spec.options else f"  lr {trial.settings['lr']:g}"
    name = contender.spec.label
    if len(name) > _LONGEST_LINE:
        name = textwrap.fill(name.replace(":", " :"), _LONGEST_LINE)
    label = f"{name}{rate}   {result}{diverged}"
    return label.replace("$", r"\$")


def _set_axes(by_step: Axes, by_time: Axes, curves: Sequence[_Curve]) -> None:
    whole = [curve for curve in curves if curve.whole] or curves
    if whole:
        _set_limits(by_step, by_time, whole)
    by_step.set_xlabel("step")
    by_step.set_ylabel("training loss (batch, smoothed)")
    by_time.set_xlabel("seconds of training")
    for axes in (by_step, by_time):
        axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)


def _set_limits(by_step: Axes, by_time: Axes, curves: Sequence[_Curve]) -> None:
    """Show these curves whole, but for what rises far above the start."""
    by_step.set_xlim(0.0, 1.01 * max(curve.steps[-1] for curve in curves))
    ends = [curve.seconds[-1] for curve in curves]
    if max(ends) > 10.0 * min(ends):  # the fast ones would be one line at the left
        by_time.set_xscale("log")
        by_time.set_xlim(min(curve.seconds[0] for curve in curves), 1.1 * max(ends))
    else:
        by_time.set_xlim(0.0, 1.02 * max(ends))
    lowest = min(curve.mean.min() for curve in curves)
    start = max(curve.mean[0] for curve in curves)
    highest = min(max(curve.mean.max() for curve in curves), 3.0 * start)
    if lowest <= 0.0:
        return
    margin = (highest / lowest) ** 0.06 * 1.01
    by_step.set_yscale("log")
    by_step.set_ylim(lowest / margin, highest * margin)
    by_step.yaxis.set_major_locator(LogLocator(subs=_ticks(highest / lowest), numticks=20))
    by_step.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    by_step.yaxis.set_minor_formatter(NullFormatter())


def _ticks(ratio: float) -> Sequence[float]:
    """Return where a decade is marked on an axis over this ratio."""
    if ratio < 10.0:
        return (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    return (1.0, 3.0) if ratio < 1e3 else (1.0,)


def _set_texts(figure: Figure, comparison: Comparison, axes: Axes) -> None:
    task, seeds = comparison.task, len(comparison.seeds)
    facts = [
        f"line: mean, band: spread of {seeds} seeds" if seeds > 1 else "1 seed",
        f"{comparison.steps} steps",
        *(["learning rates chosen on validation data"] if comparison.sweep else []),
        *(["interrupted"] if comparison.status == "interrupted" else []),
    ]
    figure.suptitle(
        f"{task.name}: {task.description}\n", fontsize=13, fontweight="bold", x=0.01, ha="left"
    )
    figure.text(0.01, 0.925, ", ".join(facts), fontsize=10, color="#555555")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        title=f"test {task.metric.name}, best first",
        loc="outside lower center",
        ncols=1 if max(map(len, labels), default=0) > _LONGEST_LINE else 2,
        frameon=False,
        fontsize=10,
        alignment="left",
    )
