"""Run tests in parallel and record every outcome at once, so that a stopped run can be resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.records import ROOT

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

_KERNELS = ROOT / "tests" / "kernels"
# Arguments of each suite; `-m` replaces the markers that exclude slow tests.
_ARGUMENTS = {
    # Without compilation for other GPUs
    "kernels": ["tests/kernels", "--ignore=tests/kernels/test_aot.py", "-m", ""],
    "gpu": ["tests", "-m", "gpu"],
    # Captured passes and steps
    "replay": ["tests/training", "tests/search/test_search_graphs.py", "-m", "gpu"],
    # Kernels of attention and of norms, whose own tests are for any device
    "fused": [
        *(str(path) for name in ("attention", "norm") for path in sorted(_KERNELS.glob(f"*{name}*.py"))),
        "-m",
        "",
    ],
}
# A few tests of each suite for a rehearsal.
_TINY = {
    "kernels": [
        *("tests/kernels/test_triton.py", "tests/kernels/test_convolutions.py"),
        *("-m", "", "-k", "nothing_to or grad"),
    ],
    "gpu": ["tests/training/test_fsdp.py", "tests/kernels/test_convolutions.py", "-m", "gpu"],
    "replay": ["tests/training/test_copying.py", "-m", "gpu"],
    "fused": ["tests/kernels/test_packed_attention.py", "-m", "not gpu"],
}


def run(job: PartJob) -> None:
    """Run the tests that have not passed, with xdist if it is installed, and save outcomes while they run."""
    (name,) = job.words
    record = job.folder / f"pytest-{name}.jsonl"
    # A copy, so that all processes of xdist read the same record while it grows
    earlier = job.path.with_suffix(".earlier")
    earlier.write_bytes(record.read_bytes() if record.is_file() else b"")
    arguments = (_ARGUMENTS if job.on_gpu else _TINY)[name]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "benchmarks.gpu.recorder", *arguments]
    # A rehearsal skips most tests and needs no parallel processes
    command += ["-p", "no:cacheprovider", *(parallel(job) if job.on_gpu or name == "kernels" else [])]
    # Drops the variables of an outer xdist, since this may run within a test
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**inherited, "GPU_TESTS_RECORD": str(record), "GPU_TESTS_EARLIER": str(earlier)},
    ) as process:
        while process.poll() is None:
            try:
                process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                job.save(**counts(record))
    job.save(**counts(record), status=process.returncode)
    earlier.unlink()
    # 0: passed, 1: some failed, 5: no tests; else pytest failed
    if process.returncode not in (0, 1, 5):
        raise SystemExit(f"pytest ended with exit status {process.returncode}")


def parallel(job: PartJob) -> list[str]:
    """Return xdist's options; each process has a CUDA context, which takes memory."""
    try:
        import xdist  # noqa: F401
    except ImportError:
        return []
    count = min(12, os.cpu_count() or 1) if job.on_gpu else 2
    return ["-n", str(count), "--dist", "worksteal"]


def outcomes(record: Path) -> dict[str, dict[str, Any]]:
    """Return the last outcome of each test, without truncated lines."""
    found = {}
    for line in record.read_text(encoding="utf-8").splitlines() if record.is_file() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["test"]] = one
    return found


def counts(record: Path) -> dict[str, Any]:
    """Count outcomes, and list failed tests with the first line of the reason."""
    found = outcomes(record)
    total = Counter(one["outcome"] for one in found.values())
    failed = [f"{one['test']}: {one['why']}" for one in found.values() if one["outcome"] == "failed"]
    return {key: total[key] for key in ("passed", "failed", "skipped")} | {"failures": failed[:60]}
