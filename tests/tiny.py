"""A checkpoint with random weights and a tokenizer of a few hundred pieces, for tests that need the whole file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from seq2seq import checkpoint
from seq2seq.data.tokenizer import Tokenizer, train_tokenizer
from seq2seq.metadata import describe
from seq2seq.network.build import build_model
from seq2seq.search import Hypothesis
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings

GERMAN = ["der", "die", "das", "Haus", "Katze", "Hund", "geht", "kommt", "schnell", "ein", "und", "ich", "du", "nicht"]
ENGLISH = ["the", "house", "cat", "dog", "walks", "comes", "quickly", "a", "and", "I", "you", "not", "today"]


def sentences(words: list[str], count: int, seed: int = 0, longest: int = 12) -> list[str]:
    """Draw random sentences of `words`."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(3, longest))) + "." for _ in range(count)]


def tokenizer(**settings: Any) -> Tokenizer:
    """Train a tokenizer, which takes some milliseconds."""
    given = TokenizerSettings(**{"vocab_size": 300, **settings})
    return train_tokenizer(src_lines=sentences(GERMAN, 200), tgt_lines=sentences(ENGLISH, 200), settings=given)


def model_config(t: Tokenizer, *, mixer: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """Settings for `build_model`: by default one attention layer per side and width 16."""
    attention = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    sizes = {"dim": 16, "ffn_dim": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_len": 64}
    kind = {"norm": "pre", "residual": True, "activation": "relu", "positions": "sinusoidal", "tie": "all"}
    rest = {"scale_embedding": True, "dropout": 0.1, "activation_dropout": 0.0, "encoder_stages": 1}
    return {
        "model": {**sizes, **kind, **rest, **model},
        "mixer": mixer or {"encoder": attention, "decoder": dict(attention), "cross": cross},
        **t.sizes,
    }


def failing_search(*_: object, **__: object) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
    """A `search_stream` that fails before its first result."""
    yield from ()
    raise RuntimeError("a kernel failed")


def payload(
    seed: int = 0, *, t: Tokenizer | None = None, search: SearchSettings | None = None, **model: Any
) -> checkpoint.Stored:
    """A checkpoint's content."""
    t = t or tokenizer()
    config = model_config(t, **model)
    torch.manual_seed(seed)
    built = build_model(config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(2.0)  # sharper than at the start: translations differ from line to line
    entry = describe(
        model_config=config, tokenizer=t, src_lang="de", tgt_lang="en", tokenize="13a", data="phrasebook", search=search
    )
    return checkpoint.Stored(entry, {k: v.clone() for k, v in checkpoint.stored_once(built.state_dict()).items()})


def save(folder: Path, *, search: SearchSettings | None = None, **model: Any) -> Path:
    """Write a tiny checkpoint and return its path."""
    path = folder / "tiny.safetensors"
    checkpoint.save(path, payload(search=search, **model))
    return path
