"""Settings of each optimizer for each task, and the grid that they are chosen from."""

from __future__ import annotations

from typing import Any

from steepest.cli.registry import Kind
from steepest.model.create import OWN_UNITS

# learning rates tried for every optimizer: as many for each, equally spaced in the logarithm
TRIALS = 7
GRID_RATIO = 10.0**0.5

# middle of an optimizer's grid; for one not named here, its class's own default
GRID_CENTRES: dict[str, float] = {
    "muon": 10.0**-1.5,
    "torch-muon": 10.0**-1.5,
    "adamuon": 10.0**-1.5,
    "normuon": 10.0**-1.5,
    "scion": 10.0**-2.5,
    "polargrad": 1.0,
    "mop": 1.0,
    "spel": 10.0**-1.5,
    "muonhyperball": 10.0**-1.5,
    "dion2": 10.0**-1.5,
    "projected": 1e-1,
    "adam": 10.0**-2.5,
    "adamw": 10.0**-2.5,
    "nadam": 10.0**-2.5,
    "radam": 10.0**-2.5,
    "adamax": 10.0**-2.5,
    "rmsprop": 10.0**-2.5,
    "sgd": 1e-1,
    "asgd": 1e-1,
    "lbfgs": 1e-1,
}

# for all tasks: what is usual where the class's own default is not
USUAL: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "lbfgs": {"line_search_fn": "strong_wolfe"},
    # steps of AdamW's size, as the rest of the model has
    "torch-muon": {"adjust_lr_fn": "match_rms_adamw"},
}

# learning rates with the least validation loss in the sweeps of benchmarks/sweeps/*.json: those of
# the family in family-*.json, for text of half as many steps
TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        "muon": {"lr": 1e-2},
        "adamw": {"lr": 3.2e-2},
        "sgd": {"lr": 0.32},
        "projected": {"lr": 0.32},
    },
    "digits-conv": {
        "muon": {"lr": 1e-2},
        "adamw": {"lr": 3.2e-2},
        "sgd": {"lr": 1e-1},
        "projected": {"lr": 1e-1},
        "adamuon": {"lr": 0.032},
        "normuon": {"lr": 0.032},
        "scion": {"lr": 0.00032},
        "polargrad": {"lr": 0.1},
        "mop": {"lr": 0.1},
        "spel": {"lr": 0.032},
        "muonhyperball": {"lr": 0.032},
        "dion2": {"lr": 0.1},
    },
    "text": {
        "muon": {"lr": 3.2e-2},
        "adamw": {"lr": 3.2e-3},
        "sgd": {"lr": 1e-1},
        "projected": {"lr": 1e-1},
        "adamuon": {"lr": 0.032},
        "normuon": {"lr": 0.032},
        "scion": {"lr": 0.001},
        "polargrad": {"lr": 3.2},
        "mop": {"lr": 3.2},
        "spel": {"lr": 0.1},
        "muonhyperball": {"lr": 0.1},
        "dion2": {"lr": 0.032},
    },
    "diabetes": {
        "muon": {"lr": 3.2e-3},
        "adamw": {"lr": 1e-3},
        "sgd": {"lr": 1e-2},
        "projected": {"lr": 1e-2},
    },
}


def settings_for(task: str, kind: Kind, options: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's options: usual ones, tuned ones of the task, then the user's.

    Args:
        task: its name.
        kind: the optimizer.
        options: what the user gave.
    """
    usual, tuned = USUAL.get(kind.name, {}), TUNED.get(task, {}).get(kind.name, {})
    if issubclass(kind.make, OWN_UNITS):
        usual = {"rest_lr": TUNED[task]["adamw"]["lr"], "rest_weight_decay": 0.01, **usual}
    return {"lr": kind.options()["lr"], **usual, **tuned, **options}


def learning_rate_grid(kind: Kind) -> list[float]:
    """Return the learning rates that a sweep tries, in rising order.

    Args:
        kind: the optimizer.
    """
    centre = GRID_CENTRES.get(kind.name, kind.options()["lr"])
    middle = (TRIALS - 1) / 2
    return [float(f"{centre * GRID_RATIO ** (i - middle):.2g}") for i in range(TRIALS)]
