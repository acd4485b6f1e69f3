"""Files and folders that are written atomically, or built by one process while others wait."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
import tiny
import toycorpus
from conftest import PATIENCE
from fulldisk import largest_file

from seq2seq.system import files
from seq2seq.system.files import build_once, reserved, scratch_folder

# Builds argv[1]: notes its pid in argv[2], writes the file "part", waits for argv[3] seconds or for a file "go" next to
# argv[2], and writes the file "whole".
BUILDER = """
import logging, os, sys, time
from pathlib import Path
from seq2seq.system.files import build_once
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
def build(folder):
    (folder / "part").write_text("1")
    with open(sys.argv[2], "a") as file:
        file.write(f"{os.getpid()}\\n")
    end = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end and not Path(sys.argv[2]).with_name("go").exists():
        time.sleep(0.02)
    (folder / "whole").write_text("1")
build_once(Path(sys.argv[1]), "the toy", build)
"""


def start(target: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(target), str(target.parent.parent / "log"), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def started(log: Path, count: int = 1) -> list[str]:
    """Wait for `count` processes that build, and return the pids of all."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if log.exists() and len(pids := log.read_text().split()) >= count:
            return pids
        time.sleep(0.02)
    raise AssertionError("no process began to build")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_process_builds_and_the_others_say_that_they_wait(tmp_path):
    target = tmp_path / "cache" / "toy-1"
    first = start(target, PATIENCE)
    (pid,) = started(tmp_path / "log")
    others = [start(target, PATIENCE) for _ in range(2)]
    for process in others:
        assert "waiting for the toy" in process.stdout.readline()  # type: ignore[union-attr]
    (tmp_path / "go").touch()
    output = [process.communicate(timeout=PATIENCE)[0] for process in (first, *others)]
    assert [process.returncode for process in (first, *others)] == [0, 0, 0]
    assert started(tmp_path / "log") == [pid]
    assert output[0].startswith("made the toy in ")
    assert names(target.parent) == {"toy-1"}
    assert names(target) == {"part", "whole"}


def test_a_waiting_process_replaces_a_killed_one_and_deletes_its_remains(tmp_path):
    target = tmp_path / "cache" / "toy-1"
    first = start(target, PATIENCE)
    started(tmp_path / "log")
    second = start(target, 0.0)
    assert "waiting for the toy" in second.stdout.readline()  # type: ignore[union-attr]
    # The second process may build it before this one runs again
    assert not target.exists()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0
    assert "removing" in output
    assert len(started(tmp_path / "log", 2)) == 2
    assert names(target.parent) == {"toy-1"}
    assert names(target) == {"part", "whole"}


def test_failure_leaves_nothing_and_the_next_call_builds(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "x").touch()
        raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(tmp_path / "toy-1", "the toy", fail)
    assert not names(tmp_path)
    built = build_once(tmp_path / "toy-1", "the toy", lambda folder: (folder / "x").touch())
    assert names(built) == {"x"}
    build_once(tmp_path / "toy-1", "the toy", fail)  # exists: not built again


def test_without_locks_every_process_builds_and_whole_folders_stay(tmp_path, monkeypatch, caplog):
    def none(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / ".toy-1-abcd.partial").mkdir()  # of another process, which may be alive

    def build(folder: Path) -> None:
        (folder / "mine").touch()
        (tmp_path / "toy-1").mkdir()  # another process was faster
        (tmp_path / "toy-1" / "theirs").touch()

    assert names(build_once(tmp_path / "toy-1", "the toy", build)) == {"theirs"}
    assert "has no file locks" in caplog.text
    assert (tmp_path / ".toy-1-abcd.partial").is_dir()
    with reserved(tmp_path / "run", otherwise="wait"), reserved(tmp_path / "run", otherwise="wait"):
        (tmp_path / "run" / "x").touch()


def test_every_writer_names_the_file_and_leaves_nothing(tmp_path):
    def by_arrow(folder: Path) -> None:
        with pa.OSFile(str(folder / "x"), "wb") as file:
            file.write(bytes(100_000))

    writers = {
        "text": lambda: files.write_text(tmp_path / "a.txt", "x" * 100_000),
        "checkpoint": lambda: tiny.save(tmp_path),
        "arrow": lambda: build_once(tmp_path / "c-1", "the toy", by_arrow),
    }
    tiny.payload()
    for name, write in writers.items():
        with largest_file(20_000), pytest.raises(OSError, match=r"File too large|No space") as caught:
            write()
        assert str(caught.value.filename).startswith(str(tmp_path)), name
        assert Path(caught.value.filename).suffix != ".tmp"
        assert not names(tmp_path), name


def test_scratch_is_elsewhere_if_its_place_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    with scratch_folder(tmp_path / "file" / "cache") as folder:
        assert folder.parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_of_killed_processes_go_after_a_week(tmp_path):
    for name in ("old", "new"):
        (tmp_path / f".{name}-1-abcd.partial").mkdir()
    last_week = time.time() - 8 * 24 * 3600
    os.utime(tmp_path / ".old-1-abcd.partial", (last_week, last_week))
    with scratch_folder(tmp_path) as folder:
        assert names(tmp_path) == {".new-1-abcd.partial", folder.name}
    assert not folder.exists()


def test_a_building_folder_of_another_host_stays(tmp_path):
    """Each host may have the lock, on a file system that does not share locks."""
    own, other = (tmp_path / f".toy-1-{host}-abcd.partial" for host in (socket.gethostname(), "elsewhere"))
    own.mkdir()
    other.mkdir()
    build_once(tmp_path / "toy-1", "the toy", lambda folder: None)
    assert names(tmp_path) == {"toy-1", other.name}


def test_temporary_files_of_killed_processes_go_with_the_next_write(tmp_path):
    """Files of living processes, of the last hour, and of other names stay."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    names = {f".a[1].{done.pid}.00.tmp": 2, f".a[1].{os.getpid()}.00.tmp": 2, f".a[1].{done.pid}.01.tmp": 0}
    names |= {f".a1.{done.pid}.00.tmp": 2, ".a[1].notes.tmp": 2}
    for name, hours in names.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time(), time.time() - 3601 * hours))
    files.write_text(tmp_path / "a[1]", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"a[1]", *list(names)[1:]}


@pytest.mark.slow
def test_prepare_twice_at_once_then_train_finds_it(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus")
    places = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    command = [sys.executable, "-m", "seq2seq.prepare", "data=files", *places, "data.vocab_size=300"]
    command += [f"cache={tmp_path / 'cache'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    both = [run(), run("data.num_proc=2")]
    output = "".join(process.communicate(timeout=PATIENCE)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert output.count("training the tokenizer") == 1
    assert output.count("prepared in ") == 2
    assert {name.split("-")[0] for name in names(tmp_path / "cache")} == {"text", "tokenizer", "ids", "overlap"}
    assert str(next((tmp_path / "cache").glob("tokenizer-*"))) in output


HOLDER = """
import sys, time
from pathlib import Path
from seq2seq.system.files import reserved
with reserved(Path(sys.argv[1]), otherwise="wait"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_a_reserved_folder_is_free_when_the_process_that_has_it_is_killed(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLDER, str(folder), str(PATIENCE)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=r"run is in use .*; wait$"):
        files.reserved(folder, otherwise="wait").__enter__()
    holder.kill()
    holder.wait()
    with files.reserved(folder, otherwise="wait"):
        assert names(folder) == {".lock"}
    # An empty folder is deleted
    assert not folder.exists()


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null", "/dev/null/x", "/proc/nope/deeper"])
def test_a_folder_that_cannot_be_made_is_refused(place):
    with pytest.raises(ValueError, match=r"^runs=.* cannot be written .*: set runs=<another folder>$"):
        files.require_creatable(Path(place), "runs")


def test_a_check_of_a_folder_does_not_make_it(tmp_path):
    files.require_creatable(tmp_path / "a" / "b", "runs")
    files.require_creatable(tmp_path, "runs")
    assert not list(tmp_path.iterdir())


def test_an_error_has_the_name_of_the_file(tmp_path):
    """An error names the file itself, not its temporary file."""
    path = tmp_path / "missing" / "out"
    with pytest.raises(FileNotFoundError) as caught, files.atomic_file(path):
        pass
    assert caught.value.filename == str(path)


def test_an_empty_reserved_folder_is_deleted_with_its_new_parents(tmp_path):
    with reserved(tmp_path / "runs" / "all" / "it", otherwise="wait"):
        pass
    assert not names(tmp_path)
    with reserved(tmp_path / "runs" / "it", otherwise="wait"):
        (tmp_path / "runs" / "it" / "config.yaml").touch()
    assert names(tmp_path / "runs" / "it") == {"config.yaml"}
