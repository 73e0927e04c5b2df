"""The table and the progress."""

from __future__ import annotations

import io
import json

from rich.console import Console

from steepest.cli.experiment import carry_out, prepare
from steepest.cli.report import Reporter, heading, results_table
from steepest.cli.specs import parse_specs


def printed(table, *, width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(table)
    return console.file.getvalue()


def test_table_has_a_row_for_each_optimizer_and_fits_a_terminal(compare):
    comparison = compare("sgd:lr=0.1,adamw,muon,sgd:lr=1e30", steps=10)
    lines = printed(results_table(comparison)).splitlines()
    for contender in comparison.contenders:
        assert sum(contender.spec.label in line for line in lines) == 1
    assert any("2 of 2 diverged" in line for line in lines)
    assert all("…" not in line for line in lines)


def test_the_best_of_each_column_is_bold(compare):
    comparison = compare("sgd:lr=0,adamw:lr=0.01", steps=20)
    text = printed(results_table(comparison), width=120)
    (adamw,) = [line for line in text.splitlines() if "adamw" in line]
    (sgd,) = [line for line in text.splitlines() if "sgd" in line]
    bold = "\x1b[1m"
    metric = comparison.task.metric
    best = comparison.contenders[1].chosen().figures("test_metric")
    assert f"{bold}{metric.format(best)}" in adamw
    assert metric.format(best) not in sgd


def test_long_labels_are_whole_and_break_at_their_options(compare):
    text = printed(results_table(compare("adamw:betas=(0.9,0.95):lr=0.003", steps=1, seeds=1)))
    for piece in ("adamw", ":betas=(0.9,0", ".95)", ":lr=0.003"):
        assert piece in text


def test_heading_counts_seeds(compare):
    assert heading(compare("sgd", seeds=2)).endswith("\n3 steps, mean ± spread of 2 seeds")
    assert heading(compare("sgd", seeds=1)).endswith("\n3 steps, 1 seed")


def report_on(digits, console, path):
    specs = parse_specs("sgd:lr=0.1,sgd:lr=1e30", sweep=False)
    comparison = prepare(digits, specs, steps=5, seeds=1, sweep=False, threads=1)
    with Reporter(comparison, console, path) as reporter:
        carry_out(comparison, reporter)


def test_without_a_terminal_each_run_is_one_line(digits, tmp_path):
    console = Console(file=io.StringIO(), width=20)
    report_on(digits, console, tmp_path / "x.json")
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("run 1 of 2: sgd:lr=0.1 seed 0: training loss ")
    assert second == "run 2 of 2: sgd:lr=1e30 seed 0: diverged"


def test_on_a_terminal_a_bar_reaches_its_end(digits, tmp_path):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    report_on(digits, console, tmp_path / "x.json")
    assert "10/10" in console.file.getvalue()


def test_json_is_written_after_each_run(digits, tmp_path):
    path, counts = tmp_path / "x.json", []

    class Watching(Reporter):
        def run_finished(self, contender, run):
            super().run_finished(contender, run)
            record = json.loads(path.read_text(encoding="utf-8"))
            counts.append(
                (record["status"], sum(o["summary"]["runs"] for o in record["optimizers"]))
            )

    specs = parse_specs("sgd,adamw", sweep=False)
    comparison = prepare(digits, specs, steps=1, seeds=1, sweep=False, threads=1)
    with Watching(comparison, Console(file=io.StringIO()), path) as reporter:
        carry_out(comparison, reporter)
    assert counts == [("running", 1), ("running", 2)]
