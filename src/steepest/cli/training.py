"""One training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from steepest.cli.averages import averaged
from steepest.cli.models import Network
from steepest.cli.registry import Kind
from steepest.cli.tasks import Split, Task, batches
from steepest.cli.whole_model import WholeModelOptimizer, build_optimizer
from steepest.model.diagnostics import Diagnostics

_DIAGNOSED = 40  # steps of a run
_EVALUATION_ROWS = 512  # at once, to bound memory


class DivergedError(ArithmeticError):
    """A loss, a gradient or a decomposition that is not finite."""


@dataclass
class Run:
    """What one run gave.

    Attributes:
        seed: of initial weights and batches.
        losses: of the batch before each step.
        step_seconds: duration of each step: gradients and update.
        diverged: whether a loss or gradient was not finite; the figures below are then missing.
        train_loss: at the end, over the task's ``train_evaluation``.
        validation_loss: at the end.
        test_loss: at the end.
        test_metric: at the end.
        state_bytes: of the optimizer.
        settings: of each part of the optimizer.
        diagnostics: means over parameters at some steps, where they were asked for.
    """

    seed: int
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    diverged: bool = False
    train_loss: float | None = None
    validation_loss: float | None = None
    test_loss: float | None = None
    test_metric: float | None = None
    state_bytes: int = 0
    settings: list[dict[str, Any]] = field(default_factory=list)
    diagnostics: dict[str, list[float]] = field(default_factory=dict)

    def median_step_seconds(self) -> float:
        """Return the median duration of a step; infinite if none was finished."""
        return median(self.step_seconds) if self.step_seconds else math.inf


def train_once(
    task: Task,
    kind: Kind,
    settings: dict[str, Any],
    *,
    steps: int,
    seed: int,
    on_step: Callable[[float], None] | None = None,
    diagnose: bool = False,
) -> Run:
    """Train the task's model and judge it.

    Initial weights and batches depend on the seed alone, so that they are the same for every
    optimizer.

    Args:
        task: model, data and loss.
        kind: the optimizer.
        settings: its options.
        steps: number of steps.
        seed: of initial weights and batches.
        on_step: called with the loss of each step.
        diagnose: whether to collect what the optimizer does to the weights.
    """
    model = initial_model(task, seed)
    if settings.get("qk_clip") is not None:
        model.bound_logits(settings["qk_clip"])
    optimizer = build_optimizer(kind, settings, model, steps=steps)
    run = Run(seed=seed, settings=optimizer.settings())
    every = max(1, steps // _DIAGNOSED)
    watchers = [Diagnostics(part, every=every) for part in optimizer.parts] if diagnose else []
    for watcher in watchers:
        watcher.start()
    try:
        for rows in batches(len(task.train), task.batch_size, steps=steps, seed=seed):
            start = perf_counter()
            loss = _step(task, model, optimizer, rows)
            run.step_seconds.append(perf_counter() - start)
            run.losses.append(loss)
            if on_step:
                on_step(loss)
        _judge(run, task, model)
    except (DivergedError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        run.diverged = True
    run.diagnostics = averaged(record for watcher in watchers for record in watcher.read())
    run.state_bytes = optimizer.state_bytes()
    return run


def rehearse(task: Task, kind: Kind, settings: dict[str, Any]) -> None:
    """Take one step, so that settings that cannot work fail before any training.

    Args:
        task: model, data and loss.
        kind: the optimizer.
        settings: its options.

    Raises:
        ValueError, TypeError, RuntimeError: what the optimizer has to say of its settings.
    """
    few = slice(0, task.batch_size)
    small = replace(
        task,
        train=task.train[few],
        train_evaluation=task.train_evaluation[few],
        validation=task.validation[few],
        test=task.test[few],
    )
    train_once(small, kind, settings, steps=1, seed=0)


def initial_model(task: Task, seed: int) -> Network:
    """Return the untrained model, a function of the seed alone; torch's generator is not moved.

    Args:
        task: whose model.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.build()


def _step(task: Task, model: Network, optimizer: WholeModelOptimizer, rows: Tensor) -> float:
    batch = task.train[rows]

    def closure() -> Tensor:
        model.zero_grad()
        loss = task.loss(model(batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if not (loss.isfinite() and get_total_norm(gradients, math.inf).isfinite()):
            raise DivergedError
        return loss.detach()

    loss = optimizer.step(closure)
    model.after_step()
    return loss


def _judge(run: Run, task: Task, model: Network) -> None:
    """Write the final figures into the run, or none if one of them is not finite."""
    train_loss = float(task.loss(*_outputs(model, task.train_evaluation)))
    validation_loss = float(task.loss(*_outputs(model, task.validation)))
    outputs, targets = _outputs(model, task.test)
    test_loss, test_metric = task.loss(outputs, targets), task.metric.compute(outputs, targets)
    # not the test figures, which must not decide on anything
    if not (math.isfinite(train_loss) and math.isfinite(validation_loss)):
        raise DivergedError
    run.train_loss, run.validation_loss = train_loss, validation_loss
    run.test_loss, run.test_metric = float(test_loss), float(test_metric)


@torch.no_grad()
def _outputs(model: Network, split: Split) -> tuple[Tensor, Tensor]:
    model.eval()
    pieces = [model(piece.inputs) for piece in _pieces(split)]
    return torch.cat(pieces), split.targets


def _pieces(split: Split) -> Iterator[Split]:
    for start in range(0, len(split), _EVALUATION_ROWS):
        yield split[start : start + _EVALUATION_ROWS]
