"""Optimizers as a user writes them: ``name:key=value:key=value``, separated by commas."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from steepest.cli.errors import BadInputError
from steepest.cli.registry import MODEL_OPTIONS, REST_OPTIONS, Kind, find_kind

_LONGEST_LABEL = 1000  # characters; labels stand in the table and the picture

_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Spec:
    """One optimizer with the options that the user gave.

    Attributes:
        label: what the user wrote.
        kind: the optimizer.
        options: the user's options alone.
    """

    label: str
    kind: Kind
    options: dict[str, Any]


def parse_specs(text: str, *, sweep: bool) -> list[Spec]:
    """Return the optimizers of a comma-separated list.

    Args:
        text: as ``"muon,adamw:lr=1e-3:betas=(0.9,0.99)"``; commas and colons in brackets belong to
            the value.
        sweep: whether learning rates come from a grid, so that none may be given.

    Raises:
        BadInputError: for an unknown optimizer or option, a value of another type than the
            option's default, or an optimizer given twice in the same words.
    """
    specs: list[Spec] = []
    for label in _split(text, ","):
        spec = _parse_spec(label.strip())
        if any(spec.label == other.label for other in specs):
            raise BadInputError(
                f"optimizer {spec.label!r} is given twice: give the second other options"
            )
        if sweep and "lr" in spec.options:
            raise BadInputError(
                f"{spec.label}: give either lr or --sweep, which tries a grid of learning rates"
            )
        specs.append(spec)
    return specs


def _parse_spec(label: str) -> Spec:
    if len(label) > _LONGEST_LABEL:
        raise BadInputError(
            f"{label[:40]}…: an optimizer with its options may have {_LONGEST_LABEL} characters"
        )
    name, *pairs = _split(label, ":")
    kind = find_kind(name.strip())
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise BadInputError(
                f"{label}: expected key=value, got {pair!r}; "
                f"keys of {kind.name} are {', '.join(kind.options())}"
            )
        if key not in kind.options():
            raise BadInputError(
                f"{kind.name} has no option {key!r}: choose from {', '.join(kind.options())}"
            )
        if key in options:
            raise BadInputError(f"{label}: {key} is given twice")
        options[key] = _checked(label, kind.options()[key], key, parse_value(value))
    return Spec(label, kind, options)


def parse_value(text: str) -> Any:
    """Return the Python literal that the text is, or else the text; true and false in any case.

    Example:
        >>> [parse_value(text) for text in ("1e-3", "true", "(0.9, 0.95)", "polar_express")]
        [0.001, True, (0.9, 0.95), 'polar_express']
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text  # what is no literal, or none that can be had


def _checked(label: str, default: Any, key: str, value: Any) -> Any:
    """Return the value if it is of the type of the option's default, which constructors assume."""
    if key in REST_OPTIONS:
        expected = "a finite number >= 0"
        fits = _is_number(value) and value >= 0.0
    elif key in MODEL_OPTIONS:
        expected = "a finite number > 0"
        fits = _is_number(value) and value > 0.0
    elif isinstance(default, bool):
        expected = "true or false"
        fits = isinstance(value, bool)
    elif _is_number(default):
        expected = f"a finite number, such as {default!r}"
        fits = _is_number(value)
    elif isinstance(default, tuple):
        expected = f"{len(default)} values in brackets, such as {default!r}"
        fits = isinstance(value, (tuple, list)) and len(value) == len(default)
        value = tuple(value) if fits else value
    else:
        return value
    if not fits:
        raise BadInputError(f"{label}: {key} must be {expected}, got {value!r}")
    return value


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of a size that a float can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text between separators that are not in brackets."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]
