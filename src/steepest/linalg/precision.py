"""The precision of float32 matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

MatmulPrecision = Literal["highest", "high", "medium"]


@contextmanager
def matmul_precision(precision: MatmulPrecision) -> Iterator[None]:
    """Set ``torch.set_float32_matmul_precision`` inside the block and restore it after.

    Args:
        precision: ``"highest"``, ``"high"`` or ``"medium"``, as torch defines them.

    Example:
        >>> with matmul_precision("high"):
        ...     torch.get_float32_matmul_precision()
        'high'
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses once a backend's own fp32_precision has been set
        with _backend_precision(precision):
            yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _backend_precision(precision: MatmulPrecision) -> Iterator[None]:
    """The same by the per-backend settings, which torch does not mix with the global one."""
    backends: Any = torch.backends  # whose submodules torch does not declare
    cuda, mkldnn = backends.cuda.matmul, backends.mkldnn.matmul
    before = cuda.fp32_precision, mkldnn.fp32_precision
    cuda.fp32_precision = "ieee" if precision == "highest" else "tf32"
    mkldnn.fp32_precision = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[precision]
    try:
        yield
    finally:
        cuda.fp32_precision, mkldnn.fp32_precision = before
