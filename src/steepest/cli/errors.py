"""What a user got wrong, in one line."""

from __future__ import annotations

from collections.abc import Iterable


class BadInputError(Exception):
    """A request that cannot be carried out; its text is the one line that the user reads."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def unknown(what: str, given: str, known: Iterable[str]) -> BadInputError:
    """Return the error for a name that is not one of the known ones.

    Args:
        what: the kind of thing, as "task".
        given: what the user wrote.
        known: the alternatives, named in their order.

    Example:
        >>> print(unknown("task", "digit", ["digits", "text"]))
        unknown task 'digit': choose from digits, text
    """
    return BadInputError(f"unknown {what} {given!r}: choose from {', '.join(known)}")
