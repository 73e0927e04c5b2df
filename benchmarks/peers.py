"""Muon of other packages, where they are installed: ``pip install steepest[peers]``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def pytorch_optimizer(params, steps):
    """As it ships: iterates in bfloat16."""
    module = import_module("pytorch_optimizer")
    group = {"params": params, "use_muon": True}
    return module.Muon([group], lr=1e-3, ns_steps=steps).step


def heavyball(params, steps):
    """As it ships, but not compiled: iterates in bfloat16, with five steps whatever is asked."""
    if steps != 5:
        raise ValueError(f"heavyball.Muon takes 5 steps, got {steps}")
    module = import_module("heavyball")
    module.utils.compile_mode = None  # compilation on a CPU needs a C++ compiler
    optimizer = module.Muon(params, lr=1e-3, compile_step=False)
    gradients = [param.grad for param in params]

    def step():
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient  # its step takes them away
        optimizer.step()

    return step


PEERS = {"pytorch_optimizer": pytorch_optimizer, "heavyball": heavyball}


def installed():
    """Return the builders of those that can be imported, and say which cannot."""
    present = {name: build for name, build in PEERS.items() if find_spec(name) is not None}
    for name in sorted(PEERS.keys() - present.keys()):
        print(f"without {name}, which is not installed")
    return present
