"""How weights in 16 bits keep updates that are smaller than their last bit."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor

from steepest.linalg.rounding import round_stochastically

LowPrecision = Literal["nearest", "stochastic", "float32"]

_COPY = "float32_weight"


def is_narrow(param: Tensor, method: LowPrecision) -> bool:
    """Whether the step of a parameter is taken on a float32 weight beside it."""
    return param.dtype.itemsize < 4 and method != "nearest"


def wide_weight(param: Tensor, state: MutableMapping[str, Any], *, method: LowPrecision) -> Tensor:
    """Return the weight in float32, to take the step on.

    With "float32" it is the copy that the state keeps, which follows a weight that somebody has
    changed since; its Python attributes are those of the parameter.
    """
    if method == "float32":
        copy = state.get(_COPY)
        if copy is None:
            copy = state[_COPY] = param.detach().float()
        else:
            kept = copy.to(device=param.device, dtype=torch.float32)
            copy = state[_COPY] = torch.where(kept.to(param.dtype) == param, kept, param.float())
    else:
        copy = param.detach().float()
    copy.__dict__.update(vars(param))
    return copy


def narrow_(
    param: Tensor,
    weight: Tensor,
    state: Mapping[str, Any],
    *,
    method: LowPrecision,
    place: tuple[int, int],
) -> None:
    """Write a float32 weight back into its parameter.

    Args:
        param: changed in place.
        weight: what ``wide_weight`` returned, after the step.
        state: of the parameter, with its number of steps, ``step``.
        method: "float32" rounds to nearest, "stochastic" at random.
        place: of the parameter, which seeds the rounding together with the step.
    """
    if method == "float32":
        param.copy_(weight)
        return
    position, group = place
    seed = ((state["step"] * 1_000_003 + group) * 1_000_003 + position) % 2**63
    param.copy_(round_stochastically(weight, dtype=param.dtype, seed=seed))
