"""A window of columns: which slot holds which, and what each weighs in the metric.

Columns are stored as rows, ``(slots, p)`` row-major, so that one column is contiguous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# the mark of a slot that holds a combination of old columns, where others have their step
MIXTURE = -1


@dataclass(frozen=True)
class Columns:
    """What the slots of a window hold, the same for every parameter of one metric.

    Attributes:
        step: number of columns seen so far.
        column_step: ``(slots,)`` int64, the step that wrote each slot; 0 for an empty one, -1 for
            one that holds a combination of columns older than the window.
        weights: ``(slots,)`` float64, weight of each column in the metric; 0 for an empty one.
        since: number of vectors that have been the newest column in turn.
    """

    step: int
    column_step: Tensor
    weights: Tensor
    since: int = 1

    @classmethod
    def empty(cls) -> Columns:
        """Return a window without slots, before the first step."""
        return cls(0, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))

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

    def tail(self, history_size: int) -> Tensor:
        """``(T,)`` int64, the slots of columns older than those."""
        first = max(self.step - history_size, 0)
        return ((self.column_step != 0) & (self.column_step <= first)).nonzero().flatten()

    def mixed(self, tail: Tensor, rank: int) -> Columns:
        """Return what the slots hold once the tail has been replaced by ``rank`` combinations.

        They are in the first slots of the tail, and weigh as much as its heaviest column did.
        """
        column_step, weights = self.column_step.clone(), self.weights.clone()
        column_step[tail], weights[tail] = 0, 0.0
        column_step[tail[:rank]], weights[tail[:rank]] = MIXTURE, self.weights[tail].max()
        return replace(self, column_step=column_step, weights=weights)


def advance(
    columns: Columns,
    *,
    history_size: int,
    beta: float,
    tail_tolerance: float,
    stride: int = 1,
    most: int | None = None,
) -> Columns:
    r"""Make room for the next column and return the window that contains it.

    The metric is S_t = λ_t I + B diag(w) Bᵀ over the columns B, with

    $$w ← βw, \qquad w_j ← w_j + (1-β)/k$$

    the last for the k latest columns, at most ``history_size``; at t = 1 it is w = 1. A column
    older than those is forgotten when its weight is at most ``tail_tolerance`` times the largest.

    Args:
        columns: the window before the step; not changed.
        history_size: number of columns in the moving average of one step.
        beta: decay of the metric, in [0, 1).
        tail_tolerance: relative weight under which an old column is dropped; 0 keeps all, 1 none.
        stride: how many vectors in turn are the newest column, each in the place of the last;
            nothing else changes until then.
        most: number of slots beyond which no room is made while one is free.

    Returns:
        The window after the step, its newest column in ``result.newest``. It has more slots than
        before where none was free.
    """
    if columns.step and columns.since < stride:
        return replace(columns, since=columns.since + 1)
    step = columns.step + 1
    recent = columns.column_step > max(step - history_size, 0)
    # fewer than min(step, history_size) where history_size has been raised since
    count = int(recent.sum()) + 1
    share = 1.0 if step == 1 else (1.0 - beta) / count
    weights = columns.weights * beta + share * recent.double()
    if tail_tolerance >= 1.0 or beta == 0.0:
        kept = recent
    else:
        largest = max([share, *weights.tolist()])
        kept = recent | (weights > tail_tolerance * largest)
    weights = weights * kept
    column_step = columns.column_step * kept

    free = int(column_step.abs().argmin()) if columns.slots else 0
    if columns.slots == 0 or int(column_step[free]) != 0:
        more = _growth(columns.slots, history_size, most)
        free = columns.slots
        weights = torch.cat([weights, weights.new_zeros(more)])
        column_step = torch.cat([column_step, column_step.new_zeros(more)])
    weights[free] = share
    column_step[free] = step
    return Columns(step, column_step, weights)


def _growth(slots: int, history_size: int, most: int | None) -> int:
    """Number of slots to add: the window at first, then half as many again."""
    if slots == 0:
        return history_size
    more = max(8, math.ceil(slots / 2))
    return more if most is None or most <= slots else min(more, most - slots)


def full_size(
    *, history_size: int, beta: float, tail_tolerance: float, rank: int | None
) -> int | None:
    """Return how many slots a window comes to have, or None where it grows without end.

    Example:
        >>> full_size(history_size=4, beta=0.5, tail_tolerance=0.0, rank=8)
        20
    """
    if beta == 0.0:
        return history_size
    if rank is not None:
        return history_size + 2 * rank
    if tail_tolerance == 0.0:
        return None
    occupied = history_size + math.ceil(math.log(tail_tolerance) / math.log(beta)) + 1
    slots = history_size
    while slots < occupied:
        slots += _growth(slots, history_size, None)
    return slots
