"""One optimizer for a whole model, of one part or of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from steepest.cli.models import Network
from steepest.cli.registry import MODEL_OPTIONS, REST_OPTIONS, Kind
from steepest.model.plan import Plan
from steepest.model.routing import route

WARMUP = 0.05  # of all steps


def schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then half a cosine towards 0.

    Args:
        step: from 0.
        steps: number of all steps.
    """
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@dataclass(frozen=True)
class WholeModelOptimizer:
    """Optimizers that together step every parameter of a model once, on one schedule.

    Attributes:
        parts: the optimizers.
        needs_closure: whether the step evaluates the loss itself; then there is one part.
        schedulers: one for each part.
    """

    parts: tuple[Optimizer, ...]
    needs_closure: bool
    schedulers: tuple[LambdaLR, ...]

    def step(self, closure: Callable[[], Tensor]) -> float:
        """Evaluate loss and gradients, take one step, and advance the schedule.

        Args:
            closure: clears the gradients, computes new ones, returns the loss.

        Returns:
            The loss before the step.
        """
        if self.needs_closure:
            (part,) = self.parts
            loss = float(part.step(lambda: float(closure())))
        else:
            loss = float(closure())
            for part in self.parts:
                part.step()
        for scheduler in self.schedulers:
            scheduler.step()
        return loss

    def settings(self) -> list[dict[str, Any]]:
        """Return class and options of every parameter group of every part."""
        return [
            {"class": _class_name(part), **{k: v for k, v in group.items() if k != "params"}}
            for part in self.parts
            for group in part.param_groups
        ]

    def state_bytes(self) -> int:
        """Return the memory of all tensors in the state, shared memory once."""
        return state_bytes(self.parts)


def state_bytes(optimizers: Sequence[Optimizer]) -> int:
    """Return the memory of all tensors in the states of optimizers, shared memory once.

    Args:
        optimizers: of disjoint parameters.
    """
    storages = {}
    for tensor in _tensors([dict(optimizer.state) for optimizer in optimizers]):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def build_optimizer(
    kind: Kind, settings: dict[str, Any], model: Network, *, steps: int
) -> WholeModelOptimizer:
    """Return an optimizer for all parameters of the model.

    What an optimizer of matrices does not take is stepped by AdamW with the same learning rate and
    weight decay, or with ``rest_lr`` and ``rest_weight_decay``.

    Args:
        kind: the optimizer.
        settings: its options, with ``lr``.
        model: whose ``head`` is not a hidden layer.
        steps: length of the schedule.
    """
    elsewhere = REST_OPTIONS + MODEL_OPTIONS
    own = {key: value for key, value in settings.items() if key not in elsewhere}
    parts: tuple[Optimizer, ...]
    if kind.takes == "everything":
        parts = (kind.make(model.parameters(), **own),)
    else:
        groups, rest = _divide(kind, model)
        main = kind.make(groups, **own)
        rest_lr = settings.get("rest_lr", main.defaults["lr"])
        rest_decay = settings.get("rest_weight_decay", main.defaults["weight_decay"])
        parts = (main, AdamW(rest, lr=rest_lr, weight_decay=rest_decay))
    schedulers = tuple(LambdaLR(part, lambda step: schedule(step, steps)) for part in parts)
    return WholeModelOptimizer(parts, kind.needs_closure, schedulers)


def _divide(kind: Kind, model: Network) -> tuple[list[dict[str, Any]], list[Tensor]]:
    plan = route(model, head=model.head)
    taken = plan.by_rule("matrix")
    if kind.takes == "matrices":  # and nothing that needs options
        taken = [each for each in taken if not each.options]
    groups = Plan(tuple(taken)).groups("matrix")
    done = {each.name for each in [*taken, *plan.by_rule("frozen")]}
    return groups, [each.param for each in plan if each.name not in done and each.param is not None]


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested dictionaries and sequences."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _class_name(part: Optimizer) -> str:
    package = type(part).__module__.split(".", maxsplit=1)[0]
    return f"{package}.{type(part).__name__}"
