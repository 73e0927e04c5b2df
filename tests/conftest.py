"""Fixtures shared by all tests."""

from __future__ import annotations

import os

# one thread for tests and the processes they start: their matrices are tiny, and threads that wait
# for each other slow them a hundredfold on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from cases import CASES


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param
