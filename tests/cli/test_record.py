"""The JSON."""

from __future__ import annotations

import json

import pytest

import steepest
from steepest.cli.record import as_record, write_json


def test_the_file_gives_back_the_record(compare, tmp_path):
    record = as_record(compare("muon:schedule=[(3,-4,2)]:steps=1,sgd:lr=1e30"))
    path = tmp_path / "record.json"
    write_json(path, record)
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert list(tmp_path.iterdir()) == [path]


def test_lists_of_numbers_stand_on_one_line_and_strings_are_left_alone(tmp_path):
    record = {
        "label": "a: [\n 1,  2 \n]",
        "losses": [0.5, None, 2],
        "runs": [{"seed": 0}],
        "no": [],
    }
    write_json(tmp_path / "x.json", record)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert '"losses": [0.5, null, 2]' in text
    assert json.loads(text) == record


def test_the_old_file_stays_where_the_new_one_cannot_be_written(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}


def test_everything_is_in_the_record(compare):
    comparison = compare("muon:rest_lr=0.5,sgd:lr=1e30", steps=4)
    record = as_record(comparison)
    assert record["status"] == "finished"
    assert record["versions"]["steepest"] == steepest.__version__
    assert record["versions"].keys() >= {"torch", "python", "numpy", "scikit-learn", "platform"}
    assert record["task"]["rows"]["train"] == 1078
    assert record["task"]["parameters"] == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert record["settings"]["seeds"] == [0, 1]
    assert (record["settings"]["steps"], record["settings"]["threads"]) == (4, 1)
    muon, sgd = record["optimizers"]
    assert (muon["label"], muon["given"]) == ("muon:rest_lr=0.5", {"rest_lr": 0.5})
    (trial,) = muon["trials"]
    run = trial["runs"][1]
    assert (run["seed"], run["diverged"], len(run["losses"]), len(run["step_seconds"])) == (
        1, False, 4, 4,
    )  # fmt: skip
    assert [part["class"] for part in run["settings"]] == ["steepest.Muon", "torch.AdamW"]
    assert (run["settings"][0]["momentum"], run["settings"][1]["lr"]) == (0.95, 0.5)
    mean = sum(r["test_metric"] for r in trial["runs"]) / 2
    assert muon["summary"]["test_metric"]["mean"] == pytest.approx(mean, rel=1e-5)
    assert (muon["summary"]["runs"], muon["summary"]["diverged"]) == (2, 0)
    assert sgd["summary"]["diverged"] == 2
    assert sgd["summary"]["train_loss"] == {"mean": None, "std": None}
    assert sgd["trials"][0]["mean_validation_loss"] is None


def test_a_sweep_records_all_trials_and_the_choice(compare):
    (sgd,) = as_record(compare("sgd", steps=3, seeds=1, sweep=True))["optimizers"]
    losses = [trial["mean_validation_loss"] for trial in sgd["trials"]]
    assert len(losses) == 7
    assert losses[sgd["chosen"]] == min(loss for loss in losses if loss is not None)
