"""Steepest descent in a metric made of columns, here the recent gradients.

The direction for the metric S, the columns G of the window and the newest column g is

    d = (1 − α) S⁻¹G K⁻¹ Gᵀ S⁻¹g + α S⁻¹g,   K = GᵀS⁻¹G + ρI,

a blend of the regularized projection on the recent gradients and of the plain preconditioned
gradient. Three forms of S: by algebra on the Gram matrix of the columns, dense, and diagonal. With
a power q other than 1 it is d = S^{−q/2} [(1 − α)P + αI] S^{−q/2} g.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from steepest.linalg.lowrank import projected_coefficients
from steepest.linalg.rows import pieces
from steepest.linalg.window import Columns

Metric = Literal["auto", "window", "dense", "diagonal"]


def window_coefficients(
    gram: Tensor,
    columns: Columns,
    *,
    damping: Tensor,
    history_size: int,
    rho: float,
    alpha: float,
    power: float = 1.0,
) -> Tensor:
    """Return the coefficients over the slots whose combination of the columns is the direction.

    Args:
        gram: ``(…, slots, slots)`` float64, of each metric.
        columns: what the slots hold.
        damping: ``(…)`` float64, λ_t of each metric.
        history_size: number of columns in G.
        rho: ρ, positive.
        alpha: α in [0, 1].
        power: q, with which S enters the direction.

    Returns:
        ``(…, slots)`` float64, zero for slots that are empty.
    """
    occupied = columns.occupied
    recent, newest = columns.recent(history_size), columns.newest
    solve = partial(projected_coefficients, damping=damping, rho=rho, alpha=alpha, power=power)
    if len(occupied) == columns.slots:
        return solve(gram, columns.weights, recent=recent, newest=newest)
    result = gram.new_zeros(gram.shape[:-1])
    result[..., occupied] = solve(
        gram[..., occupied[:, None], occupied],
        columns.weights[occupied],
        recent=torch.isin(occupied, recent).nonzero().flatten(),
        newest=int((occupied == newest).nonzero()[0]),
    )
    return result


def mean_square(gram: Tensor, columns: Columns, *, history_size: int) -> Tensor:
    """Return τ ``(…)``, the mean squared norm of the columns of the window."""
    recent = columns.recent(history_size)
    return gram.diagonal(dim1=-2, dim2=-1)[..., recent].mean(dim=-1)


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


def diagonal_metric_(
    metric: Tensor,
    rows: Tensor,
    *,
    recent: Tensor,
    position: int,
    first: bool,
    beta: float,
    ridge: float,
    power: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Update the diagonal of S_t, with GGᵀ replaced by its diagonal, and return inner products.

    One pass over the window, in pieces, for the part of the columns that is given.

    Args:
        metric: ``(n,)``, the diagonal of S_{t−1}, changed to that of S_t.
        rows: ``(slots, n)``, the columns.
        recent: ``(k,)`` int64, the slots of G.
        position: index of the current gradient g in G.
        first: whether this is the first step.
        beta: β in [0, 1).
        ridge: λ, positive.
        power: q, with which S enters the direction.

    Returns:
        GᵀS⁻¹G ``(k, k)`` and GᵀS^{−(1+q)/2}g ``(k,)``, float64.
    """
    recent = recent.to(rows.device)
    inner = torch.zeros(len(recent), len(recent), dtype=torch.float64, device=rows.device)
    right = inner.new_zeros(len(recent))
    for piece in pieces(rows, converted=True):
        window, part = rows[recent, piece].double(), metric[piece]
        variance = window.square().mean(dim=0).to(part)
        if not first:
            variance = beta * part + (1.0 - beta) * variance
        part.copy_(variance + ridge)
        scale = part.double().to(window.device)
        inner += (window / scale) @ window.mT
        right += window @ (window[position] * scale ** (-(1.0 + power) / 2.0))
    return inner.cpu(), right.cpu()


def diagonal_direction(
    metric: Tensor,
    rows: Tensor,
    scalars: Tensor,
    *,
    recent: Tensor,
    position: int,
    alpha: float,
    power: float = 1.0,
) -> Tensor:
    """Return S^{−(1+q)/2} G y + α S^{−q} g for the part of the columns that is given.

    Args:
        metric: ``(n,)``, the diagonal of S.
        rows: ``(slots, n)``, the columns.
        scalars: ``(k,)`` float64, y.
        recent: ``(k,)`` int64, the slots of G.
        position: index of the current gradient g in G.
        alpha: α in [0, 1].
        power: q.

    Returns:
        ``(n,)`` in the dtype of the metric.
    """
    result = torch.empty_like(metric)
    recent, scalars = recent.to(rows.device), scalars.to(rows.device, metric.dtype)
    for piece in pieces(rows, converted=True):
        window = rows[recent, piece].to(metric.dtype)
        part = metric[piece].to(window.device)
        blended = part ** (-(1.0 + power) / 2.0) * (scalars @ window)
        result[piece] = blended + alpha * part**-power * window[position]
    return result
