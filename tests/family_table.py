"""The table of the orthogonalized family: classes × options, each on all layouts.

``python tests/family_table.py`` writes it into ``docs/family.md``; a test compares the two, and
other tests step every cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from layouts import LAYOUTS
from steepest.model.create import MATRIX_OPTIMIZERS

CLASSES = tuple(MATRIX_OPTIMIZERS.values())

# by the name in the table
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "nesterov": {"nesterov": True},
    "maximize": {"maximize": True},
    **{
        f"decay {method}": {"weight_decay_method": method, "weight_decay": 0.1}
        for method in ("decoupled", "independent", "l2", "palm", "cautious", "spectral")
    },
    **{f"norm {norm}": {"norm": norm} for norm in ("sign", "row", "column")},
    **{
        f"method {method}": {"method": method}
        for method in ("svd", "eigh", "qdwh", "left", "right")
    },
    "tolerance": {"tolerance": 1e-6},
    "clip": {"clip": (0.1, 0.5)},
    **{
        f"scale {scale}": {"scale": scale}
        for scale in ("match_rms_adamw", "original", "spectral", "unit_rms", "none", "nuclear")
    },
    **{
        f"second_moment {method}": {"second_moment": method}
        for method in (
            "adamuon", "adamuon_sign", "normuon", "normuon_long", "namo", "namo_raw"
        )
    },
    "period": {"period": 2},
    "block_size": {"block_size": 2},
    "period and block_size": {"period": 2, "block_size": 2},
    "hook hyperball": {"hooks": ("hyperball",)},
    "hook radial_brake": {"hooks": (("radial_brake", 0.3),)},
    "hook relative_update": {"hooks": (("relative_update", 0.5),)},
    "low_precision float32": {"low_precision": "float32"},
    "low_precision stochastic": {"low_precision": "stochastic"},
}  # fmt: skip


def refusal(kind: type, options: dict[str, Any]) -> str | None:
    """Why a class does not take the options; None where it does."""
    try:
        kind([Parameter(torch.ones(4, 3))], **options)
    except ValueError as error:
        return str(error)
    return None


def table() -> str:
    """Return the table in Markdown: on how many layouts a cell is stepped, or —."""
    names = [kind.__name__ for kind in CLASSES]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for name, options in OPTIONS.items():
        cells = ["—" if refusal(kind, options) else str(len(LAYOUTS)) for kind in CLASSES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


DOCUMENT = Path(__file__).parent.parent / "docs" / "family.md"
BEGIN, END = "<!-- table: begin -->\n", "\n<!-- table: end -->"


def written() -> str:
    """Return the table that the document holds."""
    return DOCUMENT.read_text().split(BEGIN)[1].split(END)[0]


if __name__ == "__main__":
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table() + END + rest.split(END)[1])
