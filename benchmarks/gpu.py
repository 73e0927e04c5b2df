"""Check and time everything that behaves differently on a GPU, in under four minutes.

    python benchmarks/gpu.py [--device cuda] [--quick] [--out benchmarks/results]

Prints a line for each check and a table for each timing, writes a JSON, and exits with 1 if a check
fails. ``--device cpu --quick`` runs the same on a CPU, to see that the script itself works.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from statistics import median

from common import SETS, write  # isort: skip
import torch
from bench_step import parameters

import steepest
from steepest.linalg import gram_newton_schulz, newton_schulz, polar
from steepest.linalg.triton_symmetric import AVAILABLE, symmetric_product_triton

NARROW = (torch.bfloat16, torch.float16)


class Record:
    """Collects checks and timings."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        self.checks: dict[str, dict] = {}
        self.times: dict[str, dict[str, float]] = {}

    def check(self, name: str, value: float, bound: float) -> None:
        good = value <= bound
        self.checks[name] = {"value": value, "bound": bound, "good": good}
        print(f"{'ok  ' if good else 'FAIL'} {name}: {value:.2e} (at most {bound:.0e})", flush=True)

    def time(self, name: str, functions: dict) -> None:
        """Interleaved medians in milliseconds."""
        times = {key: [] for key in functions}
        for function in functions.values():
            function()
        for _ in range(self.rounds):
            for key, function in functions.items():
                self.wait()
                start = time.perf_counter()
                function()
                self.wait()
                times[key].append(1e3 * (time.perf_counter() - start))
        self.times[name] = {key: median(values) for key, values in times.items()}
        row = ", ".join(f"{key} {value:.3g} ms" for key, value in self.times[name].items())
        print(f"     {name}: {row}", flush=True)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def relative(result, expected) -> float:
    expected = expected.double().cpu()
    return ((result.double().cpu() - expected).norm() / expected.norm()).item()


def triton_kernel(record: Record, sides: list[int]) -> None:
    if not AVAILABLE or record.device.type != "cuda":
        print("     the Triton kernel is left out: it needs triton and a GPU")
        return
    for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        for shape in ((130, 70), (3, 129, 257)):
            x = torch.randn(shape, device=record.device).to(dtype)
            out = x.new_empty(*x.shape[:-1], x.shape[-2])
            symmetric_product_triton(x, x.mT, out=out)
            exact = x.double() @ x.double().mT
            record.check(f"triton {dtype} {shape}", relative(out, exact), bound)
    for side in sides:
        for dtype in NARROW:
            x = torch.randn(side, side, device=record.device).to(dtype)
            out = torch.empty_like(x)
            functions = {"matmul": lambda x=x, out=out: torch.matmul(x, x.mT, out=out)}
            for tile, depth in ((64, 32), (128, 32), (128, 64)):
                functions[f"triton {tile}/{depth}"] = lambda x=x, out=out, tile=tile, depth=depth: (
                    symmetric_product_triton(x, x.mT, out=out, tile=tile, depth=depth)
                )
            record.time(f"symmetric product {side} {dtype}", functions)


def iterations(record: Record, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device=record.device)
    exact = newton_schulz(x.double())
    bounds = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}
    functions = {}
    for function in (newton_schulz, gram_newton_schulz):
        for dtype, bound in bounds.items():
            name = f"{function.__name__} {dtype}"
            record.check(f"{name} {shape}", relative(function(x, dtype=dtype), exact), bound)
            functions[name] = lambda f=function, d=dtype: f(x, dtype=d)
    functions |= {method: lambda m=method: polar(x, method=m) for method in ("eigh", "svd")}
    record.time(f"polar {shape}", functions)


def scales(record: Record) -> None:
    x = torch.randn(48, 64, device=record.device)
    expected = polar(x, dtype=torch.float32)
    for scale in (1e-30, 1e-12, 1e12, 1e30):
        result = polar(x * scale, dtype=torch.float32)
        record.check(f"scale {scale:.0e}", relative(result, expected), 1e-4)
    batch = torch.stack([x, torch.zeros_like(x), x])
    batch[2, 0, 0] = math.nan
    result = polar(batch)
    record.check("zeros stay zeros", result[1].abs().max().item(), 0.0)
    record.check("NaN stays in its matrix", float(not result[0].isfinite().all()), 0.0)


def optimizers(record: Record, sets: list[str]) -> None:
    for name in sets:
        steps = {}
        for key in ("steepest", "steepest float32", "torch"):
            params = parameters(SETS[name], flat=True)
            for param in params:
                gradient = param.grad.to(record.device)
                param.grad = None
                param.data = param.data.to(record.device)
                param.grad = gradient
            if key == "torch":
                steps[key] = torch.optim.Muon(params).step
            else:
                dtype = "float32" if key.endswith("float32") else "auto"
                steps[key] = steepest.Muon(params, iteration_dtype=dtype).step
        record.time(f"Muon {name}", steps)
    params = [torch.nn.Parameter(torch.randn(1000, 1000, device=record.device))]
    params[0].grad = torch.randn_like(params[0])
    window = steepest.ProjectionRegularizedSGD(params, history_size=32)
    record.time("window of 32 x 1e6", {"projected": window.step})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    record = Record(torch.device(arguments.device), 2 if arguments.quick else 15)
    scales(record)
    triton_kernel(record, [256] if arguments.quick else [512, 1024, 2048, 4096])
    shapes = [(32, 64)] if arguments.quick else [(512, 512), (1024, 4096), (4096, 4096)]
    for shape in shapes:
        iterations(record, shape)
    optimizers(record, ["small"] if arguments.quick else ["small", "conv", "rect", "gpt768"])
    name = torch.cuda.get_device_name() if record.device.type == "cuda" else "cpu"
    result = {"device": name, "checks": record.checks, "milliseconds": record.times}
    print("wrote", write("gpu", result, arguments.out))
    return 0 if all(check["good"] for check in record.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
