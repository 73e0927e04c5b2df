"""A window of columns: which slot holds which, and what each weighs in the metric.

Columns are stored as rows, ``(slots, p)`` row-major, so that one column is contiguous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """What the slots of a window hold, the same for every parameter of one metric.

    Attributes:
        step: number of columns seen so far.
        column_step: ``(slots,)`` int64, the step that wrote each slot; 0 for an empty one.
        weights: ``(slots,)`` float64, weight of each column in the metric; 0 for an empty one.
        damping: the multiple of the identity in the metric.
    """

    step: int
    column_step: Tensor
    weights: Tensor
    damping: float

    @classmethod
    def empty(cls) -> Columns:
        """Return a window without slots, before the first step."""
        return cls(0, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), 0.0)

    @property
    def slots(self) -> int:
        """Number of slots, empty ones included."""
        return self.column_step.numel()

    @property
    def occupied(self) -> Tensor:
        """``(M,)`` int64, the slots that hold a column."""
        return self.column_step.nonzero().flatten()

    @property
    def newest(self) -> int:
        """The slot of the latest column."""
        return int(self.column_step.argmax())

    def recent(self, history_size: int) -> Tensor:
        """``(k,)`` int64, the slots of the latest ``history_size`` columns."""
        first = max(self.step - history_size, 0)
        return (self.column_step > first).nonzero().flatten()


def advance(
    columns: Columns,
    *,
    history_size: int,
    beta: float,
    ridge: float,
    tail_tolerance: float,
) -> Columns:
    r"""Make room for the next column and return the window that contains it.

    The metric is S_t = λ_t I + B diag(w) Bᵀ over the columns B, with

    $$λ_t = βλ_{t-1} + λ, \qquad w ← βw, \qquad w_j ← w_j + (1-β)/k$$

    the last for the k latest columns, at most ``history_size``; at t = 1 it is w = 1. A column
    older than those is forgotten when its weight is at most ``tail_tolerance`` times the largest.

    Args:
        columns: the window before the step; not changed.
        history_size: number of columns in the moving average of one step.
        beta: decay of the metric, in [0, 1).
        ridge: λ, added at every step.
        tail_tolerance: relative weight under which an old column is dropped; 0 keeps all, 1 none.

    Returns:
        The window after the step, its newest column in ``result.newest``. It has more slots than
        before where none was free.
    """
    step = columns.step + 1
    recent = columns.column_step > max(step - history_size, 0)
    # fewer than min(step, history_size) where history_size has been raised since
    count = int(recent.sum()) + 1
    share = 1.0 if step == 1 else (1.0 - beta) / count
    weights = columns.weights * beta + share * recent.double()
    largest = max([share, *weights.tolist()])
    kept = recent | (weights > tail_tolerance * largest)
    weights = weights * kept
    column_step = columns.column_step * kept

    free = (column_step == 0).nonzero().flatten()
    if free.numel() == 0:
        more = _growth(columns.slots, history_size)
        free = torch.tensor([columns.slots])
        weights = torch.cat([weights, weights.new_zeros(more)])
        column_step = torch.cat([column_step, column_step.new_zeros(more)])
    weights[free[0]] = share
    column_step[free[0]] = step
    return Columns(step, column_step, weights, beta * columns.damping + ridge)


def _growth(slots: int, history_size: int) -> int:
    """Number of slots to add: the window at first, then half as many again."""
    return history_size if slots == 0 else max(8, math.ceil(slots / 2))
