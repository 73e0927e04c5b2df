"""Imports point down through the layers, and the core depends on torch alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "steepest"
# each layer may import those before it; ``distributed`` serves ``optim``
LAYERS = ("linalg", "geometry", "distributed", "optim", "model", "cli")
FILES = sorted(SRC.rglob("*.py"))
# imported where they are installed, and done without where not
OPTIONAL = {"triton_symmetric.py": {"triton"}}
CORE = [path for path in FILES if "cli" not in path.relative_to(SRC).parts]


def imported(path):
    """Names of imported modules, with whether the import stands inside a function."""
    tree = ast.parse(path.read_text())
    nested = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in nested
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in nested


def layer(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "steepest" and len(parts) > 1 and parts[1] in LAYERS else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down(path):
    parts = path.relative_to(SRC).parts
    if len(parts) == 1:
        return  # the package itself re-exports from everywhere
    for module, _ in imported(path):
        target = layer(module)
        if target is not None:
            assert LAYERS.index(target) <= LAYERS.index(parts[0]), f"{path}: {module}"


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(SRC)))
def test_the_core_imports_torch_and_the_standard_library_at_the_top(path):
    for module, nested in imported(path):
        root = module.split(".")[0]
        allowed = {"torch", "steepest"} | OPTIONAL.get(path.name, set())
        assert root in allowed or root in sys.stdlib_module_names, module
        assert not nested, f"{path}: {module} is imported inside a function"


def test_the_table_of_layers_is_complete():
    folders = {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(LAYERS)


def test_importing_the_package_needs_no_optional_dependency():
    script = (
        "import sys, steepest; "
        "assert not {'typer', 'rich', 'matplotlib', 'sklearn'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 100, f"{path}: {node.name}"
