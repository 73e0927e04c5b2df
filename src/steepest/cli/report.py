"""The comparison as a table, and its progress while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from steepest.cli.experiment import Comparison, Contender, Trial
from steepest.cli.metrics import spread
from steepest.cli.record import as_record, write_json
from steepest.cli.training import Run

_LABEL_WIDTH = 14
_UNITS = ("B", "KiB", "MiB", "GiB")


def readable_bytes(count: float) -> str:
    """Return a number of bytes with a unit.

    Example:
        >>> readable_bytes(512), readable_bytes(1536)
        ('512 B', '1.5 KiB')
    """
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{count:.0f} B"


class Reporter:
    """Watches the runs: shows progress, and writes the JSON anew after each.

    A context manager. On a terminal it shows a bar, else one line for each run.

    Args:
        comparison: what is carried out.
        console: where progress goes.
        path: of the JSON.
    """

    def __init__(self, comparison: Comparison, console: Console, path: Path) -> None:
        self._comparison = comparison
        self._console = console
        self._path = path
        self._started = 0
        self._name, self._width = "", 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(
            "starting", total=comparison.run_count() * comparison.steps
        )

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def run_started(self, contender: Contender, trial: Trial, seed: int) -> None:
        """Show which run it is."""
        self._started += 1
        rate = f" lr {trial.settings['lr']:g}" if self._comparison.sweep else ""
        self._name = f"{contender.spec.label}{rate} seed {seed}"
        self._width = max(self._width, len(self._name))

    def step_done(self, loss: float) -> None:
        """Advance the bar."""
        self._progress.update(self._bar, advance=1, description=self._description(loss))

    def _description(self, loss: float) -> str:
        # of one width, so that the bar stands still
        return f"{self._name:<{self._width}}  loss {loss:<8.3g}"

    def run_finished(self, contender: Contender, run: Run) -> None:
        """Write the JSON; without a terminal, write one line."""
        self._progress.update(self._bar, completed=self._started * self._comparison.steps)
        write_json(self._path, as_record(self._comparison))
        if not self._console.is_terminal:
            end = "diverged" if run.diverged else f"training loss {run.train_loss:.4g}"
            line = f"run {self._started} of {self._comparison.run_count()}: {self._name}: {end}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def heading(comparison: Comparison) -> str:
    """Return what the numbers are of, in two lines.

    Args:
        comparison: of any status.
    """
    task, seeds = comparison.task, len(comparison.seeds)
    runs = f"mean ± spread of {seeds} seeds" if seeds > 1 else "1 seed"
    end = ", interrupted" if comparison.status == "interrupted" else ""
    return f"{task.name}: {task.description}\n{comparison.steps} steps, {runs}{end}"


def results_table(comparison: Comparison) -> Table:
    """Return one row for each optimizer, best test metric first, the best of each column in bold.

    Args:
        comparison: with at least one run.
    """
    contenders = comparison.started()
    trials = [contender.chosen() for contender in contenders]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("optimizer", overflow="fold", min_width=_LABEL_WIDTH)
    for head in (
        "lr",
        "training loss",
        f"test {comparison.task.metric.short_name}",
        "time/step",
        "state",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    columns = (
        _training_losses(trials),
        _test_metrics(comparison, trials),
        _durations(trials),
        _states(trials),
    )
    for row, (contender, trial) in enumerate(zip(contenders, trials, strict=True)):
        cells = [column[row] for column in columns]
        table.add_row(Text(_on_lines(contender.spec.label)), f"{trial.settings['lr']:g}", *cells)
    return table


def _on_lines(label: str) -> str:
    """Return a label with one option on each line where it is too long for one line."""
    return label if len(label) <= _LABEL_WIDTH else label.replace(":", "\n:")


def _cells(values: Sequence[float], texts: Sequence[str]) -> list[Text]:
    """Return the texts, with those of the least value in bold."""
    least = min(values)
    return [
        Text(text, style="bold" if value == least < math.inf else "")
        for value, text in zip(values, texts, strict=True)
    ]


def _training_losses(trials: Sequence[Trial]) -> list[Text]:
    losses = [trial.figures("train_loss") for trial in trials]
    means = [fmean(values) if values else math.inf for values in losses]
    return _cells(means, [spread(values, "#.3g", "#.1g") for values in losses])


def _test_metrics(comparison: Comparison, trials: Sequence[Trial]) -> list[Text]:
    metric = comparison.task.metric
    values = [trial.figures("test_metric") for trial in trials]
    cells = _cells([metric.cost(value) for value in values], [metric.format(v) for v in values])
    for cell, trial in zip(cells, trials, strict=True):
        if trial.diverged():
            cell.append(f"\n{trial.diverged()} of {len(trial.runs)} diverged", style="red")
    return cells


def _durations(trials: Sequence[Trial]) -> list[Text]:
    seconds = [median(map(Run.median_step_seconds, trial.runs)) for trial in trials]
    return _cells(seconds, [f"{1e3 * value:.2f} ms" for value in seconds])


def _states(trials: Sequence[Trial]) -> list[Text]:
    sizes = [max(run.state_bytes for run in trial.runs) for trial in trials]
    return _cells(sizes, [readable_bytes(size) for size in sizes])
