"""Write and read what an exported folder says of its model: config.json, and the SentencePiece models beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.archive import CheckpointError, check_tree
from seq2seq.checkpoint import KEY
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.files import write_json
from seq2seq.inference.export.layouts import MODEL_TYPE

CONFIG = "config.json"
# The file of each SentencePiece model in a tokenizer's state; a joint tokenizer has the source's alone.
TOKENIZER_FILES = {"src_model": "source.spm", "tgt_model": "target.spm"}
# Bytes of a config.json, far more than any model's.
_LARGEST = 8 << 20


class Description(NamedTuple):
    """The format of a folder, its `seq2seq` entry, tokenizer and all, and the entry of config.json of that format.

    Attributes:
        format: "weights" or "onnx", which is the name of the format's entry.
    """

    format: str
    meta: dict[str, Any]
    values: dict[str, Any]


def write_description(folder: Path, meta: dict[str, Any], tokenizer: Tokenizer, name: str, values: Any) -> None:
    """Write config.json with the `seq2seq` entry and `values` as entry `name`, and the SentencePiece models."""
    state = tokenizer.to_state()
    for key, file in TOKENIZER_FILES.items():
        if key in state:
            (folder / file).write_bytes(state.pop(key))
    entry = {**meta, "tokenizer": state}
    write_json(folder / CONFIG, {"model_type": MODEL_TYPE, KEY: entry, name: values})


def read_description(folder: Path) -> Description:
    """Read config.json and the SentencePiece models; what they mean is checked by those that use them.

    Raises:
        CheckpointError: config.json is missing or damaged, or none that `export` wrote for this program.
    """
    config = _read_config(folder)
    formats = [name for name in ("weights", "onnx") if isinstance(config.get(name), dict)]
    if not isinstance(config.get(KEY), dict) or len(formats) != 1:
        raise CheckpointError(
            f"{folder}: its {CONFIG} is none of this program's; name a checkpoint, or a folder that "
            "python -m seq2seq.export wrote with --format huggingface or onnx"
        )
    meta = config[KEY]
    if isinstance(meta.get("tokenizer"), dict):
        for key, file in TOKENIZER_FILES.items():
            # The names are ours: a config.json cannot ask for another file
            if (folder / file).is_file():
                meta["tokenizer"][key] = (folder / file).read_bytes()
    return Description(formats[0], meta, config[formats[0]])


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        best = folder / "checkpoints" / "best.ckpt"
        named = str(best) if best.is_file() else "a checkpoint, or a folder that python -m seq2seq.export wrote"
        raise CheckpointError(f"{folder}: is a folder without {CONFIG}; name {named}")
    if path.stat().st_size > _LARGEST:
        raise CheckpointError(f"{path}: has more than {_LARGEST:,} bytes, which no export writes")
    try:
        config = json.loads(path.read_bytes())
        check_tree(config)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds no settings")
    return config
