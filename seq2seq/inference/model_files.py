"""Load what a user names as a model: a checkpoint, a folder that `export` wrote, or such a folder on a hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from seq2seq import checkpoint
from seq2seq.archive import CheckpointError
from seq2seq.checkpoint import KEY, Loaded
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import CONFIG, TOKENIZER_FILES, Description, read_description
from seq2seq.packages import require

WEIGHTS = "model.safetensors"
# What is fetched of a repository on the hub: nothing that could be run.
_HUB_FILES = (CONFIG, WEIGHTS, "*.onnx", "*.onnx.data", "output.npz", *TOKENIZER_FILES.values())


def locate(name: str | os.PathLike[str]) -> Path:
    """Return the file or folder of a model; fetch it where `name` is not a path but reads as owner/name of the hub.

    Raises:
        CheckpointError: The hub has no such repository, or cannot be reached.
    """
    text = os.fspath(name)
    # The names that the hub allows; owner/name@revision chooses one
    match = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*?)(?:@([\w./-]+))?", text)
    # Nor is it of the hub where the first part of the path is a folder here
    if os.path.lexists(text) or match is None or text.endswith(".ckpt") or Path(text).parent.is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            f"{text}: no such file or folder; for a model of that name on the Hugging Face hub: "
            "pip install huggingface_hub"
        ) from None
    try:
        return Path(snapshot_download(match[1], revision=match[2], allow_patterns=list(_HUB_FILES)))
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{text}: no such file or folder, and the Hugging Face hub, which may have a model of that name, cannot be "
            "reached"
        ) from None
    except Exception as error:  # of the network, of authentication, of the cache: the library has dozens
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{text}: no such file or folder, and the Hugging Face hub gives no model of that name ({reason})"
        ) from None


def runs_on_cpu_alone(path: Path) -> bool:
    """Return True for a folder of ONNX graphs."""
    return path.is_dir() and read_description(path).format == "onnx"


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint or an exported folder, without its weights.

    Raises:
        CheckpointError: The file or folder cannot be used.
    """
    meta = read_description(path).meta if path.is_dir() else checkpoint.read(path)[KEY]
    return checkpoint.load_tokenizer(meta, path)


def load_model(path: Path, *, device: str, dtype: str = "float32", trust: Sequence[str] = ()) -> Loaded:
    """Load a checkpoint or an exported folder; nothing in it is executed but the graphs of ONNX, which are data.

    Args:
        device: A device that is there.
        dtype: The format that weights will have.
        trust: Packages, besides this one, whose mixers may be named.

    Raises:
        CheckpointError: The file or folder cannot be used.
        ValueError: ONNX graphs cannot run so.
    """
    if not path.is_dir():
        return checkpoint.load(path, device=device, trust=trust)
    description = read_description(path)
    if description.format == "weights":
        return _load_weights(path, description, device=device, trust=trust)
    if device != "cpu" or dtype != "float32":
        raise ValueError(
            f"{path} holds ONNX graphs, which run on the CPU in float32, not on {device} in {dtype}; choose --device "
            "cpu and --dtype float32, or name the checkpoint"
        )
    # Imported here: it needs onnxruntime
    from seq2seq.inference.onnx_model import load_onnx

    return load_onnx(path, description, trust=trust)


def _load_weights(folder: Path, description: Description, *, device: str, trust: Sequence[str]) -> Loaded:
    """Load a folder of safetensors, checked as a checkpoint is."""
    safetensors = require("safetensors.torch", "a folder of safetensors", extra="export")
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no {WEIGHTS}; copy the folder again")
    try:
        weights = safetensors.load_file(path)
    except Exception as error:  # the format's own error, or the file system's
        raise CheckpointError(f"{path}: is damaged ({' '.join(str(error).split())[:200]})") from None
    # The format keeps no tensor twice: a tied weight has the name of the one that is stored
    tied = description.values.get("tied")
    for name, stored in tied.items() if isinstance(tied, dict) else ():
        if not isinstance(stored, str) or stored not in weights:
            raise CheckpointError(f"{folder / CONFIG}: ties '{name}' to a weight that is not there")
        weights[name] = weights[stored]
    return checkpoint.assemble(description.meta, weights, path, device=device, trust=trust)
