"""Train with the learning rate and decay of a tuned AdamW: AdamW itself, and Muon in one line.

    python benchmarks/carry_over.py [--tasks digits-conv,text] [--seeds 3] [--steps N]

Muon is ``create_optimizer(model, "muon", lr=L, weight_decay=W)`` with AdamW's L and W.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from common import write  # isort: skip
import torch
from torch.optim.lr_scheduler import LambdaLR

from steepest import create_optimizer
from steepest.cli.defaults import TUNED
from steepest.cli.tasks import batches, load_task
from steepest.cli.training import Run, _judge, initial_model
from steepest.cli.whole_model import schedule

DECAY = 0.01  # that of the sweeps, torch's default


def train(task, make, *, steps, seed):
    """Return test loss and metric after a run."""
    model = initial_model(task, seed)
    optimizer = make(model)
    scheduler = LambdaLR(optimizer, lambda step: schedule(step, steps))
    for rows in batches(len(task.train), task.batch_size, steps=steps, seed=seed):
        batch = task.train[rows]
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()
        scheduler.step()
    run = Run(seed=seed)
    _judge(run, task, model)
    return run.test_loss, run.test_metric


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="digits-conv,text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each run; default by task")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.tasks.split(","):
        task, rate = load_task(name), TUNED[name]["adamw"]["lr"]
        makers = {
            "adamw": lambda model, rate=rate: torch.optim.AdamW(
                model.parameters(), lr=rate, weight_decay=DECAY
            ),
            "muon": lambda model, rate=rate: create_optimizer(
                model, "muon", lr=rate, weight_decay=DECAY
            ),
        }
        for label, make in makers.items():
            runs = [
                train(task, make, steps=arguments.steps or task.steps, seed=seed)
                for seed in range(arguments.seeds)
            ]
            losses, metrics = zip(*runs, strict=True)
            spread = stdev if len(runs) > 1 else lambda _: 0.0
            rows.append(
                {
                    "task": name, "optimizer": label, "lr": rate, "weight_decay": DECAY,
                    "test_loss": mean(losses), "test_loss_spread": spread(losses),
                    "test_metric": mean(metrics), "test_metric_spread": spread(metrics),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    print("wrote", write("carry_over", {"seeds": arguments.seeds, "rows": rows}, arguments.out))


if __name__ == "__main__":
    main()
