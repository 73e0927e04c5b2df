"""Draw what each schedule does to singular values, and those of real momenta.

python benchmarks/plot_schedules.py docs/images/schedules.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from steepest.linalg import coefficients

SHOWN = (
    ("simple", 5, "#0072B2"),
    ("quintic", 5, "#D55E00"),
    ("polar_express", 5, "#009E73"),
    ("aol", 4, "#CC79A7"),
    ("polar_express", 8, "#000000"),
)
MOMENTA = Path(__file__).parent.parent / "tests" / "data" / "momentum.pt"


def main() -> None:
    figure = Figure(figsize=(8.0, 5.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    s = torch.logspace(-4, 0, 2000, dtype=torch.float64)
    for name, steps, colour in SHOWN:
        moved = s
        for a, b, c in coefficients(name, steps):
            moved = a * moved + b * moved**3 + c * moved**5
        above.plot(s, moved, color=colour, linewidth=1.6, label=f"{name}, {steps} steps")
    above.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
    above.set_ylabel("singular value after")
    above.set_ylim(0.0, 1.3)
    above.legend(frameon=False, loc="lower right")
    above.set_title("What the schedules do to singular values", loc="left", fontweight="bold")
    momenta = torch.load(MOMENTA, weights_only=True)
    values = torch.cat(
        [torch.linalg.svdvals(x.double()) / x.double().norm() for x in momenta.values()]
    )
    below.hist(values.clamp_min(1e-4), bins=torch.logspace(-4, 0, 49), color="#777777")
    below.set_xscale("log")
    below.set_xlabel("singular value before, of a matrix with Frobenius norm one")
    below.set_ylabel("momenta of\ntwo trainings")
    for axes in (above, below):
        axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
