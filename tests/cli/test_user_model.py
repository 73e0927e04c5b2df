"""A user's own model on the command line: ``plan`` and ``bench``."""

from __future__ import annotations

import json

import pytest

MODEL = """
from torch import nn
import beside


def build():
    return nn.Sequential(nn.Linear(6, beside.WIDTH), nn.ReLU(), nn.Linear(beside.WIDTH, 3))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 4), nn.Linear(4, 2)


def wrong():
    return 3


def broken():
    raise ZeroDivisionError("division\\nby zero")


SIZE = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    path = tmp_path / "own_models.py"
    path.write_text(MODEL)
    return path


def test_a_plan_is_printed(steepest_command, file):
    result = steepest_command("plan", f"{file}:build")
    assert result.exit_code == 0, result.output
    assert "the output head, the last linear layer" in result.stdout
    assert "matrix: 1 parameters with 48 entries" in result.stdout


def test_a_plan_of_a_class_in_an_importable_module(steepest_command, file, monkeypatch):
    monkeypatch.chdir(file.parent)
    result = steepest_command("plan", "own_models:Net", "--head", "hidden")
    assert result.exit_code == 0, result.output
    assert "the output head, as it was named" in result.stdout
    result = steepest_command("plan", "own_models:Net", "--head", "none")
    assert "matrix: 2 parameters" in result.stdout


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{file}", "expected MODULE:CALLABLE, such as"),
        ("{file}:nothing", "has no 'nothing'; it has "),
        ("{file}:wrong", "must return a torch.nn.Module, got int"),
        ("{file}:SIZE", "must be a callable that returns a model, got int"),
        ("{file}:broken", "ZeroDivisionError: division by zero"),
        ("nowhere.py:build", "there is no file nowhere.py"),
        ("no_such_module_at_all:build", "ModuleNotFoundError: No module named"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "bench"])
def test_a_reference_that_leads_nowhere_is_one_line(
    steepest_command, file, reference, message, command
):
    result = steepest_command(command, reference.format(file=file))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


def test_a_head_that_is_not_there(steepest_command, file):
    result = steepest_command("plan", f"{file}:build", "--head", "lm_head")
    assert result.exit_code == 2
    assert "head must be the name of a module of the model, got 'lm_head'" in result.stderr


def test_a_bench_writes_table_chart_and_figures(steepest_command, file, tmp_path):
    result = steepest_command(
        "bench", f"{file}:build", "--seconds", "0.01", "--out", tmp_path / "b",
        "--optimizers", "muon,torch-muon,projected",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "over adamw" in result.stdout
    assert (tmp_path / "b/bench.png").stat().st_size > 2000
    record = json.loads((tmp_path / "b/bench.json").read_text())
    assert [each["name"] for each in record["optimizers"]] == ["muon", "torch-muon", "projected"]
    assert record["entries"] == 6 * 8 + 8 + 8 * 3 + 3
    muon, torchs, window = record["optimizers"]
    assert muon["rounds"] >= 3
    assert muon["milliseconds"] > 0
    # momentum of 48 entries; two moments and a step of AdamW for the other 35
    assert muon["state_bytes"] == 4 * 48 + 8 * 35 + 3 * 4
    assert torchs["state_bytes"] == muon["state_bytes"]
    assert window["state_bytes"] > 4 * 4 * 83


def test_a_bench_without_a_model_takes_the_transformer(steepest_command, tmp_path):
    result = steepest_command(
        "bench", "--seconds", "0.01", "--out", tmp_path, "--optimizers", "muon"
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "bench.json").read_text())["entries"] == 116864


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--optimizers", "adam"), "unknown optimizer 'adam': choose from adamw, torch-muon"),
        (("--seconds", "0"), "--seconds must be above 0"),
        (("--threads", "0"), "--threads must be from 1"),
    ],
)
def test_bad_input_of_a_bench(steepest_command, tmp_path, arguments, message):
    result = steepest_command("bench", "--out", tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
