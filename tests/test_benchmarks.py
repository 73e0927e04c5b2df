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
