"""The polar factor UVᵀ of X = UΣVᵀ by odd matrix polynomials."""

from __future__ import annotations

import torch
from torch import Tensor

from steepest.linalg.schedules import Schedule, coefficients


def newton_schulz(
    x: Tensor,
    *,
    schedule: Schedule = "polar_express",
    steps: int = 5,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Approximate the polar factor of each matrix by ``steps`` odd polynomials.

    With X₀ = X / ‖X‖_F, each step is

    $$X_{i+1} = a X_i + (b\,X_i X_i^T + c\,(X_i X_i^T)^2) X_i$$

    on the orientation whose XXᵀ is the smaller, so that X keeps its singular vectors and each
    singular value s becomes a s + b s³ + c s⁵. The result does not depend on the scale of ``x``.

    Args:
        x: matrices of shape ``(..., m, n)``, any real floating dtype; not changed.
        schedule: coefficient table, see ``SCHEDULES``.
        steps: number of polynomials, at least 1.
        dtype: dtype of the iteration; default float32 for 16-bit input, else that of ``x``.

    Returns:
        A new tensor of the shape and dtype of ``x``. A zero matrix gives exact zeros; a matrix
        with a non-finite entry gives a non-finite matrix, without touching others of the batch.

    Raises:
        ValueError: if ``x`` has fewer than two dimensions or is not real and floating.

    Example:
        >>> x = torch.diag(torch.tensor([3.0, 1.0]))
        >>> newton_schulz(x, schedule="polar_express", steps=8).round(decimals=3)
        tensor([[1., 0.],
                [0., 1.]])

    Source: Björck & Bowie (1971); Jordan et al., Muon (2024); tables as ``SCHEDULES`` says.
    """
    check_matrices(x)
    table = coefficients(schedule, steps)
    if x.numel() == 0:
        return x.clone()
    iterate = normalize(x, dtype=dtype or iteration_dtype(x.dtype))
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        iterate = iterate.mT
    for a, b, c in table:
        gram = iterate @ iterate.mT
        # b·A + c·A² and a·X + (…)X, each as one fused product
        polynomial = _fused_product(gram, gram, gram, beta=b, alpha=c)
        iterate = _fused_product(iterate, polynomial, iterate, beta=a, alpha=1.0)
    return (iterate.mT if tall else iterate).to(x.dtype)


def check_matrices(x: Tensor) -> None:
    """Raise ``ValueError`` unless ``x`` is a batch of real floating matrices ``(..., m, n)``."""
    if x.ndim < 2:
        raise ValueError(f"x must have at least two dimensions (..., m, n), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be of a real floating dtype, got {x.dtype}")


def iteration_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, and float32 for every narrower dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def normalize(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return ``x / ‖x‖_F`` for each matrix in ``dtype``, at any scale that ``x`` can hold.

    The largest entry is divided out first, since the square of an entry beyond 1e±19 is not a
    float32. That division happens in the wider of the two dtypes: narrowing first would overflow.
    """
    wide = x.to(torch.promote_types(x.dtype, iteration_dtype(dtype)))
    largest = wide.abs().amax(dim=(-2, -1), keepdim=True)
    # a zero matrix stays zero; the quotient is exact zeros instead of 0/0
    scaled = wide / torch.where(largest == 0, 1.0, largest)
    norm = torch.linalg.matrix_norm(scaled, keepdim=True)
    return scaled.div_(norm.clamp_min_(1.0)).to(dtype)


def _fused_product(
    add: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float
) -> Tensor:
    """Return ``beta·add + alpha·left @ right`` over any number of batch dimensions."""
    if add.ndim == 2:
        return torch.addmm(add, left, right, beta=beta, alpha=alpha)
    flat = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (add, left, right))
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).reshape(add.shape)
