"""Checks at the border: each raises ``ValueError`` with name, value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.ndim == 0:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number or a tensor without axes, got {value!r}")
    return float(value)


def nonnegative(name: str, value: object) -> None:
    """Accept a finite number of at least 0."""
    if not 0.0 <= _number(name, value) < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def positive(name: str, value: object) -> None:
    """Accept a finite number above 0."""
    if not 0.0 < _number(name, value) < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")


def below_one(name: str, value: object) -> None:
    """Accept a number in [0, 1)."""
    if not 0.0 <= _number(name, value) < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")


def fraction(name: str, value: object) -> None:
    """Accept a number in [0, 1]."""
    if not 0.0 <= _number(name, value) <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")


def count(name: str, value: object, *, least: int = 1) -> None:
    """Accept an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")


def flag(name: str, value: object) -> None:
    """Accept True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Accept one of the allowed strings."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def known_options(group: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Accept a parameter group that has no options but the known ones."""
    unknown = sorted(group.keys() - known.keys() - {"params", "param_names", "name"})
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(map(repr, unknown))} in a parameter group; "
            f"known are {', '.join(sorted(known))}"
        )


def parameter_name(group: Mapping[str, Any], position: int, group_position: int) -> str:
    """Return how messages call a parameter: by its name where it has one, else by its place."""
    if position < len(group.get("param_names", ())):
        return f"parameter {group['param_names'][position]!r}"
    return f"parameter {position} of group {group_position}"
