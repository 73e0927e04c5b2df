"""Random search with equal trials: the gradient window beside SGD, AdamW and Muon.

    python benchmarks/sweep_window.py [digits digits-conv text diabetes] [--trials 24] [--seeds 3]

Every contender has the same number of trials, drawn from the space that is written here for it,
one run each; the trial of least validation loss is run again with new seeds, which are reported.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from common import write  # isort: skip
import torch

from steepest.cli.registry import find_kind
from steepest.cli.tasks import TASKS, load_task
from steepest.cli.training import train_once

DECADES = 2.5  # width of the interval of a learning rate

# for each contender: optimizer, centre of the learning rate, fixed options, and what is drawn: a
# tuple of choices, or a list of the ends of an interval that is drawn from by its logarithm
TRAINING = {
    "ridge_scale": "relative",
    "momentum": 0.9,
    "nesterov": True,
    "warmup": True,
}
CONTENDERS: dict[str, tuple[str, float, dict[str, Any], dict[str, Any]]] = {
    "SGD, momentum": ("sgd", 0.1, {}, {"momentum": (0.8, 0.9, 0.95), "nesterov": (False, True)}),
    "AdamW": (
        "adamw",
        10**-2.5,
        {},
        {"betas": ((0.9, 0.95), (0.9, 0.99), (0.9, 0.999)), "weight_decay": (0.0, 0.01, 0.1)},
    ),
    "Muon": (
        "muon",
        10**-1.75,
        {},
        {"momentum": (0.9, 0.95), "weight_decay": (0.0, 0.01, 0.1)},
    ),
    "window, as given": (
        "projected",
        0.1,
        {},
        {"ridge": [1e-4, 1.0], "alpha": (0.1, 1.0), "history_size": (4, 16)},
    ),
    "window, for training": (
        "projected",
        0.3,
        TRAINING,
        {"ridge": [1e-2, 10.0], "block": ("global", "parameter"), "history_size": (8, 32)},
    ),
    "window, for training, beta": (
        "projected",
        0.3,
        {**TRAINING, "beta": 0.5, "rank": 8, "history_size": 8},
        {"ridge": [1e-2, 10.0], "block": ("global", "parameter"), "power": (0.5, 1.0)},
    ),
}


def draw(generator: random.Random, centre: float, space: dict[str, Any]) -> dict[str, Any]:
    exponent = math.log10(centre) + DECADES * (generator.random() - 0.5)
    settings = {"lr": float(f"{10**exponent:.2g}")}
    for name, choices in space.items():
        if isinstance(choices, tuple):
            settings[name] = generator.choice(choices)
        else:
            low, high = map(math.log10, choices)
            settings[name] = float(f"{10 ** generator.uniform(low, high):.2g}")
    return settings


def validation(run) -> float:
    return math.inf if run.diverged else run.validation_loss


def search(task, contender: str, trials: int, seeds: int) -> dict[str, Any]:
    name, centre, fixed, space = CONTENDERS[contender]
    kind, generator = find_kind(name), random.Random(0)
    found = []
    for _ in range(trials):
        settings = {**fixed, **draw(generator, centre, space)}
        run = train_once(task, kind, settings, steps=task.steps, seed=0)
        found.append((validation(run), settings))
    best = min(found, key=lambda trial: trial[0])[1]
    runs = [
        train_once(task, kind, best, steps=task.steps, seed=seed) for seed in range(1, seeds + 1)
    ]
    finished = [run for run in runs if not run.diverged]
    metrics = [run.test_metric for run in finished]
    losses = [run.validation_loss for run in finished]
    return {
        "chosen": best,
        "runs": len(finished),
        "test metric": mean(metrics) if metrics else None,
        "spread": stdev(metrics) if len(metrics) > 1 else None,
        "validation loss": mean(losses) if losses else None,
        "train loss": mean(run.train_loss for run in finished) if finished else None,
        "milliseconds": 1e3 * median(run.median_step_seconds() for run in runs),
        "state bytes": runs[0].state_bytes,
        "quartile of trials": sorted(loss for loss, _ in found)[trials // 4],
        "trials": [{"validation loss": loss, **settings} for loss, settings in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.tasks:
        task, record = load_task(name), {}
        for contender in CONTENDERS:
            record[contender] = search(task, contender, arguments.trials, arguments.seeds)
            shown = {k: v for k, v in record[contender].items() if k != "trials"}
            print(name, contender, shown, flush=True)
        record = {"trials": arguments.trials, "seeds": arguments.seeds, "contenders": record}
        print("wrote", write(f"sweep_window-{name}", record, arguments.out), flush=True)


if __name__ == "__main__":
    main()
