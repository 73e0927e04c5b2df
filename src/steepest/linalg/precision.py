"""The precision of float32 matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

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
    before = torch.get_float32_matmul_precision()
    if before == precision:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
