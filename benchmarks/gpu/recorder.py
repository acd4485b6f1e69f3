"""Plugin of pytest that appends every outcome to a file, and skips tests that passed in an earlier run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.gpu.suites import outcomes

_RECORD = Path(os.environ["GPU_TESTS_RECORD"])
# The record as it was when this run began
_EARLIER = Path(os.environ["GPU_TESTS_EARLIER"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that have passed."""
    earlier = outcomes(_EARLIER)
    passed = [item for item in items if earlier.get(item.nodeid, {}).get("outcome") in ("passed", "skipped")]
    if passed:
        config.hook.pytest_deselected(items=passed)
        items[:] = [item for item in items if item not in set(passed)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append an outcome; with xdist only the controlling process does so, which receives all reports."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    # A test that fails before or after its call has failed, too
    if report.when == "call" or report.outcome != "passed":
        lines = str(report.longrepr or "").splitlines() if report.failed else []
        why = next((line.removeprefix("E").strip() for line in lines if line.startswith("E ")), "")
        one = {"test": report.nodeid, "outcome": report.outcome, "why": why[:200], "seconds": round(report.duration, 2)}
        with _RECORD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one, ensure_ascii=False) + "\n")
