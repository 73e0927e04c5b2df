"""Time and error of every way to a polar factor, and where one overtakes the other.

    python benchmarks/bench_polar.py [--seconds 1.5] [--out benchmarks/results]

Three tables: methods on matrices of several sizes, over five classic steps in float32 as they are
usually written; the Gram form over the plain one by aspect ratio; symmetric products by row panels
over ordinary ones by side.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

from common import interleaved, paired_ratio, product_roof, write  # isort: skip
import torch
from bench_step import COEFFICIENTS, float32_iteration

from steepest.linalg import gram_newton_schulz, newton_schulz, polar

SHAPES = [(64, 64), (256, 256), (512, 512), (768, 768), (512, 2048), (768, 3072), (256, 4096)]
METHODS = {
    "polar, simple 5": {"schedule": "simple", "steps": 5},
    "polar_express 5": {"schedule": "polar_express", "steps": 5},
    "polar_express 8": {"schedule": "polar_express", "steps": 8},
    "tolerance 1e-2": {"tolerance": 1e-2},
    "tolerance 1e-3": {"tolerance": 1e-3},
    "eigh": {"method": "eigh"},
    "qdwh": {"method": "qdwh"},
    "svd": {"method": "svd"},
}


def error(y, x):
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    exact = u @ vh
    return ((y.double() - exact).norm() / exact.norm()).item()


def methods(shape, *, seconds):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    functions = {"classic": lambda: float32_iteration(x, COEFFICIENTS, 5, 1e-7)}
    for name, options in METHODS.items():
        functions[name] = lambda options=options: polar(x, **options)
    times = interleaved(functions, seconds=seconds, least=3)
    return {
        name: {
            "over classic": paired_ratio(times, name, "classic"),
            "error": error(function(), x),
        }
        for name, function in functions.items()
    }


def forms(side, aspect, *, seconds):
    x = torch.randn(side, round(side * aspect), generator=torch.Generator().manual_seed(0))
    times = interleaved(
        {"plain": lambda: newton_schulz(x), "gram": lambda: gram_newton_schulz(x)},
        seconds=seconds,
        least=3,
    )
    return paired_ratio(times, "gram", "plain")


def by_panels(a, out, panels):
    for start, stop in pairwise(len(a) * panel // panels for panel in range(panels + 1)):
        torch.mm(a[start:stop], a[:, start:], out=out[start:stop, start:])
        out[stop:, start:stop] = out[start:stop, stop:].mT


def panels(side, *, seconds):
    a = torch.randn(side, side, generator=torch.Generator().manual_seed(0))
    a = a @ a.T / side
    out = torch.empty_like(a)
    functions = {"1": lambda: torch.mm(a, a, out=out)}
    for count in (2, 4, 8):
        functions[str(count)] = lambda count=count: by_panels(a, out, count)
    times = interleaved(functions, seconds=seconds)
    return {count: paired_ratio(times, count, "1") for count in functions}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    record = {"roof in GFLOP/s": product_roof() / 1e9, "methods": {}, "gram": {}, "panels": {}}
    print(f"roof {record['roof in GFLOP/s']:.0f} GFLOP/s")
    for side in (256, 384, 512, 768, 1024, 2048):
        record["panels"][side] = panels(side, seconds=arguments.seconds)
        print(
            f"panels {side}",
            {k: round(v, 2) for k, v in record["panels"][side].items()},
            flush=True,
        )
    for side in (32, 64, 256, 512):
        for aspect in (1, 1.5, 2, 4, 8):
            ratio = forms(side, aspect, seconds=arguments.seconds)
            record["gram"][f"{side} x {aspect}"] = ratio
            print(f"gram over plain, side {side}, aspect {aspect}: {ratio:.2f}", flush=True)
    for shape in SHAPES:
        rows = methods(shape, seconds=2 * arguments.seconds)
        record["methods"][f"{shape[0]} x {shape[1]}"] = rows
        for name, row in rows.items():
            figures = f"{row['over classic']:6.2f}  {row['error']:.1e}"
            print(f"{shape[0]:4d} x {shape[1]:4d}  {name:16s} {figures}", flush=True)
    print("wrote", write("polar", record, arguments.out))


if __name__ == "__main__":
    main()
