"""Write and read config.json of an exported folder, and the SentencePiece models in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.checkpoint import MAX_TOKENIZER
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.layouts import MODEL_TYPE
from seq2seq.metadata import KEY, MAX_BYTES, parse_json
from seq2seq.system.files import read_file, write_json
from seq2seq.system.model_path import CheckpointError

CONFIG = "config.json"
# Files of the SentencePiece models in a tokenizer's state; a joint tokenizer has only the first.
TOKENIZER_FILES = {"src_model": "source.spm", "tgt_model": "target.spm"}


def write_description(folder: Path, meta: dict[str, Any], tokenizer: Tokenizer, name: str, values: Any) -> None:
    """Write config.json with the model's description and `values` as the entry `name`, and the SentencePiece models."""
    state = tokenizer.to_state()
    for key, file in TOKENIZER_FILES.items():
        if key in state:
            (folder / file).write_bytes(state.pop(key))
    write_json(folder / CONFIG, {"model_type": MODEL_TYPE, KEY: {**meta, "tokenizer": state}, name: values})


def read_description(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read config.json of a folder of ONNX graphs: the model's description with its tokenizer, and its other values.

    Raises:
        CheckpointError: config.json is missing or damaged, or `export` did not write it for this program.
    """
    path = folder / CONFIG
    try:
        config = parse_json(read_file(path, MAX_BYTES))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: is damaged ({str(error)[:200]})") from None
    meta, values = config.get(KEY), config.get("onnx")
    if not isinstance(meta, dict) or not isinstance(values, dict):
        lost = "weights" in config and KEY in config
        raise CheckpointError(
            f"{folder}: has no model.safetensors; copy the folder again"
            if lost
            else f"{folder}: its {CONFIG} is not of this program; name a checkpoint, a run's folder, or a folder that "
            "python -m seq2seq.export wrote with --format huggingface or onnx; published models go through "
            "python -m seq2seq.convert"
        )
    if isinstance(meta.get("tokenizer"), dict):
        for key, name in TOKENIZER_FILES.items():
            # The names are ours: a config.json cannot ask for another file
            if (folder / name).is_file():
                meta["tokenizer"][key] = read_file(folder / name, MAX_TOKENIZER)
    return meta, values
