"""Write and read checkpoints: one file that is all translation needs, opened without running anyone's code.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import seq2seq
from seq2seq.archive import CheckpointError, check_archive, check_tree
from seq2seq.build import TargetError, Uninitialized, build_model, on_meta_device
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.faults import first_line
from seq2seq.files import atomic_file
from seq2seq.model import Seq2Seq
from seq2seq.settings.declare import read_section
from seq2seq.settings.search import KEPT, SearchSettings
from seq2seq.upgrade import FORMAT, upgrade

# The entry that describes the model, and the prefix of the model's weights in Lightning's `state_dict`.
KEY = "seq2seq"
PREFIX = "model."
# Types of the values that the `seq2seq` entry must have.
_FIELDS: dict[str, type] = {
    "model": dict,
    "tokenizer": dict,
    "src_lang": str,
    "tgt_lang": str,
    "tokenize": str,
    "data": str,
    "versions": dict,
}
# Exactly these types: a subclass is pickled as a class that weights_only refuses.
_PLAIN = (str, int, float, bool, bytes, type(None))
_REMEDY = "name a file that training or seq2seq.average wrote, such as runs/.../checkpoints/best.ckpt"


class NotFiniteWeightsError(CheckpointError):
    """Checkpoint with a weight that is nan or inf."""


class Loaded(NamedTuple):
    """Checkpoint ready to translate: the model in evaluation mode, its tokenizer, and the `seq2seq` entry."""

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
    tgt_langs: Sequence[str] = (),
    lines: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> dict[str, Any]:
    """Make the `seq2seq` entry of a checkpoint.

    Args:
        model_config: The argument of `build_model`.
        tokenize: sacreBLEU's tokenizer.
        data: The data set's name.
        search: Settings by which the run decodes its test set.
        tgt_langs: Target languages of a model whose sources begin with a tag that asks for one.
        lines: Statistics of the training lines, see `LineStatistics`.
        preset: Label of the mixer.

    Raises:
        ValueError: A value is not of a plain type; names it.
    """
    entry = {
        # See seq2seq.upgrade, which reads every earlier one
        "format": FORMAT,
        "model": model_config,
        # The trained SentencePiece models themselves: a checkpoint needs no other file
        "tokenizer": tokenizer.to_state(),
        # To be read by people: the SentencePiece model applies its own
        "normalizer": tokenizer.normalizer,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "tokenize": tokenize,
        "data": data,
        "versions": versions(),
    }
    # All but n_best and max_len: one is the caller's, the other the model's
    kept = search and {key: getattr(search, key) for key in KEPT}
    more = {"search": kept, "tgt_langs": tgt_langs, "lines": lines, "preset": preset}
    entry |= {key: value for key, value in more.items() if value}
    # Refuse at the start of training what could not be saved at its end
    return _plain(entry, KEY)


def search_settings(meta: Mapping[str, Any]) -> SearchSettings:
    """Read the search settings of a `seq2seq` entry, with defaults for those it lacks.

    Raises:
        ValueError: No search can have them.
    """
    # Settings of a later version are left out, not refused
    section = {key: value for key, value in meta.get("search", {}).items() if key in KEPT}
    return read_section(SearchSettings, section, "search")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    # str(): torch.__version__ is a subclass of str, which weights_only refuses
    numbers = {"python": platform.python_version(), "seq2seq": seq2seq.__version__, "torch": str(torch.__version__)}
    # Packages that only training or scoring needs may be missing
    for name in ("lightning", "sentencepiece", "sacrebleu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[name] = importlib.metadata.version(name)
    return numbers


def save(path: str | os.PathLike[str], payload: Mapping[str, Any]) -> None:
    """Write a checkpoint's dictionary atomically.

    Raises:
        ValueError: `read` would not accept it (NotFiniteWeightsError: for its weights).
        OSError: The file system refuses.
    """
    _check(payload, Path(path))
    _plain(payload[KEY], KEY)
    # A run that is killed here keeps its last whole checkpoint
    with atomic_file(path) as file:
        torch.save(dict(payload), file)
        # The check below opens the file by its name
        file.flush()
        # Hours of training must not end in a file that `read` refuses; mapped, this reads no weights
        try:
            check_archive(Path(file.name), checksums=False)
            check_tree(torch.load(file.name, map_location="cpu", weights_only=True, mmap=True))
        except (ValueError, pickle.UnpicklingError) as error:
            reason = str(error).removeprefix(f"{file.name}: ")
            raise ValueError(f"{path} was not written: {reason}; keep to plain types") from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint's whole dictionary, on the CPU and in the current format.

    Raises:
        CheckpointError: The file is damaged, hostile, or not a checkpoint of this program.
    """
    return _read(Path(path), mmap=False)


def updates(path: str | os.PathLike[str]) -> int | None:
    """Return the number of updates that a checkpoint has had; None if it does not say, is damaged or not there."""
    try:
        # Mapped: of a large file, only the directory is read
        count = _read(Path(path), mmap=True).get("global_step")
    except CheckpointError:
        return None
    return count if isinstance(count, int) else None


def load(path: str | os.PathLike[str], *, device: str | torch.device = "cpu", trust: Sequence[str] = ()) -> Loaded:
    """Build the model and the tokenizer of a checkpoint; nothing in the file is executed.

    Args:
        trust: Packages, besides this one, whose mixers it may name.

    Raises:
        CheckpointError: The file cannot be read, names another package's mixer, builds no model, or its weights are
            not the model's.
    """
    path = Path(path)
    # Mapped, so that the optimizer's state in a training checkpoint is never read into memory
    payload = _read(path, mmap=True)
    return _build(payload[KEY], _weights(payload), path, device=device, trust=trust)


def assemble(
    meta: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    path: Path,
    *,
    device: str | torch.device = "cpu",
    trust: Sequence[str] = (),
) -> Loaded:
    """Build the model and the tokenizer from parts that were read from files of another format, checked alike.

    Args:
        meta: A `seq2seq` entry of any format.
        weights: The model's weights by the model's names.
        path: The file of the weights, which errors name.
        trust: Packages, besides this one, whose mixers may be named.

    Raises:
        CheckpointError: As `load`.
    """
    payload: dict[str, Any] = {KEY: meta, "state_dict": {PREFIX + name: weight for name, weight in weights.items()}}
    try:
        check_tree(payload)
    except ValueError as error:
        raise CheckpointError(f"{path}: refused, it {error}") from None
    _check(payload, path)
    return _build(upgrade(payload, KEY)[KEY], weights, path, device=device, trust=trust)


def load_tokenizer(meta: dict[str, Any], path: Path) -> Tokenizer:
    """Restore the tokenizer of a `seq2seq` entry without weights, which must have the fields of every format.

    Raises:
        CheckpointError: The entry or the tokenizer in it is damaged, or they do not fit.
    """
    _check_meta(meta, path)
    return _tokenizer(meta, path)


def _build(
    meta: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    path: Path,
    *,
    device: str | torch.device,
    trust: Sequence[str],
) -> Loaded:
    # Before the model, whose embeddings must fit its vocabulary
    tokenizer = _tokenizer(meta, path)
    # First without memory: settings may ask for any size, but the file must hold weights of that size
    _check_depth(meta["model"], len(weights), path)
    with on_meta_device():
        _check_weights(_model(meta, path, trust), weights, path)
    with Uninitialized():
        model = _model(meta, path, trust)
    try:
        model.load_state_dict(weights)
    except Exception as error:
        raise CheckpointError(f"{path}: its weights do not load ({_type_and_message(error)})") from None
    return Loaded(model.to(device).eval(), tokenizer, meta)


def require_weights(model: torch.nn.Module, payload: Mapping[str, Any], path: Path) -> None:
    """Check that the weights in a checkpoint's dictionary are those of `model`, which may be without memory.

    Raises:
        CheckpointError: A name or shape is another.
    """
    _check_weights(model, _weights(payload), path)


def _weights(payload: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the model's weights by the model's names."""
    weights = payload["state_dict"].items()
    return {name.removeprefix(PREFIX): weight for name, weight in weights if name.startswith(PREFIX)}


def _plain(value: Any, place: str) -> Any:
    """Copy a value with its tuples as lists.

    Raises:
        ValueError: Something in it is not of a plain type; the message names its place, as in seq2seq.model.dim.
    """
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return value
    # type(), not isinstance: a subclass of dict or list is pickled as its class
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
    """Read, check and upgrade a checkpoint's dictionary; `mmap` leaves tensors on the disk until they are used."""
    # The zip and the pickle in it are checked before torch sees a byte of them
    check_archive(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except MemoryError:
        raise CheckpointError(f"{path}: not enough memory to read this checkpoint") from None
    except Exception as error:  # whatever a damaged or hostile pickle makes torch raise
        raise CheckpointError(f"{path}: refused, it {_refusal(error)}; nothing in it was run") from None
    # Before anything is walked, compared or printed
    try:
        check_tree(payload)
    except ValueError as error:
        raise CheckpointError(f"{path}: refused, it {error}") from None
    _check(payload, path)
    return upgrade(payload, KEY)


def _check(payload: Any, path: Path) -> None:
    """Refuse a dictionary without the keys and types that every format promises."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get(KEY), dict):
        raise CheckpointError(f"{path}: is not a checkpoint of this program (it has no '{KEY}' entry); {_REMEDY}")
    _check_meta(payload[KEY], path)
    weights = payload.get("state_dict")
    if not isinstance(weights, Mapping) or not weights:
        raise CheckpointError(f"{path}: has no weights (no 'state_dict'); {_REMEDY}")
    if not all(isinstance(name, str) and isinstance(weight, torch.Tensor) for name, weight in weights.items()):
        raise CheckpointError(f"{path}: its 'state_dict' holds something other than tensors by name")
    for name, weight in weights.items():
        if not is_whole(weight):
            raise CheckpointError(f"{path}: weight '{name}' is not stored as plain numbers")
        if not is_finite(weight):
            raise NotFiniteWeightsError(
                f"{path}: weight '{name}' is not finite (nan or inf): the training that wrote it had diverged; "
                "use an earlier checkpoint, or train again with a lower optim.lr"
            )


def _check_meta(meta: dict[str, Any], path: Path) -> None:
    """Refuse a `seq2seq` entry of an unknown format, or without the fields that every format has."""
    # type(), since True is an int
    number = meta.get("format")
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{path}: its format is {number!r}, which is not a format number")
    if number > FORMAT:
        raise CheckpointError(
            f"{path}: is of format {number}, but this version reads up to {FORMAT}; install a newer seq2seq"
        )
    # Types alone: what the values mean is checked by those that use them
    for name, cls in _FIELDS.items():
        if not isinstance(meta.get(name), cls):
            raise CheckpointError(f"{path}: its '{KEY}.{name}' is missing or no {cls.__name__}")
    if not isinstance(meta.get("search", {}), dict):
        raise CheckpointError(f"{path}: its '{KEY}.search' is not a dict")
    try:
        search_settings(meta)
    except ValueError as error:
        raise CheckpointError(f"{path}: its settings of a search cannot be used ({error})") from None


def _tokenizer(meta: dict[str, Any], path: Path) -> Tokenizer:
    """Restore the tokenizer, and compare its vocabulary sizes with the model's."""
    try:
        tokenizer = Tokenizer.from_state(meta["tokenizer"])
        sizes = (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    except Exception as error:  # any damage inside the SentencePiece model
        raise CheckpointError(f"{path}: its tokenizer does not load ({_type_and_message(error)})") from None
    # An id beyond the embeddings is a device-side assert on a GPU, after which the process is lost
    wanted = (meta["model"].get("src_vocab_size"), meta["model"].get("tgt_vocab_size"))
    if sizes != wanted:
        raise CheckpointError(f"{path}: its tokenizer has {sizes} pieces (source, target), its model {wanted}")
    for name in ("pad_id", "joint"):
        value = meta["model"].get(name)
        # Types, too: True equals 1
        if (type(value), value) != (type(getattr(tokenizer, name)), getattr(tokenizer, name)):
            raise CheckpointError(f"{path}: its tokenizer has {name} {getattr(tokenizer, name)}, its model {value!r}")
    return tokenizer


def _model(meta: dict[str, Any], path: Path, trust: Sequence[str]) -> Seq2Seq:
    """Build the model of the settings; every error becomes a CheckpointError of one line."""
    try:
        # portable: without demands that mixers made of the machine of the training
        return build_model(meta["model"], trust=trust, portable=True)
    except TargetError as error:
        raise CheckpointError(f"{path}: refused, {_type_and_message(error)}") from None
    except Exception as error:  # settings that no model fits, from a file that anybody may have written
        raise CheckpointError(f"{path}: its settings build no model ({_type_and_message(error)})") from None


def _check_depth(config: Mapping[str, Any], num_weights: int, path: Path) -> None:
    """Refuse settings that ask for more layers than the file has weights, before any layer is built."""
    model = config.get("model")
    mixer = config.get("mixer")
    if not isinstance(model, Mapping) or not isinstance(mixer, Mapping):
        return  # which builds no model
    # Encoder, further layers that a mixer asks for, decoder
    depths = [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0), model.get("decoder_layers")]
    # A layer without memory still costs Python objects, and millions would fill the memory
    if all(isinstance(depth, int) for depth in depths) and max(depths[0] + depths[1], depths[2]) > num_weights:
        raise CheckpointError(f"{path}: its settings ask for more layers than it has weights ({num_weights})")


def _check_weights(model: torch.nn.Module, given: Mapping[str, torch.Tensor], path: Path) -> None:
    """Refuse weights of other names or shapes than the model's, and a file shorter than their bytes."""
    # keep_vars: the parameters themselves, by whose identity those that are tied are found below
    wanted = model.state_dict(keep_vars=True)
    if missing := [name for name in wanted if name not in given]:
        raise CheckpointError(f"{path}: {len(missing)} weights are missing, the first is '{missing[0]}'")
    if surplus := [name for name in given if name not in wanted]:
        raise CheckpointError(f"{path}: {len(surplus)} weights fit nothing, the first is '{surplus[0]}'")
    for name, weight in given.items():
        if weight.is_floating_point() != wanted[name].is_floating_point():
            raise CheckpointError(f"{path}: weight '{name}' is not stored as plain numbers")
        if weight.shape != wanted[name].shape:
            raise CheckpointError(
                f"{path}: weight '{name}' has shape {tuple(weight.shape)}, the model needs {tuple(wanted[name].shape)}"
            )
    # Weights that the model ties are the same parameter under several names, and count once
    sizes = {id(parameter): given[name].numel() * given[name].element_size() for name, parameter in wanted.items()}
    # A hostile file may point all weights at one storage: its size bounds them together
    if sum(sizes.values()) > path.stat().st_size:
        raise CheckpointError(f"{path}: is shorter than the {sum(sizes.values()):,} bytes of its weights")


def is_finite(weight: torch.Tensor) -> bool:
    """Return True if a tensor holds neither nan nor inf."""
    if not weight.is_floating_point():
        return True
    # nan and inf stay in a sum, which is 30 times as fast as a test of every number; a finite one may still overflow
    wide = torch.float32 if weight.dtype == torch.float16 else weight.dtype
    return bool(weight.sum(dtype=wide).isfinite() or weight.isfinite().all())


def is_whole(weight: torch.Tensor) -> bool:
    """Return True if a tensor is dense and real, and its memory holds as many numbers as its shape says."""
    # No subclass, no sparse or quantized layout: their memory is laid out otherwise
    if type(weight) not in (torch.Tensor, torch.nn.Parameter) or weight.layout != torch.strided:
        return False
    # A meta tensor has no memory, a nested one no single shape
    if weight.is_meta or weight.is_nested or weight.is_complex() or weight.is_quantized:
        return False
    # Bytes up to the last number of a contiguous tensor
    end = (weight.storage_offset() + weight.numel()) * weight.element_size()
    return not weight.numel() or (weight.data_ptr() != 0 and end <= weight.untyped_storage().nbytes())


def _refusal(error: BaseException) -> str:
    """Describe an error of torch's reader in one phrase, which follows "it"."""
    # Torch's own message recommends weights_only=False, which is what nobody should do
    if match := re.search(r"GLOBAL (\S+)", str(error)):
        return f"holds a Python object ({match[1]})"
    if isinstance(error, pickle.UnpicklingError):
        return "does not open as plain tensors"
    return f"does not open as plain tensors ({_type_and_message(error)})"


def _type_and_message(error: BaseException) -> str:
    """Format an error as its type and the first line of its message."""
    name, text = type(error).__name__, first_line(error)
    return name if text == name else f"{name}: {text}"
