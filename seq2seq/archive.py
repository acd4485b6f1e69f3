"""Check the file of a checkpoint before torch opens it: a zip, and in it a pickle. Imports no torch.

torch's weights-only reader runs no foreign code, but a hostile file can exhaust memory or time in it: it trusts
declared sizes, decompresses entries, and repeats calls that are harmless only once (`encode`, hashes, error messages
with whole values). Files of unknown origin are therefore checked here first, with limits on bytes, entries, operations
and values, shared ones counted each time.
"""

from __future__ import annotations

import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

# Bytes of a zip's directory: some 80,000 tensors, far more than any model's and its optimizer's.
MAX_DIRECTORY = 8 << 20
# Operations of a pickle (a tensor takes 30), and values in the dictionary that it makes, shared ones counted each time.
MAX_OPERATIONS = 2_000_000
MAX_NODES = 500_000
# Nested dictionaries and lists; training's own go 10 deep.
MAX_DEPTH = 60

# What torch writes tensors with that are plain numbers; every other class or function is refused.
_REBUILD = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter")
_STORAGE = re.compile(r"torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage")
_DICT, _ENCODE = "collections OrderedDict", "_codecs encode"
# Values without parts, which callbacks may keep; they are never called.
_VALUE = re.compile(r"torch (bool|u?int\d+|b?float\d+)")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ATOMS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")


class CheckpointError(ValueError):
    """Checkpoint that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        # Names and values in it may be as long as the file
        super().__init__(message if len(message) <= 1000 else f"{message[:600]} ... {message[-300:]}")


def check_archive(path: Path, *, checksums: bool = True) -> None:
    """Refuse a file that is not a complete, uncompressed zip as torch writes it, with a pickle of plain values.

    Args:
        checksums: Verify the checksum of every entry, too, which reads the whole file.

    Raises:
        CheckpointError: The file is refused; names it and the reason.
    """
    try:
        if path.is_dir():
            exported = (path / "config.json").is_file()
            raise CheckpointError(
                f"{path}: is a directory; name "
                + (
                    "the checkpoint that it was exported from"
                    if exported
                    else f"a file, as {path}/checkpoints/best.ckpt"
                )
            )
        with open(path, "rb") as file:
            magic = file.read(2)
            if not magic:
                raise CheckpointError(f"{path}: is an empty file, not a checkpoint")
            # torch has written zip files since 1.6; its older format is a bare pickle
            if magic != b"PK":
                raise CheckpointError(
                    f"{path}: is not a checkpoint; name a file such as runs/.../checkpoints/best.ckpt"
                )
            _check_directory(file, path)
            with zipfile.ZipFile(file) as archive:
                _check_entries(archive, path, checksums=checksums)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # BadZipFile, and whatever else a damaged directory makes zipfile raise
        raise CheckpointError(f"{path}: is truncated or damaged; copy it again") from None


def check_pickle(data: bytes) -> None:
    """Refuse a pickle that makes anything but dictionaries, lists, tuples, plain values and tensors of plain numbers.

    Raises:
        ValueError: It does, or is damaged; the message is a phrase that follows "it".
    """
    try:
        _Pickle().run(data)
    except (KeyError, IndexError):
        raise ValueError("does not open as plain tensors (its pickle is damaged)") from None


def check_tree(value: Any) -> None:
    """Refuse nested dictionaries and lists that are too many, too deep, or contain themselves.

    Shared ones count each time: whoever walks, copies or prints the value does not notice that they are the same.

    Raises:
        ValueError: The message is a phrase that follows "it".
    """
    _measure(value, 0, {})


def _check_directory(file: IO[bytes], path: Path) -> None:
    """Refuse a zip whose directory is too large, or is not where all readers look for it: right before its end."""
    size = os.fstat(file.fileno()).st_size
    # The end record, without a comment
    end = size - 22
    file.seek(max(end, 0))
    magic, *_, length, offset, comment = struct.unpack("<4s4H2LH", file.read(22))
    if magic != b"PK\5\6" or comment:
        raise CheckpointError(f"{path}: is truncated or damaged; copy it again")
    # Before it, as torch writes, a record with numbers of 64 bits and a pointer to that
    file.seek(max(end - 20, 0))
    magic, _, place, _ = struct.unpack("<4sLQL", file.read(20))
    if magic == b"PK\6\7":
        end -= 76
        file.seek(max(end, 0))
        magic, *_, length, offset = struct.unpack("<4sQ2H2L4Q", file.read(56))
        # Another place, and two readers would see two directories
        if magic != b"PK\6\6" or place != end:
            raise CheckpointError(f"{path}: is truncated or damaged; copy it again")
    if offset + length != end:
        raise CheckpointError(f"{path}: is truncated or damaged; copy it again")
    if length > MAX_DIRECTORY:
        raise CheckpointError(f"{path}: refused, its directory has {length:,} bytes, more than {MAX_DIRECTORY:,}")


def _check_entries(archive: zipfile.ZipFile, path: Path, *, checksums: bool) -> None:
    """Refuse entries that are compressed, overlap or are damaged, and a pickle that is missing or not plain."""
    entries = archive.infolist()
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    # torch stores, never compresses: a few bytes must not unpack to a full memory
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or not pickles:
        raise CheckpointError(f"{path}: is a zip file, but not a checkpoint")
    # One member under many names would be read many times
    declared = sum(max(entry.file_size, entry.compress_size) for entry in entries)
    if declared > path.stat().st_size:
        raise CheckpointError(f"{path}: refused, its entries declare {declared:,} bytes, more than the file has")
    # testzip reads the whole file once, against the stored CRC-32 of every entry
    if checksums and (damaged := archive.testzip()) is not None:
        raise CheckpointError(f"{path}: is damaged (wrong checksum in {damaged[:100]}); copy it again")
    for entry in pickles:
        try:
            check_pickle(archive.read(entry))
        except ValueError as error:
            raise CheckpointError(f"{path}: refused, it {error}; nothing in it was run") from None


def _measure(value: Any, depth: int, seen: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return how many nodes a value has, sharing unfolded, and how deep they are nested."""
    if not isinstance(value, Mapping | list | tuple):
        return 1, 0
    # None while its parts are being measured
    if id(value) in seen:
        known = seen[id(value)]
        if known is None:
            raise ValueError("holds a list or dictionary that contains itself")
        return known
    seen[id(value)] = None
    nodes, height = 1, 0
    for part in value.values() if isinstance(value, Mapping) else value:
        if depth >= MAX_DEPTH:
            raise ValueError(f"is nested more than {MAX_DEPTH} deep")
        size, below = _measure(part, depth + 1, seen)
        nodes += size
        height = max(height, below + 1)
    if nodes > MAX_NODES:
        raise ValueError(f"holds more than {MAX_NODES:,} values, counting shared ones each time")
    # The height, too: parts that were measured before do not see how deep this one is
    if height > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    seen[id(value)] = nodes, height
    return nodes, height


class _Global(str):
    """A class or function that a pickle names."""


class _Made:
    """A container or tensor that a pickle has made; only its kind counts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Pickle:
    """Machine that runs a pickle without making anything, and refuses what torch does not write for plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> None:
        """Check every operation."""
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number > MAX_OPERATIONS:
                raise ValueError(f"has a pickle of more than {MAX_OPERATIONS:,} operations")
            name = operation.name
            if name in _ATOMS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in ("BINPUT", "LONG_BINPUT") and argument is not None:
                self.memo[argument] = self.stack[-1]
            elif name in ("BINGET", "LONG_BINGET") and argument is not None:
                self.stack.append(self.memo[argument])
            elif (method := getattr(self, f"_{name.lower()}", None)) is None:
                raise ValueError(f"does not open as plain tensors (operation {name})")
            else:
                method(argument)

    def _proto(self, version: int) -> None:
        if version != 2:
            raise ValueError(f"does not open as plain tensors (pickle protocol {version})")

    def _stop(self, _: None) -> None:
        self.stack.pop()

    def _mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def _popped(self) -> list[Any]:
        """Pop what follows the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _empty_dict(self, _: None) -> None:
        self.stack.append(_Made("dict"))

    def _empty_list(self, _: None) -> None:
        self.stack.append(_Made("list"))

    def _empty_tuple(self, _: None) -> None:
        self.stack.append(())

    def _tuple(self, _: None) -> None:
        self.stack.append(tuple(self._popped()))

    def _tuple1(self, _: None) -> None:
        self.stack[-1:] = [tuple(self.stack[-1:])]

    def _tuple2(self, _: None) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def _tuple3(self, _: None) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def _append(self, _: None) -> None:
        self.stack.pop()
        self._require(self.stack[-1], "list")

    def _appends(self, _: None) -> None:
        self._popped()
        self._require(self.stack[-1], "list")

    def _setitem(self, _: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(key, value)

    def _setitems(self, _: None) -> None:
        items = self._popped()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set(key, value)

    def _set(self, key: Any, value: Any) -> None:
        self._require(self.stack[-1], "dict")
        # A tuple of shared tuples takes for ever to hash
        if isinstance(key, tuple | _Global | _Made):
            raise ValueError("has a dictionary whose keys are not plain")

    def _global(self, name: str) -> None:
        known = name in (*_REBUILD, _DICT, _ENCODE) or _STORAGE.fullmatch(name) or _VALUE.fullmatch(name)
        if not known:
            shown = name.replace(" ", ".")[:100]
            if name.startswith("torch"):
                raise ValueError(f"holds something other than tensors of plain numbers ({shown})")
            raise ValueError(f"holds a Python object ({shown})")
        self.stack.append(_Global(name))

    def _binpersid(self, _: None) -> None:
        # ("storage", type, key, device, count)
        kinds = [type(part) for part in self.stack.pop()]
        if kinds != [str, _Global, str, str, int]:
            raise ValueError("does not open as plain tensors (a storage is not described as torch does)")
        self.stack.append(_Made("storage"))

    def _reduce(self, _: None) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise ValueError("does not open as plain tensors (it calls what is not a function)")
        if function in _REBUILD and isinstance(arguments[0], _Made) and arguments[0].kind in ("storage", "tensor"):
            self.stack.append(_Made("tensor"))
        elif function == _DICT and arguments == ():
            self.stack.append(_Made("dict"))
        # Bytes, as protocol 2 writes them
        elif function == _ENCODE and [type(each) for each in arguments] == [str, str] and arguments[1] == "latin1":
            self.stack.append(_Made("bytes"))
        else:
            raise ValueError(f"holds a Python object ({function.replace(' ', '.')})")

    def _build(self, _: None) -> None:
        # Attributes of an OrderedDict, such as a state_dict's _metadata
        state = self.stack.pop()
        self._require(state, "dict")
        self._require(self.stack[-1], "dict")

    def _require(self, value: Any, kind: str) -> None:
        if not isinstance(value, _Made) or value.kind != kind:
            raise ValueError(f"does not open as plain tensors (something is used as a {kind} and is none)")
