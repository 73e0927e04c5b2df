"""A plan: which rule steps each parameter of a model, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Rule = Literal["matrix", "adamw", "frozen"]
View = Literal[
    "matrix", "convolution", "experts", "fused blocks", "vector", "embedding", "head", "other"
]


@dataclass(frozen=True)
class Route:
    """How one parameter is seen and stepped.

    Attributes:
        name: as in ``model.named_parameters()``.
        shape: of the parameter.
        module: class of the module that owns it.
        view: what it is.
        rule: "matrix" for an optimizer of matrices, "adamw" for AdamW, "frozen" for none.
        reason: why, in words.
        options: of its parameter group.
        param: the parameter itself.
    """

    name: str
    shape: tuple[int, ...]
    module: str
    view: View
    rule: Rule
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)
    param: Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Plan:
    """The routes of all parameters of a model, in its order.

    ``print(plan)`` shows a table in which the layers of repeated blocks share a line.

    Attributes:
        routes: one for each parameter, a shared one once.
    """

    routes: tuple[Route, ...]

    def __iter__(self) -> Iterator[Route]:
        """Iterate over the routes."""
        return iter(self.routes)

    def __getitem__(self, name: str) -> Route:
        """Return the route of a parameter.

        Raises:
            KeyError: for a name that is not in the plan.
        """
        for route in self.routes:
            if route.name == name:
                return route
        raise KeyError(name)

    def by_rule(self, rule: Rule) -> list[Route]:
        """Return the routes that a rule steps."""
        return [route for route in self.routes if route.rule == rule]

    def groups(self, rule: Rule = "matrix") -> list[dict[str, Any]]:
        """Return parameter groups for a torch optimizer, with names.

        Parameters with equal options share a group.

        Args:
            rule: whose parameters.
        """
        found: dict[str, dict[str, Any]] = {}
        for route in self.by_rule(rule):
            key = repr(sorted(route.options.items()))
            group = found.setdefault(key, {"params": [], **route.options})
            group["params"].append((route.name, route.param))
        return list(found.values())

    def __str__(self) -> str:
        """Return the plan as a table, and what each rule steps in all."""
        rows = [("parameter", "shape", "module", "seen as", "stepped by", "because")]
        for alike in _repeated(self.routes):
            route = alike[0]
            name = _pattern(route.name) if len(alike) > 1 else route.name
            times = f" ({len(alike)}×)" if len(alike) > 1 else ""
            shape = " × ".join(map(str, route.shape)) or "scalar"
            options = ", ".join(f"{k}={v!r}" for k, v in route.options.items() if k != "layout")
            seen = f"{route.view}: {options}" if options else route.view
            rows.append((name + times, shape, route.module, seen, route.rule, route.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[-1] = 0
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, "", *self._totals()])

    def _totals(self) -> Iterator[str]:
        for rule in ("matrix", "adamw", "frozen"):
            routes = [route for route in self.routes if route.rule == rule]
            entries = sum(_size(route.shape) for route in routes)
            if routes:
                yield f"{rule}: {len(routes)} parameters with {entries:,} entries"


def _size(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name)


def _repeated(routes: Iterable[Route]) -> list[list[Route]]:
    """Gather routes that differ by the numbers of their blocks alone, where the first stands."""
    found: dict[tuple[Any, ...], list[Route]] = {}
    for route in routes:
        key = (
            _pattern(route.name), route.shape, route.module, route.view, route.rule,
            _pattern(route.reason), repr(route.options),
        )  # fmt: skip
        found.setdefault(key, []).append(route)
    return list(found.values())
