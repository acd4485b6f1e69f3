"""Shared set-up: one thread, and a random seed for every test that follows from the test's own name.

A run therefore repeats exactly. SEQ2SEQ_TEST_SEED=<number> mixes a number into every seed (`make fuzz` draws fresh ones
and prints those that fail; the same number repeats the failure). Triton's kernels run on a GPU, or else in its
interpreter.
"""

from __future__ import annotations

import hashlib
import os
import random
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from torch import nn

# where Triton's kernels are tested; a kernel looks for the interpreter when it is defined, so before any import of ours
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

torch.set_num_threads(1)
Module = TypeVar("Module", bound=nn.Module)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed Python, NumPy and torch from the test's name; pytest shows the line below with a failure."""
    chosen = os.environ.get("SEQ2SEQ_TEST_SEED", "")
    digest = hashlib.sha256(f"{request.node.name}{chosen}".encode()).digest()
    value = int.from_bytes(digest[:4], "little") >> 1
    print(f"seed {value} (SEQ2SEQ_TEST_SEED={chosen})")
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    return value


def jiggle(module: Module, size: float = 0.1) -> Module:
    """Add noise to every parameter: a bias that is zero hides mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module


class Place(NamedTuple):
    """Where and in what type a mixer is tested, and how closely two ways to compute it must agree."""

    device: str
    dtype: torch.dtype
    tolerance: float


PLACES = {
    "cpu": Place("cpu", torch.float32, 1e-5),
    "cuda": Place("cuda", torch.float32, 1e-4),
    "cuda-bf16": Place("cuda", torch.bfloat16, 5e-2),
}


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "cpu" else [pytest.mark.gpu]) for name in PLACES])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """float32 on the CPU; with a GPU, float32 and bfloat16 there too."""
    found = PLACES[request.param]
    if found.device == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    return found
