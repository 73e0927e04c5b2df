"""What each optimizer did to the weights, as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from steepest.cli.averages import PANELS
from steepest.cli.experiment import Comparison, Contender
from steepest.cli.plot import COLOURS


def write_diagnostics_picture(comparison: Comparison, path: Path) -> Path:
    """Draw the first run of each optimizer's chosen setting.

    Args:
        comparison: whose runs were diagnosed.
        path: of the PNG.
    """
    figure = Figure(figsize=(11.0, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(PANELS))
    for (name, title), panel in zip(PANELS.items(), axes, strict=True):
        for contender in comparison.started():
            told = _first_run(contender)
            if name in told:
                colour = COLOURS[comparison.contenders.index(contender) % len(COLOURS)]
                label = contender.spec.label.replace("$", r"\$")
                panel.plot(told["step"], told[name], color=colour, label=label, linewidth=1.6)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step")
        panel.grid(True, color="#dddddd", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.lines and name != "momentum_rank":
            panel.set_yscale("log")
    figure.suptitle(f"{comparison.task.name}: means over parameters, seed 0", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    figure.savefig(path)
    return path


def _first_run(contender: Contender) -> dict[str, list[float]]:
    runs = contender.chosen().runs
    return runs[0].diagnostics if runs else {}
