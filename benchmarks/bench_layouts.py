"""Time of a step of Muon on eight mixed layouts over the same matrices given as plain ones.

    python benchmarks/bench_layouts.py [--widths 64,256,512] [--seconds 8]

Four parameters of each layout; the ratio is a median over interleaved rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import interleaved, paired_ratio, write  # isort: skip
import torch
from torch.nn import Parameter

import steepest
from steepest.geometry.blocks import Blocks

EACH = 4


def layouts(width):
    """Shape and options of a parameter of each layout."""
    quarter = width // 4
    return [
        ((width, width), {}),
        ((width + 2 * quarter, width), {"split": (width, quarter, quarter)}),
        ((width, width), {"heads": 8, "block_axis": "columns"}),
        ((width, 4 * width), {"transposed": True}),
        ((4, 2 * width, width // 2), {"layout": "stack", "split": (width, width)}),
        ((2 * width, width), {"split": (1, 1), "interleaved": width}),
        ((64, 32, 3, 3), {"layout": "convolution", "groups": 2}),
        ((64, 64, 3, 3), {"layout": "convolution", "transposed": True}),
    ]


def with_gradient(data):
    param = Parameter(data)
    param.grad = torch.randn(data.shape)
    return param


def measure(width, *, seconds):
    groups, plain = [], []
    for shape, options in layouts(width):
        params = [with_gradient(torch.randn(shape)) for _ in range(EACH)]
        groups.append({"params": params, **options})
        blocks = Blocks.of({**vars(Blocks()), "split": None, **options})
        plain += [
            with_gradient(matrix.contiguous())
            for param in params
            for block in blocks(param.detach())
            for matrix in block.matrices()
        ]
    steps = {"layouts": steepest.Muon(groups).step, "plain": steepest.Muon(plain).step}
    times = interleaved(steps, seconds=seconds)
    return {
        "width": width,
        "matrices": len(plain),
        "milliseconds": sorted(times["layouts"])[len(times["layouts"]) // 2] * 1e3,
        "over plain": paired_ratio(times, "layouts", "plain"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", default="64,256,512")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each width")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rows = []
    for width in map(int, arguments.widths.split(",")):
        rows.append(measure(width, seconds=arguments.seconds))
        print({name: round(value, 3) for name, value in rows[-1].items()}, flush=True)
    print("wrote", write("layouts", {"rows": rows}, arguments.out))


if __name__ == "__main__":
    main()
