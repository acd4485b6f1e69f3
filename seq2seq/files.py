"""What one process builds while the others wait: folders that appear whole, locks that no crash leaves behind."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
TELL_SECONDS = 30.0  # between two lines of a process that waits
PACE_SECONDS = 5.0  # between two lines of progress


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block succeeds and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield building
        building.chmod(0o755)
        try:
            os.rename(building, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def build_once(target: Path, what: str, build: Callable[[Path], Any]) -> Path:
    """`target`, a folder, made by `build(empty folder)` unless it is there: by one process, while others wait.

    The lock is the kernel's (flock), which lets go when its holder dies, by kill -9 too: there is nothing stale to
    remove, and the next in line starts over. What a killed holder left behind is deleted first. Where a file system
    has no locks, every process builds for itself, and the folder that is whole first stays.
    """
    if target.is_dir():
        return target
    with _held(_lock_of(target.parent, target.name), what) as exclusive:
        if target.is_dir():
            return target
        if exclusive:
            _remove_leftovers(target)
        start = time.monotonic()
        with atomic_folder(target) as building:
            build(building)
        log.info("made %s in %.1f s", what, time.monotonic() - start)
    return target


def _lock_of(folder: Path, name: str) -> Path:
    return folder / f".{name}.lock"


def _remove_leftovers(target: Path) -> None:
    """Delete folders that interrupted preparations left beside `target`: those that nobody holds the lock of."""
    for folder in target.parent.glob(".*-*"):
        name = folder.name[1:].rpartition("-")[0]
        if folder.is_dir() and (name == target.name or is_abandoned(_lock_of(target.parent, name))):
            log.info("removing %s, which an interrupted preparation left", folder)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock `path`, saying who has it while waiting; False where the file system has no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file, exclusive = _wait_for(path, what)
    try:
        if exclusive:
            # For those who wait.
            note = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(note).encode(), 0)
        yield exclusive
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(file)  # which lets go of the lock


def _wait_for(path: Path, what: str) -> tuple[int, bool]:
    """An open file and whether its lock is ours: False, with a warning, where the file system has none."""
    told = -math.inf
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if try_lock(file):
                # Its last holder removed the file while we waited for it: the lock is then one that nobody else sees.
                if _is_at(file, path):
                    return file, True
            elif time.monotonic() - told >= TELL_SECONDS:
                log.info("waiting for %s: %s", what, _holder(path))
                told = time.monotonic()
        except OSError as error:
            log.warning("%s has no file locks (%s): every process prepares %s for itself", path.parent, error, what)
            return file, False
        os.close(file)
        time.sleep(POLL_SECONDS)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def is_abandoned(lock: Path) -> bool:
    """Whether a lock's file is there and nobody holds it."""
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        return try_lock(file)
    except OSError:
        return False
    finally:
        os.close(file)


def try_lock(file: int) -> bool:
    """Whether the lock of an open file was free, and is now ours; OSError where there are no locks.

    flock excludes across the machines of a cluster too where the shared folder supports it (NFS, Lustre with -o flock).
    """
    try:
        import fcntl
    except ImportError:  # Windows
        raise OSError(errno.ENOSYS, "no flock on this system") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _holder(path: Path) -> str:
    """Who holds a lock and since when, as its holder wrote."""
    try:
        found = json.loads(path.read_text())
        clock = time.strftime("%H:%M:%S", time.localtime(found["since"]))
        waited = time.time() - found["since"]
        return f"process {found['pid']} on {found['host']} has been preparing it since {clock} ({waited:.0f} s)"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process is preparing it"


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder that is gone after the block; one that a killed process left is deleted by the next that needs one."""
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(".local-*"):
        if (old / "files").is_dir() and is_abandoned(old / "in-use"):
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".local-", dir=parent) as folder:
        file = os.open(Path(folder) / "in-use", os.O_RDWR | os.O_CREAT)
        try:
            with contextlib.suppress(OSError):
                try_lock(file)
            (Path(folder) / "files").mkdir()  # after the lock: a folder without it is not abandoned but new
            yield Path(folder) / "files"
        finally:
            os.close(file)


class Pace:
    """Lines of progress, every few seconds: what, how many pairs so far (and of how many), how many a second."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what, self.total, self.count = what, total, 0
        self.start = self.told = time.monotonic()

    def add(self, count: int) -> None:
        """Count `count` more pairs; a line, if the last one is PACE_SECONDS old."""
        self.count += count
        now = time.monotonic()
        if now - self.told >= PACE_SECONDS:
            self.told = now
            share = f" of {self.total:,} ({100 * self.count / self.total:.0f}%)" if self.total else ""
            rate = self.count / (now - self.start)
            log.info("%s: %s%s pairs, %s pairs/s", self.what, f"{self.count:,}", share, f"{rate:,.0f}")


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends well and leaves nothing behind when it does not.

    It is written beside `path`, flushed to the disk and moved into place. A link keeps pointing at its target; what is
    no ordinary file (/dev/null, a pipe) is written directly.
    """
    final = Path(os.path.realpath(path))
    if final.exists() and not final.is_file() and not final.is_dir():
        with open(final, "wb") as file:
            yield file
        return
    if final.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write")
    temporary = final.with_name(f".{final.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if final.exists():
            os.chmod(temporary, stat.S_IMODE(final.stat().st_mode))
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    # The rename itself survives a power cut only once the folder is on the disk; not every system can do it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that the file is at every moment the old one or the whole new one."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))
