"""Prepare plain files for the GPU machine, which lacks Hydra and SentencePiece: ids, references, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.plan import MIXERS
from benchmarks.gpu.records import DATA_FILE
from seq2seq.data.batching import Ragged
from seq2seq.data.cleaning import Cleaner, length_rules
from seq2seq.data.readers import text_pairs
from seq2seq.data.tokenizer import Tokenizer, train_tokenizer
from seq2seq.settings.data import CleanSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.files import COMPRESSIONS

SIZES = ("small", "base", "big")
# Pieces of the synthetic batches' vocabulary, as in the published models.
SYNTHETIC_VOCAB = 32768
TRAIN = (
    "tatoeba-deu-eng/train",
    "multi30k/train",
    *(f"wmt-newstest-de-en/newstest{year}" for year in range(2008, 2013)),
)
TESTS = {
    "tatoeba": "tatoeba-deu-eng/test",
    "multi30k": "multi30k/test2016",
    "newstest2013": "wmt-newstest-de-en/newstest2013",
}
_LONGEST, _CUT = 120, 240  # maximum pieces of a training and of a test sentence


def prepare(corpora: Path, folder: Path, *, vocab_size: int, tiny: bool = False) -> dict[str, Any]:
    """Write training set, test sets, tokenizer and every model's settings to a folder, and return its description.

    Args:
        corpora: Folder of the folders named in TRAIN and TESTS with `.de` and `.en` files, which may be compressed.
        folder: The folder to write.
        vocab_size: Pieces of the joint vocabulary.
        tiny: Make models that are small enough for a test.

    Raises:
        ValueError: A file is missing.
    """
    pairs = _cleaned(corpora)
    settings = TokenizerSettings(vocab_size=vocab_size, type="bpe")
    tokenizer = train_tokenizer(src_lines=pairs[0], tgt_lines=pairs[1], settings=settings)
    folder.mkdir(parents=True, exist_ok=True)
    kept = _write_train(folder, pairs, tokenizer)
    tests = {name: _write_test(folder, name, corpora / place, tokenizer) for name, place in TESTS.items()}
    (folder / "tokenizer.model").write_bytes(tokenizer.to_state()["src_model"])
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
    description = {
        "pairs": kept,
        "tests": tests,
        "vocab_size": tokenizer.tgt_vocab_size,
        "ids": ids,
        "models": _models(tokenizer, tiny=tiny),
    }
    (folder / DATA_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return description


def _sides(prefix: Path) -> tuple[Path, Path]:
    paths = []
    for language in ("de", "en"):
        names = [prefix.with_name(f"{prefix.name}.{language}{suffix}") for suffix in ("", *COMPRESSIONS)]
        place = next((name for name in names if name.is_file()), None)
        if place is None:
            raise ValueError(
                f"there is no {names[0]} (nor {', '.join(COMPRESSIONS)}); give --corpora the folder of the corpora"
            )
        paths.append(place)
    return paths[0], paths[1]


def _cleaned(corpora: Path) -> tuple[list[str], list[str]]:
    clean, src, tgt = Cleaner(CleanSettings(), languages=("de", "en")), [], []
    for place in TRAIN:
        for block in text_pairs(*_sides(corpora / place)):
            left, right = clean(block)
            src += left
            tgt += right
    return src, tgt


def _write_train(folder: Path, pairs: tuple[list[str], list[str]], tokenizer: Tokenizer) -> int:
    src, tgt = Ragged.from_rows(tokenizer.encode_src(pairs[0])), Ragged.from_rows(tokenizer.encode_tgt(pairs[1]))
    rules = length_rules(src.lengths, tgt.lengths, settings=CleanSettings(max_length=_LONGEST), max_tokens=_LONGEST)
    kept = np.flatnonzero(~np.logical_or.reduce(list(rules.values())))
    _save(folder / "train.npz", src.select(kept), tgt.select(kept))
    return len(kept)


def _write_test(folder: Path, name: str, prefix: Path, tokenizer: Tokenizer) -> int:
    src, tgt = (list(side) for side in zip(*_lines(prefix), strict=True))
    # Lines longer than this are cut here; `translate` has a higher limit
    rows = [ids if len(ids) <= _CUT else [*ids[: _CUT - 1], tokenizer.eos_id] for ids in tokenizer.encode_src(src)]
    _save(folder / f"{name}.npz", Ragged.from_rows(rows), Ragged.from_rows(tokenizer.encode_tgt(tgt)))
    text = json.dumps({"sources": src, "references": tgt}, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return len(src)


def _lines(prefix: Path) -> Iterator[tuple[str, str]]:
    for block in text_pairs(*_sides(prefix)):
        yield from zip(*block, strict=True)


def _save(path: Path, src: Ragged, tgt: Ragged) -> None:
    arrays = {}
    for name, side in (("src", src), ("tgt", tgt)):
        rows = [side.row(i) for i in range(len(side.lengths))]
        # 16 bits suffice for these vocabularies, and halve the files
        arrays[f"{name}_ids"] = np.concatenate(rows).astype(np.uint16)
        arrays[f"{name}_lengths"] = side.lengths.astype(np.int32)
    np.savez_compressed(path, **arrays)


def _models(tokenizer: Tokenizer, *, tiny: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of every mixer and size; `small` has the data's vocabulary, the others the published one."""
    # Hydra is missing on the machine that runs the other parts of this benchmark
    from seq2seq.settings.compose import resolved_settings

    settings: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        shape = ["model=tiny", "model.dim=16", "model.ffn_dim=32"] if tiny else [f"model={size}"]
        vocab = tokenizer.tgt_vocab_size if size == "small" or tiny else SYNTHETIC_VOCAB
        sizes = {"src_vocab_size": vocab, "tgt_vocab_size": vocab, "pad_id": tokenizer.pad_id, "joint": True}
        for mixer in MIXERS:
            config = resolved_settings([f"mixer={mixer}", *shape])
            if tiny:
                _shallow(config)
            settings[f"{size}/{mixer}"] = {key: config[key] for key in ("model", "mixer", "optim")} | sizes
    return settings


def _shallow(config: dict[str, Any]) -> None:
    """Reduce a model to one layer a side, in place."""
    config["model"] |= {"encoder_layers": 1, "decoder_layers": 1}
    config["mixer"].pop("extra_encoder_layers", None)
    for slot in config["mixer"].values():
        if "per_layer" in slot:
            slot["per_layer"] = {key: values[:1] for key, values in slot["per_layer"].items()}
