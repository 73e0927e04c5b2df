"""Several optimizers, several seeds, and with a sweep several learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Protocol

from steepest.cli.defaults import learning_rate_grid, settings_for
from steepest.cli.errors import BadInputError
from steepest.cli.specs import Spec
from steepest.cli.tasks import Task
from steepest.cli.training import Run, rehearse, train_once

Status = Literal["running", "finished", "interrupted"]


@dataclass
class Trial:
    """One setting of an optimizer and its runs so far, at most one for each seed."""

    settings: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    def finished(self) -> list[Run]:
        """Return the runs that did not diverge."""
        return [run for run in self.runs if not run.diverged]

    def diverged(self) -> int:
        """Return the number of runs that diverged."""
        return len(self.runs) - len(self.finished())

    def figures(self, name: str) -> list[float]:
        """Return an attribute of every run that did not diverge."""
        return [getattr(run, name) for run in self.finished()]

    def validation_loss(self) -> float:
        """Return the mean over seeds; infinite if a run diverged or none has finished."""
        if not self.runs or self.diverged():
            return math.inf
        return fmean(self.figures("validation_loss"))


@dataclass
class Contender:
    """An optimizer in the comparison: one trial, or one for each learning rate of the grid."""

    spec: Spec
    trials: list[Trial]

    def chosen(self) -> Trial:
        """Return the trial of least validation loss among those with the most runs."""
        most = max(len(trial.runs) for trial in self.trials)
        candidates = [trial for trial in self.trials if len(trial.runs) == most]
        return min(candidates, key=Trial.validation_loss)

    def started(self) -> bool:
        """Return whether a run has ended."""
        return any(trial.runs for trial in self.trials)

    def chosen_at_edge(self) -> bool:
        """Return whether the best learning rate may lie outside the grid."""
        edges = (self.trials[0], self.trials[-1])
        return len(self.trials) > 1 and any(self.chosen() is trial for trial in edges)


@dataclass
class Comparison:
    """All that is asked for, and what has been found so far.

    Attributes:
        task: what is trained.
        contenders: in the user's order.
        steps: of each run.
        seeds: of each trial.
        sweep: whether the learning rates come from the grid.
        threads: that torch computes with.
        diagnose: whether runs tell what the optimizers do to the weights.
        status: how far it got.
    """

    task: Task
    contenders: list[Contender]
    steps: int
    seeds: Sequence[int]
    sweep: bool
    threads: int
    diagnose: bool = False
    status: Status = "running"

    def jobs(self) -> Iterator[tuple[Contender, Trial, int]]:
        """Yield every run to do: all contenders with one seed before the next seed."""
        for seed in self.seeds:
            for contender in self.contenders:
                for trial in contender.trials:
                    yield contender, trial, seed

    def run_count(self) -> int:
        """Return the number of all runs."""
        return len(self.seeds) * sum(len(contender.trials) for contender in self.contenders)

    def started(self) -> list[Contender]:
        """Return the contenders that have a finished or diverged run, best test metric first."""
        metric = self.task.metric

        def cost(contender: Contender) -> float:
            return metric.cost(contender.chosen().figures("test_metric"))

        return sorted(filter(Contender.started, self.contenders), key=cost)


class Watcher(Protocol):
    """What is told of the runs as they happen."""

    def run_started(self, contender: Contender, trial: Trial, seed: int) -> None:
        """A run begins."""

    def step_done(self, loss: float) -> None:
        """The run has taken a step."""

    def run_finished(self, contender: Contender, run: Run) -> None:
        """The run is over and belongs to its trial."""


# what an optimizer may say to settings that it cannot work with, on purpose or by accident
_REFUSALS = (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError)


def prepare(
    task: Task, specs: Sequence[Spec], *, steps: int, seeds: int, sweep: bool, threads: int
) -> Comparison:
    """Return a comparison that is ready to run, with every setting tried out on one step.

    Args:
        task: what is trained.
        specs: the optimizers.
        steps: of each run.
        seeds: number of runs of each setting.
        sweep: whether to try the grid of learning rates.
        threads: that torch computes with.

    Raises:
        BadInputError: for settings that an optimizer refuses.
    """
    contenders = []
    for spec in specs:
        settings = settings_for(task.name, spec.kind, spec.options)
        try:
            rehearse(task, spec.kind, settings)
        except _REFUSALS as error:
            raise BadInputError(f"{spec.label}: {error}") from error
        rates = learning_rate_grid(spec.kind) if sweep else [settings["lr"]]
        contenders.append(Contender(spec, [Trial({**settings, "lr": rate}) for rate in rates]))
    return Comparison(task, contenders, steps, range(seeds), sweep, threads)


def carry_out(comparison: Comparison, watcher: Watcher) -> None:
    """Do all runs; stop early, with what is finished, on the user's interrupt.

    Args:
        comparison: gets the runs and the status.
        watcher: is told of each run and step.
    """
    try:
        for contender, trial, seed in comparison.jobs():
            watcher.run_started(contender, trial, seed)
            run = train_once(
                comparison.task,
                contender.spec.kind,
                trial.settings,
                steps=comparison.steps,
                seed=seed,
                on_step=watcher.step_done,
                diagnose=comparison.diagnose,
            )
            trial.runs.append(run)
            watcher.run_finished(contender, run)
    except KeyboardInterrupt:
        comparison.status = "interrupted"
    else:
        comparison.status = "finished"
