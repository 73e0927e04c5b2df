"""The comparison as JSON."""

from __future__ import annotations

import json
import math
import platform
import re
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import matplotlib
import numpy as np
import sklearn
import torch

import steepest
from steepest.cli.experiment import Comparison, Contender, Trial
from steepest.cli.training import Run, initial_model
from steepest.cli.whole_model import WARMUP

_DIGITS = 6  # of figures; more would be noise

_NUMBERS_ON_LINES = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]")


def versions() -> dict[str, str]:
    """Return the versions of everything that may change a number."""
    return {
        "steepest": steepest.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "matplotlib": matplotlib.__version__,
        "platform": platform.platform(),
    }


def as_record(comparison: Comparison) -> dict[str, Any]:
    """Return every number and setting of a comparison as plain data; a missing number is None.

    Args:
        comparison: finished or not.
    """
    task = comparison.task
    record = {
        "format": 1,
        "status": comparison.status,
        "versions": versions(),
        "task": {
            "name": task.name,
            "description": task.description,
            "metric": task.metric.name,
            "higher_is_better": task.metric.higher_is_better,
            "batch_size": task.batch_size,
            "rows": {
                "train": len(task.train),
                "train_evaluation": len(task.train_evaluation),
                "validation": len(task.validation),
                "test": len(task.test),
            },
            "parameters": sum(p.numel() for p in initial_model(task, 0).parameters()),
            "data_sha256": task.fingerprint,
        },
        "settings": {
            "steps": comparison.steps,
            "warmup": WARMUP,
            "schedule": "linear warm-up, cosine to 0",
            "seeds": list(comparison.seeds),
            "sweep": comparison.sweep,
            "chosen_by": "least mean validation loss" if comparison.sweep else "given",
            "threads": comparison.threads,
        },
        "optimizers": [_contender(comparison, contender) for contender in comparison.contenders],
    }
    return dict(_plain(record))


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record so that the file is whole at every moment.

    Args:
        path: of the file; its folder exists.
        record: plain data.
    """
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    text = _NUMBERS_ON_LINES.sub(lambda match: f"[{' '.join(match[1].split())}]", text)
    partial = path.with_suffix(".json.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def _contender(comparison: Comparison, contender: Contender) -> dict[str, Any]:
    chosen = contender.chosen()
    return {
        "label": contender.spec.label,
        "name": contender.spec.kind.name,
        "given": contender.spec.options,
        "chosen": contender.trials.index(chosen) if chosen.runs else None,
        "chosen_at_edge_of_grid": comparison.sweep and contender.chosen_at_edge(),
        "summary": _summary(chosen),
        "trials": [
            {
                "lr": trial.settings["lr"],
                "settings": trial.settings,
                "mean_validation_loss": trial.validation_loss(),
                "runs": [asdict(run) for run in trial.runs],
            }
            for trial in contender.trials
        ],
    }


def _summary(trial: Trial) -> dict[str, Any]:
    names = ("train_loss", "validation_loss", "test_loss", "test_metric")
    return {
        **{name: _mean_and_spread(trial.figures(name)) for name in names},
        "median_step_seconds": median(map(Run.median_step_seconds, trial.runs or [Run(0)])),
        "state_bytes": max((run.state_bytes for run in trial.runs), default=None),
        "runs": len(trial.runs),
        "diverged": trial.diverged(),
    }


def _mean_and_spread(values: list[float]) -> dict[str, float | None]:
    return {
        "mean": fmean(values) if values else None,
        "std": stdev(values) if len(values) > 1 else None,
    }


def _plain(value: Any) -> Any:
    """Return the value in types that JSON has, with numbers rounded and infinite ones None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return repr(value)
