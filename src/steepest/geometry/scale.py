"""How long the step is: factors of an orthogonal matrix, by its shape."""

from __future__ import annotations

import math
from typing import Literal, get_args

Scale = Literal["match_rms_adamw", "original", "spectral", "unit_rms", "none"]


def shape_factor(scale: Scale, rows: int, columns: int) -> float:
    r"""Return the factor of an orthogonalized ``rows × columns`` update, rows being outputs.

    ==================  ========================  =====================================
    ``scale``           factor                    source
    ==================  ========================  =====================================
    match_rms_adamw     0.2·√max(out, in)         Liu et al., arXiv:2502.16982
    original            √max(1, out/in)           Jordan et al., Muon (2024)
    spectral            √max(out, in)             Liu et al., without the 0.2
    unit_rms            √(out/in)                 Bernstein & Newhouse, arXiv:2409.20325
    none                1
    ==================  ========================  =====================================

    An orthogonal matrix has root mean square 1/√max(out, in), so "match_rms_adamw" gives an update
    of root mean square 0.2, about that of AdamW, whatever the shape.

    Args:
        scale: name of the rule.
        rows: number of outputs, at least 1.
        columns: number of inputs, at least 1.

    Raises:
        ValueError: for an unknown rule.

    Example:
        >>> shape_factor("original", 64, 16)
        2.0
        >>> shape_factor("match_rms_adamw", 64, 16)
        1.6
    """
    if scale == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if scale == "original":
        return math.sqrt(max(1.0, rows / columns))
    if scale == "spectral":
        return math.sqrt(max(rows, columns))
    if scale == "unit_rms":
        return math.sqrt(rows / columns)
    if scale == "none":
        return 1.0
    raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
