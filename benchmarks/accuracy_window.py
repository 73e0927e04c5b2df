"""Errors of the gradient window in float32 and float64 against the dense formula in float64.

    python benchmarks/accuracy_window.py

Runs the optimizer and the oracle of the tests side by side for 25 steps on the same gradients, for
several beta, history_size and alpha, and prints the largest relative error of the weights.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from optim.test_projected import trajectory_error

BETAS, SIZES, ALPHAS = (0.0, 0.3, 0.9), (1, 2, 4, 13, 40), (0.0, 0.1, 1.0)


def main() -> None:
    for metric, dtype in itertools.product(
        ("dense", "window", "diagonal"), (torch.float64, torch.float32)
    ):
        error, *setting = max(
            (trajectory_error(metric, dtype=dtype, beta=b, history_size=m, alpha=a), b, m, a)
            for b, m, a in itertools.product(BETAS, SIZES, ALPHAS)
        )
        at = "beta {}, history_size {}, alpha {}".format(*setting)
        print(f"{metric:8s} {str(dtype).removeprefix('torch.'):8s} {error:.1e}  at {at}")


if __name__ == "__main__":
    main()
