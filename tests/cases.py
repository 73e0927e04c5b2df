"""The one table of optimizers, with what each can do, and the one table of problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

import steepest
from steepest.linalg import newton_schulz
from steepest.model.create import MATRIX_OPTIMIZERS


@dataclass(frozen=True)
class Case:
    """An optimizer with options, and its capabilities as data.

    Attributes:
        name: for test ids.
        make: the class.
        options: constructor options.
        takes: "matrices" or "anything".
        coupled: whether a parameter's step depends on the gradients of the others.
        closed_options: whether a group with an unknown option is refused.
    """

    name: str
    make: Callable[..., Optimizer]
    options: dict[str, Any] = field(default_factory=dict)
    takes: str = "anything"
    coupled: bool = False
    closed_options: bool = True

    @property
    def counts(self) -> bool:
        """Whether the step depends on how many a parameter has had, even of zero gradients."""
        namo = self.options.get("second_moment") == "namo"
        return namo or self.options.get("period", 1) > 1

    def build(self, params: Iterable[Any], **options: Any) -> Optimizer:
        return self.make(params, **{**self.options, **options})

    def __str__(self) -> str:
        return self.name


def double(x: Tensor) -> Tensor:
    """A map that pickle can find by name."""
    return 2.0 * newton_schulz(x, schedule="simple", steps=5)


_BASE = {
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "nesterov": True,
    "weight_decay_method": "decoupled",
    "fp32_matmul_prec": "highest",
    "scaled_orthogonalize_fn": double,
}
_IDENTITY = {**_BASE, "scaled_orthogonalize_fn": None, "nesterov": False}


def _matrices(
    name: str, make: Callable[..., Optimizer], closed: bool = True, **options: Any
) -> Case:
    return Case(name, make, options, takes="matrices", closed_options=closed)


def _projected(name: str, **options: Any) -> Case:
    return Case(name, steepest.ProjectionRegularizedSGD, {"lr": 0.1, **options}, coupled=True)


# options that go another way through the engine, several at once where they are independent
VARIANTS: Sequence[tuple[str, dict[str, Any]]] = (
    ("namo", {"second_moment": "namo", "tolerance": 1e-6}),
    ("namo-raw", {"second_moment": "namo_raw", "nesterov": False, "method": "eigh"}),
    ("adamuon", {"second_moment": "adamuon", "weight_decay_method": "palm"}),
    ("normuon-long", {"second_moment": "normuon_long", "weight_decay_method": "cautious"}),
    ("clipped", {"clip": (0.1, 0.5), "scale": "none", "weight_decay_method": "l2"}),
    ("spectral-decay", {"weight_decay_method": "spectral", "method": "left"}),
    ("period", {"period": 3}),
    ("tiles", {"period": 2, "block_size": 2, "second_moment": "normuon"}),
    ("row", {"norm": "row", "hooks": ("relative_update", ("radial_brake", 0.3))}),
    ("column", {"norm": "column", "low_precision": "nearest", "block_size": 2}),
    ("sign", {"norm": "sign", "low_precision": "float32", "hooks": (("hyperball", 2.0),)}),
)

CASES: Sequence[Case] = (
    _matrices("orthogonalized", steepest.OrthogonalizedOptimizer, closed=False, **_BASE),
    _matrices(
        "orthogonalized-identity", steepest.OrthogonalizedOptimizer, closed=False, **_IDENTITY
    ),
    _matrices(
        "orthogonalized-l2",
        steepest.OrthogonalizedOptimizer,
        closed=False,
        **{**_BASE, "weight_decay_method": "l2"},
    ),
    _matrices("muon", steepest.Muon, lr=0.01),
    _matrices(
        "muon-plain",
        steepest.Muon,
        lr=0.01,
        nesterov=False,
        schedule="simple",
        scale="original",
        weight_decay_method="independent",
        weight_decay=0.01,
    ),
    *(_matrices(name, make, lr=0.01) for name, make in MATRIX_OPTIMIZERS.items() if name != "muon"),
    *(_matrices(f"muon-{name}", steepest.Muon, lr=0.01, **options) for name, options in VARIANTS),
    _projected("projected-window"),
    _projected("projected-window-beta", beta=0.3, weight_decay=0.01, tail_tolerance=1e-3),
    _projected("projected-window-l2", weight_decay=0.01, weight_decay_method="l2"),
    _projected("projected-dense", metric="dense", beta=0.3),
    _projected("projected-diagonal", metric="diagonal", beta=0.3),
    _projected(
        "projected-training",
        beta=0.5,
        rank=2,
        history_size=2,
        ridge_scale="relative",
        momentum=0.9,
        nesterov=True,
        warmup=True,
        max_norm=0.5,
        history_stride=2,
    ),
    _projected("projected-blocks", block="parameter", momentum=0.9),
    _projected("projected-hooks", hooks=("hyperball",)),
    _projected("projected-cautious", weight_decay=0.01, weight_decay_method="cautious"),
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


# Shapes of the parameters of a problem; each is small, and none is square or alone.
PROBLEMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "matrices": ((4, 3), (2, 5)),
    "anything": ((4, 3), (5,), (2, 3, 2)),
}


def shapes_for(case: Case) -> tuple[tuple[int, ...], ...]:
    return PROBLEMS[case.takes]


def parameters(
    shapes: Sequence[tuple[int, ...]], *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def set_gradients(params: Sequence[Tensor], step: int, *, seed: int = 100) -> None:
    """Give each parameter a new gradient that depends on the step and its place alone."""
    for place, param in enumerate(params):
        generator = torch.Generator().manual_seed(seed + 1000 * step + place)
        gradient = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.grad = gradient.to(param.dtype)


def run(optimizer: Optimizer, params: Sequence[Tensor], steps: Iterable[int]) -> None:
    for step in steps:
        set_gradients(params, step)
        optimizer.step()


def flat_state(optimizer: Optimizer) -> list[Any]:
    """Every state value of every parameter in a fixed order."""
    return [
        (place, name, optimizer.state[param][name])
        for place, param in enumerate(p for g in optimizer.param_groups for p in g["params"])
        if param in optimizer.state
        for name in sorted(optimizer.state[param])
    ]


def assert_same_state(first: Optimizer, second: Optimizer) -> None:
    """Bit-equal values, equal dtypes and types."""
    left, right = flat_state(first), flat_state(second)
    assert [entry[:2] for entry in left] == [entry[:2] for entry in right]
    for (*place, a), (*_, b) in zip(left, right, strict=True):
        assert type(a) is type(b), place
        if isinstance(a, Tensor):
            assert a.dtype == b.dtype, place
            assert torch.equal(a, b), place
        else:
            assert a == b, place
