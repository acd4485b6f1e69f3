"""Standard output arrives whole or an error is raised, in every mode of buffering."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.config
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import rich
from fulldisk import largest_file
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import Progress

from seq2seq.options import command_line
from seq2seq.system import stdio
from seq2seq.system.files import atomic_file
from seq2seq.system.resources import conf_dir

TEXT = "".join(f"line {i}\n" for i in range(30_000))


def output(descriptor: int, *, unbuffered: bool) -> io.TextIOWrapper:
    """Return Python's sys.stdout for a descriptor, with or without PYTHONUNBUFFERED."""
    raw = io.FileIO(descriptor, "wb", closefd=False)
    stream = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(stream, encoding="utf-8", write_through=unbuffered)


def write_text() -> int:
    sys.stdout.write(TEXT)
    return 0


def write_bytes() -> int:
    sys.stdout.buffer.write(TEXT.encode())
    sys.stdout.buffer.flush()
    return 0


both_modes = pytest.mark.parametrize("unbuffered", [False, True])
both_kinds = pytest.mark.parametrize("work", [write_text, write_bytes])


@both_modes
@both_kinds
def test_a_disk_that_becomes_full(tmp_path, monkeypatch, capfd, unbuffered, work):
    with (tmp_path / "out").open("wb") as file, largest_file(10_000):
        monkeypatch.setattr(sys, "stdout", output(file.fileno(), unbuffered=unbuffered))
        assert command_line.exit_status(work) == 2
    assert (tmp_path / "out").stat().st_size == 10_000
    assert capfd.readouterr().err.startswith("error: input or output: File too large; ")


@both_modes
def test_a_device_that_is_full(monkeypatch, capfd, unbuffered):
    with open("/dev/full", "wb") as file:
        monkeypatch.setattr(sys, "stdout", output(file.fileno(), unbuffered=unbuffered))
        assert command_line.exit_status(lambda: print("x") or 0) == 2
    assert capfd.readouterr().err.startswith("error: input or output: No space left on device; make room")


@both_modes
@both_kinds
@pytest.mark.parametrize("blocking", [False, True])
def test_a_slow_reader_gets_every_byte(monkeypatch, unbuffered, work, blocking):
    """This holds even if another program has made the pipe non-blocking, as terminal multiplexers do."""
    receiver, sender = os.pipe()
    os.set_blocking(sender, blocking)
    received = bytearray()

    def read() -> None:
        while chunk := os.read(receiver, 3000):
            received.extend(chunk)

    monkeypatch.setattr(sys, "stdout", output(sender, unbuffered=unbuffered))
    reader = threading.Thread(target=read)
    reader.start()
    assert command_line.exit_status(work) == 0
    os.close(sender)
    reader.join()
    os.close(receiver)
    assert received.decode() == TEXT


@both_modes
@both_kinds
def test_a_reader_that_has_gone(monkeypatch, capfd, unbuffered, work):
    receiver, sender = os.pipe()
    os.close(receiver)
    monkeypatch.setattr(sys, "stdout", output(sender, unbuffered=unbuffered))
    assert command_line.exit_status(work) == 141
    os.close(sender)
    assert capfd.readouterr().err == ""


def test_standard_output_is_restored(monkeypatch, tmp_path):
    with (tmp_path / "out").open("wb") as file:
        stream = output(file.fileno(), unbuffered=False)
        monkeypatch.setattr(sys, "stdout", stream)
        with contextlib.suppress(KeyError), stdio.whole_output():
            print("printed before the error")
            raise KeyError
        assert sys.stdout is stream
    assert (tmp_path / "out").read_text() == "printed before the error\n"


def test_a_pause_is_not_the_end_of_the_input(monkeypatch):
    """A non-blocking pipe with nothing in it looks like the end to Python's own reader."""
    receiver, sender = os.pipe()
    os.set_blocking(receiver, False)
    monkeypatch.setattr(sys, "stdin", open(receiver))  # noqa: SIM115
    stream: Any = stdio.standard_input()
    threading.Timer(0.05, lambda: (os.write(sender, b"late\n"), os.close(sender))).start()
    assert stream.read1(100) == b"late\n"
    assert stream.read1(100) == b""


def test_file_names_that_are_not_utf8_are_printed_as_they_are(monkeypatch, tmp_path):
    with (tmp_path / "out").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", output(file.fileno(), unbuffered=False))
        assert command_line.exit_status(lambda: print("\udcff") or 0) == 0
    assert (tmp_path / "out").read_bytes() == b"\xff\n"


def test_errors_of_a_full_disk_name_the_file(tmp_path):
    for path in (tmp_path / "out", Path("/dev/full")):
        with pytest.raises(OSError, match=str(path)), largest_file(1000), atomic_file(path) as file:
            file.write(b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_log_line_does_not_continue_the_line_of_a_progress_bar(monkeypatch):
    """Hydra makes the handler before rich replaces standard output."""
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    console = Console(force_terminal=True, width=30)
    monkeypatch.setattr(rich, "_console", console)
    settings = OmegaConf.load(conf_dir() / "train.yaml").hydra.job_logging.handlers.console
    handler = logging.config.DictConfigurator({}).configure_handler({**settings, "stream": screen})
    record = logging.LogRecord("x", logging.INFO, "", 1, "[a] line %s", ("longer than the screen, " * 3 + "end",), None)
    handler.emit(record)
    assert screen.getvalue() == f"{record.getMessage()}\n"
    with Progress(console=console, auto_refresh=False) as bar:
        bar.add_task("bar")
        bar.refresh()
        handler.emit(record)
    # The bar is erased, and the line is neither wrapped nor read as markup
    assert f"\x1b[2K{record.getMessage()}\n" in screen.getvalue()
