"""Weight-update hooks: what is done to the update before W ← W − ηU, and to the weight after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from steepest.optim import checks

HookName = Literal["hyperball", "radial_brake", "relative_update"]
Hooks: TypeAlias = "Sequence[HookName | tuple[HookName, float]]"

# a user's own: called with the weight, the update and the options of the group
HookFunction: TypeAlias = Callable[
    [Tensor, Tensor, Mapping[str, Any]], AbstractContextManager[object]
]

_RADIUS = "hyperball_radius"


def check_hooks(hooks: object) -> None:
    """Raise ``ValueError`` unless it is a sequence of names, or of pairs (name, number)."""
    if isinstance(hooks, str) or not isinstance(hooks, Sequence):
        raise ValueError(f"hooks must be a list of names or (name, number), got {hooks!r}")
    names = []
    for hook in hooks:
        name, value = _parts(hook)
        checks.choice("hooks", name, get_args(HookName))
        names.append(name)
        if value is None:
            continue
        if name == "radial_brake":
            checks.fraction("the number of 'radial_brake' in hooks", value)
        else:
            checks.positive(f"the number of {name!r} in hooks", value)
    if len(set(names)) != len(names):
        raise ValueError(f"hooks must name each hook once, got {hooks!r}")


def hook_names(hooks: Hooks) -> list[str]:
    """Return the names of the hooks, without their numbers."""
    return [_parts(hook)[0] for hook in hooks]


def check_start(param: Tensor, hooks: Hooks, name: str) -> None:
    """Raise ``ValueError`` for weights of norm zero that hooks would never let move."""
    parts = [_parts(hook) for hook in hooks]
    stuck = [
        name
        for name, value in parts
        if (name, value) in (("hyperball", None), ("radial_brake", 0.0))
        or name == "relative_update"
    ]
    if stuck and param.numel() > 0 and not param.is_meta and not bool(param.any()):
        raise ValueError(
            f"{name} is all zeros, and {stuck[0]!r} would keep it so, as its steps are relative to "
            "the norm of the weight; initialise it first, or give a radius, ('hyperball', 1.0)"
        )


def hook_contexts(
    hooks: Hooks, weight: Tensor, update: Tensor, state: MutableMapping[str, Any]
) -> Iterator[AbstractContextManager[object]]:
    r"""Yield a context for each hook, to be entered in this order around W ← W − ηU.

    ===================  ========================  ===========================================
    hook                 before                    after
    ===================  ========================  ===========================================
    hyperball            U ← R U/‖U‖               W ← R W/‖W‖
    radial_brake         r ← ‖W‖                   W ← W (r + s(‖W‖ − r))/‖W‖ where ‖W‖ > r
    relative_update      U ← c ‖W‖ U/‖U‖
    ===================  ========================  ===========================================

    All norms are Frobenius norms of the whole parameter. The number that may follow a name is R
    for "hyperball", by default the norm of the weight before its first update, after decay; s in
    [0, 1] for "radial_brake", by default 0.5; and c for "relative_update", by default 1. A zero
    update leaves the weight as it is.

    Args:
        hooks: names, or pairs (name, number).
        weight: W, changed in place by what comes after.
        update: U, changed in place by what comes before.
        state: of the parameter, where "hyperball" keeps its radius.

    Source: Wen et al., Hyperball optimization (2025), https://whenwen.github.io/; for the trust
    ratio of "relative_update", You et al., arXiv:1708.03888.
    """
    for hook in hooks:
        name, value = _parts(hook)
        if name == "hyperball":
            if value is None and _RADIUS not in state:
                state[_RADIUS] = _norm(weight)
            yield _hyperball(weight, update, state[_RADIUS] if value is None else value)
        elif name == "radial_brake":
            yield _radial_brake(weight, 0.5 if value is None else value)
        else:
            yield _relative_update(weight, update, 1.0 if value is None else value)


@contextmanager
def _hyperball(weight: Tensor, update: Tensor, radius: Tensor | float) -> Iterator[None]:
    length = _norm(update)
    _multiply_(update, radius / _nonzero(length))
    yield
    # without an update the weight is not to move by as much as its rounding
    _multiply_(weight, torch.where(length > 0.0, radius / _nonzero(_norm(weight)), 1.0))


@contextmanager
def _radial_brake(weight: Tensor, share: float) -> Iterator[None]:
    before = _norm(weight)
    yield
    after = _norm(weight)
    wanted = before + share * (after - before)
    _multiply_(weight, torch.where(after > before, wanted / _nonzero(after), 1.0))


@contextmanager
def _relative_update(weight: Tensor, update: Tensor, share: float) -> Iterator[None]:
    _multiply_(update, share * _norm(weight) / _nonzero(_norm(update)))
    yield


def _norm(x: Tensor) -> Tensor:
    """Frobenius norm, summed in float64, in which no square of a narrower number overflows."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return norm


def _nonzero(length: Tensor) -> Tensor:
    return torch.where(length > 0.0, length, 1.0)


def _multiply_(x: Tensor, factor: Tensor) -> None:
    x.copy_(x * factor)  # a factor may be beyond the range of the dtype where the product is not


def _parts(hook: object) -> tuple[str, float | None]:
    if isinstance(hook, str):
        return hook, None
    if isinstance(hook, Sequence) and len(hook) == 2 and isinstance(hook[0], str):
        return hook[0], hook[1]
    raise ValueError(f"a hook must be a name or a pair (name, number), got {hook!r}")
