"""The optimizers that can be compared, by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from torch import optim

import steepest
from steepest.cli.errors import unknown
from steepest.model.create import MATRIX_OPTIMIZERS

Takes = Literal["everything", "matrices and convolutions", "matrices"]

# for the parameters that a matrix optimizer does not take
REST_OPTIONS = ("rest_lr", "rest_weight_decay")
# for the model that is trained, whatever the optimizer
MODEL_OPTIONS = ("qk_clip",)

# given by the model, or without sense in a plain loop on a CPU
_HIDDEN_OPTIONS = (
    *("params", "capturable", "differentiable"),
    *("layout", "transposed", "groups", "split", "interleaved", "heads", "block_axis"),
)


@dataclass(frozen=True)
class Kind:
    """An optimizer class and what the command must know of it.

    Attributes:
        name: on the command line.
        make: the class.
        takes: which parameters it can step.
        needs_closure: whether its step evaluates the loss itself.
    """

    name: str
    make: type[optim.Optimizer]
    takes: Takes = "everything"
    needs_closure: bool = False

    def options(self) -> dict[str, Any]:
        """Return the names that a user may set, with their defaults; None where there is none."""
        if issubclass(self.make, steepest.MatrixOptimizer):
            every = self.make.default_options()
        else:
            every = {p.name: p.default for p in inspect.signature(self.make).parameters.values()}
        own = {name: value for name, value in every.items() if name not in _HIDDEN_OPTIONS}
        rest = () if self.takes == "everything" else REST_OPTIONS
        return own | dict.fromkeys(rest) | dict.fromkeys(MODEL_OPTIONS)


def _all_kinds() -> dict[str, Kind]:
    ours = [
        *(Kind(n, make, "matrices and convolutions") for n, make in MATRIX_OPTIMIZERS.items()),
        Kind("projected", steepest.ProjectionRegularizedSGD),
    ]
    excluded = (optim.Optimizer, optim.Muon, optim.SparseAdam)  # the last takes sparse gradients
    theirs = [
        Kind(value.__name__.lower(), value, needs_closure=value is optim.LBFGS)
        for value in vars(optim).values()
        if inspect.isclass(value) and issubclass(value, optim.Optimizer) and value not in excluded
    ]
    theirs.append(Kind("torch-muon", optim.Muon, "matrices"))
    return {kind.name: kind for kind in [*ours, *sorted(theirs, key=lambda kind: kind.name)]}


KINDS = _all_kinds()


def find_kind(name: str) -> Kind:
    """Return the optimizer of this name, in upper or lower case.

    Args:
        name: "muon", "projected", "torch-muon", or a class of ``torch.optim``.

    Raises:
        BadInputError: for another name; its text lists them all.
    """
    if name.lower() not in KINDS:
        raise unknown("optimizer", name, KINDS)
    return KINDS[name.lower()]
