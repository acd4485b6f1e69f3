"""Recognize folders that an export has written, by their files and their config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from seq2seq.system.json_file import read_json_or_none

# The entry model_type of every config.json that an export writes itself. It tells Hugging Face's tools that the model
# is not theirs, and tells the next export that it may replace the folder.
MODEL_TYPE = "seq2seq-mixers"


class Layout(NamedTuple):
    """Files of a folder.

    Attributes:
        files: Names of the files besides the ones that every format has; some may be missing.
        model_type: Entry of config.json.
        section: Name of a mapping in config.json; "" for none.
        folders: Optional folders inside.
    """

    files: tuple[str, ...]
    model_type: str = MODEL_TYPE
    section: str = ""
    folders: Mapping[str, Layout] = MappingProxyType({})


# File of the codes of BPE, for a tokenizer that is not SentencePiece's.
CODES = "bpecodes"
# Files of every folder that an export writes.
_COMMON = ("config.json", "source.spm", "target.spm")
# The folder that Transformers writes; the files of its tokenizer depend on its version.
_MARIAN = Layout(
    (
        "model.safetensors", "vocab.json", "generation_config.json", "target_vocab.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json",
    ),
    model_type="marian",
)  # fmt: skip
# The folder of each format.
LAYOUTS = {
    "ctranslate2": Layout(
        ("model.bin", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json", CODES)
    ),
    "onnx": Layout(
        ("encoder.onnx", "step.onnx", "encoder.onnx.data", "step.onnx.data", "output.npz"),
        section="onnx",
    ),
    "huggingface": Layout(
        ("model.safetensors", "README.md"),
        section="weights",
        folders=MappingProxyType({"marian": _MARIAN}),
    ),
}


def foreign_part(folder: Path, layout: Layout) -> str | None:
    """Return the reason why a folder is not an earlier export; None for an earlier export and for an empty folder."""
    paths = sorted(folder.iterdir())
    for path in paths:
        if path.name in layout.folders and path.is_dir() and not path.is_symlink():
            if reason := foreign_part(path, layout.folders[path.name]):
                return f"its folder {path.name} {reason}"
        elif path.name not in (*_COMMON, *layout.files) or not path.is_file():
            return f"has {path.name}, which this export does not write"
    if not paths:
        return None
    if not (folder / "config.json").is_file():
        return "has no config.json, which this export writes"
    config = read_json_or_none(folder / "config.json") or {}
    if config.get("model_type") != layout.model_type:
        return "has a config.json that no export wrote"
    if layout.section and not isinstance(config.get(layout.section), dict):
        return "has a config.json of another format"
    return None
