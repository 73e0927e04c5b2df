"""The options that the whole orthogonalized family shares, with their defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, get_args

from steepest.geometry.blocks import BlockAxis, Blocks
from steepest.geometry.directions import Geometry, PolarMethod
from steepest.geometry.matrices import Layout
from steepest.geometry.scale import Norm, Scale, shape_factor
from steepest.geometry.spectral import IterationDtype
from steepest.linalg.precision import MatmulPrecision
from steepest.linalg.schedules import Schedule
from steepest.optim import checks
from steepest.optim.checked import Nonfinite
from steepest.optim.decay import WeightDecayMethod, kept_in
from steepest.optim.hooks import Hooks
from steepest.optim.low_precision import LowPrecision
from steepest.optim.second_moment import SecondMoment


class MatrixOptions(TypedDict, total=False):
    """Options of every optimizer of the orthogonalized family; each may differ by group.

    Attributes:
        nesterov: whether D looks ahead; else D = M.
        weight_decay_method: "decoupled" W ← W − ηλW, "independent" W ← W − λW (choose a λ as small
            as the ηλ of the other), "l2" G ← G + λW,
            "palm" W ← W − η²λW; "cautious", decoupled where the update does not grow the weight;
            "spectral", decoupled for what singular values have above ``spectral_cap``, which costs
            a singular value decomposition of each weight.
        spectral_cap: of the decay of that name, at least 0.
        maximize: whether to step along the gradient instead of against it.
        norm: in which the direction is steepest: "spectral" UVᵀ, "sign" sign(D), "row" and "column"
            each row or column over its length.
        schedule: coefficient table, a name in ``steepest.linalg.SCHEDULES`` ("polar_express",
            "simple", "quintic", …) or your own sequence of (a, b, c), as ``minimax`` makes them.
        steps: number of iteration steps.
        method: how the polar factor is computed, as in ``steepest.linalg.polar``; "auto" by batched
            polynomials; "left" and "right" by the Gram matrix of the rows or of the columns;
            "qdwh" is for full rank only: elsewhere it makes directions of what is rounding.
        tolerance: error of the polar factor to be reached, by whatever method; None for ``steps``
            polynomials.
        clip: (low, high) for singular values clipped to this interval instead of set to one, by a
            singular value decomposition; None for the polar factor.
        scale: factor f of the direction: "match_rms_adamw" 0.2·√max(out, in); "original"
            √max(1, out/in); "spectral" √max(out, in); "unit_rms" √(out/in); "none" 1; "nuclear" the
            nuclear norm of D. For other norms see ``steepest.geometry.scale.shape_factor``.
        radius: another factor, > 0.
        second_moment: None, or what adapts the direction before it is scaled: "adamuon" each entry
            and "adamuon_sign" the same with the direction of sign(D); "normuon" each row and
            "normuon_long" each line along the longer side; "namo" each matrix, by Adam's ratio of
            norms with bias correction, "namo_raw" without.
        beta2: decay of the second moments, in [0, 1).
        eps: added to their root.
        period: k: every k-th step takes the direction of the whole matrix, beginning with the
            first; those between that of its tiles with ``block_size``, or else D itself at the
            length of an orthogonal matrix.
        block_size: side of square tiles, each of which is orthogonalized and scaled by itself; None
            for whole matrices.
        layout: "matrix" (out, in); "convolution" (out, in, kernel…) seen as out × (in·kernel);
            "stack" (…, out, in), each matrix by itself.
        transposed: whether inputs come before outputs in storage, as in transposed convolutions.
        groups: groups of a convolution, each of which has its own matrix.
        split: sizes of unequal blocks along ``block_axis``, as (q, k, v) of a fused projection;
            each is orthogonalized and scaled by itself.
        interleaved: how often the pattern of ``split`` repeats along the axis.
        heads: number of equal blocks along the axis, or one for each block of ``split``.
        block_axis: "rows", the outputs, or "columns", the inputs.
        allow_vectors: whether matrices of one row or one column are taken, whose direction is
            themselves over their length; else they are refused.
        hooks: around the update: names or pairs (name, number); "hyperball" keeps the norm of the
            weight, "radial_brake" slows its growth, "relative_update" makes η relative to it.
        low_precision: how weights in 16 bits take a step: "stochastic" rounding, seeded by the
            step; a "float32" copy in the state; or "nearest", which loses small updates.
        nonfinite: what a gradient that is not finite does: "raise", "skip" the step, or "pass" into
            the step, where it makes weights NaN even with η = 0.
        iteration_dtype: "auto", float32 on a CPU whatever the weights' dtype (float64 for float64
            weights), bfloat16 on accelerators; or "float64", "float32", "bfloat16", "float16".
        batch_bytes: small matrices with equal sides, or nearly so, are iterated together, as many
            as fit into this memory; 0 takes one parameter at a time. Beside weights and state, the
            step needs about four times its largest parameter, or eight times this if that is more.
        fp32_matmul_prec: precision of float32 products in the iteration, "highest", "high" or
            "medium".
    """

    nesterov: bool
    weight_decay_method: WeightDecayMethod
    spectral_cap: float
    maximize: bool
    norm: Norm
    schedule: Schedule
    steps: int
    method: PolarMethod
    tolerance: float | None
    clip: tuple[float, float] | None
    scale: Scale
    radius: float
    second_moment: SecondMoment | None
    beta2: float
    eps: float
    period: int
    block_size: int | None
    layout: Layout
    transposed: bool
    groups: int
    split: Sequence[int] | None
    interleaved: int
    heads: int | Sequence[int]
    block_axis: BlockAxis
    allow_vectors: bool
    hooks: Hooks
    low_precision: LowPrecision
    nonfinite: Nonfinite
    iteration_dtype: IterationDtype
    batch_bytes: int
    fp32_matmul_prec: MatmulPrecision


MATRIX_DEFAULTS: Mapping[str, Any] = {
    # the step
    "lr": 1e-3,
    "momentum": 0.95,
    "weight_decay": 0.1,
    "nesterov": True,
    "weight_decay_method": "decoupled",
    "spectral_cap": 1.0,
    "maximize": False,
    # the direction and its length
    "norm": "spectral",
    "schedule": "polar_express",
    "steps": 5,
    "method": "auto",
    "tolerance": None,
    "clip": None,
    "scale": "match_rms_adamw",
    "radius": 1.0,
    "second_moment": None,
    "beta2": 0.95,
    "eps": 1e-8,
    "period": 1,
    "block_size": None,
    # the matrices of a parameter
    "layout": "matrix",
    "transposed": False,
    "groups": 1,
    "split": None,
    "interleaved": 1,
    "heads": 1,
    "block_axis": "rows",
    "allow_vectors": False,
    # around the update
    "hooks": (),
    "low_precision": "stochastic",
    "nonfinite": "raise",
    # the computation
    "iteration_dtype": "auto",
    "batch_bytes": 8 << 20,
    "fp32_matmul_prec": "highest",
}


def check_matrix_options(group: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an option of the group out of range, or two that exclude each other.

    An option that the others leave without effect, such as ``steps`` with an exact method, is fine.
    """
    Geometry.of(group).check()
    Blocks.of(group).check()
    shape_factor(group["scale"], 1, 1)
    checks.nonnegative("spectral_cap", group["spectral_cap"])
    checks.positive("radius", group["radius"])
    checks.below_one("beta2", group["beta2"])
    checks.nonnegative("eps", group["eps"])
    checks.count("period", group["period"])
    checks.flag("allow_vectors", group["allow_vectors"])
    checks.count("batch_bytes", group["batch_bytes"], least=0)
    if group["second_moment"] is not None:
        checks.choice("second_moment", group["second_moment"], get_args(SecondMoment))
    if group["block_size"] is not None:
        checks.count("block_size", group["block_size"])
    if group["second_moment"] in ("namo", "namo_raw") and group["scale"] == "nuclear":
        raise ValueError(
            f"second_moment={group['second_moment']!r} gives the update a length of its own, and "
            "so does scale='nuclear'; choose one"
        )


def is_plain_step(group: Mapping[str, Any]) -> bool:
    """Return whether the step is keep · W − factor · UVᵀ and neither number is zero.

    A product with zero, which is left out, might hide what is not finite.
    """
    uncommon = group["second_moment"] or group["period"] > 1 or group["block_size"]
    by_entries = group["weight_decay_method"] in ("l2", "cautious", "spectral")
    return (
        not uncommon
        and group["scale"] != "nuclear"
        and not (by_entries and group["weight_decay"] != 0.0)
        and float(group["lr"]) != 0.0
        and kept_in(group) != 0.0
        and Geometry.of(group).iterates
        and Blocks.of(group).plain
    )


def group_key(group: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what must be equal for parameters of two groups to be stepped together."""
    names = sorted(group.keys() - {"params", "param_names", "name"})
    return tuple((name, repr(group[name])) for name in names)
