"""Steepest descent in a metric made of columns, here the recent gradients.

The direction for the metric S, the columns G of the window and the newest column g is

    d = (1 − α) S⁻¹G K⁻¹ Gᵀ S⁻¹g + α S⁻¹g,   K = GᵀS⁻¹G + ρI,

a blend of the regularized projection on the recent gradients and of the plain preconditioned
gradient. Three forms of S: by algebra on the Gram matrix of the columns, dense, and diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from steepest.linalg.lowrank import projected_coefficients, projection_coefficients
from steepest.linalg.window import Columns

Metric = Literal["auto", "window", "dense", "diagonal"]


def window_coefficients(
    grams: Sequence[Tensor],
    columns: Columns,
    *,
    history_size: int,
    rho: float,
    alpha: float,
    power: float = 1.0,
) -> Tensor:
    """Return the coefficients over the slots whose combination of the columns is the direction.

    Args:
        grams: ``(slots, slots)`` float64, one for each part of the columns; they are summed.
        columns: what the slots hold.
        history_size: number of columns in G.
        rho: ρ, positive.
        alpha: α in [0, 1].
        power: q, with which S enters the direction.

    Returns:
        ``(slots,)`` float64 on the CPU, zero for slots that are empty.
    """
    occupied = columns.occupied
    total = torch.zeros(columns.slots, columns.slots, dtype=torch.float64)
    for gram in grams:
        total += gram.cpu()
    recent = torch.isin(occupied, columns.recent(history_size)).nonzero().flatten()
    result = torch.zeros(columns.slots, dtype=torch.float64)
    result[occupied] = projected_coefficients(
        total[occupied][:, occupied],
        columns.weights[occupied],
        damping=columns.damping,
        recent=recent,
        newest=int((occupied == columns.newest).nonzero()[0]),
        rho=rho,
        alpha=alpha,
        power=power,
    )
    return result


def dense_metric(
    metric: Tensor, window: Tensor, *, first: bool, beta: float, ridge: float
) -> Tensor:
    """Return S_t = βS_{t−1} + (1 − β)GGᵀ/k + λI, or GGᵀ/k + λI at the first step.

    Args:
        metric: ``(p, p)``, S_{t−1}; zeros at the first step.
        window: ``(k, p)``, the columns of G as rows.
        first: whether this is the first step.
        beta: β in [0, 1).
        ridge: λ, positive.
    """
    covariance = window.mT @ window / window.shape[0]
    fresh = covariance if first else beta * metric + (1.0 - beta) * covariance
    return fresh + ridge * torch.eye(metric.shape[0], dtype=metric.dtype, device=metric.device)


def dense_direction(
    metric: Tensor, window: Tensor, gradient: Tensor, *, rho: float, alpha: float
) -> Tensor:
    """Return the direction by solves with the ``p × p`` metric.

    Args:
        metric: ``(p, p)``, S.
        window: ``(k, p)``, the columns of G as rows.
        gradient: ``(p,)``, g.
        rho: ρ, positive.
        alpha: α in [0, 1].
    """
    right = torch.cat([window, gradient[None]]).mT
    solved, singular = torch.linalg.solve_ex(metric, right)
    if bool(singular):  # to rounding: λ is positive
        solved = torch.linalg.pinv(metric, hermitian=True) @ right
    columns, preconditioned = solved[:, :-1], solved[:, -1]
    inner = window @ columns
    inner.diagonal().add_(rho)
    projection = columns @ torch.linalg.solve(inner, window @ preconditioned)
    direction: Tensor = (1.0 - alpha) * projection + alpha * preconditioned
    return direction


def diagonal_metric(
    metric: Tensor, window: Tensor, *, first: bool, beta: float, ridge: float
) -> Tensor:
    """Return the diagonal of S_t, with GGᵀ replaced by its diagonal.

    Args:
        metric: ``(p,)``, the diagonal of S_{t−1}.
        window: ``(k, p)``, the columns of G as rows.
        first: whether this is the first step.
        beta: β in [0, 1).
        ridge: λ, positive.
    """
    variance = window.to(metric.dtype).square().mean(dim=0)
    return (variance if first else beta * metric + (1.0 - beta) * variance) + ridge


def diagonal_inner(metric: Tensor, window: Tensor) -> Tensor:
    """Return ``(k, k)`` float64 GᵀS⁻¹G for the part of the columns that is given.

    Args:
        metric: ``(p,)``, the diagonal of S.
        window: ``(k, p)``, the columns of G as rows.
    """
    wide = window.double()
    return (wide / metric.double()) @ wide.mT


def diagonal_coefficients(
    inners: Sequence[Tensor], *, position: int, rho: float, alpha: float
) -> Tensor:
    """Return ``(k,)`` float64 y with d = S⁻¹G y, for the parts of GᵀS⁻¹G.

    Args:
        inners: ``(k, k)`` float64, one for each part of the columns; they are summed.
        position: index of the current gradient in the window.
        rho: ρ, positive.
        alpha: α in [0, 1].
    """
    total = torch.stack([inner.cpu() for inner in inners]).sum(dim=0)
    result = projection_coefficients(total, total[:, position], rho=rho, alpha=alpha)
    result[position] += alpha
    return result
