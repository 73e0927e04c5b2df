"""Division of matrices by their Frobenius norm, at any scale that a dtype can hold."""

from __future__ import annotations

import torch
from torch import Tensor


def iteration_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, and float32 for every narrower dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def normalize(x: Tensor, *, dtype: torch.dtype, exact: bool = False) -> Tensor:
    """Return ``x / ‖x‖_F`` for each matrix as a new tensor of ``dtype``, at any scale.

    The norm is summed in float64, where the square of no narrower number over- or underflows, and
    the division is done in the wider of the two dtypes: narrowing first would overflow.

    With ``exact``, the norm is replaced by the next power of two, so that nothing is rounded: of a
    matrix with condition κ, rounding would move the polar factor by κ times as much.
    """
    wide = x.to(torch.promote_types(x.dtype, iteration_dtype(dtype)), copy=True)
    return normalize_(wide, exact=exact).to(dtype)


def normalize_(wide: Tensor, *, exact: bool = False) -> Tensor:
    """Normalise in place and return the same tensor; see ``normalize``."""
    if wide.dtype == torch.float64:  # its own squares can overflow
        largest = torch.frexp(wide.abs().amax(dim=(-2, -1), keepdim=True)).exponent
        # of a subnormal number, the power of two would itself be infinite
        wide *= torch.exp2(-largest.clamp_min(-1000).double())
    norm = torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    norm = torch.where(norm == 0, 1.0, norm)
    # in two factors, since 1/norm of a subnormal float32 is beyond its range
    if exact:
        exponent = torch.frexp(norm).exponent
        first = exponent.div(2, rounding_mode="floor")
        return wide.mul_(torch.exp2(-first.double())).mul_(torch.exp2((first - exponent).double()))
    half = norm.rsqrt().to(wide.dtype)
    return wide.mul_(half).mul_(half)
