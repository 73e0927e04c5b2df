"""The one loop that every optimizer shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from steepest.optim import checks
from steepest.optim.decay import decay_

# what torch's own classes keep on the object and rebuild themselves; learning-rate schedulers put
# a wrapped ``step`` there, which belongs to the scheduler and not to a copy
_NOT_COPIED = {"_zero_grad_profile_name", "_opt_called", "step"}

# options that learning-rate schedulers add to the groups
_SCHEDULER_OPTIONS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}

# options by which torch's own optimizers are told from ours where a class takes any option
_FOREIGN_OPTIONS = {"foreach", "fused", "capturable", "differentiable"}


class Entry(NamedTuple):
    """A parameter that has a gradient, and the options of its group.

    Attributes:
        param: the weight, W.
        gradient: its ``.grad``, never written to.
        group: its parameter group.
        place: its position in the group, and the group's.
    """

    param: Tensor
    gradient: Tensor
    group: dict[str, Any]
    place: tuple[int, int]

    @property
    def name(self) -> str:
        """How messages call it."""
        return checks.parameter_name(self.group, *self.place)


class SteepestOptimizer(Optimizer):
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

    _required_state: ClassVar[frozenset[str]] = frozenset()
    _open_options: ClassVar[bool] = False

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)

    # --- what a subclass fills in ---------------------------------------------------------------

    def _directions(self, part: Sequence[Entry], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the update U of each entry; ``gradients`` include coupled weight decay."""
        raise NotImplementedError(f"{type(self).__name__} does not define _directions")

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Divide the entries into the parts that are stepped together: one by one by default."""
        for entry in entries:
            yield (entry,)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for an option of the group that is out of range."""
        checks.nonnegative("lr", group["lr"])
        checks.nonnegative("weight_decay", group["weight_decay"])

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        """Raise ``ValueError`` for a parameter that the optimizer cannot step."""
        if param.is_complex():
            raise ValueError(
                f"{name} of shape {tuple(param.shape)} is complex ({param.dtype}); "
                "only real parameters are supported"
            )

    def _check_gradients(self, entries: Sequence[Entry]) -> None:
        """Raise ``RuntimeError`` for gradients that cannot be used, before anything has changed."""
        for entry in entries:
            if entry.gradient.layout != torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients: {entry.name} of "
                    f"shape {tuple(entry.param.shape)} has one ({entry.gradient.layout})"
                )

    def _state_device(self, name: str, param: Tensor, group: Mapping[str, Any]) -> torch.device:
        """Return where a state tensor is kept: on the device of its parameter by default."""
        return param.device

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
        for part in self._parts(entries):
            self._step_part(part)
        return loss

    def _step_part(self, part: Sequence[Entry]) -> None:
        """Decay the weights of a part, ask for its updates and apply them."""
        gradients = _decay(part)
        updates = self._directions(part, gradients)
        for entry, update in zip(part, updates, strict=True):
            _check_update(update, entry)
        self._apply(part, updates)

    def _apply(self, part: Sequence[Entry], updates: Sequence[Tensor]) -> None:
        """W ← W − ηU between the hooks; all at once where there are none."""
        if len(part) > 1 and not self._hooked() and _one_rate(part):
            params = [entry.param for entry in part]
            torch._foreach_add_(params, list(updates), alpha=-float(part[0].group["lr"]))
            return
        for entry, update in zip(part, updates, strict=True):
            self.pre_weight_update_fn_inplace(entry.param, update)
            entry.param.add_(update, alpha=-entry.group["lr"])
            self.post_weight_update_fn_inplace(entry.param)

    def _hooked(self) -> bool:
        hooks = ("pre_weight_update_fn_inplace", "post_weight_update_fn_inplace")
        return self._overrides(hooks, SteepestOptimizer)

    def _overrides(self, names: Sequence[str], base: type) -> bool:
        """Whether a subclass, or the user on this object, has replaced one of the methods."""
        return any(
            getattr(getattr(self, name), "__func__", None) is not getattr(base, name)
            for name in names
        )

    def _entries(self) -> list[Entry]:
        return [
            Entry(param, param.grad, group, (position, index))
            for index, group in enumerate(self.param_groups)
            for position, param in enumerate(group["params"])
            if param.grad is not None
        ]

    # --- groups ---------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked whole before anything changes; the given dictionary is not written.

        Args:
            param_group: ``params`` and options; options that it lacks come from the defaults.

        Raises:
            ValueError: for a bad or unknown option, a parameter that cannot be stepped, or one
                that is given twice.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        group = dict(param_group)
        if not isinstance(group["params"], (Tensor, set)):
            group["params"] = list(group["params"])
            _check_no_duplicates(group["params"])
        if not self._open_options:
            checks.known_options(group, dict.fromkeys([*self.defaults, *_SCHEDULER_OPTIONS]))
        before = len(self.param_groups)
        super().add_param_group(group)
        try:
            _use_plain_numbers(group)
            self._check_group(before)
        except BaseException:
            del self.param_groups[before:]
            raise

    def _check_group(self, index: int) -> None:
        group = self.param_groups[index]
        self._check_options(group)
        for position, param in enumerate(group["params"]):
            self._check_parameter(param, group, checks.parameter_name(group, position, index))

    # --- copies and checkpoints -----------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies keep: all but hooks and a scheduler's wrapper of ``step``."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in _NOT_COPIED and not name.startswith("_optimizer_")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over copied or loaded attributes; options that they lack get the defaults."""
        differentiable = "differentiable" in state.get("defaults", getattr(self, "defaults", {}))
        super().__setstate__(state)
        if not differentiable:  # which torch adds, though it is no option here
            self.defaults.pop("differentiable", None)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        for group in self.param_groups:
            for param in group["params"]:
                value: object = self.state.get(param)
                if isinstance(value, _Intact):
                    devices = {name: self._state_device(name, param, group) for name in value.names}
                    self.state[param] = value.on(devices)

    def state_dict(self) -> StateDict:
        """Return options and state, without the state of parameters that left their group."""
        params = {param for group in self.param_groups for param in group["params"]}
        state = self.state
        if all(key in params for key in state):
            return super().state_dict()
        kept = {k: v for k, v in state.items() if k in params or not isinstance(k, Tensor)}
        self.state = defaultdict(dict, kept)
        try:
            return super().state_dict()
        finally:
            self.state = state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict: each state tensor keeps its dtype and bits, on its parameter's device.

        State is matched by position, as in ``torch.optim``: parameters of equal shape that changed
        places cannot be noticed. Nothing is shared with ``state_dict`` afterwards.

        Args:
            state_dict: from ``state_dict`` of the same class.

        Raises:
            ValueError: for another number of groups or parameters, unknown options, state of
                another optimizer, or values out of range; nothing has been changed then.
        """
        # last of the pre-hooks, so that the user's own see and may rewrite the plain dictionary
        handle = self.register_load_state_dict_pre_hook(_keep_intact)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def _check_loaded(self, state_dict: StateDict) -> None:
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [
            len(group["params"]) for group in self.param_groups
        ]:
            raise ValueError(
                "the loaded state dict does not match this optimizer's parameter groups: it has "
                f"{_sizes(groups)} parameters in its groups, this one {_sizes(self.param_groups)}"
            )
        for saved, group in zip(groups, self.param_groups, strict=True):
            if self._open_options:
                foreign = _FOREIGN_OPTIONS & saved.keys() - group.keys()
                known = {key: None for key in saved if key not in foreign}
            else:
                known = dict.fromkeys([*group, *self.defaults, *_SCHEDULER_OPTIONS])
            checks.known_options(saved, known)
            self._check_options({**self.defaults, **saved})
        params = list(chain.from_iterable(group["params"] for group in self.param_groups))
        keys = list(chain.from_iterable(group["params"] for group in groups))
        strangers = [k for k in state_dict["state"] if isinstance(k, int) and k not in set(keys)]
        if strangers:
            raise ValueError(f"the loaded state of {strangers} belongs to no parameter")
        options = [{**self.defaults, **group} for group in groups for _ in group["params"]]
        for position, (key, param) in enumerate(zip(keys, params, strict=True)):
            if state_dict["state"].get(key):
                self._check_loaded_state(
                    state_dict["state"][key], param, options[position], f"parameter {position}"
                )

    def _check_loaded_state(
        self,
        state: Mapping[str, Any],
        param: Tensor,
        group: Mapping[str, Any],
        name: str,
    ) -> None:
        """Raise ``ValueError`` for state that this class cannot have made."""
        missing = self._required_state - state.keys()
        if missing:
            raise ValueError(
                f"the loaded state of {name} is not that of {type(self).__name__}: it lacks "
                f"{', '.join(sorted(missing))} and has {', '.join(sorted(map(str, state)))}"
            )


class _Intact:
    """State on its way through torch's ``load_state_dict``, which would change its dtype."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    @property
    def names(self) -> list[str]:
        """What it holds."""
        return list(self._state)

    def on(self, devices: Mapping[str, torch.device]) -> dict[str, Any]:
        """Return a copy of the state, each tensor on the device for its name."""
        return {
            name: value.detach().to(device=devices[name], copy=True)
            if isinstance(value, Tensor)
            else value
            for name, value in self._state.items()
        }


def _keep_intact(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    assert isinstance(optimizer, SteepestOptimizer)
    optimizer._check_loaded(state_dict)
    known = set(chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
    state = {
        key: _Intact(value) if key in known else value
        for key, value in state_dict["state"].items()
        if value or key not in known
    }
    return {**state_dict, "state": state}


def _use_plain_numbers(group: dict[str, Any]) -> None:
    """Replace scalars of array libraries by Python's, which every checkpoint can hold.

    A learning rate may stay a tensor, as in ``torch.optim``.
    """
    for name, value in group.items():
        if isinstance(value, Tensor):
            if value.ndim == 0 and name != "lr":
                group[name] = value.item()
        elif hasattr(value, "item"):
            group[name] = value.item()


def _decay(part: Sequence[Entry]) -> list[Tensor]:
    """Decay the weights of a part, group by group; return the gradients to go on with."""
    result: list[Tensor] = []
    for _, run in groupby(part, key=lambda entry: id(entry.group)):
        entries = list(run)
        group = entries[0].group
        result += decay_(
            [entry.param for entry in entries],
            [entry.gradient for entry in entries],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            method=group["weight_decay_method"],
        )
    return result


def _one_rate(part: Sequence[Entry]) -> bool:
    first = part[0].group
    return all(entry.group is first or entry.group["lr"] is first["lr"] for entry in part)


def _check_update(update: Tensor, entry: Entry) -> None:
    if update.shape != entry.param.shape:
        raise ValueError(
            f"the update of {entry.name} has shape {tuple(update.shape)}, the parameter "
            f"{tuple(entry.param.shape)}"
        )


def _check_no_duplicates(params: Iterable[Any]) -> None:
    seen: set[int] = set()
    for position, item in enumerate(params):
        param = item[1] if isinstance(item, tuple) else item
        if id(param) in seen:
            name = repr(item[0]) if isinstance(item, tuple) else str(position)
            raise ValueError(f"parameter {name} appears twice in its parameter group")
        seen.add(id(param))


def _sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]
