"""Load the model that a user names: a checkpoint, the folder of a run or an export, or a model on a hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from seq2seq import checkpoint
from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import CONFIG, TOKENIZER_FILES, read_description
from seq2seq.inference.limits import DTYPES
from seq2seq.network.model import Seq2Seq
from seq2seq.system.model_path import CT2_MODEL, WEIGHTS, CheckpointError, checkpoint_file
from seq2seq.system.packages import require

# Files that are fetched from a repository on the hub; none of them contains code.
_HUB_FILES = (CONFIG, str(WEIGHTS), "*.onnx", "*.onnx.data", "output.npz", *TOKENIZER_FILES.values())
_GPU = re.compile(r"cuda(?::(0|[1-9][0-9]*))?")  # cuda, cuda:0, cuda:1, ...


def locate(name: str | os.PathLike[str]) -> Path:
    """Return the file or folder of a model; fetch it if `name` is not a path but reads as owner/name on the hub.

    Raises:
        CheckpointError: The hub has no such repository, or cannot be reached.
    """
    text = os.fspath(name)
    # The names that the hub allows; owner/name@revision chooses a revision
    match = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*?)(?:@([\w./-]+))?", text)
    # A path in a folder that exists here is meant as a path
    if os.path.lexists(text) or match is None or text.endswith((".safetensors", ".ckpt")) or Path(text).parent.is_dir():
        return Path(name)
    try:
        hub = require("huggingface_hub", "a model on the Hugging Face hub", extra="hub")
    except ValueError as error:
        raise CheckpointError(f"{text}: no such file or folder; {error}") from None
    try:
        return Path(hub.snapshot_download(match[1], revision=match[2], allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # errors of the network, authentication or cache: there are dozens
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{text}: no such file or folder, and the Hugging Face hub gives no model of that name ({reason})"
        ) from None


def choose_device(device: str | torch.device) -> str:
    """Resolve `auto` to the GPU if there is one, and check any other device.

    Raises:
        ValueError: The name is not a device, or the GPU is missing.
    """
    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    found = _GPU.fullmatch(name)
    if not found:
        raise ValueError(f"unknown device '{name}': choose cpu, cuda, cuda:N or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(found[1] or 0) >= count:
        raise ValueError(f"device '{name}' is not there ({count} GPUs are visible to torch); use --device cpu")
    return name


def runs_on_cpu_alone(path: Path) -> bool:
    """Return True for a folder of ONNX graphs."""
    return (path / CONFIG).is_file() and not any((path / other).exists() for other in (WEIGHTS, CT2_MODEL))


def files_of(path: Path) -> list[Path]:
    """List the files of a model that loading reads; others in its folder, such as logs, have no effect.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    if not runs_on_cpu_alone(path):
        return [checkpoint_file(path)]
    return sorted(each for pattern in _HUB_FILES for each in path.glob(pattern))


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer alone of a checkpoint or an exported folder.

    Raises:
        CheckpointError: The file or folder cannot be used.
    """
    meta = read_description(path)[0] if runs_on_cpu_alone(path) else checkpoint.read_description(path)
    return checkpoint.load_tokenizer(meta, path)


def load_model(path: Path, *, device: str, dtype: str = "float32", trust: Sequence[str] = ()) -> Loaded:
    """Load a checkpoint, or the folder of a run or an export; no code in it is executed (ONNX graphs are data).

    Args:
        device: An available device.
        dtype: Number format of the parameters, one of DTYPES.
        trust: Packages besides this one whose mixers may be named.

    Raises:
        CheckpointError: The file or folder cannot be used.
        ValueError: ONNX graphs cannot run on this device or in this format, or the format is unknown.
    """
    if not runs_on_cpu_alone(path):
        loaded = checkpoint.load(path, device=device, trust=trust)
        store_weights_in(dtype, loaded.model)
        return loaded
    if device != "cpu" or dtype != "float32":
        raise ValueError(
            f"{path} holds ONNX graphs, which run on the CPU in float32, not on {device} in {dtype}; choose --device "
            "cpu and --dtype float32, or name the checkpoint"
        )
    # Imported here: it needs onnxruntime
    from seq2seq.inference.onnx_model import load_onnx

    return load_onnx(path, trust=trust)


def store_weights_in(dtype: str, model: Seq2Seq) -> None:
    """Convert the parameters, not the buffers: the rates of sinusoidal positions need float32."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype '{dtype}': choose {' or '.join(DTYPES)}")
    # Through .data, the parameter objects stay the same, and weights stay tied
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
