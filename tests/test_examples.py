"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cases import parameters, set_gradients
from steepest.linalg import newton_schulz

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAINERS = sorted((ROOT / "examples" / "trainers").glob("*.py"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path):
    command = [sys.executable, "-W", "error", str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip()


@pytest.mark.parametrize("path", TRAINERS, ids=lambda path: path.stem)
def test_a_run_resumed_by_a_trainer_equals_a_straight_one(path):
    """Without an error for warnings, which the trainers themselves give."""
    command = [sys.executable, str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert "resumed run equals the straight one: True" in result.stdout


def settings(**options):
    return {**load("fused_qkv").SETTINGS, "weight_decay": 0.0, **options}


@pytest.mark.parametrize("way", ["attribute", "option"])
def test_fused_blocks_equal_the_blocks_stepped_alone(way):
    module, sizes = load("fused_qkv"), (8, 4, 4)
    (fused,) = parameters([(16, 6)])
    alone = [torch.nn.Parameter(block.clone()) for block in fused.detach().split(sizes)]
    if way == "attribute":
        fused.row_blocks = sizes
        optimizer = module.SplitByAttribute([fused], **settings())
    else:
        optimizer = module.SplitByOption(
            [{"params": [fused], "row_blocks": sizes}], row_blocks=None, **settings()
        )
    separate = module.SplitByOption(alone, row_blocks=None, **settings())
    for step in range(3):
        set_gradients([fused], step)
        for block, gradient in zip(alone, fused.grad.split(sizes), strict=True):
            block.grad = gradient
        optimizer.step()
        separate.step()
    torch.testing.assert_close(fused.data, torch.cat(alone).data, rtol=1e-12, atol=1e-14)


def test_convolution_equals_its_matrix():
    (kernel,) = parameters([(8, 3, 3, 5)])
    start = kernel.detach().clone()
    module = load("convolution")
    optimizer = module.ConvolutionOptimizer([kernel], **settings(nesterov=False))
    set_gradients([kernel], 0)
    optimizer.step()
    expected = 0.2 * 45**0.5 * newton_schulz(kernel.grad.reshape(8, 45))
    moved = (start - kernel).reshape(8, 45) / 1e-2
    torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-12)


def test_norms_are_preserved():
    params = parameters([(8, 5), (3, 9)])
    norms = [param.norm().item() for param in params]
    module = load("norm_preserving")
    optimizer = module.Hyperball(params, **settings(scaled_orthogonalize_fn=newton_schulz, lr=0.1))
    for step in range(10):
        before = [param.detach().clone() for param in params]
        set_gradients(params, step)
        optimizer.step()
        for param, old, norm in zip(params, before, norms, strict=True):
            assert param.norm().item() == pytest.approx(norm, rel=1e-12)
            assert (param - old).norm() > 0.05 * norm


def test_the_python_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
