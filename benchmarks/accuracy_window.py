"""Errors of the steps of the gradient window against the formula in float64.

    python benchmarks/accuracy_window.py [--most 1e7]

Weights: largest relative error of the weights in 25 steps on 30 parameters, over several beta,
history_size and alpha. Steps: relative error of a step with float32 gradients, the window in
float32 or bf16, against the dense formula at 1e3 parameters, and against the same formula with its
sums over the parameters streamed in float64 at more. Ranks: error of a step with a compressed tail
against the dense formula that forgets nothing, on gradients of a network for the digits.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from common import write  # isort: skip
import torch
from sklearn.datasets import load_digits

import oracles
from optim.test_projected import trajectory_error
from steepest import ProjectionRegularizedSGD
from window_problem import GIVEN

BETAS, SIZES, ALPHAS = (0.0, 0.3, 0.9), (1, 2, 4, 13, 40), (0.0, 0.1, 1.0)


def weight_errors():
    rows = []
    for metric, dtype in itertools.product(
        ("dense", "window", "diagonal"), (torch.float64, torch.float32)
    ):
        error, *setting = max(
            (trajectory_error(metric, dtype=dtype, beta=b, history_size=m, alpha=a), b, m, a)
            for b, m, a in itertools.product(BETAS, SIZES, ALPHAS)
        )
        at = dict(zip(("beta", "history_size", "alpha"), setting, strict=True))
        rows.append({"metric": metric, "dtype": str(dtype), "error": error, "worst at": at})
        print({**rows[-1], "error": f"{error:.1e}"}, flush=True)
    return rows


def correlated(size, steps, *, seed=0):
    """Gradients in float32 with a common part, one part that falls and noise."""
    generator = torch.Generator().manual_seed(seed)
    common, falling = (torch.randn(size, generator=generator) for _ in range(2))
    for step in range(steps):
        noise = torch.randn(size, generator=generator)
        yield (0.7**step * falling + 0.3 * common + noise) / size**0.5


def streamed_step(columns, *, piece=1 << 20):
    """The formula with β = 0 and the given options, all sums over parameters in float64."""
    count, size = len(columns), len(columns[0])
    gram = torch.zeros(count, count, dtype=torch.float64)
    for start in range(0, size, piece):
        part = torch.stack([column[start : start + piece] for column in columns]).double()
        gram += part @ part.T
    identity = torch.eye(count, dtype=torch.float64)
    solve = torch.linalg.inv(GIVEN["ridge"] * identity + gram / count)  # S⁻¹G = G · solve
    newest = identity[-1]
    inner = gram @ solve + GIVEN["rho"] * identity
    filtered = torch.linalg.solve(inner, gram @ (solve @ newest))
    alpha = GIVEN["alpha"]
    return solve @ ((1 - alpha) * filtered + alpha * newest)


def step_errors(size, history_dtype, *, steps=6):
    """Largest relative error of a step, in the norm over all parameters."""
    param = torch.nn.Parameter(torch.zeros(size))
    options = {} if history_dtype is None else {"history_dtype": history_dtype}
    optimizer = ProjectionRegularizedSGD([param], lr=1.0, **options)
    dense = oracles.ProjectionRegularized(**GIVEN) if size <= 1000 else None
    columns, worst = [], 0.0
    for gradient in correlated(size, steps):
        param.data.zero_()
        param.grad = gradient
        optimizer.step()
        columns = [*columns, gradient][-GIVEN["history_size"] :]
        if dense is not None:
            exact = -dense.direction(gradient)
            error, norm = (param.detach() - exact).norm().item(), exact.norm().item()
        else:
            error, norm = streamed_error(param.detach(), columns, streamed_step(columns))
        worst = max(worst, error / norm)
    return worst


def streamed_error(moved, columns, coefficients, *, piece=1 << 20):
    error = norm = 0.0
    for start in range(0, len(moved), piece):
        part = torch.stack([column[start : start + piece] for column in columns]).double()
        exact = -(coefficients @ part)
        error += (moved[start : start + piece] - exact).square().sum().item()
        norm += exact.square().sum().item()
    return error**0.5, norm**0.5


def digits_gradients(steps, *, seed=0):
    """Gradients along a run of SGD on the digits, 985 parameters, minibatches of 64."""
    torch.manual_seed(seed)
    inputs, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    inputs = inputs.double() / 16
    layers = [torch.nn.Linear(64, 13), torch.nn.Tanh(), torch.nn.Linear(13, 10)]
    model = torch.nn.Sequential(*layers).double()
    for _ in range(steps):
        batch = torch.randint(len(labels), (64,))
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for param, gradient in zip(model.parameters(), gradients, strict=True):
                param -= 0.5 * gradient
        yield torch.cat([gradient.flatten() for gradient in gradients])


def rank_errors(betas, ranks, *, steps, after):
    """Median over the last steps of the relative error, for each beta, rank and cut."""
    gradients = list(digits_gradients(steps))
    rows = []
    for beta in betas:
        oracle = oracles.ProjectionRegularized(**{**GIVEN, "beta": beta})
        exact = [-oracle.direction(gradient) for gradient in gradients]
        for rank, cut in [(None, "ridge"), *itertools.product(ranks, ("ridge", "drop"))]:
            param = torch.nn.Parameter(torch.zeros_like(gradients[0]))
            optimizer = ProjectionRegularizedSGD([param], lr=1.0, beta=beta, rank=rank, cut=cut)
            errors = []
            for gradient, step in zip(gradients, exact, strict=True):
                param.data.zero_()
                param.grad = gradient
                optimizer.step()
                errors.append((param.detach() - step).norm() / step.norm())
            error = torch.stack(errors[after:]).median().item()
            slots = optimizer.state[param]["history"].shape[0]
            rows.append({"beta": beta, "rank": rank, "cut": cut, "slots": slots, "error": error})
            print({**rows[-1], "error": f"{error:.1e}"}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=float, default=1e7, help="most parameters of a step")
    parser.add_argument("--quick", action="store_true", help="few settings")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    record = {"weights": [] if arguments.quick else weight_errors(), "steps": []}
    sizes = [size for size in (1000, 100_000, 10_000_000) if size <= arguments.most]
    for size, dtype in itertools.product(sizes, (None, "bfloat16")):
        row = {"entries": size, "history_dtype": dtype, "error": step_errors(size, dtype)}
        record["steps"].append(row)
        print({**row, "error": f"{row['error']:.1e}"}, flush=True)
    if arguments.quick:
        record["ranks"] = rank_errors((0.5,), (4,), steps=12, after=6)
    else:
        record["ranks"] = rank_errors((0.5, 0.9, 0.99), (2, 4, 8, 16, 32), steps=120, after=60)
    print("wrote", write("accuracy_window", record, arguments.out))


if __name__ == "__main__":
    main()
