"""Several optimizers that are one: each steps its own part of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, get_args, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from steepest.optim import checks
from steepest.optim.checked import Nonfinite
from steepest.optim.finite import all_finite

_COPIED = ("_parts", "_nonfinite", "plan")


class CombinedOptimizer(Optimizer):
    r"""One ``torch.optim.Optimizer`` made of several, for schedulers, scalers and trainers.

    ``param_groups`` and ``state`` are live views of the parts; ``step``, hooks, ``zero_grad``,
    ``state_dict`` and copies are those of a single optimizer. A schedule multiplies each group's
    own learning rate. Step hooks registered here fire once for all parts.

    A state dict has the form of torch's. Where the groups have names (``named_parameters``),
    loading matches by name, so that reordered parameters get their own state; names that differ
    are an error. Without names state is matched by position, as in torch.

    Args:
        parts: optimizers of disjoint parameters, by names or in a sequence, which numbers them.
            None may need a closure of its own, as ``torch.optim.LBFGS`` does.
        nonfinite: what a gradient that is not finite does, looked at before any part has stepped:
            "raise" an error, "skip" the step of all parts, or "pass" it on.

    Raises:
        ValueError: for no parts, a parameter in two of them, or one that needs a closure.
        RuntimeError: at the step, for a gradient that is not finite.

    Example:
        >>> from steepest import Muon
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> optimizer = CombinedOptimizer({
        ...     "matrices": Muon([model[0].weight], lr=1e-3),
        ...     "rest": torch.optim.AdamW([model[0].bias, *model[1].parameters()], lr=1e-3),
        ... })
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [1, 3]
    """

    def __init__(
        self,
        parts: Mapping[str, Optimizer] | Sequence[Optimizer],
        *,
        nonfinite: Nonfinite = "pass",
    ) -> None:
        checks.choice("nonfinite", nonfinite, get_args(Nonfinite))
        named = dict(parts) if isinstance(parts, Mapping) else dict(_numbered(parts))
        if not named:
            raise ValueError("parts must hold at least one optimizer")
        for name, part in named.items():
            if not isinstance(part, Optimizer):
                raise ValueError(f"part {name!r} must be an optimizer, got {type(part).__name__}")
            if isinstance(part, torch.optim.LBFGS):
                raise ValueError(
                    f"part {name!r}: LBFGS evaluates a closure itself, and cannot be one"
                )
        _check_disjoint(named)
        self._parts = named
        self._nonfinite: Nonfinite = nonfinite
        # hooks, the profiled ``step`` and the like, without parameters of its own
        Optimizer.__setstate__(self, {"defaults": {}})

    @property
    def parts(self) -> Mapping[str, Optimizer]:
        """The optimizers, by name."""
        return dict(self._parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts, the very dictionaries that they use."""
        return [group for part in self._parts.values() for group in part.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        start = 0
        for part in self._parts.values():
            stop = start + len(part.param_groups)
            part.param_groups = groups[start:stop]
            start = stop

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """The state of all parts, a live view."""
        return _JointState(list(self._parts.values()))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with every part.

        Args:
            closure: evaluates the model with gradients enabled and returns the loss; called once.

        Returns:
            The closure's loss, or None without a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._nonfinite != "pass" and not all_finite(self._gradients()):
            if self._nonfinite == "skip":
                return loss
            raise RuntimeError(
                f"the gradient of {self._culprit()} is not finite; no part has stepped"
            )
        for part in self._parts.values():
            part.step()
        return loss

    def _gradients(self) -> list[Tensor]:
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        return [param.grad for param in params if param.grad is not None]

    def _culprit(self) -> str:
        """Name a parameter whose gradient is not finite."""
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                if param.grad is not None and not all_finite([param.grad]):
                    return checks.parameter_name(group, position, index)
        return "a parameter"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the part that its key "part" names, or to the first that takes it.

        Args:
            param_group: ``params``, options, and "part" if wanted.

        Raises:
            ValueError: for an unknown part, or if none takes the group; nothing has changed then.
        """
        group = dict(param_group)
        name = group.pop("part", None)
        if name is not None and name not in self._parts:
            raise ValueError(f"part must be one of {', '.join(self._parts)}, got {name!r}")
        self._check_new(group)
        if name is not None:
            self._parts[name].add_param_group(group)
            return
        reasons = []
        for name, part in self._parts.items():
            reason = _add(part, group)
            if reason is None:
                return
            reasons.append(f"{name}: {reason}")
        raise ValueError(f"no part takes the group; {'; '.join(reasons)}")

    def _check_new(self, group: dict[str, Any]) -> None:
        if not isinstance(group["params"], Tensor):
            group["params"] = list(group["params"])
        own = {id(p) for each in self.param_groups for p in each["params"]}
        given = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        for item in given:
            param = item[1] if isinstance(item, tuple) else item
            if id(param) in own:
                raise ValueError("some parameters appear in more than one parameter group")

    # --- copies and checkpoints -----------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies keep: the parts, and not the hooks, as in torch."""
        return {name: self.__dict__[name] for name in _COPIED if name in self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over copied attributes."""
        super().__setstate__({"defaults": {}, **state})

    def state_dict(self) -> StateDict:
        """Return the state of all parts in torch's form, parameters numbered through."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state: dict[Any, Any] = {}
        groups: list[dict[str, Any]] = []
        for part in self._parts.values():
            own, offset = part.state_dict(), sum(len(group["params"]) for group in groups)
            for key, value in own["state"].items():
                state[key + offset if isinstance(key, int) else key] = value
            groups += [
                {**group, "params": [key + offset for key in group["params"]]}
                for group in own["param_groups"]
            ]
        result: StateDict = {"state": state, "param_groups": groups}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what ``state_dict`` returned, by name where names are known.

        Args:
            state_dict: of an optimizer with the same parts.

        Raises:
            ValueError: for other numbers of groups or parameters, or other names.
        """
        given = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, given)
            given = given if changed is None else changed
        divided = _divided(list(self._parts.values()), given)
        before = [part.state_dict() for part in self._parts.values()]
        done: list[tuple[Optimizer, StateDict]] = []
        try:
            for part, own, old in zip(self._parts.values(), divided, before, strict=True):
                part.load_state_dict(own)
                done.append((part, old))
        except BaseException:
            for part, old in done:
                part.load_state_dict(old)
            raise
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __repr__(self) -> str:
        """Return the parts, each as it shows itself."""
        inside = "\n".join(f"{name}: {part!r}" for name, part in self._parts.items())
        return f"{type(self).__name__}(\n{inside}\n)"


class _JointState(MutableMapping[Tensor, Any]):
    """The states of several optimizers as one mapping; each parameter's is where it is stepped."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts

    def _home(self, key: object) -> MutableMapping[Any, Any]:
        for part in self._parts:
            if key in part.state or any(
                key is param for group in part.param_groups for param in group["params"]
            ):
                return part.state
        return self._parts[0].state

    def __getitem__(self, key: Tensor) -> Any:
        return self._home(key)[key]

    def __setitem__(self, key: Tensor, value: Any) -> None:
        self._home(key)[key] = value

    def __delitem__(self, key: Tensor) -> None:
        del self._home(key)[key]

    def __iter__(self) -> Iterator[Tensor]:
        return chain.from_iterable(part.state for part in self._parts)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def __contains__(self, key: object) -> bool:
        return any(key in part.state for part in self._parts)


def _numbered(parts: Sequence[Optimizer]) -> Iterator[tuple[str, Optimizer]]:
    for place, part in enumerate(parts):
        yield str(place), part


def _add(part: Optimizer, group: dict[str, Any]) -> str | None:
    """Add a group to a part; return why it does not take it, or None where it does."""
    try:
        part.add_param_group(dict(group))
    except ValueError as error:
        return str(error)
    return None


def _check_disjoint(parts: Mapping[str, Optimizer]) -> None:
    owner: dict[Tensor, str] = {}
    for name, part in parts.items():
        for group in part.param_groups:
            for param in group["params"]:
                if owner.setdefault(param, name) != name:
                    raise ValueError(
                        f"a parameter of shape {tuple(param.shape)} is in parts "
                        f"{owner[param]!r} and {name!r}"
                    )


def _divided(parts: Sequence[Optimizer], given: StateDict) -> list[StateDict]:
    """Return a state dict for each part, by name where all names are known."""
    groups, state = given["param_groups"], given["state"]
    own = [group for part in parts for group in part.param_groups]
    if [len(g["params"]) for g in groups] != [len(g["params"]) for g in own]:
        raise ValueError(
            "the loaded state dict does not match: it has "
            f"{[len(g['params']) for g in groups]} parameters in its groups, this optimizer "
            f"{[len(g['params']) for g in own]}"
        )
    named = all("param_names" in group for group in [*groups, *own])
    if named:
        groups = [_by_name(saved, group, groups) for saved, group in zip(groups, own, strict=True)]
    result, start = [], 0
    for part in parts:
        stop = start + len(part.param_groups)
        mine = groups[start:stop]
        keys = {key for group in mine for key in group["params"]}
        others = {key: value for key, value in state.items() if not isinstance(key, int)}
        kept = {key: value for key, value in state.items() if key in keys}
        # what belongs to no parameter is kept by the first
        result.append({"state": {**kept, **({} if start else others)}, "param_groups": mine})
        start = stop
    return result


def _by_name(
    saved: Mapping[str, Any], own: Mapping[str, Any], everywhere: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The saved group with its parameters in the order of this optimizer's names."""
    keys = {
        name: key
        for group in everywhere
        for name, key in zip(group["param_names"], group["params"], strict=True)
    }
    missing = [name for name in own["param_names"] if name not in keys]
    if missing:
        strange = sorted(keys.keys() - set(own["param_names"]))[:3]
        raise ValueError(
            f"the loaded state has no parameter {missing[0]!r}; it has {', '.join(strange)}, … : "
            "rename them in the state dict if they are the same"
        )
    names = list(own["param_names"])
    return {**saved, "params": [keys[name] for name in names], "param_names": names}
