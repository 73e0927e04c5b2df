"""Draw SGD, Adam and the gradient window in a two-dimensional valley, and the metric of a window.

    python benchmarks/plot_valley.py docs/images/valley.png

The valley is a quadratic with curvatures 1 and 100, turned by 30 degrees, whose gradients carry
noise. Each optimizer has the learning rate, of a grid of 25 from 1e-4 to 100, with the lowest mean
loss over its last 20 of 60 steps and five seeds; the picture is of the first seed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from steepest import ProjectionRegularizedSGD

START, STEPS, SEEDS, NOISE = (-2.6, 0.3), 60, 5, 0.3
RATES = torch.logspace(-4, 2, 25).tolist()
TURN = math.radians(30.0)
ROTATION = torch.tensor(
    [[math.cos(TURN), -math.sin(TURN)], [math.sin(TURN), math.cos(TURN)]], dtype=torch.float64
)
HESSIAN = ROTATION @ torch.diag(torch.tensor([1.0, 100.0]).double()) @ ROTATION.T
RIDGE = 0.01
WINDOW = {"history_size": 8, "ridge": RIDGE, "ridge_scale": "relative", "warmup": True}


def window(params, lr):
    return ProjectionRegularizedSGD(params, lr=lr, **WINDOW)


CONTENDERS = (
    ("SGD, momentum 0.9", "#D55E00", lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
    ("Adam", "#0072B2", lambda p, lr: torch.optim.Adam(p, lr=lr)),
    ("window, as given", "#CC79A7", lambda p, lr: ProjectionRegularizedSGD(p, lr=lr)),
    (f"window, 8, relative ridge {RIDGE}", "#009E73", window),
)


def loss(points):
    return 0.5 * (points @ HESSIAN * points).sum(dim=-1)


def trajectory(make, rate, *, seed):
    """``(STEPS + 1, 2)``, where the optimizer has been."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64) @ ROTATION.T)
    optimizer, path = make([place], rate), [place.detach().clone()]
    for _ in range(STEPS):
        noise = NOISE * torch.randn(2, generator=generator, dtype=torch.float64)
        place.grad = HESSIAN @ (place.detach() + noise)
        optimizer.step()
        path.append(place.detach().clone())
    return torch.stack(path)


def tuned(make):
    """The rate with the lowest loss at the end, and that loss."""
    scores = []
    for rate in RATES:
        paths = [trajectory(make, rate, seed=seed) for seed in range(SEEDS)]
        scores.append((torch.stack([loss(path[-20:]) for path in paths]).mean().item(), rate))
    return min(score for score in scores if math.isfinite(score[0]))


def draw_metric(axes):
    """Noisy gradients at the start, and a ball of the metric that they make."""
    generator = torch.Generator().manual_seed(1)
    place = torch.tensor(START, dtype=torch.float64) @ ROTATION.T
    noise = NOISE * torch.randn(8, 2, generator=generator, dtype=torch.float64)
    gradients = (place + noise) @ HESSIAN
    unit = gradients.square().sum(dim=1).mean()
    metric = gradients.T @ gradients / len(gradients) + RIDGE * unit * torch.eye(2).double()
    values, vectors = torch.linalg.eigh(metric / unit)
    angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    ball = 0.1 * circle * values.rsqrt() @ vectors.T
    for gradient in (gradients / unit.sqrt()).tolist():
        axes.plot([0, gradient[0]], [0, gradient[1]], color="#999999", linewidth=1.0)
    axes.plot(*ball.T.tolist(), color="#009E73", linewidth=1.8)
    newest = place @ HESSIAN
    step = -torch.linalg.solve(metric, newest)
    for vector, colour, name in (
        (-newest / newest.norm(), "#D55E00", "$-g$"),
        (step / step.norm(), "#009E73", "$-S^{-1}g$"),
        (-place / place.norm(), "#000000", "to the minimum"),
    ):
        end = vector.tolist()
        arrow = {"color": colour, "width": 1.5, "headwidth": 7, "headlength": 7}
        axes.annotate("", xy=end, xytext=(0, 0), arrowprops=arrow)
        axes.annotate(name, xy=end, xytext=(4, 6), textcoords="offset points", color=colour)
    axes.set_xlim(-1.2, 2.0)
    axes.set_ylim(-1.3, 1.4)
    axes.set_title("8 gradients (grey), a ball of $S$")


def contours(axes):
    grid = torch.linspace(-3.2, 3.2, 200, dtype=torch.float64)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    heights = loss(torch.stack([x, y], dim=-1)).clamp_min(1e-3)
    levels = torch.logspace(-1.5, 2.5, 12).tolist()
    axes.contour(x, y, heights, levels=levels, colors="#cccccc", linewidths=0.7)


def main() -> None:
    figure = Figure(figsize=(12.5, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    metric, valley, curve = figure.subplots(1, 3)
    draw_metric(metric)
    contours(valley)
    for name, colour, make in CONTENDERS:
        score, rate = tuned(make)
        path = trajectory(make, rate, seed=0)
        label = f"{name}, lr {rate:.2g}"
        valley.plot(*path.T.tolist(), ".-", color=colour, linewidth=1.0, markersize=3, label=label)
        every = torch.stack([loss(trajectory(make, rate, seed=seed)) for seed in range(SEEDS)])
        curve.plot(every.mean(dim=0).tolist(), color=colour, linewidth=1.6, label=label)
        print(f"{name}: lr {rate:.3g}, loss at the end {score:.3g}")
    for axes in (metric, valley):
        axes.set_aspect("equal", adjustable="box")
    valley.plot(0, 0, "k+", markersize=9)
    valley.set_title(f"{STEPS} steps with noisy gradients")
    curve.set_yscale("log")
    curve.set_xlabel("step")
    curve.set_title(f"loss, mean of {SEEDS} seeds")
    figure.legend(
        *curve.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4
    )
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print("wrote", path)


if __name__ == "__main__":
    main()
