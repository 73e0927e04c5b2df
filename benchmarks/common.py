"""What the benchmarks share: threads, interleaved timing, roofs of the same run, JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

# before torch is imported: threads that move or sleep make times jump
os.environ.setdefault("OMP_PROC_BIND", "true")
os.environ.setdefault("OMP_WAIT_POLICY", "active")

import torch

# shapes of the weight matrices, as (rows, columns)
SETS: dict[str, list[tuple[int, ...]]] = {
    "small": [(64, 64)] * 100 + [(32, 128)] * 100,
    "conv": [(16, 3, 3, 3)]
    + [(16, 16, 3, 3)] * 6
    + [(32, 16, 3, 3)]
    + [(32, 32, 3, 3)] * 5
    + [(64, 32, 3, 3)]
    + [(64, 64, 3, 3)] * 5,
    "rect": [(256, 4096)] * 4,
    "gpt512": [(1536, 512), (512, 512), (2048, 512), (512, 2048)] * 4,
    "gpt768": [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 2,
}


def interleaved(
    functions: dict[str, Callable[[], Any]], *, seconds: float = 4.0, least: int = 5
) -> dict[str, list[float]]:
    """Time functions in turn, round after round, so that a slow spell hits all of them."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(next(iter(times.values()))) < least:
        for name, function in functions.items():
            before = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - before)
    return times


def paired_ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Return the median over rounds of the ratio of two times of the same round."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def product_roof(size: int = 1024, *, dtype: torch.dtype = torch.float32) -> float:
    """Return the floating-point operations per second of a large matrix product, best of ten."""
    a = torch.randn(size, size).to(dtype)
    out = torch.empty_like(a)
    return 2 * size**3 / min(interleaved({"mm": lambda: torch.mm(a, a, out=out)}, seconds=1)["mm"])


def write(name: str, record: dict[str, Any], folder: Path) -> Path:
    """Write the record with the versions of the run, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    versions = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }
    path.write_text(json.dumps({"versions": versions, **record}, indent=1) + "\n")
    return path
