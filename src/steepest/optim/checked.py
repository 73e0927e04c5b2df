"""Parameter groups, copies and checkpoints: all checked at the border, nothing lost on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from steepest.optim import checks
from steepest.optim.decay import ELEMENTWISE_METHODS
from steepest.optim.hooks import check_hooks, check_start
from steepest.optim.intact import Intact, keep_intact

Nonfinite = Literal["raise", "skip", "pass"]

# what torch's own classes keep on the object and rebuild themselves; learning-rate schedulers put
# a wrapped ``step`` there, which belongs to the scheduler and not to a copy
_NOT_COPIED = {"_zero_grad_profile_name", "_opt_called", "step"}

# options that learning-rate schedulers add to the groups
_SCHEDULER_OPTIONS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}

# options by which torch's own optimizers are told from ours where a class takes any option
FOREIGN_OPTIONS = {"foreach", "fused", "capturable", "differentiable"}


class CheckedOptimizer(Optimizer):
    """What all optimizers here share apart from the step: groups, copies and checkpoints.

    Options are checked when a group is added or loaded, by ``_check_options``, and parameters by
    ``_check_parameter``; a subclass extends both. State dicts are checked before anything is taken
    over from them, and each state tensor keeps its dtype and bits.
    """

    _required_state: ClassVar[frozenset[str]] = frozenset()
    _open_options: ClassVar[bool] = False
    _decay_methods: ClassVar[tuple[str, ...]] = ELEMENTWISE_METHODS
    _nonfinite: ClassVar[tuple[str, ...]] = get_args(Nonfinite)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for an option of the group that is out of range."""
        checks.nonnegative("lr", group["lr"])
        checks.nonnegative("weight_decay", group["weight_decay"])
        checks.choice("weight_decay_method", group["weight_decay_method"], self._decay_methods)
        checks.flag("maximize", group["maximize"])
        checks.choice("nonfinite", group["nonfinite"], self._nonfinite)
        check_hooks(group["hooks"])

    def _check_parameter(self, param: Tensor, group: Mapping[str, Any], name: str) -> None:
        """Raise ``ValueError`` for a parameter that the optimizer cannot step."""
        if param.is_complex():
            raise ValueError(
                f"{name} of shape {tuple(param.shape)} is complex ({param.dtype}); "
                "only real parameters are supported"
            )
        check_start(param, group["hooks"], name)

    def _state_device(self, name: str, param: Tensor, group: Mapping[str, Any]) -> torch.device:
        """Return where a state tensor is kept: on the device of its parameter by default."""
        return param.device

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
                if isinstance(value, Intact):
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
        handle = self.register_load_state_dict_pre_hook(_check_and_keep_intact)
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
                foreign = FOREIGN_OPTIONS & saved.keys() - group.keys()
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


def _check_and_keep_intact(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    assert isinstance(optimizer, CheckedOptimizer)
    optimizer._check_loaded(state_dict)
    return keep_intact(state_dict)


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
