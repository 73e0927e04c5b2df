"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import torch

from cases import CASES


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param
