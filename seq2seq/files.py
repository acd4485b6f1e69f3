"""Write files and folders atomically, and let one process build what others wait for. Imports no torch."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import logging
import lzma
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from filelock import BaseFileLock, FileLock, Timeout

from seq2seq.faults import disk_error

log = logging.getLogger(__name__)

# Compressions of text, by suffix, and a pattern of the bytes that such a file begins with.
COMPRESSIONS = {
    ".gz": rb"\x1f\x8b",
    ".bz2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    ".xz": rb"\xfd7zXZ\0",
    # A frame, or one to skip, with which parallel programs begin
    ".zst": rb"(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)",
}
# Suffixes of archives and compressions that are not written.
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".lzma", ".lz", ".z", ".br")
# Between two attempts to take a lock.
POLL_SECONDS = 0.2
# Between two messages of a process that waits for a lock.
REPORT_SECONDS = 30.0
# The file of the lock that `reserved` takes in a folder.
LOCK = ".lock"
# Raised by filelock where a file system has no locks.
_NO_LOCKS = (OSError, NotImplementedError)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` if the block succeeds and leaves nothing behind if it does not.

    It is written beside `path`, flushed to the disk and moved into place. A link keeps pointing at its target; what is
    not a regular file (/dev/null, a pipe) is written directly.

    Raises:
        IsADirectoryError: `path` is a directory.
    """
    if written_directly(path):
        with _named_errors(path, Path(path)), open(path, "wb") as file:
            yield file
        return
    # Resolve links first: os.replace would replace the link itself
    final = Path(os.path.realpath(path))
    # os.replace would report this only after the work
    if final.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write")
    # Hidden, in the same folder (a rename stays on one disk), and unique among machines that share it;
    # 100 characters of the name keep it below the usual limit of 255 bytes
    temporary = final.with_name(f".{final.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with _named_errors(path, temporary), open(temporary, "xb") as file:
            yield file
            file.flush()
            # Content before the rename: after a power cut the new name must not lead to an empty file
            os.fsync(file.fileno())
        put_in_place(temporary, final)
    # KeyboardInterrupt and SystemExit, too, leave nothing behind
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file as `atomic_file` does; what is written is compressed if the suffix says so."""
    with atomic_file(path) as file:
        stream = compressing(file, compression(path), "wb")
        try:
            yield stream
        finally:
            if stream is not file:
                stream.close()


def compression(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a compressed file in lower case, "" for any other."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in COMPRESSIONS else ""


def uncompressed(path: Path) -> Path:
    """Return a path without the suffix of its compression."""
    return path.with_suffix("") if compression(path) else path


def compressing(file: IO[bytes], suffix: str, mode: Literal["rb", "wb"]) -> IO[bytes]:
    """Open a compressed stream over another one, by a suffix of COMPRESSIONS; for "" that one itself."""
    if suffix == ".gz":
        # Without a time, so that the same text gives the same bytes
        return gzip.GzipFile("", mode, fileobj=file, mtime=0)  # type: ignore[return-value]
    if suffix == ".bz2":
        return bz2.BZ2File(file, mode)  # type: ignore[return-value]
    if suffix == ".xz":
        return lzma.LZMAFile(file, mode)  # type: ignore[return-value]
    if suffix == ".zst":
        import pyarrow as pa

        if mode == "rb":
            return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")  # type: ignore[return-value]
        # Arrow closes what it writes to
        return pa.CompressedOutputStream(pa.PythonFile(os.fdopen(os.dup(file.fileno()), "wb")), "zstd")  # type: ignore[return-value]
    return file


def written_directly(path: str | os.PathLike[str]) -> bool:
    """Return True for a device or pipe, which no rename can replace.

    It is asked for by the name that was given: what /dev/stdout and >(...) lead to has none where it is a pipe.
    """
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextlib.contextmanager
def _named_errors(path: str | os.PathLike[str], ours: Path) -> Iterator[None]:
    """Raise errors of a disk as OSErrors that name `path`, for which the file or folder `ours` is written."""
    try:
        yield
    except Exception as error:
        # A failed write has no name, and torch, Arrow and datasets have errors of their own
        fault = disk_error(error)
        # A folder that is missing or not one, and other errors of the system, have the temporary name
        if fault is None and isinstance(error, OSError) and str(error.filename).startswith(str(ours)):
            fault = error
        if fault is None:
            raise
        unknown = fault.filename is None or str(fault.filename).startswith(str(ours))
        raise OSError(fault.errno, fault.strerror, str(path) if unknown else fault.filename) from error


def put_in_place(temporary: Path, final: Path) -> None:
    """Move a file that is on the disk to its name; the permissions of one that it replaces stay."""
    if final.exists():
        os.chmod(temporary, stat.S_IMODE(final.stat().st_mode))
    os.replace(temporary, final)
    # The rename itself survives a power cut only once the folder is on the disk; not every system can do it.
    with contextlib.suppress(OSError):
        descriptor = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines that end at \\n, as `atomic_text` does; lone surrogates, which UTF-8 cannot encode, are replaced."""
    with atomic_text(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def require_creatable(folder: Path, setting: str) -> None:
    """Check that files can be written in a folder, which need not exist yet; nothing is left there.

    Raises:
        ValueError: It cannot be made or written; names `setting`.
    """
    existing = folder.absolute()
    try:
        # The nearest ancestor that exists decides; the root always does
        existing = next(path for path in (existing, *existing.parents) if os.path.lexists(path))
        # Tried, since neither the permissions of root nor those of /proc say what works
        os.rmdir(tempfile.mkdtemp(prefix=".try-", dir=existing))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{setting}={folder} cannot be written ({existing}: {reason}): set {setting}=<another folder>"
        ) from None


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Make a temporary folder that becomes `target` if the block succeeds and vanishes if it does not.

    Args:
        replace: Delete what is at `target` when the new folder is whole. Otherwise a folder that another process has
            made there meanwhile stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # The prefix, a dot and the target's name, is how `_remove_leftovers` recognizes it
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _named_errors(target.parent, building):
            yield building
        # mkdtemp makes a folder that only its owner can read; caches are shared
        building.chmod(0o755)
        if replace:
            _set_aside(target)
        try:
            os.rename(building, target)
        except OSError:  # mostly since another process was first
            if not target.is_dir():
                raise
    finally:
        # After the rename there is nothing under this name
        shutil.rmtree(building, ignore_errors=True)


def _set_aside(target: Path) -> None:
    """Move what is at `target` out of the way and delete it; processes that have its files open keep them."""
    # The name of a leftover, so that the next process deletes what a kill leaves here
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # A folder that nobody may write cannot be moved to another
    with contextlib.suppress(OSError):
        target.chmod(0o755)
    try:
        # Another process may have deleted it
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, aside / "old")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def build_once(
    target: Path, what: str, build: Callable[[Path], Any], *, damage: Callable[[Path], str | None] | None = None
) -> Path:
    """Make the folder `target` by `build(empty folder)` unless it exists; one process builds while others wait.

    The kernel releases the lock of a process that dies, by kill -9 too; the next in line deletes what it left and
    starts over. Where a file system has no locks every process builds, and the folder that is whole first stays.

    Args:
        what: The name of the content in messages.
        build: Fills the empty folder; if it raises, the folder is deleted.
        damage: Returns what is wrong with a `target` that exists, which is then built anew, or None; called while no
            other process builds.

    Returns:
        `target`, complete.
    """
    if damage is None and target.is_dir():
        return target
    with _locked(_lock_path(target.parent, target.name), what) as exclusive:
        # Without a lock, another process may be building in such a folder at this moment
        if exclusive:
            _remove_leftovers(target)
        # Also of a file in the folder's place, or a link that leads nowhere
        wrong = damage(target) if damage and os.path.lexists(target) else None
        if target.is_dir() and wrong is None:
            return target
        if wrong is not None:
            log.warning("%s: making %s again", wrong, what)
        start = time.monotonic()
        with atomic_folder(target, replace=wrong is not None) as building:
            build(building)
        log.info("made %s in %.1f s", what, time.monotonic() - start)
    return target


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a folder in `parent` that is deleted after the block, or by the next caller if this process is killed.

    Where `parent` cannot be written it is made among the system's temporary files.
    """
    with contextlib.suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
    if not os.access(parent, os.W_OK):
        parent = Path(tempfile.gettempdir())
    # What killed processes left; "files" exists only after its owner has taken the lock
    for old in parent.glob(".local-*"):
        if (old / "files").is_dir() and _is_abandoned(old / "in-use"):
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".local-", dir=parent) as folder:
        lock = FileLock(Path(folder) / "in-use", fallback_to_soft=False)
        with contextlib.suppress(*_NO_LOCKS):
            # The folder is new, so nobody has this lock; without locks it is never seen as abandoned
            lock.acquire(timeout=0)
        try:
            # After the lock: a folder without it is not abandoned but new
            (Path(folder) / "files").mkdir()
            yield Path(folder) / "files"
        finally:
            lock.release()


def _lock_path(folder: Path, name: str) -> Path:
    return folder / f".{name}.lock"


def _remove_leftovers(target: Path) -> None:
    """Delete the folders of interrupted builds beside `target`, which no process has the lock of."""
    for folder in target.parent.glob(".*-*"):
        # .<target>-<random> of `atomic_folder`: without the dot and the random part
        name = folder.name[1:].rpartition("-")[0]
        if folder.is_dir() and (name == target.name or _is_abandoned(_lock_path(target.parent, name))):
            log.info("removing %s, which an interrupted preparation left", folder)
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Return True if the file of a lock exists and no process has the lock."""
    if not path.exists():
        return False
    try:
        # Taken at once: no process has it, for the kernel releases the lock of one that dies
        with FileLock(path, timeout=0, fallback_to_soft=False):
            return True
    except _NO_LOCKS:
        return False


@contextlib.contextmanager
def _locked(path: Path, what: str) -> Iterator[bool]:
    """Take the lock `path` for the block; yield False where the file system has no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # No soft lock, a mere file, instead: one that a killed process left would have to be deleted by hand
    lock = FileLock(path, fallback_to_soft=False)
    exclusive = _wait_for(lock, path, what)
    try:
        if exclusive:
            _write_holder(path)
        yield exclusive
    finally:
        _release(lock, path)


@contextlib.contextmanager
def reserved(folder: Path, *, otherwise: str) -> Iterator[None]:
    """Keep `folder`, which is made if need be, for this process alone in this block.

    The kernel releases the lock of a process that dies. A folder that is still empty after the block goes, with the
    folders above that were made for it.

    Args:
        otherwise: What to do instead, for the message of the error.

    Raises:
        ValueError: Another process has it; the message says which, where, and since when.
    """
    made = [each for each in folder.parents if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    # Another descriptor than the holder's, so the same process is kept out, too
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
        _write_holder(path)
    except Timeout:
        raise ValueError(f"{folder} is in use: {_read_holder(path, 'running there')}; {otherwise}") from None
    except _NO_LOCKS as error:
        log.warning("%s has no file locks (%s): nothing keeps a second run out of it", folder, error)
    try:
        yield
    finally:
        if lock.is_locked:
            _release(lock, path)
        # Only empty folders can be removed
        with contextlib.suppress(OSError):
            for each in (folder, *made):
                each.rmdir()


def _write_holder(path: Path) -> None:
    """Write into the file of a lock who has it, for `_read_holder` of others."""
    note = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
    # A full disk takes no note, and the lock holds without one
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(note))


def _release(lock: BaseFileLock, path: Path) -> None:
    # Before the release: a process that takes the lock of a deleted file tries again
    with contextlib.suppress(OSError):
        path.unlink()
    lock.release()


def _wait_for(lock: BaseFileLock, path: Path, what: str) -> bool:
    """Wait until the lock is taken, and report its holder; return False on a file system without locks."""
    # First attempt without waiting, so that a wait is reported at its start
    patience = 0.0
    while True:
        try:
            lock.acquire(timeout=patience, poll_interval=POLL_SECONDS)
        except Timeout:
            log.info("waiting for %s: %s", what, _read_holder(path))
            patience = REPORT_SECONDS
        except _NO_LOCKS as error:
            log.warning("%s has no file locks (%s): every process prepares %s for itself", path.parent, error, what)
            return False
        else:
            return True


def _read_holder(path: Path, doing: str = "preparing it") -> str:
    """Describe the process that has a lock, by the note that it wrote."""
    try:
        note = json.loads(path.read_text())
        clock = time.strftime("%H:%M:%S", time.localtime(note["since"]))
        seconds = time.time() - note["since"]
        # An age across machines is as exact as their clocks agree
        return f"process {note['pid']} on {note['host']} has been {doing} since {clock} ({seconds:.0f} s)"
    except (OSError, ValueError, KeyError, TypeError):
        return f"another process is {doing}"
