"""One line to an optimizer for a whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from steepest.model.combined import CombinedOptimizer
from steepest.model.plan import Plan
from steepest.model.routing import Head, Overrides, route
from steepest.optim.adamuon import AdaMuon
from steepest.optim.checked import Nonfinite
from steepest.optim.dion2 import Dion2
from steepest.optim.matrix import MatrixOptimizer
from steepest.optim.mop import MOP
from steepest.optim.muon import Muon
from steepest.optim.muon_hyperball import MuonHyperball
from steepest.optim.normuon import NorMuon
from steepest.optim.polargrad import PolarGrad
from steepest.optim.projected import ProjectionRegularizedSGD
from steepest.optim.scion import Scion
from steepest.optim.spel import Spel

MATRIX_OPTIMIZERS: Mapping[str, type[MatrixOptimizer]] = {
    kind.__name__.lower(): kind
    for kind in (Muon, AdaMuon, NorMuon, Scion, PolarGrad, MOP, Spel, MuonHyperball, Dion2)
}

# whose learning rate and decay are not in AdamW's units
OWN_UNITS = (Scion, PolarGrad, MOP, Spel, MuonHyperball)


def create_optimizer(
    model: nn.Module,
    name: str = "muon",
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    adamw: Mapping[str, Any] | None = None,
    head: Head = "auto",
    overrides: Overrides = (),
    plan: Plan | None = None,
    nonfinite: Nonfinite = "raise",
    **options: Any,
) -> Optimizer:
    r"""Return one optimizer for a whole model: hidden matrices by one rule, the rest by AdamW.

    ``print(optimizer.plan)`` shows what is stepped by which part, and why; see ``route``. Learning
    rate and weight decay of "muon", "adamuon", "normuon" and "dion2" are in AdamW's units, and
    serve both parts: what was tuned for AdamW is a good start. Those of the other names are not,
    and AdamW keeps its own.

    Args:
        model: the whole model, all of whose parameters that require gradients are stepped.
        name: "muon", "adamuon", "normuon", "scion", "polargrad", "mop", "spel", "muonhyperball" or
            "dion2" for the hidden matrices; "projected" for ``ProjectionRegularizedSGD`` on all
            parameters.
        lr: η of the matrices; default that of the class.
        weight_decay: λ of the matrices; default that of the class.
        adamw: options of the AdamW part, such as ``{"lr": 3e-4, "betas": (0.9, 0.95)}``, and
            ``no_decay``, whether vectors (biases, gains) are left without weight decay, by default
            False. Its ``lr`` and ``weight_decay`` are by default those of the matrices where these
            are in AdamW's units, else torch's own.
        head: see ``route``.
        overrides: see ``route``.
        plan: what ``route`` returned, instead of ``head`` and ``overrides``.
        nonfinite: what a gradient that is not finite does: "raise" before any part has stepped,
            "skip" the step, or "pass".
        **options: more options of the class, see ``MatrixOptions``.

    Returns:
        A ``CombinedOptimizer`` with the parts "matrices" and "rest" and a ``plan``; for "projected"
        a ``ProjectionRegularizedSGD``.

    Raises:
        ValueError: for an unknown name, or what ``route`` or the classes refuse.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimizer = create_optimizer(model, "muon", lr=1e-3, weight_decay=0.1)
        >>> model(torch.ones(4, 8)).sum().backward()
        >>> optimizer.step()
        >>> [(type(p).__name__, len(p.param_groups[0]["params"])) for p in optimizer.parts.values()]
        [('Muon', 1), ('AdamW', 3)]
    """
    given = {"lr": lr, "weight_decay": weight_decay}
    own: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if name == "projected":
        if adamw is not None:
            raise ValueError("adamw has no part in 'projected', which steps all parameters")
        trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if nonfinite == "pass":
            raise ValueError("nonfinite must be 'raise' or 'skip' for 'projected', got 'pass'")
        return ProjectionRegularizedSGD(trainable, **own, **options, nonfinite=nonfinite)
    if name not in MATRIX_OPTIMIZERS:
        raise ValueError(
            f"name must be one of {', '.join([*MATRIX_OPTIMIZERS, 'projected'])}, got {name!r}"
        )
    plan = route(model, head=head, overrides=overrides) if plan is None else plan
    kind = MATRIX_OPTIMIZERS[name]
    rest = dict(adamw or {})
    if not issubclass(kind, OWN_UNITS):
        defaults = {**kind.default_options(), **own}
        rest = {"lr": defaults["lr"], "weight_decay": defaults["weight_decay"], **rest}
    parts: dict[str, Optimizer] = {}
    if groups := plan.groups("matrix"):
        parts["matrices"] = kind(groups, **own, **options, nonfinite="pass")
    if rest_groups := _rest_groups(plan, no_decay=bool(rest.pop("no_decay", False))):
        parts["rest"] = AdamW(rest_groups, **rest)
    return WholeModelOptimizer(parts, plan=plan, nonfinite=nonfinite)


class WholeModelOptimizer(CombinedOptimizer):
    """A ``CombinedOptimizer`` that knows the plan by which it was made.

    Args:
        parts: see ``CombinedOptimizer``.
        plan: which part steps which parameter, and why.
        nonfinite: see ``CombinedOptimizer``.
    """

    def __init__(self, parts: Mapping[str, Optimizer], *, plan: Plan, nonfinite: Nonfinite) -> None:
        super().__init__(parts, nonfinite=nonfinite)
        self.plan = plan


def _rest_groups(plan: Plan, *, no_decay: bool) -> list[dict[str, Any]]:
    if not no_decay:
        return plan.groups("adamw")
    routes = plan.by_rule("adamw")
    vectors = Plan(tuple(each for each in routes if each.view == "vector")).groups("adamw")
    others = Plan(tuple(each for each in routes if each.view != "vector")).groups("adamw")
    return [*others, *({"weight_decay": 0.0, **group} for group in vectors)]
