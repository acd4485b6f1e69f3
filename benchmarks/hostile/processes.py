"""Run commands as `python -m` would, each in a forked copy of this process, which has imported torch already."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import io
import os
import resource
import runpy
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

# Modules that the commands need, imported once.
MODULES = (
    "torch", "lightning.pytorch", "hydra", "omegaconf", "sentencepiece", "sacrebleu", "numpy", "pyarrow.parquet",
    "datasets", "matplotlib.pyplot", "seq2seq.training.run", "seq2seq.data.preparation", "seq2seq.settings.compose",
    "seq2seq.inference.translator", "seq2seq.inference.line_stream", "seq2seq.evaluation.checkpoint_score",
    "seq2seq.evaluation.scoring", "seq2seq.analysis.model_report", "seq2seq.comparison.compare_runs",
    "seq2seq.training.lightning_parts.datamodule",
)  # fmt: skip
# Set before torch is imported. Each command has one thread: attempts run in parallel, and a fork copies no threads.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192",
    "KINETO_LOG_LEVEL": "6",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    # Prevents downloads
    "HF_HUB_OFFLINE": "1",
}
# Seconds between two checks of a command's memory and time.
TICK = 0.1


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one command, which is killed if it exceeds them."""

    cpu: float = 40.0
    wall: float = 180.0
    megabytes: int = 4000
    threads: int = 300


@dataclasses.dataclass(frozen=True)
class Command:
    """A command to run.

    Args:
        stdin: Standard input; None closes it.
        stdout: File or device for standard output; None keeps it, "" closes it.
        before: Called in the process of the command before it starts.
        signals: (seconds after the start, signal), sent to the command.
    """

    module: str
    words: tuple[str, ...] = ()
    stdin: bytes | None = b""
    stdout: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    before: Callable[[], None] | None = None
    signals: tuple[float, int] | None = None
    limits: Limits = Limits()


@dataclasses.dataclass(frozen=True)
class Done:
    """The end of a command.

    Attributes:
        status: Exit status, or the negative number of the signal that ended it.
        exceeded: The exceeded limit, or "".
        cpu: CPU seconds, without earlier imports.
    """

    status: int
    out: bytes
    err: str
    exceeded: str
    cpu: float
    wall: float
    megabytes: int


def load_modules() -> None:
    """Import what the commands need, once for all attempts."""
    os.environ.update(ENVIRONMENT)
    for name in MODULES:
        # If a module has moved, the command imports it itself
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Hydra looks for its plugins once
    importlib.import_module("seq2seq.settings.compose").resolved_settings([])


def run(command: Command, cwd: Path, kept: Path) -> Done:
    """Run a command to its end in a separate process.

    Args:
        kept: An existing folder for its standard streams.
    """
    (kept / "stdin").write_bytes(command.stdin or b"")
    sys.stdout.flush()
    sys.stderr.flush()
    # Standard error is a pipe, to which a limit on the size of files does not apply
    reader, writer = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 2)
        os.close(writer)
        os.close(reader)
        _become(command, cwd, kept)
    os.close(writer)
    err = bytearray()
    exceeded = _watch(pid, command, start, reader, err)
    # End the child processes as well
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    _, state, usage = os.wait4(pid, 0)
    # A process outside of the group may keep the pipe open
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while block := os.read(reader, 1 << 16):
            err += block
    os.close(reader)
    (kept / "stderr").write_bytes(err)
    return Done(
        status=os.waitstatus_to_exitcode(state),
        # A command that is killed at once has made no file
        out=(kept / "stdout").read_bytes() if command.stdout is None and (kept / "stdout").exists() else b"",
        err=err.decode("utf-8", "replace"),
        exceeded=exceeded,
        cpu=usage.ru_utime + usage.ru_stime,
        wall=time.monotonic() - start,
        megabytes=usage.ru_maxrss // 1024,
    )


def _watch(pid: int, command: Command, start: float, reader: int, err: bytearray) -> str:
    """Wait for the end of a command, send its signal, and return the exceeded limit, or "".

    Args:
        reader: The command's standard error, whose bytes are added to `err`.
    """
    handle = os.pidfd_open(pid)
    pending = command.signals
    limits = command.limits
    open_reader = [reader]
    try:
        while True:
            elapsed = time.monotonic() - start
            pause = TICK if pending is None else max(0.0, min(TICK, pending[0] - elapsed))
            ready = select.select([handle, *open_reader], [], [], pause)[0]
            if handle in ready:
                return ""
            if ready:
                block = os.read(reader, 1 << 16)
                err += block
                # An empty block means that the command has closed its end
                open_reader = open_reader if block else []
            elapsed = time.monotonic() - start
            if pending and elapsed >= pending[0]:
                os.kill(pid, pending[1])
                pending = None
            cpu, megabytes, threads = _usage(pid)
            for what, value, limit in (
                ("CPU seconds", cpu, limits.cpu),
                ("seconds", elapsed, limits.wall),
                ("MB", megabytes, limits.megabytes),
                ("threads", threads, limits.threads),
            ):
                if value > limit:
                    return f"more than {limit:.0f} {what}"
    finally:
        os.close(handle)


def _usage(pid: int) -> tuple[float, float, int]:
    """Return the CPU seconds, resident megabytes and threads of a process and its children."""
    cpu = megabytes = 0.0
    threads = 0
    with contextlib.suppress(OSError, IndexError):
        # The command's name may hold spaces, so split after it: fields 14 and 15 are user and system time, 20 threads
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        threads = int(fields[17])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        megabytes = pages * resource.getpagesize() / 1e6
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            more = _usage(int(child))
            cpu += more[0]
            megabytes += more[1]
            threads += more[2]
    return cpu, megabytes, threads


def _become(command: Command, cwd: Path, kept: Path) -> NoReturn:
    """Turn this process, a fork, into the command, and end it as the interpreter would."""
    status = 70
    try:
        os.setsid()
        # Ctrl-C works as in a shell, even if the campaign runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.update(command.environment)
        _connect(command, kept)
        sys.argv = [command.module, *command.words]
        if command.before:
            command.before()
        status = _execute(command.module)
    finally:
        # Skips the cleanup of the campaign, of which this process is a copy
        os._exit(status)


def _connect(command: Command, kept: Path) -> None:
    """Give the process its standard streams."""
    for number in (0, 1):
        os.close(number)
    # Each `open` takes the lowest free file descriptor
    os.open(kept / "stdin", os.O_RDONLY)
    target = str(kept / "stdout") if command.stdout is None else (command.stdout or os.devnull)
    os.open(target, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if command.stdout is None else 0), 0o644)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)))
    # With PYTHONUNBUFFERED the stream is raw, so a write may be partial
    raw = "PYTHONUNBUFFERED" in command.environment
    out = io.FileIO(1, "w")
    sys.stdout = io.TextIOWrapper(out if raw else io.BufferedWriter(out), write_through=raw)  # type: ignore[type-var]
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), errors="backslashreplace", write_through=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    if command.stdin is None:
        os.close(0)
        sys.stdin = sys.__stdin__ = None  # type: ignore[assignment]
    if command.stdout == "":
        os.close(1)
        sys.stdout = sys.__stdout__ = None  # type: ignore[assignment]


def _execute(module: str) -> int:
    """Run a module as the main program and return the exit status that the interpreter would end with."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exception(error)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    # In the interpreter's order: threads, functions at exit, buffers
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{error}", file=sys.stderr)
        status = 120
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    return status & 0xFF
