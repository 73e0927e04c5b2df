"""Which rule steps which parameter of a whole model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from steepest.geometry.blocks import Blocks, block_shapes
from steepest.model.plan import Plan, Route, Rule
from steepest.model.structure import MATRIX_VIEWS, Owner, Seen, see
from steepest.optim.matrix_options import MATRIX_DEFAULTS

Predicate: TypeAlias = Callable[[str, Tensor, nn.Module], bool]
Selector: TypeAlias = "str | type[nn.Module] | Predicate"
Action: TypeAlias = "Rule | Mapping[str, Any]"
Overrides: TypeAlias = "Mapping[Selector, Action] | Sequence[tuple[Selector, Action]]"
Head: TypeAlias = "str | nn.Module | Literal['auto'] | None"


def route(model: nn.Module, *, head: Head = "auto", overrides: Overrides = ()) -> Plan:
    r"""Decide for each parameter of a model how it is seen, which rule steps it, and why.

    Hidden matrices go to an optimizer of matrices: the weights of linear layers and convolutions,
    stacks of experts, fused projections block by block. Embeddings, the output head, gains, biases,
    depthwise kernels and routers go to AdamW. Decided by the types of modules and the shapes and
    sharing of parameters; by names only as a last resort, and then the reason says so.

    Args:
        model: the whole model; it may be on the meta device.
        head: the output layer, as a module or its name; None where there is none. "auto" takes a
            layer that shares the weight of an embedding, else what ``get_output_embeddings`` of the
            model returns, else its last linear layer, unless that is part of a repeated block.
        overrides: what to decide otherwise, in pairs (selector, action), of which the last that
            fits counts. A selector is a pattern for names as in ``fnmatch``, a type of module, or a
            function of name, parameter and module. An action is a rule, "matrix", "adamw" or
            "frozen", or options of the parameter's group, such as ``{"split": (64, 16, 16)}`` or
            ``{"rule": "adamw", "lr": 1e-4}``.

    Returns:
        A plan: print it.

    Raises:
        ValueError: for an override that fits no parameter, options that a parameter's shape does
            not fit, a head that is not in the model, or lazy parameters that have no shape yet.

    Warns:
        UserWarning: where no parameter at all is a hidden matrix.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> for r in route(model):
        ...     print(r.name, r.rule, "-", r.reason)
        0.weight matrix - the weight of an nn.Linear
        0.bias adamw - the bias of an nn.Linear
        2.weight adamw - the output head, the last linear layer
        2.bias adamw - the bias of an nn.Linear
    """
    owners = _owners(model)
    heads = _find_head(model, head)
    routes = [_route(name, param, owners[param], heads) for name, param in _named(model)]
    routes = _overridden(routes, owners, overrides)
    if not any(r.rule == "matrix" for r in routes):
        warnings.warn(
            f"none of the {len(routes)} parameters of {type(model).__name__} is a hidden matrix: "
            "AdamW would step them all",
            stacklevel=2,
        )
    return Plan(tuple(routes))


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    named: list[tuple[str, Tensor]] = list(model.named_parameters())
    for name, param in named:
        if isinstance(param, UninitializedParameter):
            raise ValueError(
                f"{name} is lazy and has no shape yet: run the model once, then route it"
            )
    return named


def _owners(model: nn.Module) -> dict[Tensor, list[Owner]]:
    """Return who owns each parameter, in the order of the model."""
    modules = dict(model.named_modules())
    found: dict[Tensor, list[Owner]] = {}
    for path, module in modules.items():
        parent = modules.get(path.rpartition(".")[0]) if path else None
        for attribute, param in module.named_parameters(recurse=False):
            found.setdefault(param, []).append(Owner(path, module, attribute, parent))
    return found


def _route(name: str, param: Tensor, owners: Sequence[Owner], heads: Mapping[Tensor, str]) -> Route:
    own = [(owner, see(owner, param)) for owner in owners]
    owner, seen = next(((o, s) for o, s in own if s.view == "embedding"), own[0])
    if seen.view == "embedding" and len(own) > 1:
        others = ", ".join(o.path or "the model" for o, _ in own if o is not owner)
        seen = Seen("embedding", f"{seen.reason}, shared with {others}")
    elif param in heads and param.ndim >= 2:
        seen = Seen("head", heads[param])
    elif seen.view in MATRIX_VIEWS:
        seen = _as_vector(param, seen)
    rule: Rule = "matrix" if seen.view in MATRIX_VIEWS else "adamw"
    if not param.requires_grad:
        rule = "frozen"
    return Route(
        name=name,
        shape=tuple(param.shape),
        module=type(owner.module).__name__,
        view=seen.view,
        rule=rule,
        reason=seen.reason,
        options=seen.options if rule == "matrix" else {},
        param=param,
    )


def _as_vector(param: Tensor, seen: Seen) -> Seen:
    """What is a vector once it is seen as a matrix."""
    shapes = block_shapes(tuple(param.shape), Blocks.of({**MATRIX_DEFAULTS, **seen.options}))
    thin = [shape for shape in shapes if 1 in shape[1:]]
    if not thin:
        return seen
    return Seen("vector", f"{seen.reason}, but {thin[0][1]} × {thin[0][2]} is a vector")


# --- the output head --------------------------------------------------------------------------


def _find_head(model: nn.Module, head: Head) -> dict[Tensor, str]:
    """Return the parameters of the output head with the reason; empty where there is none."""
    if head is None:
        return {}
    if isinstance(head, nn.Module) or head != "auto":
        module = _named_module(model, head)
        return dict.fromkeys(module.parameters(), "the output head, as it was named")
    getter = getattr(model, "get_output_embeddings", None)
    if callable(getter) and isinstance(found := getter(), nn.Module):
        return dict.fromkeys(found.parameters(), "the output head, as the model says")
    last = _last_linear(model)
    if last is None:
        return {}
    return dict.fromkeys(last.parameters(), "the output head, the last linear layer")


def _named_module(model: nn.Module, head: str | nn.Module) -> nn.Module:
    modules = dict(model.named_modules())
    if isinstance(head, str):
        named: nn.Module | None = modules.get(head)
        if named is None:
            raise ValueError(f"head must be the name of a module of the model, got {head!r}")
        return named
    if not any(module is head for module in modules.values()):
        raise ValueError(f"head must be a module of the model, got {type(head).__name__}")
    return head


def _last_linear(model: nn.Module) -> nn.Module | None:
    """The last linear layer, unless it is in one of several blocks that are alike."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers or layers[-1] is model:
        return None
    layer = layers[-1]
    blocks = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    for container in blocks:
        inside = [child for child in container if any(m is layer for m in child.modules())]
        if inside and inside[0] is not layer:
            alike = [child for child in container if type(child) is type(inside[0])]
            if len(alike) > 1 or isinstance(container, nn.ModuleList):
                return None
    return layer


# --- overrides --------------------------------------------------------------------------------


def _overridden(
    routes: Sequence[Route], owners: Mapping[Tensor, Sequence[Owner]], overrides: Overrides
) -> list[Route]:
    pairs = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    result = list(routes)
    for selector, action in pairs:
        matched = False
        for place, found in enumerate(result):
            assert found.param is not None
            if _fits(selector, found.name, found.param, owners[found.param]):
                result[place] = _changed(found, selector, action)
                matched = True
        if not matched:
            raise ValueError(
                f"the override {_shown(selector)} fits no parameter; names are "
                f"{', '.join(r.name for r in routes[:8])}{', …' if len(routes) > 8 else ''}"
            )
    return result


def _fits(selector: Selector, name: str, param: Tensor, owners: Sequence[Owner]) -> bool:
    if isinstance(selector, str):
        return fnmatchcase(name, selector)
    if isinstance(selector, type):
        return any(isinstance(owner.module, selector) for owner in owners)
    return any(selector(name, param, owner.module) for owner in owners)


def _changed(found: Route, selector: Selector, action: Action) -> Route:
    options = {"rule": action} if isinstance(action, str) else dict(action)
    default: Rule = "matrix" if isinstance(action, Mapping) else found.rule
    rule: Rule = options.pop("rule", found.rule if not options else default)
    if rule not in ("matrix", "adamw", "frozen"):
        raise ValueError(
            f"the action of override {_shown(selector)} must be matrix, adamw, frozen or a "
            f"dictionary of options, got {action!r}"
        )
    kept = dict(found.options) if rule == "matrix" else {}
    if rule == "matrix" and found.rule != "matrix" and "layout" not in options:
        kept = {"layout": "stack"} if len(found.shape) > 2 else {}
    merged = {**kept, **options}
    if rule == "matrix":
        try:
            blocks = Blocks.of({**MATRIX_DEFAULTS, **merged})
            blocks.check()
            block_shapes(found.shape, blocks)
        except ValueError as error:
            raise ValueError(f"the override {_shown(selector)} of {found.name}: {error}") from None
    return Route(
        name=found.name,
        shape=found.shape,
        module=found.module,
        view=found.view,
        rule=rule,
        reason=f"as the override {_shown(selector)} says",
        options=merged,
        param=found.param,
    )


def _shown(selector: Selector) -> str:
    return repr(selector) if isinstance(selector, str) else getattr(selector, "__name__", "?")
