"""Shared parts of the benchmarks: a command line with --out, the machine, the clock, and results as tables and JSON.

It needs only torch, which is imported when it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parser_for(name: str, description: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """Create the parser of `python -m benchmarks.<name>`, which has the option --out.

    Args:
        name: The module's name below `benchmarks`.
        description: The module's docstring, shown by --help.
        out: Help of --out, of a benchmark that writes no JSON.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=out or f"write {name}.json there, and its table")
    return parser


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describe the machine of a benchmark: the device's name, versions, threads and the date."""
    import torch

    return {
        "name": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _processor() -> str:
    """Return the processor's name, or its architecture."""
    with contextlib.suppress(OSError):
        # Only Linux has this file; Python alone knows just the architecture
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [value.strip() for key, _, value in (line.partition(":") for line in lines) if key == "model name\t"]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def median_seconds(
    work: Callable[[], Any],
    *,
    repeat: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median time of `work` over `repeat` calls, after `warm_up` calls that are not counted.

    Args:
        clock: time.perf_counter, or time.process_time for the CPU seconds of all threads.
    """
    times = []
    for _ in range(warm_up + repeat):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times[warm_up:])


def write(out: Path | None, name: str, result: Any, table: str = "") -> None:
    """Write `<name>.json`, and `<name>.md` if there is a table.

    Args:
        out: The folder; None writes nothing.
    """
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, ensure_ascii=False, indent=1)
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if table:
        (out / f"{name}.md").write_text(table.rstrip("\n") + "\n", encoding="utf-8")
