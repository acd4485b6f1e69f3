"""Shared set-up: one thread, and random numbers that follow from the test's own name.

A run therefore repeats exactly. SEQ2SEQ_TEST_SEED=<number> mixes a number into every seed and lets Hypothesis draw
other examples; `make fuzz` draws fresh numbers and prints those that fail, and the same number repeats the failure.
Triton's kernels run on a GPU, or else in its interpreter.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import random
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn

# Where Triton's kernels are tested; a kernel looks for the interpreter when it is defined, so before any import of ours
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What files of tests need beside torch, NumPy, pytest and Hypothesis
PACKAGES = (
    "hydra", "omegaconf", "datasets", "lightning", "sentencepiece", "sacrebleu",
    "fastapi", "uvicorn", "prometheus_client",
    "ctranslate2", "onnx", "onnxruntime", "onnxscript", "safetensors", "transformers",
)  # fmt: skip

torch.set_num_threads(1)
SEED = os.environ.get("SEQ2SEQ_TEST_SEED", "")
Module = TypeVar("Module", bound=nn.Module)

# No deadline: an example is not wrong because the machine was busy; no database: a run depends on no earlier one
hypothesis.settings.register_profile("repeatable", derandomize=not SEED, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis's draws follow from the number, too."""
    if SEED:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip files whose packages a machine lacks, as one used for its GPU alone may; in CI they fail."""
    report: Any = yield
    missing = re.search(r"ModuleNotFoundError: (?:No module named|import of) '?(\w+)", str(report.longrepr or ""))
    if report.failed and missing and missing[1] in PACKAGES and not os.environ.get("CI"):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {missing[1]}")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of a GPU without one; mark as exhaustive what EXHAUSTIVE or REPRESENTATIVE leaves to `make test-all`.

    EXHAUSTIVE names tests, REPRESENTATIVE gives of further tests the cases that `make test` keeps. Both are about time
    that a GPU does not take.
    """
    for item in items:
        # Processes that run tests in parallel must agree on the names; an object's address differs between them
        if " at 0x" in item.name:
            raise pytest.UsageError(f"{item.nodeid}: give this case a name that is the same in every process")
        if item.get_closest_marker("gpu") and DEVICE == "cpu":
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if DEVICE == "cuda" or not isinstance(item, pytest.Function):
            continue
        name = item.originalname
        kept = getattr(item.module, "REPRESENTATIVE", {}).get(name)
        case = item.name.removeprefix(name).strip("[]")
        if name in getattr(item.module, "EXHAUSTIVE", ()) or (kept is not None and case not in kept):
            item.add_marker("exhaustive")


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection: each full one would take half a second."""
    gc.freeze()


def seed_all(name: str) -> int:
    """Seed Python, NumPy and torch from `name` and the number asked for."""
    digest = hashlib.sha256(f"{name}{SEED}".encode()).digest()
    value = int.from_bytes(digest[:4], "little") >> 1
    random.seed(value)
    np.random.seed(value)
    # torch.manual_seed formats the stack for each device that is not there, which takes longer than many a test
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(value)
    return value


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed a test from its name; pytest shows the line below with a failure."""
    value = seed_all(request.node.name)
    print(f"seed {value} (SEQ2SEQ_TEST_SEED={SEED})")
    return value


@pytest.fixture(autouse=True)
def log_handlers_kept() -> Iterator[None]:
    """Remove the log handlers that a command within a test has left: their streams end with it."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    """Seed a fixture that several tests share from its own name, so that it depends on no test that ran before."""
    if fixturedef.scope == "function":
        return (yield)
    with random_state_kept():
        seed_all(f"{fixturedef.baseid}::{fixturedef.argname}")
        return (yield)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the state of all random generators afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


# Seconds after which a test gives a process up: long, since a busy machine must not fail a test.
PATIENCE = 600


def child_cpu_seconds() -> float:
    """CPU time that finished children have used: unlike the clock, it does not depend on what else runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def jiggle(module: Module, size: float = 0.1) -> Module:
    """Add noise to every parameter: a bias that is zero hides mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module


class Platform(NamedTuple):
    """Device and type of numbers that a mixer is tested with, and how closely two ways to compute must agree."""

    device: str
    dtype: torch.dtype
    tolerance: float


# float64 on the CPU, so that a tolerance tells a mistake from rounding: retention, and others that divide by a sum, may
# divide by hardly anything.
PLATFORMS = {
    "cpu": Platform("cpu", torch.float64, 1e-9),
    "cuda": Platform("cuda", torch.float32, 1e-4),
    "cuda-bf16": Platform("cuda", torch.bfloat16, 5e-2),
}


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "cpu" else [pytest.mark.gpu]) for name in PLATFORMS])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """float64 on the CPU; with a GPU, float32 and bfloat16 there."""
    chosen = PLATFORMS[request.param]
    if chosen.device == "cuda":
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    return chosen


@pytest.fixture
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the floats of torch.empty with NaN, so that a number that a kernel leaves unwritten shows."""
    empty = torch.empty

    def poisoned(*size: Any, **rest: Any) -> torch.Tensor:
        found = empty(*size, **rest)
        return found.fill_(float("nan")) if found.is_floating_point() else found

    monkeypatch.setattr(torch, "empty", poisoned)
