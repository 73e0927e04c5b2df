"""Symmetric products, in panels on a CPU and by the Triton kernel in its interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from steepest.linalg import symmetric
from steepest.linalg.iteration import iterate
from steepest.linalg.schedules import coefficients
from steepest.linalg.symmetric import panel_count, symmetric_product


def matrix(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("panels", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [8, 13, 31])
def test_panels_equal_the_ordinary_product(monkeypatch, size, panels):
    monkeypatch.setattr(symmetric, "panel_count", lambda _: panels)
    x = matrix(size, 40)
    out = torch.full((size, size), torch.nan, dtype=torch.float64)
    result = symmetric_product(x, x.mT, out=out)
    assert result is out
    torch.testing.assert_close(result, x @ x.mT, rtol=1e-13, atol=1e-13)


def test_batches_and_small_matrices_take_one_product():
    assert panel_count(matrix(3, 8, 8)) == 1
    assert panel_count(matrix(8, 8)) == 1
    assert panel_count(torch.empty(800, 8)) > 1
    x = matrix(3, 8, 9)
    out = torch.empty(3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(x, x.mT, out=out), x @ x.mT)


@pytest.mark.parametrize("form", ["plain", "gram"])
def test_iterations_with_panels_equal_those_without(monkeypatch, form):
    x = matrix(3, 12, 20) / 20
    table = coefficients("quintic", 5)
    expected = iterate(x.clone(), table, form=form)
    monkeypatch.setattr(symmetric, "panel_count", lambda _: 3)
    monkeypatch.setattr("steepest.linalg.iteration.panel_count", lambda _: 3)
    monkeypatch.setattr("steepest.linalg.iteration.BATCHED_SIDE", 0)
    torch.testing.assert_close(iterate(x.clone(), table, form=form), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["plain", "gram"])
@pytest.mark.parametrize("steps", [1, 5, 8])
@pytest.mark.parametrize("side", [0, 384])
def test_norms_and_factors_on_the_short_side_equal_those_on_the_matrix(
    monkeypatch, form, steps, side
):
    monkeypatch.setattr("steepest.linalg.iteration.BATCHED_SIDE", side)
    x = matrix(3, 5, 9)
    norms = torch.linalg.matrix_norm(x, keepdim=True)
    factors = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)[:, None, None]
    table = coefficients("polar_express", steps)
    expected = factors * iterate(x / norms, table, form=form, normalized=True)
    result = iterate(x.clone(), table, form=form, factor=factors)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-11)
    result = iterate(x.clone(), table, form=form, factor=7.0)
    torch.testing.assert_close(result, 7.0 * expected / factors, rtol=0, atol=1e-11)
    for factor in (factors, 3.0):  # written by the last product
        onto = matrix(3, 5, 9, seed=1)
        wanted = 0.5 * onto + factor * expected / factors
        result = iterate(x.clone(), table, form=form, factor=factor, onto=onto, keep=0.5)
        assert result.data_ptr() == onto.data_ptr()
        torch.testing.assert_close(onto, wanted, rtol=0, atol=1e-11)


TRITON = """
import itertools, torch
from steepest.linalg.triton_symmetric import symmetric_product_triton
torch.manual_seed(0)
# bfloat16 is left to a GPU: the interpreter keeps it as bare bits
for (n, k, b), dtype in itertools.product(
    [(70, 40, ()), (64, 130, (3,)), (129, 129, (2,)), (1, 5, ())], [torch.float32, torch.float16]
):
    x = torch.randn(*b, n, k).to(dtype)
    exact = x.double() @ x.double().mT
    out = torch.full((*b, n, n), torch.nan, dtype=dtype)
    symmetric_product_triton(x, x.mT, out=out)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    assert (out.double() - exact).norm() < tolerance * exact.norm(), (n, k, b, dtype)
    assert torch.equal(out, out.mT)
    both = torch.empty_like(out)
    symmetric_product_triton(x, x.mT, out=both, add=out, beta=0.5, alpha=0.25)
    expected = 0.5 * out.double() + 0.25 * exact
    assert (both.double() - expected).norm() < tolerance * expected.norm(), (n, k, b, dtype)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
def test_the_triton_kernel_is_right_in_its_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", TRITON], check=True, timeout=300, env=environment)


def test_the_package_runs_without_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import steepest, torch\n"
        "from steepest.linalg import triton_symmetric\n"
        "assert not triton_symmetric.AVAILABLE\n"
        "x = torch.ones(2, 2)\n"
        "try: triton_symmetric.symmetric_product_triton(x, x, out=x)\n"
        "except RuntimeError as error: assert 'triton' in str(error)\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)
