"""The bound of frequent directions, over many compressions of a tail."""

from __future__ import annotations

import pytest
import torch

from steepest.linalg.lowrank import tail_mixture


def stream(size, count, *, spread, seed=0):
    """Columns ``(size, count)`` with singular values that fall by ``spread`` over the columns."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(size, count, generator=generator, dtype=torch.float64)
    directions = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
    falling = spread ** (-torch.arange(size, dtype=torch.float64) / size)
    return directions @ (falling[:, None] * columns)


def sketched(columns, *, rank, batch, beta, shrink):
    """Compress after every ``batch`` columns; return A, the rest Ã, the cuts and compressions."""
    size = len(columns)
    exact, kept = torch.zeros(size, size).double(), torch.zeros(size, 0).double()
    cut, times = 0.0, 0
    for part in columns.split(batch, dim=1):
        exact = beta * exact + part @ part.T
        held = torch.cat([kept, part], dim=1)
        weights = torch.ones(held.shape[1]).double()
        weights[: kept.shape[1]] = beta
        mixture, lost = tail_mixture(held.T @ held, weights, rank=rank, shrink=shrink)
        kept, cut, times = held @ mixture, beta * cut + lost, times + 1
    return exact, kept @ kept.T, cut, times


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("rank", [1, 4, 9])
@pytest.mark.parametrize("spread", [1.0, 1e2, 1e6])
def test_what_compressions_lose_is_within_the_bound(spread, rank, beta):
    columns = stream(20, 120, spread=spread)
    exact, kept, cut, times = sketched(columns, rank=rank, batch=rank + 1, beta=beta, shrink=True)
    assert times >= 12
    scale = torch.linalg.matrix_norm(exact, 2).item()
    lost = torch.linalg.eigvalsh(exact - kept) / scale
    assert lost[0] > -1e-12
    assert lost[-1] < cut / scale + 1e-12
    tails = torch.linalg.eigvalsh(exact).flip(0).clamp_min(0.0)
    for k in range(rank + 1):  # Δ ≤ ‖A − A_k‖_* / (R + 1 − k)
        assert cut <= tails[k:].sum().item() / (rank + 1 - k) + 1e-12 * scale
    assert torch.linalg.matrix_rank(kept, hermitian=True) <= rank


def test_the_bound_is_met_with_equality_and_needs_the_shrinking():
    """Equal orthogonal columns, all but R of them lost: Δ = ‖A‖_*/(R + 1) for one compression."""
    columns = torch.eye(5, dtype=torch.float64)
    exact, kept, cut, _ = sketched(columns, rank=4, batch=5, beta=1.0, shrink=True)
    assert cut == pytest.approx(1.0)
    assert torch.linalg.matrix_norm(kept) < 1e-7
    assert torch.linalg.eigvalsh(exact - kept)[-1].item() == pytest.approx(cut)
    dropped = sketched(columns, rank=4, batch=5, beta=1.0, shrink=False)
    assert dropped[2] == 0.0
    assert torch.linalg.eigvalsh(exact - dropped[1])[-1].item() == pytest.approx(1.0)
