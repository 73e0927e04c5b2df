"""How it is computed: batched tensors in, tensors out; nothing of norms or optimizers."""

from steepest.linalg.minimax import minimax, minimax_error
from steepest.linalg.polar import gram_newton_schulz, newton_schulz, polar
from steepest.linalg.precision import matmul_precision
from steepest.linalg.schedules import SCHEDULES, coefficients

__all__ = [
    "SCHEDULES",
    "coefficients",
    "gram_newton_schulz",
    "matmul_precision",
    "minimax",
    "minimax_error",
    "newton_schulz",
    "polar",
]
