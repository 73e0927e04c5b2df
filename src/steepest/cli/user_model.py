"""A user's own model, named as ``MODULE:CALLABLE``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from steepest.cli.errors import BadInputError


def load_model(reference: str) -> nn.Module:
    """Return the model that a callable of a module or file makes.

    Args:
        reference: "package.module:function" or "path/to/file.py:function"; the callable takes no
            arguments, and may be a class. A model instance will do.

    Raises:
        BadInputError: for a reference that leads to no model, with what went wrong.
    """
    where, colon, name = reference.rpartition(":")
    if not colon or not where or not name:
        raise BadInputError(
            f"expected MODULE:CALLABLE, such as my_models.py:build or package.module:Net, got "
            f"{reference!r}"
        )
    module = _import_file(Path(where)) if where.endswith(".py") else _import_name(where)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            known = [n for n in vars(module) if not n.startswith("_")]
            raise BadInputError(f"{where} has no {name!r}; it has {', '.join(known) or 'nothing'}")
        target = getattr(target, part)
    model = target if isinstance(target, nn.Module) else _call(reference, target)
    if not isinstance(model, nn.Module):
        raise BadInputError(
            f"{reference} must return a torch.nn.Module, got {type(model).__name__}"
        )
    return model


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInputError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    before = list(sys.path)
    sys.path.insert(0, str(path.parent.resolve()))  # what lies beside it can be imported
    try:
        _run(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    finally:
        sys.path[:] = before
    return module


def _import_name(name: str) -> ModuleType:
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        module: ModuleType = _run(name, lambda: importlib.import_module(name))
    finally:
        sys.path[:] = before
    return module


def _call(reference: str, target: Any) -> Any:
    if not callable(target):
        raise BadInputError(
            f"{reference} must be a callable that returns a model, got {type(target).__name__}"
        )
    return _run(reference, target)


def _run(what: str, function: Callable[[], Any]) -> Any:
    """Call what a user wrote; whatever it raises is told in one line."""
    try:
        return function()
    except Exception as error:
        raise BadInputError(f"{what}: {type(error).__name__}: {error}") from error
