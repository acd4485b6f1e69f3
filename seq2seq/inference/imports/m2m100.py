"""Read dense models of NLLB-200 and M2M-100 in the format of Hugging Face Transformers.

Reference:
    Fan et al. 2020, 'Beyond English-Centric Multilingual Machine Translation'; NLLB Team 2022, 'No Language Left
    Behind: Scaling Human-Centered Machine Translation'.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.data.languages import language_tag
from seq2seq.data.protobuf import field
from seq2seq.data.shared_vocabulary import with_vocabulary
from seq2seq.data.tokenizer import Tokenizer, load_model
from seq2seq.inference.imports import shared
from seq2seq.system.json_file import read_json, read_json_or_none

_PIECES = "sentencepiece.bpe.model"
_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
# A language of NLLB among its tokens, such as deu_Latn.
_CODE = re.compile(r"[a-z]{2,3}_[A-Z][a-z]{3}")
# Languages of M2M100Tokenizer by its `language_codes`; their tokens follow the vocabulary in this order.
_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
# Settings of the normalization in a SentencePiece model: a space before the text, none repeated, and ▁ for each.
_SPACES = b"\x18\x01\x20\x01\x28\x01"
# Types of pieces that are not text, and the type BPE of a model.
_TYPES = {"<unk>": b"\x18\x02", "<s>": b"\x18\x03", "</s>": b"\x18\x03"}
_BPE = b"\x18\x02"


def read(folder: Path, languages: shared.Languages) -> shared.Published:
    """Read a folder of M2M100ForConditionalGeneration with NllbTokenizer or M2M100Tokenizer.

    Raises:
        ValueError: A file is missing or damaged, or the model cannot be expressed.
    """
    config = read_json(shared.file_in(folder, "config.json"))
    if config.get("model_type") == "nllb-moe":
        raise ValueError(f"{folder}: is a mixture of experts (nllb-moe); only dense models are supported")
    about = read_json_or_none(folder / "tokenizer_config.json") or {}
    if about.get("legacy_behaviour"):
        raise ValueError(
            f"{folder}: its tokenizer_config.json has legacy_behaviour=true, by which sources end with the tag of "
            "their language. NLLB was trained with the tag first: set it to false, unless this model was trained so"
        )
    of_m2m100 = about.get("tokenizer_class") == "M2M100Tokenizer" or (folder / "vocab.json").is_file()
    tags, names, pieces = (_m2m100 if of_m2m100 else _nllb)(folder, about)
    if not tags:
        raise ValueError(f"{folder}: its tokenizer has no language, such as deu_Latn; copy the whole folder")
    size = config["vocab_size"]
    if not max(names) < size:
        raise ValueError(f"{folder}: its ids up to {max(names)} do not fit the model's {size} embeddings")
    listed = list(tags.values())
    source, target = languages.resolve(folder, about.get("src_lang"), about.get("tgt_lang"), listed, listed)
    names = {number: language_tag(tags[name]) if name in tags else name for number, name in names.items()}
    start = names[config.get("decoder_start_token_id", 2)]
    special = {"unk": "<unk>", "bos": start, "eos": "</s>", "pad": "<pad>"}
    model = with_vocabulary(
        pieces,
        [names.get(i, f"<unused {i}>") for i in range(size)],
        special=special,
        controls=[name for name in names.values() if name in ("<s>", "<mask>") or name[:2] == "<2"],
        tags_targets=True,
    )
    tie = "all" if config.get("tie_word_embeddings", True) else "none"
    theirs = shared.read_weights(folder)
    for side in ("encoder", "decoder"):
        # Sinusoids, which follow from the settings
        theirs.pop(f"model.{side}.embed_positions.weights", None)
    return shared.express(
        theirs,
        config,
        folder,
        tokenizer=Tokenizer(src_model=model),
        languages=(source, target),
        tgt_langs=listed,
        tie=tie,
        norm="pre",
        positions="fairseq",
    )


def _m2m100(folder: Path, about: Mapping[str, Any]) -> tuple[dict[str, str], dict[int, str], bytes]:
    """Return the languages by their tokens, the tokens by their ids, and the model of pieces of an M2M100Tokenizer."""
    kind = about.get("tokenizer_class", "M2M100Tokenizer")
    codes = _LANGUAGES.get(about.get("language_codes", "m2m100"))
    if kind != "M2M100Tokenizer" or codes is None:
        languages = f" of {about['language_codes']}" if "language_codes" in about else ""
        raise ValueError(f"{folder}: its tokenizer is {kind}{languages}, which is not read")
    ids = shared.read_ids(shared.file_in(folder, "vocab.json"))
    tags = {f"__{code}__": code for code in codes.split()}
    names = {number: name for name, number in ids.items()} | dict(enumerate(tags, len(ids)))
    added = shared.added_tokens(folder, about)
    shared.warn_of_added(folder, [name for number, name in added.items() if number not in names])
    return tags, added | names, shared.read_piece_model(folder, _PIECES)


def _nllb(folder: Path, about: Mapping[str, Any]) -> tuple[dict[str, str], dict[int, str], bytes]:
    """Return the same of an NllbTokenizer."""
    pieces = shared.read_piece_model(folder, _PIECES) if (folder / _PIECES).is_file() else None
    if pieces and not (folder / "tokenizer.json").is_file() and "added_tokens_decoder" in about:
        own = load_model(pieces)
        # Ids of the model after <pad>, which it lacks; then the other tokens
        names = {i + 1: own.id_to_piece(i) for i in range(3, own.get_piece_size())}
        added = {int(number): each["content"] for number, each in about["added_tokens_decoder"].items()}
    else:
        stored = shared.read_ids(shared.file_in(folder, "tokenizer.json"))
        pieces = pieces or _piece_model(stored)
        names = {number: name for name, number in stored["model"]["vocab"].items()}
        added = {each["id"]: each["content"] for each in stored["added_tokens"]}
    tags = {name: name for name in added.values() if _CODE.fullmatch(name)}
    shared.warn_of_added(folder, [name for name in added.values() if name not in (*tags, *_SPECIALS, "<mask>")])
    return tags, names | added, pieces


def _piece_model(stored: Mapping[str, Any]) -> bytes:
    """Make the SentencePiece model of a tokenizer.json, which Transformers 5 writes without one."""
    model = stored["model"]
    steps = (stored["normalizer"] or {}).get("normalizers") or [stored["normalizer"] or {}]
    if model["type"] != "BPE" or any(step.get("type") not in ("Precompiled", "Replace", None) for step in steps):
        raise ValueError("its tokenizer.json is not a BPE model like NLLB's: add sentencepiece.bpe.model")
    rules = base64.b64decode("".join(step.get("precompiled_charsmap", "") for step in steps))
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model["merges"]):
        ranks.setdefault("".join(pair if isinstance(pair, list) else pair.split(" ")), rank)
    written = []
    for piece in (*_TYPES, *(name for name in model["vocab"] if name not in _SPECIALS)):
        # The merges of the highest score come first
        score = b"\x15" + struct.pack("<f", -float(ranks.get(piece, len(ranks) + len(written))))
        written.append(field(1, field(1, piece.encode()) + score + _TYPES.get(piece, b"")))
    normalization = field(1, b"nmt_nfkc") + field(2, rules) + _SPACES
    return b"".join(written) + field(2, _BPE) + field(3, normalization)
