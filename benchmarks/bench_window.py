"""Time of a step of the gradient window over its limit, over SGD and over the dense form.

    python benchmarks/bench_window.py [--most 2e8] [--seconds 4]

The limit is two passes over the window at the read bandwidth of the same run; every time is a
median over interleaved rounds. "tensors" spreads the entries over the shapes of a transformer.
Extra memory is the peak above weights, gradients and state, in entries of a gradient.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from common import interleaved, paired_ratio, write  # isort: skip
import torch
from torch.profiler import ProfilerActivity, profile

import steepest


def transformer_shapes(size):
    """Shapes of about 150 tensors with ``size`` entries in all: 12 layers and two embeddings."""
    width = max(16, int(math.sqrt(size / (12 * 12 + 2 * 8))) // 16 * 16)
    layer = [(3 * width, width), (3 * width,), (width, width), (width,)]
    layer += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)] + [(width,)] * 4
    return [(8 * width, width), *layer * 12, (width,), (width,), (8 * width, width)]


def parameters(shapes):
    generator = torch.Generator().manual_seed(0)
    result = []
    for shape in shapes:
        param = torch.nn.Parameter(torch.randn(shape, generator=generator))
        param.grad = torch.randn(shape, generator=generator)
        result.append(param)
    return result


def filled(shapes, history_size, **options):
    """An optimizer whose window is full."""
    optimizer = steepest.ProjectionRegularizedSGD(
        parameters(shapes), lr=1e-6, history_size=history_size, **options
    )
    for _ in range(history_size + 1):
        optimizer.step()
    return optimizer


def extra_entries(step, size):
    """Peak of what a step allocates, in entries of a float32 gradient of ``size`` entries."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak / 4 / size


def measure(shapes, history_size, *, seconds, dense=False):
    optimizer = filled(shapes, history_size)
    size = sum(param.numel() for param in optimizer.param_groups[0]["params"])
    sgd = torch.optim.SGD(parameters(shapes), lr=1e-6)
    window = torch.empty(history_size * size).normal_()
    functions = {"window": optimizer.step, "one pass": window.sum, "SGD": sgd.step}
    if dense:
        functions["dense"] = filled(shapes, history_size, metric="dense").step
    times = interleaved(functions, seconds=seconds)
    result = {
        "entries": size,
        "tensors": len(shapes),
        "history_size": history_size,
        "milliseconds": sorted(times["window"])[len(times["window"]) // 2] * 1e3,
        "over two passes": paired_ratio(times, "window", "one pass") / 2,
        "over SGD": paired_ratio(times, "window", "SGD"),
        "extra entries": extra_entries(optimizer.step, size),
    }
    if dense:
        result["dense over it"] = paired_ratio(times, "dense", "window")
    return result


def exponent(rows):
    """Slope of log time against log(m·p), by least squares, where the window is out of cache."""
    points = [
        (math.log(r["entries"] * r["history_size"]), math.log(r["milliseconds"]))
        for r in rows
        if r["entries"] * r["history_size"] * 4 >= 64e6
    ]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each setting")
    parser.add_argument("--most", type=float, default=4e8, help="largest window, in entries")
    parser.add_argument("--sizes", default="1e4,1e5,1e6,1e7,1e8")
    parser.add_argument("--history-sizes", default="4,32,256")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    record = {"dense": measure([(64, 64)], 4, seconds=arguments.seconds, dense=True)}
    print("dense", {k: round(v, 3) for k, v in record["dense"].items()}, flush=True)
    for kind in ("one tensor", "tensors"):
        rows = []
        for size in map(int, map(float, arguments.sizes.split(","))):
            shapes = [(size,)] if kind == "one tensor" else transformer_shapes(size)
            for history_size in map(int, arguments.history_sizes.split(",")):
                if size * history_size > arguments.most or (kind == "tensors" and size < 1e5):
                    continue
                rows.append(measure(shapes, history_size, seconds=arguments.seconds))
                print(kind, {k: round(v, 3) for k, v in rows[-1].items()}, flush=True)
        record[kind] = {"rows": rows, "exponent": exponent(rows)}
        print(kind, "grows with m·p to the power", record[kind]["exponent"])
    print("wrote", write("window", record, arguments.out))


if __name__ == "__main__":
    main()
