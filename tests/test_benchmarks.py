"""The benchmarks run; what they measure is for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(name, *arguments):
    command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_the_gpu_script_runs_on_a_cpu_and_all_its_checks_hold(tmp_path):
    run("gpu.py", "--device", "cpu", "--quick", "--out", tmp_path)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["checks"]
    assert all(check["good"] for check in record["checks"].values())


def test_the_step_benchmark_writes_its_ratios(tmp_path):
    run("bench_step.py", "--sets", "conv", "--seconds", "0.2", "--out", tmp_path)
    record = json.loads((tmp_path / "step.json").read_text())
    assert record["sets"]["conv"]["over torch float32"] > 0


def test_steps_of_the_window_are_as_accurate_as_promised(tmp_path):
    run("accuracy_window.py", "--quick", "--most", "1e5", "--out", tmp_path)
    record = json.loads((tmp_path / "accuracy_window.json").read_text())
    errors = {(row["entries"], row["history_dtype"]): row["error"] for row in record["steps"]}
    assert 0 < errors[1000, None] <= 1e-6
    assert 0 < errors[100_000, None] <= 1e-6
    assert 0 < errors[1000, "bfloat16"] <= 5e-3
    assert 0 < errors[100_000, "bfloat16"] <= 5e-3


def test_the_window_benchmark_writes_its_ratios(tmp_path):
    run("bench_window.py", "--sizes", "1e5", "--history-sizes", "4", "--seconds", "0.1",
        "--out", tmp_path)  # fmt: skip
    record = json.loads((tmp_path / "window.json").read_text())
    (row,) = record["one tensor"]["rows"]
    assert row["over two passes"] > 0
    # beside one packed copy of the gradient only what m × m algebra needs
    assert row["extra entries"] <= 1.1
    assert record["dense"]["dense over it"] > 1


def test_the_layout_benchmark_writes_its_ratio(tmp_path):
    run("bench_layouts.py", "--widths", "16", "--seconds", "0.1", "--out", tmp_path)
    (row,) = json.loads((tmp_path / "layouts.json").read_text())["rows"]
    assert row["over plain"] > 0
    assert row["matrices"] == 4 * (1 + 3 + 8 + 1 + 8 + 2 + 2 + 1)
