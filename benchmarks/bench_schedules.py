"""Which schedule for Muon? Errors on momentum matrices of real training, then training itself.

    python benchmarks/bench_schedules.py [--seeds 3] [--out benchmarks/results]

Trains the tasks digits-conv and text of `steepest compare`, keeps the momentum (with look-ahead) of
every hidden matrix at several steps, and tabulates for each candidate the polar error
‖Y − UVᵀ‖_F/√r and the time over that of "simple" with five steps. Then it trains with some of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, median, stdev

from common import interleaved, paired_ratio, write  # isort: skip
import torch

from steepest import Muon, linalg
from steepest.cli.defaults import settings_for
from steepest.cli.registry import find_kind
from steepest.cli.tasks import batches, load_task
from steepest.cli.training import initial_model, train_once
from steepest.cli.whole_model import build_optimizer

TASKS = ("digits-conv", "text")
SAVED_AT = (0.05, 0.3, 0.6, 0.95)  # of all steps
CANDIDATES: dict[str, dict] = {
    "simple, 5": {"schedule": "simple", "steps": 5},
    "quintic, 5": {"schedule": "quintic", "steps": 5},
    "polar_express, 5": {"schedule": "polar_express", "steps": 5},
    "polar_express, 6": {"schedule": "polar_express", "steps": 6},
    "polar_express, 8": {"schedule": "polar_express", "steps": 8},
    "cans, 5": {"schedule": "cans", "steps": 5},
    "aol, 4": {"schedule": "aol", "steps": 4},
    "minimax(1e-2), 4": {"schedule": linalg.minimax(l=1e-2, steps=4), "steps": 4},
    "minimax(1e-2), 5": {"schedule": linalg.minimax(l=1e-2, steps=5), "steps": 5},
    "deepseek_v4, 10": {"schedule": "deepseek_v4", "steps": 10},
    "cubic, 5": {"schedule": "cubic", "steps": 5},
}


def momentum_matrices(name: str, seed: int = 0) -> list[tuple[str, torch.Tensor]]:
    """Train a task and return labelled look-ahead momenta of its hidden matrices."""
    task, kind = load_task(name), find_kind("muon")
    model = initial_model(task, seed)
    optimizer = build_optimizer(kind, settings_for(name, kind, {}), model, steps=task.steps)
    muon = next(part for part in optimizer.parts if isinstance(part, Muon))
    names = {param: label for label, param in model.named_parameters()}
    marks = {round(fraction * task.steps) for fraction in SAVED_AT}
    saved = []
    for step, rows in enumerate(
        batches(len(task.train), task.batch_size, steps=task.steps, seed=seed)
    ):
        batch = task.train[rows]

        def closure(batch=batch):
            model.zero_grad()
            loss = task.loss(model(batch.inputs), batch.targets)
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
        if step in marks:
            for group in muon.param_groups:
                for param in group["params"]:
                    m = muon.state[param]["momentum_buffer"]
                    ahead = torch.lerp(param.grad, m, group["momentum"]).flatten(1)
                    saved.append((f"{name} {names[param]} step {step}", ahead.clone()))
    return saved


def polar_error(y: torch.Tensor, x: torch.Tensor) -> float:
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    kept = s > s[0] * max(x.shape) * torch.finfo(torch.float32).eps
    exact = u[:, kept] @ vh[kept]
    return ((y.double() - exact).norm() / exact.norm()).item()


def tabulate(matrices: list[tuple[str, torch.Tensor]]) -> dict[str, dict[str, float]]:
    square = torch.stack([torch.randn(64, 64) for _ in range(64)])
    times = interleaved(
        {name: lambda o=o: linalg.polar(square, **o) for name, o in CANDIDATES.items()}, seconds=10
    )
    rows = {}
    for name, options in CANDIDATES.items():
        errors = [polar_error(linalg.polar(x, **options), x) for _, x in matrices]
        rows[name] = {
            "median error": median(errors),
            "largest error": max(errors),
            "time over simple": paired_ratio(times, name, "simple, 5"),
        }
    return rows


def spectra(matrices: list[tuple[str, torch.Tensor]]) -> dict[str, float]:
    """How small the singular values of real momenta are, relative to the Frobenius norm."""
    relative = [torch.linalg.svdvals(x.double()) / x.double().norm() for _, x in matrices]
    every = torch.cat(relative)
    return {
        "matrices": len(matrices),
        "median": every.median().item(),
        "share below 1e-2": (every < 1e-2).double().mean().item(),
        "share below 1e-3": (every < 1e-3).double().mean().item(),
    }


def train(candidates: list[str], seeds: int) -> dict[str, dict]:
    result: dict[str, dict] = {}
    kind = find_kind("muon")
    for name in TASKS:
        task = load_task(name)
        for candidate in candidates:
            settings = settings_for(name, kind, CANDIDATES[candidate])
            runs = [
                train_once(task, kind, settings, steps=task.steps, seed=s) for s in range(seeds)
            ]
            losses, metrics = [r.train_loss for r in runs], [r.validation_loss for r in runs]
            result.setdefault(name, {})[candidate] = {
                "training loss": [mean(losses), stdev(losses)],
                "validation loss": [mean(metrics), stdev(metrics)],
            }
            print(name, candidate, result[name][candidate], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", default="simple, 5;quintic, 5;polar_express, 5;aol, 4")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--save", type=Path, help="file for a few of the matrices")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    matrices = {name: momentum_matrices(name) for name in TASKS}
    if arguments.save:
        few = {
            label: x for name in TASKS for label, x in matrices[name][:: len(matrices[name]) // 5]
        }
        torch.save(few, arguments.save)
    record: dict = {"spectra": {}, "errors": {}}
    for name in TASKS:
        record["spectra"][name] = spectra(matrices[name])
        record["errors"][name] = tabulate(matrices[name])
        print(name, record["spectra"][name])
        for candidate, row in record["errors"][name].items():
            print(f"  {candidate:18s}", {k: float(f"{v:.3g}") for k, v in row.items()}, flush=True)
    record["training"] = train(arguments.candidates.split(";"), arguments.seeds)
    print("wrote", write("schedules", record, arguments.out))


if __name__ == "__main__":
    main()
