"""Read files that torch.save wrote with objects of other programs: tensors and plain values, without running code."""

from __future__ import annotations

import argparse
import itertools
import pickletools
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from seq2seq.system.errors import first_line
from seq2seq.system.files import require_stored

# Packages whose classes become stand-ins: statistics and settings of a training, which are data.
_DATA_OF = ("fairseq", "omegaconf", "numpy", "typing")
# Types that settings name; calling one makes a stand-in, too.
_TYPES = ("collections.defaultdict", *(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str")))
# Pickles at the start of a file of torch before 1.6: a number, a version, the system, and the object.
_OLD_PICKLES = 4


class StandIn:
    """Object of a class that is not imported: the arguments of its call, and its state."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> StandIn:
        """Make it from any arguments."""
        made = super().__new__(cls)
        made.args = args
        made.state = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_torch_pickle(path: Path) -> dict[str, Any]:
    """Read a dictionary that torch.save wrote: tensors, plain values, argparse.Namespace, and stand-ins.

    torch's own reader for `weights_only` decides what is allowed. It imports nothing, and calls only the functions that
    rebuild tensors, plain containers, and `StandIn`.

    Raises:
        ValueError: The file is damaged, or names anything else; the message is one line.
    """
    try:
        stand_ins: list[Any] = [(StandIn, name) for name in _TYPES]
        stand_ins += [(StandIn, name) for name in sorted(set(_names(path))) if name.split(".")[0] in _DATA_OF]
        with torch.serialization.safe_globals([argparse.Namespace, *stand_ins]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # With mmap the state of an optimizer stays on the disk
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # torch, pickle and zipfile raise many types for a damaged or hostile file
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), "")
        raise ValueError(
            f"{path}: is refused, since it is damaged, or holds more than tensors and settings "
            f"({type(error).__name__}: {' '.join((reason or first_line(error)).split())[:300]})"
        ) from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: holds no dictionary, but {type(loaded).__name__}")
    return loaded


def plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return settings as plain values: a Namespace, or a configuration of OmegaConf, as a dictionary.

    Args:
        known: Results by the ids of values; a value that contains itself has None there.
    """
    known = {} if known is None else known
    place = id(value)
    if place in known:
        return known[place]
    known[place] = None
    if isinstance(value, StandIn):
        state = value.state if isinstance(value.state, Mapping) else {}
        # A container or a node of OmegaConf; an enumeration has its value as an argument
        value = plain(next((state[name] for name in ("_content", "_val") if name in state), value.args), known)
    elif isinstance(value, argparse.Namespace | Mapping):
        items = vars(value) if isinstance(value, argparse.Namespace) else value
        value = {str(key): plain(each, known) for key, each in items.items()}
    elif isinstance(value, list | tuple):
        value = [plain(each, known) for each in value]
    known[place] = value
    return value


def _names(path: Path) -> Iterator[str]:
    """Yield the names of the classes and functions in a file."""
    with path.open("rb") as file:
        # Reading one pickle leaves the file at its end
        pickles: list[Any] = [file] * _OLD_PICKLES
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                require_stored(archive)
                pickles = [archive.read(name) for name in archive.namelist() if name.endswith("/data.pkl")]
        for opcode, argument, _ in itertools.chain.from_iterable(map(pickletools.genops, pickles)):
            if opcode.name == "GLOBAL":
                yield str(argument).replace(" ", ".")
