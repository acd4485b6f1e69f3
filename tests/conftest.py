"""Set up all tests: one thread, and random numbers that are seeded by the name of the test.

So every run of the tests is the same. SEQ2SEQ_TEST_SEED=<number> changes every seed and Hypothesis's examples;
`make fuzz` tries random numbers, and prints how to repeat a failure. Triton's kernels run on a GPU, or without one in
its interpreter.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn

# The device of Triton's kernels. Set before any import of ours: a kernel looks for the interpreter when it is defined
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Packages that test files need, besides torch, NumPy, pytest and Hypothesis
PACKAGES = (
    "hydra", "omegaconf", "datasets", "lightning", "sentencepiece", "sacrebleu", "sacremoses",
    "fastapi", "uvicorn", "prometheus_client",
    "ctranslate2", "onnx", "onnxruntime", "onnxscript", "safetensors", "transformers",
)  # fmt: skip

torch.set_num_threads(1)
SEED = os.environ.get("SEQ2SEQ_TEST_SEED", "")
Module = TypeVar("Module", bound=nn.Module)

# No deadline, since the machine may be busy; no database, since a run must not depend on an earlier one
hypothesis.settings.register_profile("repeatable", derandomize=not SEED, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Seed Hypothesis with SEQ2SEQ_TEST_SEED, too."""
    if SEED:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip files whose packages are missing, as on a machine that lends only its GPU; in CI they fail."""
    report: Any = yield
    missing = re.search(r"ModuleNotFoundError: (?:No module named|import of) '?(\w+)", str(report.longrepr or ""))
    if report.failed and missing and missing[1] in PACKAGES and not os.environ.get("CI"):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {missing[1]}")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of a GPU without one; mark as exhaustive what EXHAUSTIVE or REPRESENTATIVE leaves to `make test-all`.

    EXHAUSTIVE names whole tests; REPRESENTATIVE names further tests with the cases that `make test` runs. On a GPU all
    of them are quick.
    """
    for item in items:
        # Parallel processes must agree on the names, and the address of an object differs between them
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
    """Exempt all imported objects from garbage collection: each full collection would take half a second."""
    gc.freeze()


def seed_all(name: str) -> int:
    """Seed Python, NumPy and torch by `name` and the number in SEQ2SEQ_TEST_SEED."""
    digest = hashlib.sha256(f"{name}{SEED}".encode()).digest()
    value = int.from_bytes(digest[:4], "little") >> 1
    random.seed(value)
    np.random.seed(value)
    # torch.manual_seed formats the stack for each missing device, which takes longer than many tests
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(value)
    return value


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus, which all runs of a process share, as they do its cache."""
    import toycorpus

    return toycorpus.write(tmp_path_factory.mktemp("toy"))


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed a test by its name; pytest shows the printed line with a failure."""
    value = seed_all(request.node.name)
    print(f"seed {value} (SEQ2SEQ_TEST_SEED={SEED})")
    return value


@pytest.fixture(autouse=True)
def log_handlers_kept() -> Iterator[None]:
    """Remove the log handlers that a command in a test has added, since their streams end with the test."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    """Seed a shared fixture by its own name, so that it does not depend on the test that runs first."""
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


# Seconds that a test waits for a process: many, so that no test fails because the machine is busy.
PATIENCE = 600


def jiggle(module: Module, size: float = 0.1) -> Module:
    """Add noise to every parameter: a bias that is zero hides mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module


class Platform(NamedTuple):
    """Device and dtype of a test of mixers, and the tolerance between two ways to compute."""

    device: str
    dtype: torch.dtype
    tolerance: float


# float64 on the CPU, so that a tolerance tells a mistake from rounding: retention and other mixers divide by sums that
# may be almost 0.
PLATFORMS = {
    "cpu": Platform("cpu", torch.float64, 1e-9),
    "cuda": Platform("cuda", torch.float32, 1e-4),
    "cuda-bf16": Platform("cuda", torch.bfloat16, 5e-2),
}


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "cpu" else [pytest.mark.gpu]) for name in PLATFORMS])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Choose float64 on the CPU, and float32 and bfloat16 on a GPU if there is one."""
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
