"""What an optimizer does to its parameters, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from steepest.geometry.blocks import Blocks
from steepest.linalg.normalize import iteration_dtype
from steepest.model.combined import CombinedOptimizer
from steepest.optim import checks
from steepest.optim.base import SteepestOptimizer
from steepest.optim.matrix import MatrixOptimizer
from steepest.optim.projected import ProjectionRegularizedSGD

_SQUARINGS = 6  # the 64th power

Record = dict[str, Any]


@torch.no_grad()
def diagnose(optimizer: Optimizer) -> list[Record]:
    r"""Return what can be told of the weights and the state of an optimizer now.

    For each parameter its name and ``weight_rms``; for one that is stepped as matrices M, by the
    largest or mean over these,

    ==========================  =================================================================
    ``weight_rank``             effective rank (Σσ²)²/Σσ⁴ of the weight, mean
    ``momentum_rank``           the same of the momentum
    ``largest_singular_value``  of the weight, within a few percent from below
    ==========================  =================================================================

    and for the gradient window, once for each block of parameters, ``window_spectrum``: the
    eigenvalues of its metric above the damping, largest first.

    Args:
        optimizer: any, also a ``CombinedOptimizer``.

    Returns:
        A dictionary of plain numbers for each parameter.

    Example:
        >>> from steepest import Muon
        >>> weight = torch.nn.Parameter(torch.eye(4))
        >>> record = diagnose(Muon([("w", weight)]))[0]
        >>> record["parameter"], record["weight_rms"], round(record["weight_rank"], 3)
        ('w', 0.5, 4.0)
    """
    records = [_state_of(param, group, part, name) for part, group, param, name in _each(optimizer)]
    return [*map(_plain, records), *_windows(optimizer)]


class Diagnostics:
    r"""Collects numbers at every k-th step, as a context or between ``start`` and ``stop``.

    Beside those of ``diagnose``, each record has the ``step``, and of the update

    ========================  ===================================================================
    ``update_rms``            root mean square of the change of the weight
    ``update_ratio``          that over the root mean square of the weight
    ``orthogonality_error``   ‖UUᵀ·m/‖U‖² − I‖_F/√m, mean over the matrices U (m rows, m ≤ n),
                              before scaling by η: zero if all singular values are equal
    ========================  ===================================================================

    Numbers stay on their device, and nothing waits for it, until ``read``. In between, steps are
    as without; at a k-th step the weights are copied once.

    Args:
        optimizer: any, also a ``CombinedOptimizer``.
        every: k.

    Example:
        >>> from steepest import Muon
        >>> weight = torch.nn.Parameter(torch.ones(2, 2))
        >>> optimizer = Muon([("w", weight)], lr=0.1, weight_decay=0.0, scale="none")
        >>> with Diagnostics(optimizer, every=2) as diagnostics:
        ...     for _ in range(4):
        ...         weight.grad = torch.eye(2)
        ...         optimizer.step()
        >>> [(r["step"], round(r["orthogonality_error"], 3)) for r in diagnostics.read()]
        [(0, 0.0), (2, 0.0)]
    """

    def __init__(self, optimizer: Optimizer, *, every: int = 10) -> None:
        checks.count("every", every)
        self._optimizer, self._every = optimizer, every
        self._step = 0
        self._before: dict[Tensor, Tensor] = {}
        self._updates: dict[Tensor, Tensor] = {}
        self._records: list[Record] = []
        self._handles: list[RemovableHandle] = []
        self._capturing: list[RemovableHandle] = []

    def start(self) -> None:
        """Begin to collect."""
        self._handles = [
            self._optimizer.register_step_pre_hook(self._note),
            self._optimizer.register_step_post_hook(self._measure),
        ]

    def stop(self) -> None:
        """Stop collecting; what has been collected stays to be read."""
        for handle in [*self._handles, *self._capturing]:
            handle.remove()
        self._handles, self._capturing = [], []

    def __enter__(self) -> Diagnostics:
        """Begin to collect."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop collecting."""
        self.stop()

    def read(self) -> list[Record]:
        """Return what has been collected since the last time, as plain numbers."""
        records, self._records = self._records, []
        return [_plain(record) for record in records]

    @torch.no_grad()
    def _note(self, *_: object) -> None:
        if self._step % self._every:
            return
        self._before = {
            param: param.detach().clone()
            for *_, param, _ in _each(self._optimizer)
            if param.grad is not None
        }
        for part in _parts(self._optimizer):
            if isinstance(part, SteepestOptimizer):
                self._capturing.append(part.register_weight_update_hook(self._capture))

    @contextmanager
    def _capture(self, weight: Tensor, update: Tensor, _: Mapping[str, Any]) -> Iterator[None]:
        self._updates[weight] = update.clone()
        yield

    @torch.no_grad()
    def _measure(self, *_: object) -> None:
        step, self._step = self._step, self._step + 1
        if step % self._every:
            return
        for handle in self._capturing:
            handle.remove()
        self._capturing = []
        for part, group, param, name in _each(self._optimizer):
            before = self._before.get(param)
            if before is None:
                continue
            record = {"step": step, **_state_of(param, group, part, name)}
            record["update_rms"] = _rms(param.detach().float() - before.float())
            record["update_ratio"] = record["update_rms"] / _rms(before)
            update = self._updates.get(param)
            if update is not None and isinstance(part, MatrixOptimizer):
                record["orthogonality_error"] = _mean(_stacks(update, group), _orthogonality_error)
            self._records.append(record)
        for record in _windows(self._optimizer):
            self._records.append({"step": step, **record})
        self._before, self._updates = {}, {}


def _parts(optimizer: Optimizer) -> Sequence[Optimizer]:
    return (
        list(optimizer.parts.values()) if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    )


def _each(optimizer: Optimizer) -> Iterator[tuple[Optimizer, dict[str, Any], Tensor, str]]:
    """Yield each parameter with its part, its group and its name, or its place."""
    place = 0
    for part in _parts(optimizer):
        for group in part.param_groups:
            for position, param in enumerate(group["params"]):
                names = group.get("param_names", ())
                yield part, group, param, names[position] if names else str(place)
                place += 1


def _state_of(param: Tensor, group: Mapping[str, Any], part: Optimizer, name: str) -> Record:
    weight = param.detach()
    record: Record = {"parameter": name, "weight_rms": _rms(weight)}
    if not isinstance(part, MatrixOptimizer) or param.numel() == 0:
        return record
    stacks = _stacks(weight, group)
    record["weight_rank"] = _mean(stacks, _effective_rank)
    largest = [_largest_singular_value(stack).amax() for stack in stacks]
    record["largest_singular_value"] = torch.stack(largest).amax()
    momentum = part.state.get(param, {}).get("momentum_buffer")
    if momentum is not None:
        record["momentum_rank"] = _mean(_stacks(momentum, group), _effective_rank)
    return record


def _stacks(x: Tensor, group: Mapping[str, Any]) -> list[Tensor]:
    """The matrices of a parameter, wide and in at least float32."""
    stacks = [stack.to(iteration_dtype(stack.dtype)) for stack in Blocks.of(group).stacks(x)]
    return [stack.mT if stack.shape[1] > stack.shape[2] else stack for stack in stacks]


def _mean(stacks: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean over all matrices of what a function of ``(count, m, n)`` says of each."""
    return torch.cat([function(stack) for stack in stacks]).mean()


def _gram(stack: Tensor) -> Tensor:
    """XXᵀ of each matrix over its squared Frobenius norm."""
    largest = stack.abs().amax(dim=(1, 2), keepdim=True)
    scaled = stack / torch.where(largest > 0.0, largest, 1.0)
    gram = scaled @ scaled.mT
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    normalized: Tensor = gram / torch.where(trace > 0.0, trace, 1.0)
    return normalized


def _effective_rank(stack: Tensor) -> Tensor:
    squares = _gram(stack).square().sum(dim=(1, 2))
    return torch.where(squares > 0.0, 1.0 / squares, 0.0)


def _orthogonality_error(stack: Tensor) -> Tensor:
    rows = stack.shape[1]
    identity = torch.eye(rows, dtype=stack.dtype, device=stack.device)
    error: Tensor = torch.linalg.matrix_norm(rows * _gram(stack) - identity) / rows**0.5
    return error


def _largest_singular_value(stack: Tensor) -> Tensor:
    """From below: the mean of the eigenvalues of XXᵀ, each weighted by its own high power."""
    gram = power = _gram(stack)
    for _ in range(_SQUARINGS):
        power = power @ power
        power = power / power.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-30)[:, None, None]
    share = (gram * power).sum(dim=(1, 2)).clamp_min(0.0).double()
    length: Tensor = torch.linalg.vector_norm(stack, dim=(1, 2), dtype=torch.float64)
    return share.sqrt() * length


def _rms(x: Tensor) -> Tensor:
    """Root mean square, summed in float64, where no square overflows."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    rms: Tensor = length / max(1, x.numel()) ** 0.5
    return rms


def _windows(optimizer: Optimizer) -> Iterator[Record]:
    """The spectrum of each gradient window; its Gram matrices are on the CPU already."""
    for part in _parts(optimizer):
        if not isinstance(part, ProjectionRegularizedSGD):
            continue
        for place, spectrum in enumerate(part.window_spectra()):
            yield {"window": place, "window_spectrum": spectrum}


def _plain(record: Record) -> Record:
    return {
        name: value.item() if isinstance(value, Tensor) else value for name, value in record.items()
    }
