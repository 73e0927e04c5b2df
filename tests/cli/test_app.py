"""The command as a user calls it."""

from __future__ import annotations

import builtins
import json
import sys

import pytest
import torch

import steepest
from steepest.cli import app, experiment, main


def test_version(steepest_command):
    result = steepest_command("--version")
    assert result.exit_code == 0
    assert result.stdout == f"steepest {steepest.__version__} (torch {torch.__version__})\n"


def test_help_names_tasks_options_and_exit_codes(steepest_command):
    assert "compare" in steepest_command("--help").stdout
    text = steepest_command("compare", "--help").stdout
    for word in ("digits-conv", "diabetes", "projected", "rest_lr", "--sweep", "--out", "130"):
        assert word in text


def test_four_optimizers_by_default(steepest_command, tmp_path):
    result = steepest_command("compare", "digits", "--steps", 2, "--seeds", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "compare-digits.json").read_text(encoding="utf-8"))
    labels = [optimizer["label"] for optimizer in record["optimizers"]]
    assert labels == ["muon", "adamw", "sgd", "projected"]
    assert all(label in result.stdout for label in labels)


@pytest.mark.parametrize("task", ["digits-conv", "text", "diabetes"])
def test_a_short_comparison_on_every_task(steepest_command, tmp_path, task):
    result = steepest_command(
        "compare", task, "--optimizers", "muon,projected", "--steps", 2, "--seeds", 1,
        "--out", tmp_path / "a/b",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for suffix in ("json", "png"):
        path = tmp_path / f"a/b/compare-{task}.{suffix}"
        assert path.stat().st_size > 2000
        assert f"wrote {path}" in result.stdout
    record = json.loads((tmp_path / f"a/b/compare-{task}.json").read_text(encoding="utf-8"))
    assert record["status"] == "finished"
    assert [o["summary"]["runs"] for o in record["optimizers"]] == [1, 1]


def test_results_go_to_a_folder_named_after_the_task(steepest_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("--steps", 1, "--seeds", 1, "--optimizers", "sgd")
    assert steepest_command("compare", "digits", *arguments).exit_code == 0
    assert sorted(p.name for p in (tmp_path / "compare-digits").iterdir()) == [
        "compare-digits.json",
        "compare-digits.png",
    ]


@pytest.mark.parametrize("name", ["compare-digits.json", "compare-digits.png"])
def test_a_file_that_cannot_be_written_is_found_before_training(steepest_command, tmp_path, name):
    (tmp_path / name).mkdir()
    result = steepest_command("compare", "digits", "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"steepest: cannot write to --out {tmp_path}: Is a directory")
    assert result.stdout == ""


def test_files_of_an_earlier_comparison_go_when_a_new_one_begins(
    steepest_command, tmp_path, monkeypatch
):
    (tmp_path / "compare-digits.png").write_bytes(b"old")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("steepest.cli.experiment.train_once", interrupt)
    result = steepest_command("compare", "digits", "--out", tmp_path)
    assert result.exit_code == 130
    assert not (tmp_path / "compare-digits.png").exists()


@pytest.mark.parametrize("columns", ["40", "72", "200"])
def test_the_table_is_whole_in_every_terminal(steepest_command, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    arguments = ("--steps", 1, "--seeds", 2, "--optimizers", "sgd,adamw", "--out", tmp_path)
    result = steepest_command("compare", "digits", *arguments)
    for word in (
        "optimizer",
        "training loss",
        "test accuracy",
        "time/step",
        "state",
        "adamw",
        "KiB",
    ):
        assert word in result.stdout
    assert "…" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digit",), "unknown task 'digit': choose from digits, digits-conv, text, diabetes"),
        (("digits", "--optimizers", "adamx"), "unknown optimizer 'adamx': choose from muon, "),
        (("digits", "--optimizers", "sgd:mom=1"), "sgd has no option 'mom': choose from lr, mom"),
        (("digits", "--optimizers", "sgd,muon:steps=0"), "muon:steps=0: steps must be"),
        (("digits", "--optimizers", "sgd:lr=0.1", "--sweep"), "sgd:lr=0.1: give either lr or"),
        (("digits", "--steps", "0"), "--steps must be from 1 to 1000000, got 0"),
        (("digits", "--seeds", "-1"), "--seeds must be from 1 to 1000, got -1"),
        (("digits", "--seeds", "9" * 30), "--seeds must be from 1 to 1000, got 999"),
        (("digits", "--steps", "9" * 14), "--steps must be from 1 to 1000000, got 999"),
        (("digits", "--optimizers", "muon:schedule={[]:1}"), "muon:schedule={[]:1}: schedule must"),
        (("digits", "--optimizers", "sgd:lr=" + "9" * 400), "sgd:lr=9999"),
        (("digits", "--optimizers", "sgd:lr=1e400"), "sgd:lr=1e400: lr must be a finite numb"),
        (("digits", "--optimizers", "sgd:lr=" + "-" * 5000 + "1"), "sgd:lr=-----"),
        (("digits", "--optimizers", "lbfgs:history_size=0"), "lbfgs:history_size=0: "),
        (("digits", "--threads", "0"), "--threads must be from 1 to 256, got 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_trains_nothing(
    steepest_command, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    result = steepest_command("compare", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"steepest: {message}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_bad_input(steepest_command, tmp_path):
    (tmp_path / "file").write_text("")
    result = steepest_command("compare", "digits", "--out", tmp_path / "file/inside")
    assert result.exit_code == 2
    assert "cannot write to --out" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "kept"), [(1, 0), (2, 1), (4, 3)])
def test_an_interrupt_writes_what_is_finished(
    steepest_command, tmp_path, monkeypatch, number, kept
):
    real, calls = experiment.train_once, []

    def interrupted(*args, **kwargs):
        calls.append(kwargs["seed"])
        if len(calls) == number:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(experiment, "train_once", interrupted)
    result = steepest_command(
        "compare", "digits", "--optimizers", "sgd,adamw", "--steps", 2, "--out", tmp_path
    )
    assert result.exit_code == 130
    assert f"steepest: interrupted: kept the {kept} finished of 6 runs\n" in result.stderr
    assert ("training loss" in result.stdout) == (kept > 0)
    assert (tmp_path / "compare-digits.png").exists() == (kept > 0)
    record = json.loads((tmp_path / "compare-digits.json").read_text(encoding="utf-8"))
    assert record["status"] == "interrupted"
    assert ("seeds, interrupted" in result.stdout) == (kept > 0)
    assert sum(o["summary"]["runs"] for o in record["optimizers"]) == kept


def test_an_interrupt_before_the_runs_is_one_line(steepest_command, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "rehearse", interrupted)
    result = steepest_command("compare", "digits", "--out", tmp_path)
    assert result.exit_code == 130
    assert result.stderr == "steepest: interrupted\n"


def test_a_sweep_notes_a_best_rate_at_the_edge(steepest_command, tmp_path):
    result = steepest_command(
        "compare", "digits", "--sweep", "--steps", 1, "--seeds", 1, "--optimizers", "sgd,lbfgs",
        "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "compare-digits.json").read_text(encoding="utf-8"))
    for optimizer in record["optimizers"]:
        note = f"{optimizer['label']}: the best learning rate is at the edge of the grid"
        assert (note in result.stdout) == optimizer["chosen_at_edge_of_grid"]
        assert optimizer["chosen_at_edge_of_grid"] == (optimizer["chosen"] in (0, 6))


def test_threads_are_as_before_afterwards(steepest_command, tmp_path, monkeypatch):
    before, during = torch.get_num_threads(), []
    monkeypatch.setattr(app, "_run", lambda *_: during.append(torch.get_num_threads()))
    result = steepest_command("compare", "digits", "--threads", before + 1, "--out", tmp_path)
    assert result.exit_code == 0
    assert during == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("package", ["typer", "rich", "matplotlib", "sklearn"])
def test_a_missing_extra_is_one_helpful_line(monkeypatch, capsys, package):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "steepest.cli.app":
            raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.part")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 1
    message = capsys.readouterr().err
    assert package in message
    assert "pip install 'steepest[cli]'" in message
    assert message.count("\n") == 1


def test_another_missing_module_is_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "steepest.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"steepest\.cli\.app"):
        main.main()


def test_diagnose_draws_and_keeps_what_optimizers_do(steepest_command, tmp_path):
    result = steepest_command(
        "compare", "digits", "--optimizers", "muon,adamw", "--steps", 3, "--seeds", 1,
        "--diagnose", "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (tmp_path / "compare-digits-diagnose.png").stat().st_size > 5000
    muon, adamw = json.loads((tmp_path / "compare-digits.json").read_text())["optimizers"]
    told = muon["trials"][0]["runs"][0]["diagnostics"]
    assert told["step"] == [0, 1, 2]
    assert all(0 < value < 1 for value in told["orthogonality_error"])
    assert all(value > 1 for value in told["momentum_rank"])
    other = adamw["trials"][0]["runs"][0]["diagnostics"]
    assert sorted(other) == ["step", "update_ratio"]
