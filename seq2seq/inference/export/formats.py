"""Export a checkpoint in a format of other programs, as a folder that translates as the checkpoint does."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.checkpoint import Loaded, Stored, save
from seq2seq.data.languages import tags_of
from seq2seq.inference.description import write_description
from seq2seq.inference.export.card import Origin, model_card
from seq2seq.inference.export.plain_transformer import UnsupportedError
from seq2seq.inference.model_files import load_model, locate
from seq2seq.network.build import max_positions
from seq2seq.system.files import atomic_folder, write_text
from seq2seq.system.model_path import WEIGHTS, checkpoint_file
from seq2seq.system.packages import MissingPackageError


def export_model(
    ckpt: str, out: Path, *, format: str, origin: Origin, trust: Sequence[str] = (), dtype: str = "float32"
) -> tuple[dict[str, int], list[str]]:
    """Write the folder `out`, which appears once it is complete and agrees with the checkpoint.

    Args:
        ckpt: A checkpoint, or a folder of weights.
        out: Replaced if it exists.
        format: One of `layouts.LAYOUTS`.
        origin: Record of the run, for the model card.
        trust: Packages besides this one whose mixers may be named.
        dtype: Number format of linear layers: float32, or int8 for ONNX.

    Returns:
        The number of drawn sentences that agree to the last token, by program; and the reasons why an optional part of
        the folder is missing.

    Raises:
        ValueError: The checkpoint cannot be read, the format cannot express it, or a package is missing.
    """
    if dtype != "float32" and format != "onnx":
        raise ValueError(f"--dtype {dtype} is for --format onnx only; {format} folders hold float32 weights")
    loaded = load_model(checkpoint_file(locate(ckpt)), device="cpu", trust=trust)
    positions = max_positions(loaded.meta["model"], trust=trust)
    limits: dict[str, Any] = {"positions": positions, "tags": tags_of(loaded.meta, loaded.tokenizer).source}
    with atomic_folder(out, replace=True) as folder:
        if format == "ctranslate2":
            from seq2seq.inference.export.ctranslate2_model import write_ctranslate2

            return {"CTranslate2": write_ctranslate2(folder, loaded, **limits)}, []
        if format == "onnx":
            from seq2seq.inference.export.onnx_graphs import write_onnx

            return {"ONNX Runtime": write_onnx(folder, loaded, trust=trust, dtype=dtype, **limits)}, []
        return _write_huggingface(folder, loaded, origin)


def _write_huggingface(folder: Path, loaded: Loaded, origin: Origin) -> tuple[dict[str, int], list[str]]:
    """Write weights and card, and a folder `marian` inside if Marian can express the model."""
    from seq2seq.inference.export.marian import write_marian

    agreed, notes = {}, []
    try:
        agreed["MarianMTModel"] = write_marian(folder / "marian", loaded)
    except (UnsupportedError, MissingPackageError) as error:
        notes.append(f"without the folder marian: {error}")
    write_safetensors(folder, loaded, origin, marian=bool(agreed))
    # safetensors makes files that only their owner can read
    for path in folder.rglob("*.safetensors"):
        path.chmod(stat.S_IMODE((folder / "config.json").stat().st_mode))
    return agreed, notes


def write_safetensors(folder: Path, loaded: Loaded, origin: Origin, *, marian: bool) -> None:
    """Write the checkpoint as model.safetensors, with a model card and the files that other programs read.

    Args:
        marian: The folder has a copy for Hugging Face's Marian, which the card mentions.
    """
    save(folder / WEIGHTS, Stored(loaded.meta, loaded.model.state_dict()))
    write_description(folder, loaded.meta, loaded.tokenizer, "weights", {"file": str(WEIGHTS)})
    size = sum(weight.numel() for weight in loaded.model.parameters())
    write_text(folder / "README.md", model_card(loaded.meta, origin, parameters=size, marian=marian))
