"""Entry point of the console script, which says what is missing when an extra is not installed."""

from __future__ import annotations

import sys

_EXTRAS = frozenset({"typer", "rich", "matplotlib", "sklearn"})


def main() -> None:
    """Run the command line; without its optional dependencies, say so and exit with 1."""
    try:
        from steepest.cli.app import app  # an optional dependency
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        sys.stderr.write(
            f"steepest: the command line needs {package}, which is not installed; "
            "run: pip install 'steepest[cli]'\n"
        )
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # while the libraries load
        sys.stderr.write("steepest: interrupted\n")
        raise SystemExit(130) from None
    app()
