"""Read models of Marian and OPUS-MT in the format of Hugging Face Transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.data.languages import language_tag
from seq2seq.data.shared_vocabulary import with_vocabulary
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.plain_transformer import halves_order, in_order
from seq2seq.inference.imports.shared import (
    Languages,
    Published,
    added_tokens,
    express,
    file_in,
    read_ids,
    read_piece_model,
    read_weights,
    warn_of_added,
)
from seq2seq.network.embedding import SinusoidalPositions
from seq2seq.system.json_file import read_json, read_json_or_none

# A tag of a target language in the vocabulary.
_TAG = re.compile(r">>([\w-]+)<<")
# Special tokens by their entries in config.json. The decoder begins with pad, whose embedding is zero.
_SPECIAL = {"bos": "decoder_start_token_id", "eos": "eos_token_id", "pad": "pad_token_id"}
# Names of the folders of OPUS-MT: opus-mt-de-en, opus-mt-tc-big-en-fr, opus-mt-en-ROMANCE, opus-mt-de-en-finetuned.
_LANGUAGE = r"([a-z]{2,3}(?:_[A-Z]\w+)?|[A-Z][A-Z_]+)"
NAME = re.compile(rf"opus-mt-(?:tc-(?:\w+-)?(?:base|big|tiny)-)?(?!tc-){_LANGUAGE}-{_LANGUAGE}(?:-.*)?")


def read(folder: Path, languages: Languages) -> Published:
    """Read a folder of MarianMTModel and MarianTokenizer.

    Raises:
        ValueError: A file is missing or damaged, or the model cannot be expressed.
    """
    config = read_json(file_in(folder, "config.json"))
    about = read_json_or_none(folder / "tokenizer_config.json") or {}
    of_targets = "target_vocab.json" if about.get("separate_vocabs") else "vocab.json"
    sides = {
        "src_model": ("source.spm", "vocab.json", "vocab_size"),
        "tgt_model": ("target.spm", of_targets, "decoder_vocab_size"),
    }
    tags: dict[str, str] = {}
    models = {}
    added = {name: number for number, name in added_tokens(folder, about).items()}
    for side, (model, vocabulary, size) in sides.items():
        path = file_in(folder, vocabulary)
        ids = read_ids(path)
        names = _names(path, added | ids, config.get(size) or config["vocab_size"], config)
        if side == "src_model":
            warn_of_added(folder, [name for name in added if name not in ids])
            # Tags in this program's form; a target's own vocabulary may lack them
            tags = {name: language_tag(found[1]) for name in names if (found := _TAG.fullmatch(name))}
        special = {"unk": "<unk>"} | {role: names[_special_id(config, key)] for role, key in _SPECIAL.items()}
        controls = [tags[name] for name in names if name in tags]
        names = [tags.get(name, name) for name in names]
        pieces = read_piece_model(folder, model)
        models[side] = with_vocabulary(pieces, names, special=special, controls=controls)
    tagged = [name[2:-1] for name in tags.values()]
    # In the cache of the hub, the folder of the repository is models--<owner>--<name>
    paths = (*reversed(folder.resolve().parts), Path(config.get("_name_or_path") or "").name)
    named = filter(None, (NAME.fullmatch(part.rpartition("--")[2]) for part in paths))
    told = next((match.groups() for match in named), (None, None))
    source, target = languages.resolve(
        folder, about.get("source_lang") or told[0], about.get("target_lang") or told[1], tagged
    )
    tie = "all" if config.get("share_encoder_decoder_embeddings", True) else "target"
    if not config.get("tie_word_embeddings", True):
        tie = "none"
    theirs = read_weights(folder)
    for side in ("encoder", "decoder"):
        _require_sinusoids(theirs.pop(f"model.{side}.embed_positions.weight", None), folder)
    made = express(
        theirs,
        config,
        folder,
        tokenizer=Tokenizer(**models),
        languages=(source, target),
        tgt_langs=tagged,
        tie=tie,
        norm="post",
        positions="sinusoidal",
    )
    # Marian's sines come first, ours and cosines alternate: the whole residual stream gets our order
    return made._replace(weights=in_order(made.weights, halves_order(config["d_model"]).argsort()))


def _special_id(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int:
        raise ValueError(f"config.json: {key} is {value!r}, not the id of a token")
    return value


def _names(path: Path, ids: Mapping[str, int], size: int, config: Mapping[str, Any]) -> list[str]:
    """Return the pieces of a vocabulary by their ids; ids without a piece get a name."""
    highest = max(ids.values(), default=-1)
    if not highest < size or min(ids.values()) < 0 or "<unk>" not in ids:
        raise ValueError(
            f"{path}: its ids up to {highest} do not fit the model's {size} embeddings, or <unk> is missing"
        )
    if max(_special_id(config, key) for key in _SPECIAL.values()) >= size:
        raise ValueError(f"{path}: config.json names special tokens beyond the model's {size} embeddings")
    names = [f"<unused {i}>" for i in range(size)]
    for name, number in ids.items():
        names[number] = name or names[number]
    return names


def _require_sinusoids(table: Tensor | None, folder: Path) -> None:
    """Raise ValueError for positions that Marian's formula does not give: they were learned."""
    if table is None:
        return
    count, dim = table.shape
    expected = SinusoidalPositions(dim=dim)(torch.arange(count))[:, halves_order(dim)]
    if not torch.allclose(table.float(), expected, atol=1e-2):
        raise ValueError(f"{folder}: its positions are not sinusoids of Marian, and are not read")
