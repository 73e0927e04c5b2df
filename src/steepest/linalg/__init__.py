"""How it is computed: batched tensors in, tensors out; nothing of norms or optimizers."""

from steepest.linalg.polar import newton_schulz
from steepest.linalg.precision import matmul_precision
from steepest.linalg.schedules import SCHEDULES, coefficients

__all__ = ["SCHEDULES", "coefficients", "matmul_precision", "newton_schulz"]
