"""Write and read checkpoints for translation: one file with all that translation needs, read without executing code.

A checkpoint is a safetensors file. Its tensors are the model's weights under the model's names, each tied table only
once, and the bytes of the tokenizer's SentencePiece models. One string of JSON in the header's metadata describes them:

    {"__metadata__": {"seq2seq": '{"format": 1, "model": {...}, "src_lang": "de", ...}'}, "<parameter>": {...}, ...}
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.metadata import KEY, as_json, check_description, parse_json
from seq2seq.network.build import TargetError, Uninitialized, build_model, on_meta_device
from seq2seq.network.model import Seq2Seq
from seq2seq.system.errors import first_line
from seq2seq.system.files import atomic_file
from seq2seq.system.model_path import CheckpointError, checkpoint_file

# SentencePiece models by their names in the file, with their names in the tokenizer's state.
_MODELS = {"tokenizer.src_model": "src_model", "tokenizer.tgt_model": "tgt_model"}
# Largest header and SentencePiece model that are read, in bytes; known ones have up to 1 MB and 5 MB.
MAX_HEADER = 8 << 20
MAX_TOKENIZER = 64 << 20
# Types in which a floating-point weight may be stored, whatever its type in the model.
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class NotFiniteWeightsError(CheckpointError):
    """Checkpoint with a weight that is nan or inf."""


class Stored(NamedTuple):
    """Content of a checkpoint: the description with the whole tokenizer, and the weights, each tied table once."""

    meta: dict[str, Any]
    weights: dict[str, Tensor]


class Loaded(NamedTuple):
    """Checkpoint ready to translate: the model in evaluation mode, its tokenizer, and the description."""

    model: Seq2Seq
    tokenizer: Tokenizer
    meta: dict[str, Any]


def save(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write a checkpoint atomically; weights that share memory are stored once, under the first name.

    Raises:
        ValueError: `read` would refuse the checkpoint (NotFiniteWeightsError if a weight is not finite).
        OSError: The file system refuses.
    """
    path = Path(path)
    meta, weights = stored
    check_description(meta, path)
    require_finite(weights, path)
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in stored_once(weights).items()}
    tokenizer = dict(meta["tokenizer"])
    for name, key in _MODELS.items():
        if key in tokenizer:
            tensors[name] = torch.frombuffer(bytearray(tokenizer.pop(key)), dtype=torch.uint8)
    text = as_json({**meta, "tokenizer": tokenizer})
    parse_json(text)
    data = safetensors.torch.save(tensors, {KEY: text})
    # A run that is killed here keeps its previous checkpoint
    with atomic_file(path) as file:
        file.write(data)


def read(path: str | os.PathLike[str]) -> Stored:
    """Read a checkpoint; its weights stay on disk until they are used.

    Raises:
        CheckpointError: The file is damaged, hostile, or not a checkpoint of this program.
    """
    stored = _read(path := checkpoint_file(Path(path)))
    require_finite(stored.weights, path)
    return stored


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the description of a checkpoint with the whole tokenizer, but no weights.

    Raises:
        CheckpointError: As `read`.
    """
    with _opened(checkpoint_file(Path(path))) as (_, meta):
        return meta


def updates(path: str | os.PathLike[str]) -> int | None:
    """Return the number of updates that a checkpoint has had; None if it cannot be read or does not say."""
    try:
        count = read_description(path).get("step")
    except CheckpointError:
        return None
    return count if isinstance(count, int) else None


def digest(path: str | os.PathLike[str]) -> str:
    """Hash a checkpoint's file by its content alone, so that a copy has the same digest."""
    with checkpoint_file(Path(path)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load(path: str | os.PathLike[str], *, device: str | torch.device = "cpu", trust: Sequence[str] = ()) -> Loaded:
    """Build the model and the tokenizer of a checkpoint; nothing in the file is executed.

    Args:
        path: The file, or the folder of a run or of an export.
        trust: Packages, besides this one, whose mixers the checkpoint may name.

    Raises:
        CheckpointError: The file cannot be read, names a mixer of another package, describes no valid model, or has
            weights that do not fit the model.
    """
    meta, weights = _read(path := checkpoint_file(Path(path)))
    # Load the tokenizer before the model, whose embeddings must fit the vocabulary
    tokenizer = load_tokenizer(meta, path)
    # Build the model first without memory: settings may ask for any size, and only weights of that size confirm it
    check_weights(build_form(meta, path, most_layers=len(weights), trust=trust), weights, path)
    require_finite(weights, path)
    with Uninitialized():
        model = _model(meta, path, trust)
    try:
        model.load_state_dict(with_tied(model, weights))
    except Exception as error:
        raise CheckpointError(f"{path}: its weights do not load ({_type_and_message(error)})") from None
    return Loaded(model.to(device).eval(), tokenizer, meta)


def build_form(meta: Mapping[str, Any], path: Path, *, most_layers: int, trust: Sequence[str] = ()) -> Seq2Seq:
    """Build a model without memory for its weights; raise CheckpointError beyond `most_layers` layers on a side."""
    _check_depth(meta["model"], most_layers, path)
    with on_meta_device():
        return _model(meta, path, trust)


def with_tied(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint under all names of the model, a tied weight under each of its names."""
    return {name: weights[first] for name, first in _first_names(model).items()}


def check_weights(model: torch.nn.Module, given: Mapping[str, Tensor], path: Path) -> None:
    """Raise CheckpointError unless weights have the names, shapes and types of `model`, also on the meta device."""
    own = model.state_dict()
    wanted = {name: own[name] for name in _first_names(model).values()}
    if missing := [name for name in wanted if name not in given]:
        raise CheckpointError(f"{path}: {len(missing)} weights are missing, the first is '{missing[0]}'")
    if surplus := [name for name in given if name not in wanted]:
        raise CheckpointError(f"{path}: {len(surplus)} weights fit nothing, the first is '{surplus[0]}'")
    for name, weight in wanted.items():
        stored = given[name]
        if stored.dtype != weight.dtype and not (stored.dtype in _FLOATS and weight.dtype in _FLOATS):
            raise CheckpointError(f"{path}: weight '{name}' is stored as {stored.dtype}, not {weight.dtype}")
        if stored.shape != weight.shape:
            raise CheckpointError(
                f"{path}: weight '{name}' has shape {tuple(stored.shape)}, the model needs {tuple(weight.shape)}"
            )


def require_finite(weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise NotFiniteWeightsError if a weight is nan or inf."""
    for name, weight in weights.items():
        if not weight.is_floating_point():
            continue
        # A sum keeps nan and inf, and takes a thirtieth of the time of `isfinite`. The sum of finite weights may
        # overflow, so `isfinite` decides then
        wide = torch.float32 if weight.dtype == torch.float16 else weight.dtype
        if not (weight.sum(dtype=wide).isfinite() or weight.isfinite().all()):
            raise NotFiniteWeightsError(
                f"{path}: weight '{name}' is not finite (nan or inf): the training that wrote it had diverged; "
                "use an earlier checkpoint, or train again with a lower optim.lr"
            )


def load_tokenizer(meta: Mapping[str, Any], path: Path) -> Tokenizer:
    """Restore the tokenizer of a description, and compare its vocabulary with the model's.

    Raises:
        CheckpointError: The tokenizer is damaged, or does not fit the model.
    """
    check_description(meta, path)
    try:
        tokenizer = Tokenizer.from_state(meta["tokenizer"])
    except Exception as error:  # any damage inside the SentencePiece model
        raise CheckpointError(f"{path}: its tokenizer does not load ({_type_and_message(error)})") from None
    # An id beyond the embeddings causes a device-side assert on a GPU, after which the process cannot continue
    for name, own in tokenizer.sizes.items():
        wanted = meta["model"].get(name)
        # Compare the types, too, since True equals 1
        if (type(own), own) != (type(wanted), wanted):
            raise CheckpointError(f"{path}: its tokenizer has {name} {own}, its model {wanted!r}")
    return tokenizer


def _model(meta: Mapping[str, Any], path: Path, trust: Sequence[str]) -> Seq2Seq:
    """Build the model that the settings describe; every error becomes a CheckpointError of one line."""
    try:
        # portable: without arguments that need the machine of the training
        return build_model(meta["model"], trust=trust, portable=True)
    except TargetError as error:
        raise CheckpointError(f"{path}: refused, {_type_and_message(error)}") from None
    except Exception as error:  # impossible settings, from a file of unknown origin
        raise CheckpointError(f"{path}: its settings build no model ({_type_and_message(error)})") from None


def _check_depth(config: Mapping[str, Any], most_layers: int, path: Path) -> None:
    """Refuse settings that ask for more layers than the weights can have, before any layer is built."""
    model = config.get("model")
    mixer = config.get("mixer")
    if not isinstance(model, Mapping) or not isinstance(mixer, Mapping):
        return  # `_model` refuses them
    # Encoder, further encoder layers that a mixer asks for, decoder
    depths = [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0), model.get("decoder_layers")]
    # Even a layer on the meta device costs Python objects, and millions of them would fill the memory
    if all(isinstance(depth, int) for depth in depths) and max(depths[0] + depths[1], depths[2]) > most_layers:
        raise CheckpointError(f"{path}: its settings ask for more layers than it has weights for ({most_layers})")


def _read(path: Path) -> Stored:
    """Read a checkpoint without checking that its weights are finite."""
    with _opened(path) as (file, meta):
        weights = {name: file.get_tensor(name) for name in file.keys() if name not in _MODELS}  # noqa: SIM118
    if not weights:
        raise CheckpointError(f"{path}: has no weights")
    for name, weight in weights.items():
        # Complex numbers and floats of 8 bits or less, which torch cannot add
        if (weight.is_floating_point() or weight.is_complex()) and weight.dtype not in _FLOATS:
            raise CheckpointError(f"{path}: weight '{name}' is stored as {weight.dtype}, which no model has")
    return Stored(meta, weights)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a checkpoint, and yield the file, for its tensors, and the description with the whole tokenizer.

    Raises:
        CheckpointError: The part of the file that has been read is damaged, hostile or of another program.
    """
    try:
        with path.open("rb") as start:
            first = start.read(8)
        # The length of the header
        length = int.from_bytes(first, "little")
        if not first:
            raise CheckpointError(f"{path}: is an empty file, not a checkpoint")
        if len(first) < 8 or length > MAX_HEADER:
            raise CheckpointError(
                f"{path}: is not a checkpoint (its header would have {length:,} bytes); name a run's folder, or a "
                ".safetensors file that training or seq2seq.average wrote"
            )
        # The library compares the header with the size of the file
        with safetensors.safe_open(path, framework="pt") as file:
            meta = _description(file, path)
            check_description(meta, path)
            yield file, meta
    except CheckpointError:
        raise
    except MemoryError:
        raise CheckpointError(f"{path}: not enough memory to read this checkpoint") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # an error of safetensors, or of torch for an unknown type or device
        raise CheckpointError(f"{path}: is truncated or damaged ({_type_and_message(error)}); copy it again") from None


def _description(file: Any, path: Path) -> dict[str, Any]:
    """Read the description of an open file, and put the SentencePiece models into it."""
    text = (file.metadata() or {}).get(KEY)
    if text is None:
        raise CheckpointError(
            f"{path}: is not a checkpoint of this program (its header has no '{KEY}'); name a run's folder, or a file "
            "that training or seq2seq.average wrote; python -m seq2seq.convert reads published models"
        )
    try:
        meta = parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: its '{KEY}' {error}") from None
    if isinstance(meta.get("tokenizer"), dict):
        for name in sorted(_MODELS.keys() & file.keys()):
            model = file.get_tensor(name)
            if model.dtype != torch.uint8 or model.ndim != 1 or model.numel() > MAX_TOKENIZER:
                raise CheckpointError(
                    f"{path}: its '{name}' is not a SentencePiece model of up to {MAX_TOKENIZER:,} bytes"
                )
            meta["tokenizer"][_MODELS[name]] = model.numpy().tobytes()
    return meta


def stored_once(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, except weights that share the memory of an earlier weight."""
    stored: dict[Any, tuple[str, Tensor]] = {}
    for name, weight in weights.items():
        # Tensors without elements have no address of their own
        place = (weight.data_ptr(), weight.dtype, weight.shape, weight.stride()) if weight.numel() else name
        stored.setdefault(place, (name, weight))
    return dict(stored.values())


def _first_names(model: torch.nn.Module) -> dict[str, str]:
    """Map the name of each weight to the first name of the same parameter."""
    firsts: dict[int, str] = {}
    # keep_vars: the parameters themselves, whose identity shows which names are tied
    return {name: firsts.setdefault(id(each), name) for name, each in model.state_dict(keep_vars=True).items()}


def _type_and_message(error: BaseException) -> str:
    """Format an error as its type and the first line of its message."""
    name, text = type(error).__name__, first_line(error)
    return name if text == name else f"{name}: {text}"
