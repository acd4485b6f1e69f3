"""Train many small runs at once on one GPU, within a budget of time, and keep the finished ones.

    python -m benchmarks.runs_together RUNS.txt --out DIR --budget 430 --slots 15 --mps

Each line of RUNS.txt has the settings of one run, as after `python -m seq2seq.train`. A run that does not end within
the budget is asked to save; the same command continues it. DIR gets

    runs/, logs/                  the runs, and their output
    kept/                         the finished ones without checkpoints (benchmarks.keep_runs)
    runs_together.json            seconds and exit status of each process, the runs' scores, and the machine
    runs_together.tar.gz          all of that but the runs, as one file

A run of a small model leaves a GPU waiting most of the time. --mps starts CUDA's multi-process service, by
which kernels of several processes run at the same time; without it they take turns. Exit status 3: runs are left; 1:
some failed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness, keep_runs
from seq2seq.runs.results import RunResult, collect
from seq2seq.system.json_file import read_json_or_none

LEFT = 3
# Seconds for saving runs at the end of the budget, and for the work after saving.
_GRACE, _RESERVE = 10.0, 25.0
_POLL = 0.2
# A run saves at this signal, and ends with this status.
_SAVE = signal.SIGTERM
_SAVED = 128 + _SAVE


class Started(NamedTuple):
    """A run that was started: its line of settings, its process, its start time, and its log."""

    line: str
    process: subprocess.Popen[bytes]
    began: float
    log: Path


class Together:
    """Runs side by side, at most `slots` at a time, until all have ended or `deadline` comes.

    Args:
        lines: Settings of each run.
        out: Folder for all output.
        slots: Maximum number of simultaneous runs.
        deadline: Value of time.monotonic() at which runs must have ended.

    Attributes:
        records: A record of each run, in the order in which they ended: settings, exit status, seconds, log, and
            whether it was asked to save.
    """

    def __init__(self, lines: Sequence[str], out: Path, *, slots: int, deadline: float) -> None:
        self.waiting, self.out, self.slots, self.deadline = list(lines), out, slots, deadline
        self.running: list[Started] = []
        self.records: list[dict[str, Any]] = []

    def run(self) -> None:
        """Start, watch and end the runs."""
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        try:
            while self.running or self.waiting:
                self._collect()
                while self.waiting and len(self.running) < self.slots and self._time_for_another():
                    self._start(self.waiting.pop(0))
                if not self.running or time.monotonic() >= self.deadline:
                    break
                time.sleep(_POLL)
        finally:
            self._stop()

    def _time_for_another(self) -> bool:
        """Return True if the longest run so far would still end in time."""
        ended = [record["seconds"] for record in self.records if record["status"] == 0]
        return time.monotonic() + max(ended, default=0.0) < self.deadline

    def _start(self, line: str) -> None:
        # Logs of earlier commands stay
        log = self.out / "logs" / f"{len(list((self.out / 'logs').iterdir())):03d}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command(line, self.out),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ},
                start_new_session=True,
            )
        self.running.append(Started(line, process, time.monotonic(), log))
        print(f"started: {line}", flush=True)

    def _collect(self) -> None:
        for one in [one for one in self.running if one.process.poll() is not None]:
            self._record(one)
            if one.process.returncode:
                print(*one.log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:], sep="\n")

    def _record(self, one: Started, *, asked: bool = False) -> None:
        self.running.remove(one)
        seconds, status = round(time.monotonic() - one.began, 1), one.process.returncode
        record = {"settings": one.line, "status": status, "asked to save": asked, "seconds": seconds}
        self.records.append(record | {"log": one.log.name})
        print(f"exit status {status}{', asked to save,' if asked else ''} after {seconds} s: {one.line}", flush=True)

    def _stop(self) -> None:
        """Ask the processes that still run to save, and kill those that do not exit."""
        self._collect()
        for one in self.running:
            one.process.send_signal(_SAVE)
        end = time.monotonic() + _GRACE
        for one in list(self.running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, end - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                # This kills its child processes, too
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
            self._record(one, asked=True)


def command(line: str, out: Path) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "seq2seq.train", f"runs={out / 'runs'}", "resume=auto", *shlex.split(line)]


@contextlib.contextmanager
def multi_process_service(out: Path) -> Iterator[None]:
    """Run CUDA's multi-process service for the processes that this one starts.

    Raises:
        ValueError: The service is missing or does not start.
    """
    tool = shutil.which("nvidia-cuda-mps-control")
    if tool is None:
        raise ValueError("--mps: nvidia-cuda-mps-control is not on the PATH; add its folder, or leave --mps out")
    places = {f"CUDA_MPS_{name}_DIRECTORY": str((out / name.lower()).absolute()) for name in ("PIPE", "LOG")}
    for place in places.values():
        Path(place).mkdir(parents=True, exist_ok=True)
    started = subprocess.run([tool, "-d"], env={**os.environ, **places}, capture_output=True, text=True, timeout=30)
    if started.returncode:
        raise ValueError(f"--mps: nvidia-cuda-mps-control -d: {(started.stderr or started.stdout).strip()}")
    os.environ.update(places)
    try:
        yield
    finally:
        subprocess.run([tool], input="quit\n", text=True, timeout=30)
        for name in places:
            del os.environ[name]


def keep_finished(out: Path) -> tuple[list[dict[str, Any]], bool]:
    """Keep finished runs that are not kept yet; return name, command and scores of all, and whether one failed."""
    kept, collected = out / "kept", collect([str(out / "runs")], "test")
    new = collected._replace(runs=[run for run in collected.runs if not (kept / run.name).exists()])
    refused = keep_runs.each_run(new, lambda run: keep_runs.keep(run, kept))
    return [_described(run) for run in collected.runs], bool(refused)


def _described(run: RunResult) -> dict[str, Any]:
    test = run.results["test"]
    named = {key: test.get(key) for key in ("bleu", "chrf", "convention")}
    return {"run": run.name, "command": run.results.get("command"), **named}


def read_lines(path: Path) -> list[str]:
    """Read the settings of each run, without blank lines and comments.

    Raises:
        ValueError: The file has no settings, or the same line twice; runs of equal lines would share a folder.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ValueError(f"{path} has no line of settings")
    if twice := sorted({line for line in lines if lines.count(line) > 1}):
        raise ValueError(f"{path} has a line twice: {twice[0]}")
    return lines


def archive(out: Path) -> None:
    """Write everything except the runs into one file."""
    with tarfile.open(out / "runs_together.tar.gz", "w:gz") as file:
        for name in ("kept", "logs", "runs_together.json"):
            if (out / name).exists():
                file.add(out / name, name)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the runs, keep the finished ones, and return the exit status."""
    began = time.monotonic()
    parser = harness.parser_for("runs_together", __doc__)
    parser.add_argument("runs", type=Path, metavar="RUNS.txt", help="a line of settings for each run")
    parser.add_argument("--budget", type=float, default=430.0, help="seconds that the whole command may take (430)")
    parser.add_argument("--slots", type=int, default=15, help="most runs at a time (15)")
    parser.add_argument("--mps", action="store_true", help="let kernels of several runs run at the same time")
    options = parser.parse_args(argv)
    if options.out is None or options.slots < 1 or options.budget <= _GRACE + _RESERVE:
        parser.error(f"--out is needed, --slots of at least 1, and --budget of more than {_GRACE + _RESERVE:.0f}")
    # On SIGTERM this command first ends its runs
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_SAVED))
    deadline = began + options.budget - _GRACE - _RESERVE
    try:
        together = Together(read_lines(options.runs), options.out, slots=options.slots, deadline=deadline)
        with multi_process_service(options.out) if options.mps else contextlib.nullcontext():
            together.run()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    finally:
        signal.signal(signal.SIGTERM, handler)
    finished, failed = keep_finished(options.out)
    earlier = (read_json_or_none(options.out / "runs_together.json") or {}).get("records", [])
    report = {"records": earlier + together.records, "not started": together.waiting, "runs": finished}
    harness.write(options.out, "runs_together", report | harness.machine(device()))
    archive(options.out)
    saved = [record for record in together.records if record["asked to save"] and record["status"] == _SAVED]
    failed = failed or any(record["status"] for record in together.records if record not in saved)
    return 1 if failed else LEFT if saved or together.waiting else 0


def device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    raise SystemExit(main())
