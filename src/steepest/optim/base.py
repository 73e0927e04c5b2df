"""The one loop that every optimizer shares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import groupby
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from steepest.optim import checks
from steepest.optim.checked import CheckedOptimizer
from steepest.optim.decay import decay_, decay_cautiously_
from steepest.optim.finite import all_finite
from steepest.optim.hooks import HookFunction, hook_contexts


class Entry(NamedTuple):
    """A parameter that has a gradient, and the options of its group.

    Attributes:
        param: the weight, W.
        gradient: its ``.grad``, never written to.
        group: its parameter group.
        place: its position in the group, and the group's.
        weight: what the step changes: ``param``, or a wider copy of it.
    """

    param: Tensor
    gradient: Tensor
    group: dict[str, Any]
    place: tuple[int, int]
    weight: Tensor

    @property
    def name(self) -> str:
        """How messages call it."""
        return checks.parameter_name(self.group, *self.place)


class SteepestOptimizer(CheckedOptimizer):
    """Base of all optimizers here: average the gradient, ask a geometry, scale, step.

    One ``step``: evaluate the closure with gradients enabled; check every gradient; then for each
    part of the parameters decay the weights, ask ``_directions`` for the updates U, and apply
    W ← W − ηU between the two weight-update hooks. A subclass fills in ``_directions``.

    Everything that changes a step is plain data in the parameter groups, and state holds tensors
    and numbers alone; attributes that a subclass sets on itself survive ``copy.deepcopy`` and
    ``pickle``.

    Args:
        params: parameters, groups or named parameters, as ``torch.optim`` takes them.
        defaults: options of every group that does not give its own.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._weight_update_hooks: OrderedDict[int, HookFunction] = OrderedDict()
        super().__init__(params, defaults)

    # --- what a subclass fills in ---------------------------------------------------------------

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the update U of each entry; ``gradients`` include coupled weight decay."""
        raise NotImplementedError(f"{type(self).__name__} does not define _directions")

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Divide the entries into the parts that are stepped together: one by one by default."""
        for entry in entries:
            yield (entry,)

    def _check_gradients(self, entries: Sequence[Entry]) -> None:
        """Raise ``RuntimeError`` for gradients that cannot be used, before anything has changed."""
        for entry in entries:
            if entry.gradient.layout != torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients: {entry.name} of "
                    f"shape {tuple(entry.param.shape)} has one ({entry.gradient.layout})"
                )

    def pre_weight_update_fn_inplace(self, param: Tensor, update: Tensor) -> None:
        """Change the weight or the update in place just before W ← W − ηU; nothing by default."""

    def post_weight_update_fn_inplace(self, param: Tensor) -> None:
        """Change the weight in place just after W ← W − ηU; nothing by default."""

    # --- the loop -------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        A parameter whose ``.grad`` is None is left as it is, without decay or state. As in
        ``torch.optim``, a parameter with a ``.grad`` is stepped even if it no longer requires one.

        Args:
            closure: evaluates the model with gradients enabled and returns the loss.

        Returns:
            The closure's loss, or None without a closure.

        Raises:
            RuntimeError: for a sparse gradient; nothing has been changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        entries = self._entries()
        self._check_gradients(entries)
        if self._skips(entries):
            return loss
        for part in self._parts(entries):
            self._step_part(part)
        return loss

    def _skips(self, entries: Sequence[Entry]) -> bool:
        """Whether a gradient that is not finite makes this step be left out.

        Raises:
            RuntimeError: where the group says so, before anything has changed.
        """
        checked = [entry for entry in entries if entry.group["nonfinite"] != "pass"]
        if all_finite([entry.gradient for entry in checked]):
            return False
        bad = [entry for entry in checked if not bool(entry.gradient.isfinite().all())]
        for entry in bad:
            if entry.group["nonfinite"] == "raise":
                raise RuntimeError(
                    f"the gradient of {entry.name} is not finite; nothing has been changed. "
                    "nonfinite='skip' leaves such steps out, 'pass' takes them unchecked"
                )
        return bool(bad)

    def _step_part(self, part: Sequence[Entry]) -> None:
        """Decay the weights of a part, ask for its updates and apply them."""
        part = self._widen(part)
        gradients = self._decay(part)
        updates = self._directions(part, gradients)
        for entry, update in zip(part, updates, strict=True):
            _check_update(update, entry)
        self._apply(part, updates)
        self._narrow(part)

    def _widen(self, part: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries whose ``weight`` the step can change; as they are by default."""
        return part

    def _narrow(self, part: Sequence[Entry]) -> None:
        """Bring what the step has changed into the parameters, where it is not they."""

    def _decay(self, part: Sequence[Entry]) -> list[Tensor]:
        """Decay the weights of a part, group by group; return the gradients to go on with."""
        result: list[Tensor] = []
        for _, run in groupby(part, key=lambda entry: id(entry.group)):
            alike = list(run)
            group = alike[0].group
            result += decay_(
                [entry.weight for entry in alike],
                [entry.gradient for entry in alike],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                method=group["weight_decay_method"],
            )
        return result

    def _apply(self, part: Sequence[Entry], updates: Sequence[Tensor]) -> None:
        """W ← W − ηU between the hooks; all at once where there are none."""
        for entry, update in zip(part, updates, strict=True):
            group = entry.group
            if group["weight_decay_method"] == "cautious" and group["weight_decay"] != 0.0:
                decay_cautiously_(
                    entry.weight, update, lr=group["lr"], weight_decay=group["weight_decay"]
                )
        if len(part) > 1 and _one_rate(part) and not any(map(self._hooked, _groups(part))):
            weights = [entry.weight for entry in part]
            torch._foreach_add_(weights, list(updates), alpha=-float(part[0].group["lr"]))
            return
        for entry, update in zip(part, updates, strict=True):
            with ExitStack() as stack:
                for context in self._contexts(entry, update):
                    stack.enter_context(context)
                self.pre_weight_update_fn_inplace(entry.weight, update)
                entry.weight.add_(update, alpha=-entry.group["lr"])
                self.post_weight_update_fn_inplace(entry.weight)

    def _contexts(self, entry: Entry, update: Tensor) -> Iterator[AbstractContextManager[object]]:
        """Yield what is entered around W ← W − ηU; nothing where η = 0."""
        group, weight = entry.group, entry.weight
        if float(group["lr"]) != 0.0:
            yield from hook_contexts(group["hooks"], weight, update, self.state[entry.param])
            for hook in self._weight_update_hooks.values():
                yield hook(weight, update, group)

    def register_weight_update_hook(self, hook: HookFunction) -> RemovableHandle:
        """Register a hook around the update of each weight, after those of the groups.

        Hooks are entered in the order of registration and left in the opposite one, at each step
        with η > 0. Copies of the optimizer keep them; a ``state_dict`` does not.

        Args:
            hook: called with the weight W, the update U and the options of the group, returns a
                context manager; what it does on entering may change U in place, and on leaving W.
                W is the parameter, or for one in 16 bits with ``low_precision`` a float32 tensor of
                this step, which has the parameter's Python attributes.

        Returns:
            A handle with ``remove()``.

        Example:
            >>> from contextlib import contextmanager
            >>> from steepest import Muon
            >>> @contextmanager
            ... def within_one(weight, update, group):
            ...     yield
            ...     weight.clamp_(-1.0, 1.0)
            >>> weight = torch.nn.Parameter(torch.full((2, 2), 3.0))
            >>> optimizer = Muon([weight])
            >>> handle = optimizer.register_weight_update_hook(within_one)
            >>> weight.grad = torch.eye(2)
            >>> optimizer.step()
            >>> weight.data.max()
            tensor(1.)
        """
        handle = RemovableHandle(self._weight_update_hooks)
        self._weight_update_hooks[handle.id] = hook
        return handle

    def _hooked(self, group: Mapping[str, Any]) -> bool:
        """Whether something stands around the updates of a group."""
        hooks = ("pre_weight_update_fn_inplace", "post_weight_update_fn_inplace", "_contexts")
        return (
            bool(group["hooks"])
            or bool(self._weight_update_hooks)
            or self._overrides(hooks, SteepestOptimizer)
        )

    def _overrides(self, names: Sequence[str], base: type) -> bool:
        """Whether a subclass, or the user on this object, has replaced one of the methods."""
        return any(
            getattr(getattr(self, name), "__func__", None) is not getattr(base, name)
            for name in names
        )

    def _entries(self) -> list[Entry]:
        return [
            Entry(
                param,
                -param.grad if group["maximize"] else param.grad,
                group,
                (position, index),
                weight=param,
            )
            for index, group in enumerate(self.param_groups)
            for position, param in enumerate(group["params"])
            if param.grad is not None
        ]


def _one_rate(part: Sequence[Entry]) -> bool:
    first = part[0].group
    return all(entry.group is first or entry.group["lr"] is first["lr"] for entry in part)


def _groups(part: Sequence[Entry]) -> list[dict[str, Any]]:
    return list({id(entry.group): entry.group for entry in part}.values())


def _check_update(update: Tensor, entry: Entry) -> None:
    if update.shape != entry.param.shape:
        raise ValueError(
            f"the update of {entry.name} has shape {tuple(update.shape)}, the parameter "
            f"{tuple(entry.param.shape)}"
        )
