"""One checkpoint file that is all translation needs, written atomically and opened without running anyone's code.

A checkpoint is Lightning's own dictionary and one more key, `seq2seq`, which `describe` makes:

    {"state_dict": {"model.<parameter>": tensor, ...}, "seq2seq": {"format": 2, "model": {...}, ...}, ...}
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pickle
import platform
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import seq2seq
from seq2seq.config.search import SearchSettings
from seq2seq.config.settings import read_section
from seq2seq.files import atomic_file
from seq2seq.upgrade import FORMAT, upgrade

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model import Seq2Seq

KEY = "seq2seq"
PREFIX = "model."

# What the `seq2seq` entry must hold, and of which type.
_FIELDS: dict[str, type] = {
    "model": dict,
    "tokenizer": dict,
    "src_lang": str,
    "tgt_lang": str,
    "tokenize": str,
    "data": str,
    "versions": dict,
}
# What it holds of the settings of a search; checkpoints of earlier versions have none.
SEARCH = ("beam_size", "length_penalty", "max_len_ratio", "max_len_extra")
# torch's reader would make one of any size from a few bytes.
_BYTEARRAY = re.compile(rb"c(builtins|__builtin__)\nbytearray\n")
_PLAIN = (str, int, float, bool, bytes, type(None))


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why, in one line."""


class Loaded(NamedTuple):
    """A checkpoint ready to translate: the model in evaluation mode, its tokenizer, and the `seq2seq` entry."""

    model: Seq2Seq
    tokenizer: Tokenizer
    meta: dict[str, Any]


def describe(
    *,
    model_config: Mapping[str, Any],
    tokenizer: Tokenizer,
    src_lang: str,
    tgt_lang: str,
    tokenize: str,
    data: str,
    search: SearchSettings | None = None,
) -> dict[str, Any]:
    """The `seq2seq` entry of a checkpoint; ValueError, with the place, for a value that is not a plain type.

    `model_config` is what `build_model` was given, `tokenize` sacreBLEU's tokenizer, `data` the data set's name,
    `search` how the run decodes its test set. The normaliser stands there to be read: the tokenizer's SentencePiece
    model applies its own.
    """
    entry = {
        "format": FORMAT,
        "model": model_config,
        "tokenizer": tokenizer.to_state(),
        "normalizer": tokenizer.normalizer,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "tokenize": tokenize,
        "data": data,
        "versions": versions(),
    }
    if search:
        entry["search"] = {key: getattr(search, key) for key in SEARCH}
    return _plain(entry, KEY)


def search_settings(meta: Mapping[str, Any]) -> SearchSettings:
    """How the run of a `seq2seq` entry decodes: the defaults where it does not say; ValueError if impossible."""
    section = {key: value for key, value in meta.get("search", {}).items() if key in SEARCH}
    return read_section(SearchSettings, section, "search")


def versions() -> dict[str, str]:
    """The versions that a checkpoint or a result was made with."""
    found = {"python": platform.python_version(), "seq2seq": seq2seq.__version__, "torch": str(torch.__version__)}
    for name in ("lightning", "sentencepiece", "sacrebleu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def save(path: str | os.PathLike[str], payload: Mapping[str, Any]) -> None:
    """Write `payload` to `path` so that the file is at every moment the old one or the whole new one.

    ValueError if the payload is not one that `read` accepts; OSError where the file system refuses.
    """
    _check(payload, Path(path))
    _plain(payload[KEY], KEY)
    with atomic_file(path) as file:
        torch.save(dict(payload), file)
        file.flush()
        # hours of training must not end in a file that `read` refuses; mapped, this reads no weights
        try:
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{path} was not written, because it {_refusal(error)}; keep to plain types") from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The checkpoint's whole dictionary, checked, on the CPU; CheckpointError, in one line, if it is none of ours."""
    return _read(Path(path), mmap=False)


def load(path: str | os.PathLike[str], *, device: str | torch.device = "cpu", trust: Sequence[str] = ()) -> Loaded:
    """Build the model and tokenizer that `path` describes, with its weights, on `device`, in evaluation mode.

    A `_target_` outside this package and those named in `trust`, weights that are missing or misshapen, or settings
    that build no model are a CheckpointError; nothing in the file is executed.
    """
    path = Path(path)
    # mapped, so that the optimizer's state in a training checkpoint is never read into memory
    payload = _read(path, mmap=True)
    meta = payload[KEY]
    tokenizer = _tokenizer(meta, path)
    weights = {k.removeprefix(PREFIX): w for k, w in payload["state_dict"].items() if k.startswith(PREFIX)}
    # first without memory: settings may ask for any size, but the file must hold weights of that size
    _check_depth(meta["model"], len(weights), path)
    with torch.device("meta"):
        _check_weights(_model(meta, path, trust).state_dict(keep_vars=True), weights, path)
    model = _model(meta, path, trust)
    try:
        model.load_state_dict(weights)
    except Exception as error:
        raise CheckpointError(f"{path}: its weights do not load ({_first_line(error)})") from None
    return Loaded(model.to(device).eval(), tokenizer, meta)


def _plain(value: Any, place: str) -> Any:
    """`value` with its mappings as dict and its sequences as list; ValueError names the place of anything else."""
    # exactly these types: a subclass (numpy's str, an enum) is pickled as a class that weights_only refuses
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if type(value) in (dict, list, tuple):
        if isinstance(value, dict):
            if any(type(key) not in (str, int) for key in value):
                raise ValueError(f"{place} has a key that is neither str nor int; a checkpoint holds plain types only")
            return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
        return [_plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    raise ValueError(
        f"{place} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds plain types only "
        "(convert OmegaConf values with OmegaConf.to_container(..., resolve=True))"
    )


def _read(path: Path, *, mmap: bool) -> dict[str, Any]:
    _check_container(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except MemoryError:
        raise CheckpointError(f"{path}: not enough memory to read this checkpoint") from None
    except Exception as error:  # whatever a damaged or hostile pickle makes torch raise
        raise CheckpointError(f"{path}: refused, it {_refusal(error)}; nothing in it was run") from None
    _check(payload, path)
    try:
        return upgrade(payload, KEY)
    except RecursionError:  # settings nested without end, from a file that anybody may have written
        raise CheckpointError(f"{path}: its settings build no model (RecursionError)") from None


def _check_container(path: Path) -> None:
    """CheckpointError unless `path` is an uncompressed zip as torch writes it, whole and with right checksums."""
    try:
        if path.is_dir():
            raise CheckpointError(f"{path}: is a directory; name the checkpoint file in it")
        with open(path, "rb") as file:
            magic = file.read(2)
        if not magic:
            raise CheckpointError(f"{path}: is an empty file, not a checkpoint")
        if magic != b"PK":
            raise CheckpointError(f"{path}: is not a checkpoint")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            # torch stores, never compresses: a few bytes must not unpack to a full memory
            if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or not any(
                e.filename.endswith("/data.pkl") for e in entries
            ):
                raise CheckpointError(f"{path}: is a zip file, but not a checkpoint")
            if (damaged := archive.testzip()) is not None:
                raise CheckpointError(f"{path}: is damaged (wrong checksum in {damaged}); copy it again")
            if any(_BYTEARRAY.search(archive.read(e)) for e in entries if e.filename.endswith("/data.pkl")):
                raise CheckpointError(f"{path}: refused, it holds a Python object (bytearray); nothing in it was run")
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # BadZipFile, and whatever else a damaged directory makes zipfile raise
        raise CheckpointError(f"{path}: is truncated or damaged; copy it again") from None


def _check(payload: Any, path: Path) -> None:
    """CheckpointError unless `payload` has the keys and types that every format promises."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get(KEY), dict):
        raise CheckpointError(f"{path}: is not a checkpoint of this program (it has no '{KEY}' entry)")
    meta, weights = payload[KEY], payload.get("state_dict")
    number = meta.get("format")
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{path}: its format is {number!r}, which is no format number")
    if number > FORMAT:
        raise CheckpointError(
            f"{path}: is of format {number}, but this version reads up to {FORMAT}; install a newer seq2seq"
        )
    for name, kind in _FIELDS.items():
        if not isinstance(meta.get(name), kind):
            raise CheckpointError(f"{path}: its '{KEY}.{name}' is missing or no {kind.__name__}")
    if not isinstance(meta.get("search", {}), dict):
        raise CheckpointError(f"{path}: its '{KEY}.search' is no dict")
    try:
        search_settings(meta)
    except ValueError as error:
        raise CheckpointError(f"{path}: its settings of a search cannot be used ({error})") from None
    if not isinstance(weights, Mapping) or not weights:
        raise CheckpointError(f"{path}: has no weights (no 'state_dict')")
    if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in weights.items()):
        raise CheckpointError(f"{path}: its 'state_dict' holds something other than tensors by name")


def _tokenizer(meta: dict[str, Any], path: Path) -> Tokenizer:
    from seq2seq.data.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_state(meta["tokenizer"])
        sizes = (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    except Exception as error:  # any damage inside the SentencePiece model
        raise CheckpointError(f"{path}: its tokenizer does not load ({_first_line(error)})") from None
    wanted = (meta["model"].get("src_vocab_size"), meta["model"].get("tgt_vocab_size"))
    if sizes != wanted:
        raise CheckpointError(f"{path}: its tokenizer has {sizes} pieces (source, target), its model {wanted}")
    return tokenizer


def _model(meta: dict[str, Any], path: Path, trust: Sequence[str]) -> Seq2Seq:
    from seq2seq.build import TargetError, build_model

    try:
        return build_model(meta["model"], trust=trust, portable=True)
    except TargetError as error:
        raise CheckpointError(f"{path}: refused, {_first_line(error)}") from None
    except Exception as error:  # settings that no model fits, from a file that anybody may have written
        raise CheckpointError(f"{path}: its settings build no model ({_first_line(error)})") from None


def _check_depth(config: Mapping[str, Any], num_weights: int, path: Path) -> None:
    """CheckpointError for settings that ask for more layers than the file has weights: a layer without any is none."""
    model, mixer = config.get("model"), config.get("mixer")
    if not isinstance(model, Mapping) or not isinstance(mixer, Mapping):
        return  # which builds no model
    depths = [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0), model.get("decoder_layers")]
    if all(isinstance(depth, int) for depth in depths) and max(depths[0] + depths[1], depths[2]) > num_weights:
        raise CheckpointError(f"{path}: its settings ask for more layers than it has weights ({num_weights})")


def _check_weights(wanted: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], path: Path) -> None:
    """CheckpointError unless the names and shapes given are exactly those wanted, and the file as long as their bytes.

    Weights that the model ties (the same parameter under several names) count once.
    """
    if missing := [name for name in wanted if name not in given]:
        raise CheckpointError(f"{path}: {len(missing)} weights are missing, the first is '{missing[0]}'")
    if surplus := [name for name in given if name not in wanted]:
        raise CheckpointError(f"{path}: {len(surplus)} weights fit nothing, the first is '{surplus[0]}'")
    for name, weight in given.items():
        if not _is_whole(weight) or weight.is_floating_point() != wanted[name].is_floating_point():
            raise CheckpointError(f"{path}: weight '{name}' is not stored as plain numbers")
        if weight.shape != wanted[name].shape:
            raise CheckpointError(
                f"{path}: weight '{name}' has shape {tuple(weight.shape)}, the model needs {tuple(wanted[name].shape)}"
            )
    sizes = {id(parameter): given[name].numel() * given[name].element_size() for name, parameter in wanted.items()}
    if sum(sizes.values()) > path.stat().st_size:
        raise CheckpointError(f"{path}: is shorter than the {sum(sizes.values()):,} bytes of its weights")


def _is_whole(weight: torch.Tensor) -> bool:
    """Whether a tensor is dense and its memory holds as many numbers as its shape says."""
    if type(weight) not in (torch.Tensor, torch.nn.Parameter) or weight.layout != torch.strided:
        return False
    if weight.is_meta or weight.is_nested:
        return False
    end = (weight.storage_offset() + weight.numel()) * weight.element_size()
    return not weight.numel() or (weight.data_ptr() != 0 and end <= weight.untyped_storage().nbytes())


def _refusal(error: BaseException) -> str:
    # torch's own message recommends weights_only=False, which is what nobody should do
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"holds a Python object ({found[1]})"
    if isinstance(error, pickle.UnpicklingError):
        return "does not open as plain tensors"
    return f"does not open as plain tensors ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
