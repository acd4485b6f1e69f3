"""Run one part; `python -m benchmarks.gpu` starts this as a separate process.

python -m benchmarks.gpu.part kernels --out DIR --data DATA --device cuda --limit 120
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.records import LEFT_OUT, file_name
from seq2seq.system.files import write_text

# Module of each kind of work; it has a function `run(job)`.
_MODULES = {
    "machine": "machine",
    "attention": "attention",
    "norm": "norms",
    "kernels": "kernels",
    "tune": "kernels",
    "pytest": "suites",
    "command": "command",
    "marian": "marian",
    "translate": "translating",
    "fifteen": "fifteen",
}


class PartJob:
    """The inputs of a part, and its results so far.

    Args:
        name: The part's name.
        folder: Folder of all results.
        data: The packed folder.
        device: "cuda" or "cpu"; on a CPU all sizes are tiny.
        limit: Seconds after which the part is killed.
        command_data: Folder of the corpus that the training command reads, and its source and target language.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        data: Path,
        device: str,
        limit: float,
        command_data: tuple[str, str, str] | None = None,
    ) -> None:
        self.name, self.folder, self.data, self.device = name, folder, data, device
        self.command_data = command_data
        self.on_gpu = device == "cuda"
        self.deadline = time.monotonic() + limit
        self.path = folder / "parts" / f"{file_name(name)}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.result: dict[str, Any] = {}

    @property
    def words(self) -> list[str]:
        """The words of the name after the kind."""
        return self.name.split("/")[1:]

    def left(self, reserve: float = 0.0) -> float:
        """Return the remaining seconds minus `reserve`."""
        return max(0.0, self.deadline - time.monotonic() - reserve)

    def while_time(self, names: Sequence[str], least: float) -> Iterator[str]:
        """Yield names; exit with LEFT_OUT when fewer than `least` seconds remain."""
        for place, name in enumerate(names):
            # The first name is always yielded
            if place and self.left() < least:
                print(f"no time was left for {len(names) - place} of {len(names)}, the first: {name}")
                raise SystemExit(LEFT_OUT)
            yield name

    def save(self, **values: Any) -> None:
        """Add values to the result, and write it."""
        self.result |= values
        text = json.dumps({"part": self.name, **self.result}, ensure_ascii=False, default=str)
        write_text(self.path, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the part and return the exit status, 1 if it could not do its work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.part", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--command-data", nargs=3)
    options = vars(parser.parse_args(argv))
    job = PartJob(options.pop("name"), options.pop("out"), **options)
    job.save()
    kind = job.name.split("/")[0]
    importlib.import_module(f"benchmarks.gpu.{_MODULES[kind]}").run(job)
    job.save()
    return 0


def end_with_parent() -> None:
    """End this process group when the parent process is gone, as after kill -9."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    # Only if this process leads its group: the group of a shell has other processes
    if os.getpgid(0) == os.getpid() and os.getsid(0) == os.getpid():
        end_with_parent()
    sys.exit(main())
