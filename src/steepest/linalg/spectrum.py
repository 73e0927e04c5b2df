"""Functions of the singular values that are not the polar factor: clip, excess, one-sided forms."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from steepest.linalg.normalize import iteration_dtype

Side = Literal["left", "right"]


def clip_spectrum(x: Tensor, *, low: float, high: float) -> Tensor:
    r"""Return U clip(Σ, low, high) Vᵀ for each matrix UΣVᵀ.

    Singular values that are zero to rounding stay zero, whatever ``low`` is: their vectors are not
    determined.

    Args:
        x: ``(..., m, n)``; not changed; one that is not finite comes out as NaN.
        low: least singular value of the result within the range of the matrix, at least 0.
        high: largest, at least ``low``.

    Example:
        >>> clip_spectrum(torch.diag(torch.tensor([3.0, 1.0, 0.1])), low=0.5, high=2.0).diagonal()
        tensor([2.0000, 1.0000, 0.5000])
    """
    x, finite = _finite(x)
    u, values, vh = _svd(x)
    rounding = max(x.shape[-2:]) * torch.finfo(values.dtype).eps
    inside = values > rounding * values[..., :1]
    wanted = torch.where(inside, values.clamp(low, high), 0.0)
    clipped: Tensor = (u * wanted[..., None, :]) @ vh
    return torch.where(finite, clipped, torch.nan).to(x.dtype)


def spectrum_above(x: Tensor, *, cap: float) -> Tensor:
    r"""Return U max(Σ − cap, 0) Vᵀ: what each matrix has beyond a spectral norm of ``cap``.

    Args:
        x: ``(..., m, n)``; not changed; one that is not finite comes out as NaN.
        cap: at least 0.

    Example:
        >>> spectrum_above(torch.diag(torch.tensor([3.0, 1.0])), cap=2.0).diagonal()
        tensor([1., 0.])
    """
    x, finite = _finite(x)
    u, values, vh = _svd(x)
    excess: Tensor = (u * (values - cap).clamp_min(0.0)[..., None, :]) @ vh
    return torch.where(finite, excess, torch.nan).to(x.dtype)


def one_sided_polar(x: Tensor, *, side: Side) -> Tensor:
    r"""Return the polar factor by the Gram matrix of one side, (XXᵀ)^{-1/2}X or X(XᵀX)^{-1/2}.

    The power is a pseudo-inverse over the numerical range, so that both sides give the same matrix;
    the Gram matrix and its eigenvalues are taken in float64.

    Args:
        x: ``(..., m, n)``; not changed; one that is not finite comes out as NaN.
        side: "left" for the m × m Gram matrix of the rows, "right" for the n × n one.

    Example:
        >>> one_sided_polar(torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), side="right")
        tensor([[1., 0., 0.],
                [0., 1., 0.]])
    """
    x, finite = _finite(x)
    wide = x.double() if side == "left" else x.double().mT
    largest = wide.abs().amax(dim=(-2, -1), keepdim=True)
    wide = wide / torch.where(largest == 0.0, 1.0, largest)
    values, vectors = torch.linalg.eigh(wide @ wide.mT)
    # of squares, those of the null space are rounding of float64
    floor = values[..., -1:] * wide.shape[-2] * torch.finfo(torch.float64).eps
    powers = torch.where(values > floor, values.clamp_min(1e-300).rsqrt(), 0.0)
    root: Tensor = (vectors * powers[..., None, :]) @ vectors.mT
    factor: Tensor = root @ wide
    return torch.where(finite, factor if side == "left" else factor.mT, torch.nan).to(x.dtype)


def _finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``x`` with zeros for the matrices that are not finite, and which are, (..., 1, 1)."""
    finite = x.isfinite().all(dim=-1).all(dim=-1)[..., None, None]
    return torch.where(finite, x, 0.0), finite


def _svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, values, vh = torch.linalg.svd(x.to(iteration_dtype(x.dtype)), full_matrices=False)
    return u, values, vh
