"""Write files and folders atomically, and let one process build a folder while others wait. Imports no torch."""

from __future__ import annotations

import bz2
import contextlib
import glob
import gzip
import json
import logging
import lzma
import math
import multiprocessing
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from filelock import FileLock, Timeout

from seq2seq.system.errors import first_line, machine_fault
from seq2seq.system.packages import require

log = logging.getLogger(__name__)

# Compressions of text, by suffix, and a pattern of the bytes that such a file begins with.
COMPRESSIONS = {
    ".gz": rb"\x1f\x8b",
    ".bz2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    ".xz": rb"\xfd7zXZ\0",
    # A frame, or a skippable frame, with which the files of parallel compressors begin
    ".zst": rb"(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)",
}
# Suffixes of archives and compressions that are not written.
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".lzma", ".lz", ".z", ".br")
# The file of the lock that `reserved` takes in a folder.
LOCK = ".lock"
# The suffix of unfinished folders. The process that made a folder of this age must have been killed.
PARTIAL = ".partial"
ABANDONED_SECONDS = 7 * 24 * 3600.0
# A temporary file of this age is deleted if its process does not exist.
UNFINISHED_SECONDS = 3600.0


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, keep: str | None = None) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` if the block succeeds, and vanishes if it fails.

    The file is written next to `path`, flushed to the disk and moved into place. If `path` is a link, its target is
    replaced. A device or a pipe is written directly. If `keep` is given, the replaced file gets this name.

    Raises:
        IsADirectoryError: `path` is a directory.
    """
    if written_directly(path):
        with _named_errors(path, Path(path)), open(path, "wb") as file:
            yield file
        return
    # os.replace would replace a link itself
    final = Path(os.path.realpath(path))
    # os.replace would report a directory only after the work
    if final.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write")
    _remove_unfinished(final)
    # In the same folder, since a rename stays on one disk. The name is unique among machines that share the disk
    temporary = final.with_name(f".{_shortened(final)}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with _named_errors(path, temporary), open(temporary, "xb") as file:
            yield file
            file.flush()
            # After a power cut, the new name must not lead to an empty file
            os.fsync(file.fileno())
        # A process that ends between the two renames leaves the old content at `keep`
        if keep and final.exists():
            os.replace(final, final.with_name(keep))
        put_in_place(temporary, final)
    # Clean up after KeyboardInterrupt and SystemExit as well
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _shortened(path: Path) -> str:
    """Return the beginning of a file's name, to which a suffix within the limit of 255 bytes can be added."""
    return os.fsdecode(os.fsencode(path.name)[:200])


def _remove_unfinished(final: Path) -> None:
    """Delete what killed processes left of `final`, an hour after they wrote: processes of other machines may live."""
    for left in final.parent.glob(f".{glob.escape(_shortened(final))}.*.tmp"):
        with contextlib.suppress(OSError, ValueError):
            if time.time() - left.stat().st_mtime > UNFINISHED_SECONDS:
                try:
                    os.kill(int(left.name.split(".")[-3]), 0)
                except ProcessLookupError:
                    left.unlink()


@contextlib.contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file as `atomic_file` does, and compress the content by the suffix of `path`."""
    with atomic_file(path) as file:
        stream = compressing(file, compression(path), "wb")
        try:
            yield stream
        finally:
            if stream is not file:
                stream.close()


def compression(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a compressed file in lower case; "" for any other file."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in COMPRESSIONS else ""


def uncompressed(path: Path) -> Path:
    """Return a path without the suffix of its compression."""
    return path.with_suffix("") if compression(path) else path


def compressing(file: IO[bytes], suffix: str, mode: Literal["rb", "wb"]) -> IO[bytes]:
    """Open a compressed stream over `file`, by a suffix of COMPRESSIONS; return `file` itself for ""."""
    if suffix == ".gz":
        # A time stamp would change the bytes
        return gzip.GzipFile("", mode, fileobj=file, mtime=0)  # type: ignore[return-value]
    if suffix == ".bz2":
        return bz2.BZ2File(file, mode)  # type: ignore[return-value]
    if suffix == ".xz":
        return lzma.LZMAFile(file, mode)  # type: ignore[return-value]
    if suffix == ".zst":
        pa = require("pyarrow", "text compressed as .zst", extra="train")
        if mode == "rb":
            return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")  # type: ignore[return-value]
        # Arrow closes its file, so it gets a duplicate of the descriptor
        return pa.CompressedOutputStream(pa.PythonFile(os.fdopen(os.dup(file.fileno()), "wb")), "zstd")  # type: ignore[return-value]
    return file


def regular_file(path: str | os.PathLike[str], most: int = 1 << 40) -> IO[bytes]:
    """Open a file of at most `most` bytes; a pipe or a device, which may have no end, is never waited for.

    Raises:
        ValueError: It is larger, or no file.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return file
    file.close()
    raise ValueError(f"{path} is not a regular file of at most {most:,} bytes: copy it again, or name another one")


def read_file(path: str | os.PathLike[str], most: int = 1 << 26) -> bytes:
    """Read a file as `regular_file` opens it."""
    with regular_file(path, most) as file:
        return file.read()


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arrays of an .npz file, which are no larger than the file.

    Raises:
        ValueError: The file is damaged, is compressed, or holds something else.
    """
    import numpy as np

    with regular_file(path) as file:
        try:
            require_stored(zipfile.ZipFile(file))
            file.seek(0)
            return dict(np.load(file, allow_pickle=False))
        except Exception as error:  # zipfile and numpy raise many types for a damaged file
            raise ValueError(f"{Path(path).name} is damaged ({first_line(error)})") from None


def require_stored(archive: zipfile.ZipFile) -> None:
    """Raise BadZipFile if an archive is compressed, since a small one could unpack to more than any memory holds."""
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
        raise zipfile.BadZipFile("it is compressed")


def written_directly(path: str | os.PathLike[str]) -> bool:
    """Return True for a device or pipe, which a rename cannot replace.

    Links in `path` must not be resolved: the target of /dev/stdout or >(...) may be a pipe without a name.
    """
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextlib.contextmanager
def _named_errors(path: str | os.PathLike[str], ours: Path) -> Iterator[None]:
    """Name `path` in errors of a full disk, and in errors that name the temporary file or folder `ours`."""
    try:
        yield
    except Exception as error:
        full = machine_fault(error)
        fault = full or error
        # The error of a failed write has no name
        if isinstance(fault, OSError) and str(fault.filename or (full and ours)).startswith(str(ours)):
            raise OSError(fault.errno, fault.strerror, str(path)) from error
        raise


def put_in_place(temporary: Path, final: Path) -> None:
    """Move a file to its final name, and keep the permissions of the file that it replaces."""
    if final.exists():
        os.chmod(temporary, stat.S_IMODE(final.stat().st_mode))
    os.replace(temporary, final)


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as `atomic_text` does; lone surrogates, which UTF-8 cannot encode, are replaced."""
    with atomic_text(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def require_creatable(folder: Path, setting: str) -> None:
    """Check that files can be written in a folder, which need not exist yet.

    Raises:
        ValueError: Files cannot be written; the message names `setting`, which may be an option.
    """
    existing = folder.absolute()
    try:
        # The nearest folder that exists decides
        existing = next(path for path in (existing, *existing.parents) if os.path.lexists(path))
        # Try it: permissions decide nothing for root or in /proc
        os.rmdir(tempfile.mkdtemp(prefix=".try-", dir=existing))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{setting}={folder} cannot be written ({existing}: {reason}): set {setting}=<another folder>"
        ) from None


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Make a temporary folder that becomes `target` if the block succeeds, and vanishes if it fails.

    Args:
        replace: Replace `target` if it exists. If False, a folder that another process has made there meanwhile stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{_named_by_host(target)}-", suffix=PARTIAL, dir=target.parent))
    old = building.with_suffix(f".old{PARTIAL}")
    try:
        with _named_errors(target.parent, building):
            yield building
        # Only the owner can read a folder of mkdtemp, but caches are shared
        building.chmod(0o755)
        if replace:
            # Rename instead of deleting, which could stop in the middle
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, old)
        try:
            os.rename(building, target)
        # The usual reason is that another process was first
        except OSError:
            if not target.is_dir():
                raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def build_once(
    target: Path, what: str, build: Callable[[Path], Any], *, is_whole: Callable[[Path], bool] = Path.is_dir
) -> Path:
    """Make the folder `target` by `build(empty folder)` unless it exists; one process builds while others wait.

    After the death of that process, another one deletes its remains and starts over. On a file system without locks
    every process builds.

    Args:
        what: The name of the content in messages.
        build: Fills the empty folder; if it raises, the folder is deleted.
        is_whole: Returns False for a `target` that must be built.

    Returns:
        `target`, complete.
    """
    if is_whole(target):
        return target
    # A spawned process imports the script that began it, whose calls would wait here for their own parent
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"a process that makes {what} runs the script again: put calls under if __name__ == '__main__'"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        path = target.with_name(f".{target.name}.lock")
        try:
            exclusive = stack.enter_context(_locked(path, timeout=0))
        except Timeout:
            log.info("waiting for %s: another process is preparing it", what)
            exclusive = stack.enter_context(_locked(path, timeout=math.inf))
        # Without a lock, another process may be building at this moment
        if exclusive:
            _remove_leftovers(target.parent, _named_by_host(target))
        # Another process may have built it meanwhile
        if is_whole(target):
            return target
        if damaged := target.exists():
            log.warning("%s is damaged: making %s again", target, what)
        start = time.monotonic()
        with atomic_folder(target, replace=damaged) as building:
            build(building)
        log.info("made %s in %.1f s", what, time.monotonic() - start)
    return target


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for the block, in `parent` or, if that cannot be written, in the system's temporary folder."""
    with contextlib.suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
    if not os.access(parent, os.W_OK):
        parent = Path(tempfile.gettempdir())
    _remove_leftovers(parent)
    with tempfile.TemporaryDirectory(prefix=".scratch-", suffix=PARTIAL, dir=parent) as folder:
        yield Path(folder)


def _named_by_host(target: Path) -> str:
    """Return how names of temporary folders of `target` begin: some file systems keep locks on each host alone."""
    return f"{target.name}-{socket.gethostname()}"


def _remove_leftovers(parent: Path, locked: str | None = None) -> None:
    """Delete folders that killed processes left: old folders, and all whose names begin with `locked`."""
    for folder in parent.glob(f".*-*{PARTIAL}"):
        # Another process may delete it at the same time
        with contextlib.suppress(OSError):
            own = folder.name[1:].rpartition("-")[0] == locked
            if own or time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                log.info("removing %s, which a killed process left", folder)
                shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(path: Path, *, timeout: float) -> Iterator[bool]:
    """Take the lock `path` for the block; yield False, with a warning, on a file system without locks.

    The kernel releases the lock of a process that dies.

    Raises:
        Timeout: Another process, or another block of this process, has the lock.
    """
    # A soft lock, a mere file, would outlive a killed process
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout, poll_interval=0.2)
    except Timeout:
        raise
    except (OSError, NotImplementedError) as error:
        log.warning("%s has no file locks (%s): nothing keeps other processes out", path.parent, error)
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            # Delete the file before the release: a process that takes the lock of a deleted file tries again
            with contextlib.suppress(OSError):
                path.unlink()
            lock.release()


@contextlib.contextmanager
def reserved(folder: Path, *, otherwise: str) -> Iterator[None]:
    """Reserve `folder` for this process in this block; the folder is made if it is missing.

    If the folder is empty after the block, it is deleted, with the parents that were made for it.

    Args:
        otherwise: The remedy, for the message of the error.

    Raises:
        ValueError: Another process has reserved the folder.
    """
    made = [each for each in folder.parents if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise ValueError(f"{folder} is in use by another process; {otherwise}") from None
    finally:
        # Only empty folders can be removed
        with contextlib.suppress(OSError):
            for each in (folder, *made):
                each.rmdir()
