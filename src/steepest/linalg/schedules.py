"""Coefficient tables of the odd polynomial iterations that orthogonalize a matrix.

One step maps each singular value s to a·s + b·s³ + c·s⁵. A table lists (a, b, c) for each step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Coefficients: TypeAlias = tuple[float, float, float]
ScheduleName = Literal["simple", "quintic", "polar_express", "cans", "aol", "deepseek_v4", "cubic"]
Schedule: TypeAlias = ScheduleName | Sequence[Coefficients]


@dataclass(frozen=True)
class Table:
    """Coefficients with where they come from and what they promise.

    Attributes:
        coefficients: one (a, b, c) for each step.
        source: paper or page that publishes the numbers.
        interval: the singular values, relative to the norm, that the table is made for.
        error: the largest |1 − s'| over that interval after all steps of the table.
        converges: whether more steps bring every singular value in (0, 1] to one.
        any_prefix: whether fewer steps than the table holds are a schedule in their own right; the
            steps of a table made as one whole are of no use without the last ones.
        continuation: the coefficients of every step after the table's end.
    """

    coefficients: tuple[Coefficients, ...]
    source: str
    interval: tuple[float, float]
    error: float
    converges: bool
    any_prefix: bool
    continuation: Coefficients


def _safe(steps: Sequence[Coefficients], factor: float) -> tuple[Coefficients, ...]:
    """Shrink the argument of each polynomial, so that rounding cannot leave its interval."""
    return tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in steps)


_SIMPLE: Coefficients = (3.4445, -4.7750, 2.0315)
_TAYLOR: Coefficients = (1.875, -1.25, 0.375)
_NEWTON_SCHULZ: Coefficients = (1.5, -0.5, 0.0)

SCHEDULES: dict[ScheduleName, Table] = {
    "simple": Table(
        (_SIMPLE,) * 5,
        source="Jordan et al., Muon, 2024, https://kellerjordan.github.io/posts/muon/",
        interval=(0.01, 1.0),
        error=0.3182,
        converges=False,
        any_prefix=True,
        continuation=_SIMPLE,
    ),
    "quintic": Table(
        (
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ),
        source="Cesista, Jiacheng & Jordan, Squeezing 1-2% efficiency gains out of Muon by "
        "optimizing the Newton-Schulz coefficients, 2025, "
        "https://leloykun.github.io/ponder/muon-opt-coeffs/",
        interval=(0.01, 1.0),
        error=0.0318,
        converges=False,
        any_prefix=False,
        continuation=(2.8366, -3.0525, 1.2012),
    ),
    "polar_express": Table(
        (
            *_safe(
                (
                    (8.28721201814563, -23.595886519098837, 17.300387312530933),
                    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
                    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
                    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
                    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
                    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
                ),
                factor=1.01,
            ),
            _TAYLOR,
        ),
        source="Amsel, Persson, Musco & Gower, The Polar Express, arXiv:2505.16932 "
        "(lower bound 1e-3, safety factor 1.01)",
        interval=(1e-3, 1.0),
        error=1e-14,
        converges=True,
        any_prefix=True,
        continuation=_TAYLOR,
    ),
    "cans": Table(
        (
            # the published interval ends where the polynomials are steepest, and bfloat16 rounds
            # beyond it, after which values explode
            *_safe(
                (
                    (8.4703, -25.1081, 18.6293),
                    (4.1828, -3.1087, 0.5806),
                    (3.9619, -2.9541, 0.5630),
                    (3.2866, -2.4647, 0.5074),
                ),
                factor=1.01,
            ),
            (2.2737, -1.6447, 0.4162),
        ),
        source="Grishina, Smirnov & Rakhuba, Accelerating Newton-Schulz iteration for "
        "orthogonalization via Chebyshev-type polynomials, arXiv:2506.10935; "
        "equal to minimax(l=1e-3, steps=5, safety=1.01)",
        interval=(1e-3, 1.0),
        error=0.1372,
        converges=True,
        any_prefix=True,
        continuation=_TAYLOR,
    ),
    "aol": Table(
        (
            # the published step changes the sign of s > 0.88, which its own preconditioner rarely
            # leaves but a Frobenius norm does (rank one: s = 1), and the update would go uphill
            *_safe(((4.0098, -7.0585, 2.4635),), factor=1 / 0.85),
            (3.4585, -5.5479, 2.5959),
            (2.7573, -3.2939, 1.4254),
            (2.7215, -3.0494, 1.3169),
        ),
        source="Boissin, Massena, Mamalet & Serrurier, Turbo-Muon (2025), "
        "https://github.com/thib-s/flash-newton-schulz",
        interval=(0.05, 1.0),
        error=0.0127,
        converges=False,
        any_prefix=False,
        continuation=(2.7215, -3.0494, 1.3169),
    ),
    "deepseek_v4": Table(
        (_SIMPLE,) * 8 + ((2.0, -1.5, 0.5),) * 2,
        source="DeepSeek-AI, DeepSeek-V4 technical report (2026)",
        interval=(1e-3, 1.0),
        error=5.4e-4,
        converges=True,
        any_prefix=False,
        continuation=(2.0, -1.5, 0.5),
    ),
    "cubic": Table(
        (_NEWTON_SCHULZ,) * 12,
        source="Björck & Bowie, An iterative algorithm for computing the best estimate of an "
        "orthogonal matrix, SIAM J. Numer. Anal. 8 (1971), doi.org/10.1137/0708036; "
        "Higham, Functions of Matrices (2008), https://doi.org/10.1137/1.9780898717778, ch. 8",
        interval=(0.05, 1.0),
        error=2e-13,
        converges=True,
        any_prefix=True,
        continuation=_NEWTON_SCHULZ,
    ),
}


def coefficients(schedule: Schedule, steps: int) -> tuple[Coefficients, ...]:
    """Return the (a, b, c) of each of ``steps`` steps.

    Args:
        schedule: a name in ``SCHEDULES``, or a sequence of (a, b, c) of one's own, whose last
            entry is repeated where ``steps`` is larger than its length.
        steps: number of steps, at least 1.

    Raises:
        ValueError: for an unknown name, an entry that is not three numbers, ``steps`` below 1, or
            fewer steps than a table needs that only works as a whole.

    Example:
        >>> coefficients("simple", 2)
        ((3.4445, -4.775, 2.0315), (3.4445, -4.775, 2.0315))
    """
    table = _table(schedule)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, got {steps!r}")
    known = table.coefficients
    if steps < len(known) and not table.any_prefix:
        raise ValueError(
            f"steps must be at least {len(known)} for schedule {schedule!r}, whose steps only "
            f"work as a whole, got {steps}"
        )
    return known[:steps] + (table.continuation,) * (steps - len(known))


def _table(schedule: Schedule) -> Table:
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            allowed = ", ".join(map(repr, get_args(ScheduleName)))
            raise ValueError(
                f"schedule must be one of {allowed} or a sequence of (a, b, c), got {schedule!r}"
            )
        return SCHEDULES[schedule]
    triples = tuple(_triple(row, schedule) for row in schedule) if _is_row(schedule) else ()
    if not triples:
        raise ValueError(
            f"schedule must be a name or a sequence of (a, b, c) triples, got {schedule!r}"
        )
    return Table(
        triples,
        source="given",
        interval=(0.0, 1.0),
        error=1.0,
        converges=False,
        any_prefix=False,
        continuation=triples[-1],
    )


def _is_row(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _triple(row: object, schedule: object) -> Coefficients:
    if (
        not isinstance(row, Sequence)
        or len(row) != 3
        or not all(isinstance(number, (int, float)) and math.isfinite(number) for number in row)
    ):
        raise ValueError(
            f"schedule must hold (a, b, c) triples of finite numbers, got {row!r} in {schedule!r}"
        )
    return float(row[0]), float(row[1]), float(row[2])
