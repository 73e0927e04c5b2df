"""State that passes through torch's ``load_state_dict`` bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict


class Intact:
    """State on its way through torch's ``load_state_dict``, which would change its dtype."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    @property
    def names(self) -> list[str]:
        """What it holds."""
        return list(self._state)

    def on(self, devices: Mapping[str, torch.device]) -> dict[str, Any]:
        """Return a copy of the state, each tensor on the device for its name."""
        return {
            name: value.detach().to(device=devices[name], copy=True)
            if isinstance(value, Tensor)
            else value
            for name, value in self._state.items()
        }


def keep_intact(state_dict: StateDict) -> StateDict:
    """Return the dictionary with the state of each parameter wrapped, and no empty states."""
    known = set(chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
    state = {
        key: Intact(value) if key in known else value
        for key, value in state_dict["state"].items()
        if value or key not in known
    }
    return {**state_dict, "state": state}
