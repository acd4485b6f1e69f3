"""Run parts one after another, each in its own process group, within the remaining time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import verdicts
from benchmarks.gpu.plan import Part
from benchmarks.gpu.records import DONE, FAILED, INTERRUPTED, LEFT_OUT, ROOT, STOPPED, Results
from seq2seq.system.files import write_text

# Seconds for ending the last part and writing the page.
_RESERVE = 8.0
# Seconds that a process has to end after each signal; even a killed process may wait for the device.
_GRACE = 2.5


class SignalError(Exception):
    """A signal asks the command to end."""


class Runner:
    """Runner of the missing parts.

    Args:
        results: The records.
        device: "cuda" or "cpu".
        data: The packed folder, which may be absent.
        budget: Seconds that the whole command may take.
        began: The value of time.monotonic() when it began.
        more: Additional options for every part.
    """

    def __init__(
        self, results: Results, *, device: str, data: Path, budget: float, began: float, more: Sequence[str] = ()
    ) -> None:
        self.results, self.device, self.data, self.more = results, device, data, more
        self.began, self.deadline = began, began + budget - _RESERVE

    def run(self, parts: list[Part]) -> bool:
        """Run the missing parts, failed ones last, and return True if no part is left."""
        self._handle_signals()
        missing = [part for part in parts if self.results.state(part.name) != DONE]
        # A stable sort keeps the order in each half
        missing.sort(key=lambda part: self.results.state(part.name) in (FAILED, STOPPED))
        visit = len(self.results.data["visits"])
        try:
            for part in missing:
                if self.deadline - time.monotonic() >= part.least:
                    self._run_part(part)
                    self._note_time(visit)
        except SignalError:
            print("stopped by a signal", flush=True)
        self._note_time(visit)
        return all(self.results.state(part.name) in (DONE, FAILED) for part in parts)

    def _run_part(self, part: Part) -> None:
        name, left = part.name, self.deadline - time.monotonic()
        limit = min(part.limit, left)
        print(f"{name}: up to {limit:.0f} s ...", flush=True)
        begun = time.monotonic()
        status = None
        self.results.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.results.log(name).open("wb") as log:
            process = subprocess.Popen(
                self._command(part, limit),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment(),
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                pass
            finally:
                # Even if it has ended, since it may have left child processes
                kill_group(process)
                self._close(part, status, time.monotonic() - begun, limit)

    def _command(self, part: Part, limit: float) -> list[str]:
        options = [f"--out={self.results.folder}", f"--data={self.data}", f"--device={self.device}", f"--limit={limit}"]
        return [sys.executable, "-m", "benchmarks.gpu.part", part.name, *options, *self.more]

    def _environment(self) -> dict[str, str]:
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        # Kernels read it when they are defined; on a GPU they must be compiled
        found.pop("TRITON_INTERPRET", None)
        return found | ({"TRITON_INTERPRET": "1"} if self.device == "cpu" else {})

    def _close(self, part: Part, status: int | None, seconds: float, limit: float) -> None:
        state, error = DONE, ""
        if status is None:
            signaled = sys.exc_info()[0] is not None
            state = INTERRUPTED if signaled or limit < part.limit else STOPPED
            error = "ended by a signal" if signaled else f"not finished in {limit:.0f} s"
        elif status == LEFT_OUT:
            # A part that had its full time limit is done
            state = INTERRUPTED if limit < part.limit else DONE
            error = last_line(self.results.log(part.name))
        elif status != 0:
            state, error = FAILED, last_line(self.results.log(part.name)) or f"exit status {status}"
        self.results.close(part.name, state, seconds, error, whole=status == 0)
        print(f"{part.name}: {state} after {seconds:.0f} s{': ' if error else ''}{error}", flush=True)

    def _note_time(self, visit: int) -> None:
        self.results.data["visits"][visit:] = [round(time.monotonic() - self.began, 1)]
        self.results.save()
        # The page is written after every part, since the command may be killed
        try:
            page = verdicts.page(self.results)
        except Exception as error:  # the page can be made again later
            page = f"The page could not be made: {type(error).__name__}: {error}\n"
        write_text(self.results.folder / "verdicts.md", page)

    def _handle_signals(self) -> None:
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

        def end(*_: Any) -> None:
            for one in signals:
                signal.signal(one, signal.SIG_IGN)
            raise SignalError

        for one in signals:
            signal.signal(one, end)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process group, by SIGTERM and then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=_GRACE)


def last_line(path: Path) -> str:
    """Return the last line of a log that names an error, else its last line, cut to 200 characters."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line.strip()[:200] for line in text.splitlines() if line.strip()]
    # Some errors of torch end with lines of advice
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return (errors or lines or [""])[-1]
