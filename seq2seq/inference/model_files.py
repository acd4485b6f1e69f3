"""Load what a user names as a model: a checkpoint, the folder of a run or of an export, or such a one on a hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from seq2seq import checkpoint
from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import CONFIG, TOKENIZER_FILES, read_description
from seq2seq.system.model_path import WEIGHTS, CheckpointError

# What is fetched of a repository on the hub: nothing that could be run.
_HUB_FILES = (CONFIG, str(WEIGHTS), "*.onnx", "*.onnx.data", "output.npz", *TOKENIZER_FILES.values())


def locate(name: str | os.PathLike[str]) -> Path:
    """Return the file or folder of a model; fetch it where `name` is not a path but reads as owner/name of the hub.

    Raises:
        CheckpointError: The hub has no such repository, or cannot be reached.
    """
    text = os.fspath(name)
    # The names that the hub allows; owner/name@revision chooses one
    match = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*?)(?:@([\w./-]+))?", text)
    # Nor is it of the hub where the first part of the path is a folder here
    if os.path.lexists(text) or match is None or text.endswith((".safetensors", ".ckpt")) or Path(text).parent.is_dir():
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
    return (path / CONFIG).is_file() and not (path / WEIGHTS).exists()


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint or an exported folder, without its weights.

    Raises:
        CheckpointError: The file or folder cannot be used.
    """
    meta = read_description(path).meta if runs_on_cpu_alone(path) else checkpoint.read_description(path)
    return checkpoint.load_tokenizer(meta, path)


def load_model(path: Path, *, device: str, dtype: str = "float32", trust: Sequence[str] = ()) -> Loaded:
    """Load a checkpoint or an exported folder; nothing in it is executed but the graphs of ONNX, which are data.

    Args:
        path: A checkpoint, or the folder of a run or of an export.
        device: A device that is there.
        dtype: The format that weights will have.
        trust: Packages, besides this one, whose mixers may be named.

    Raises:
        CheckpointError: The file or folder cannot be used.
        ValueError: ONNX graphs cannot run so.
    """
    if not runs_on_cpu_alone(path):
        return checkpoint.load(path, device=device, trust=trust)
    if device != "cpu" or dtype != "float32":
        raise ValueError(
            f"{path} holds ONNX graphs, which run on the CPU in float32, not on {device} in {dtype}; choose --device "
            "cpu and --dtype float32, or name the checkpoint"
        )
    # Imported here: it needs onnxruntime
    from seq2seq.inference.onnx_model import load_onnx

    return load_onnx(path, read_description(path), trust=trust)
