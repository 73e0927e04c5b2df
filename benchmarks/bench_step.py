"""Time of one Muon step over that of torch.optim.Muon, on sets of matrices.

    python benchmarks/bench_step.py [--sets small,conv,rect,gpt512,gpt768]

Ratios are medians over interleaved rounds. "torch float32" is torch.optim.Muon with its iteration
in float32 instead of bfloat16, with the same number of steps; "torch" is as it ships. Other
packages' Muon, with their iteration in bfloat16, are measured where ``peers.py`` finds them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from common import SETS, interleaved, paired_ratio, product_roof, write  # isort: skip
from peers import installed  # isort: skip
import torch
from torch.optim import _muon

import steepest

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def float32_iteration(grad, coefficients, steps, eps):
    """The iteration of torch.optim.Muon in float32."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def parameters(shapes, *, flat):
    """Parameters with gradients; torch's Muon takes convolutions only as matrices."""
    generator = torch.Generator().manual_seed(0)
    result = []
    for shape in shapes:
        shape = (shape[0], math.prod(shape[1:])) if flat else shape
        param = torch.nn.Parameter(torch.randn(shape, generator=generator))
        param.grad = torch.randn(shape, generator=generator)
        result.append(param)
    return result


def ours(shapes, **options):
    params = parameters(shapes, flat=False)
    groups = [
        {"params": [p for p in params if p.ndim == 2], "layout": "matrix"},
        {"params": [p for p in params if p.ndim > 2], "layout": "convolution"},
    ]
    return steepest.Muon(
        [g for g in groups if g["params"]], schedule="simple", steps=STEPS, **options
    )


def torch_step(shapes, *, float32):
    optimizer = torch.optim.Muon(parameters(shapes, flat=True), ns_steps=STEPS)
    shipped = _muon._zeropower_via_newtonschulz

    def step():
        _muon._zeropower_via_newtonschulz = float32_iteration if float32 else shipped
        try:
            optimizer.step()
        finally:
            _muon._zeropower_via_newtonschulz = shipped

    return step


def minimal_operations(shapes):
    """Operations of the cheaper of both forms, symmetric products counted as half."""
    total = 0
    for shape in shapes:
        m, n = sorted((shape[0], math.prod(shape[1:])))
        plain = STEPS * (m * m * n + m**3 + 2 * m * m * n)
        gram = m * m * n + (STEPS + 2 * (STEPS - 1) + STEPS - 1) * m**3 + 2 * m * m * n
        total += min(plain, gram)
    return total


def measure(name, *, seconds, peers):
    """Times and ratios of one set; ``peers`` are those that iterate in bfloat16."""
    shapes = SETS[name]
    functions = {
        "steepest": ours(shapes).step,
        "one by one": ours(shapes, batch_bytes=0).step,
        "torch float32": torch_step(shapes, float32=True),
    }
    for peer, build in peers.items():
        functions[peer] = build(shapes)
    times = interleaved(functions, seconds=seconds)
    limit = minimal_operations(shapes) / product_roof()
    best = sorted(times["steepest"])[len(times["steepest"]) // 2]
    return {
        "rounds": len(times["steepest"]),
        "milliseconds": best * 1e3,
        "over torch float32": paired_ratio(times, "steepest", "torch float32"),
        "over one by one": paired_ratio(times, "steepest", "one by one"),
        "fraction of the operation limit": limit / best,
        **{f"over {peer}": paired_ratio(times, "steepest", peer) for peer in peers},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seconds", type=float, default=6.0, help="for each set")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    peers = {"torch": lambda shapes: torch_step(shapes, float32=False)}
    for package, build in installed().items():
        peers[package] = lambda shapes, build=build: build(parameters(shapes, flat=True), STEPS)
    results = {}
    for name in arguments.sets.split(","):
        # one bfloat16 step of the larger sets takes minutes on a CPU without units for it
        own = peers if name in ("small", "conv") else {}
        results[name] = measure(name, seconds=arguments.seconds, peers=own)
        figures = ", ".join(f"{k} {v:.3g}" for k, v in results[name].items())
        print(f"{name:7s} {figures}", flush=True)
    print("wrote", write("step", {"sets": results}, arguments.out))


if __name__ == "__main__":
    main()
