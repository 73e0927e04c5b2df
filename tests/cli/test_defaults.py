"""The tuned settings are those that the recorded sweeps chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steepest.cli.defaults import TRIALS, TUNED, learning_rate_grid
from steepest.cli.registry import find_kind
from steepest.cli.tasks import TASKS

SWEEPS = Path(__file__).parent.parent.parent / "benchmarks" / "sweeps"


@pytest.mark.parametrize("task", list(TASKS))
def test_tuned_learning_rates_have_the_least_validation_loss_of_their_sweep(task):
    swept = {}
    for kind in ("family", "compare"):  # the second has more steps
        path = SWEEPS / f"{kind}-{task}.json"
        record = json.loads(path.read_text()) if path.exists() else {"optimizers": []}
        swept |= {each["label"]: each for each in record["optimizers"]}
    assert set(swept) == set(TUNED[task])
    for name, result in swept.items():
        trials = result["trials"]
        assert len(trials) == TRIALS
        assert [trial["lr"] for trial in trials] == learning_rate_grid(find_kind(name))
        best = trials[result["chosen"]]
        assert not result["chosen_at_edge_of_grid"]
        assert TUNED[task][name]["lr"] == best["lr"]
