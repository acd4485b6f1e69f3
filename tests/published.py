"""Folders of published models, with random weights, as their own programs write them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece as spm
import tiny
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

# A piece that the vocabulary lacks, and one that it has
RARE = "▁schnell"
CONTROLS = "\x1b\u202e"


def piece_model(lines: Sequence[str], size: int, **options: Any) -> bytes:
    """Train a SentencePiece model with its own default ids, as Marian's users do."""
    model = io.BytesIO()
    given = {"vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2, **options}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **given)
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """The pieces of a SentencePiece model by their ids."""
    processor = spm.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def teach(model: Any, pairs: Sequence[tuple[list[int], list[int]]], *, pad: int, start: int, steps: int) -> None:
    """Draw biases and norms, then train a model a little: translations of random weights repeat one token."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "embed_positions" not in name:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
                parameter[pad if len(parameter) > pad else slice(0)] = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = [pairs[(step * 16 + i) % len(pairs)] for i in range(16)]
        src, out = (pad_sequence([torch.tensor(pair[side]) for pair in batch], True, pad) for side in (0, 1))
        given = torch.cat([torch.full_like(out[:, :1], start), out[:, :-1]], 1)
        logits = model(input_ids=src, attention_mask=(src != pad).long(), decoder_input_ids=given).logits
        F.cross_entropy(logits.flatten(0, 1), out.flatten(), ignore_index=pad).backward()
        optimizer.step()
        optimizer.zero_grad()


def write_marian(
    folder: Path, lines: Sequence[str], *, size: int = 60, steps: int = 100, tags: Sequence[str] = (), **config: Any
) -> Any:
    """Write a folder of a MarianMTModel with a vocabulary in Marian's order, and return its model.

    The vocabulary lacks the piece RARE, as one that was counted on a corpus may.
    """
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir()
    others = translated(lines)
    models = {"source": piece_model(lines, size), "target": piece_model(others, size)}
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    both = dict.fromkeys([*pieces_of(models["target"])[3:], *pieces_of(models["source"])[3:]])
    kept = [piece for piece in both if piece != RARE]
    names = ["</s>", "<unk>", *kept, CONTROLS, *(f">>{tag}<<" for tag in tags), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    pad = len(names) - 1
    layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 48))}
    heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    special = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0}
    form = {"activation_function": "swish", "scale_embedding": True, "static_position_embeddings": True}
    torch.manual_seed(0)
    settings = {"vocab_size": len(names), "d_model": 32, **layers, **heads, **special, **form, **config}
    model = MarianMTModel(MarianConfig(**settings)).eval()
    model.final_logits_bias.normal_(std=0.3)
    files: dict[str, Any] = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    files = {key: str(folder / name) for key, name in files.items()}
    languages: dict[str, Any] = {"source_lang": "de", "target_lang": "en"}
    tokenizer = MarianTokenizer(**files, **languages)
    tokenizer.save_pretrained(folder)
    rows = [
        (tokenizer(a)["input_ids"], tokenizer(text_target=b)["input_ids"]) for a, b in zip(lines, others, strict=True)
    ]
    teach(model, rows, pad=pad, start=pad, steps=steps)
    model.save_pretrained(folder)
    return model


def translated(lines: Sequence[str]) -> list[str]:
    """Translate sentences of `tiny.GERMAN` word by word."""
    words = {word: tiny.ENGLISH[i % len(tiny.ENGLISH)] for i, word in enumerate(tiny.GERMAN)}
    return [" ".join(words[word] for word in line.removesuffix(".").split()) + "." for line in lines]


def write_m2m100(folder: Path, lines: Sequence[str], *, nllb: bool, size: int = 110, steps: int = 100) -> Any:
    """Write a folder of an M2M100ForConditionalGeneration, and return its model.

    Args:
        nllb: Its tokenizer is an NllbTokenizer with the languages deu_Latn, eng_Latn and zho_Hans, as Transformers 5
            writes it: without a SentencePiece model. Else it is an M2M100Tokenizer with its 100 languages.
            Skips the test under Transformers 4.
    """
    pytest.importorskip("transformers", minversion="5" if nllb else None)
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer, NllbTokenizer

    folder.mkdir()
    others = translated(lines)
    model = piece_model([*lines, *others], size, model_type="bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    if nllb:
        about = {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": ["deu_Latn", "eng_Latn", "zho_Hans"]}
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
        tokenizer = NllbTokenizer.from_pretrained(folder, src_lang="deu_Latn", tgt_lang="eng_Latn")
        (folder / "sentencepiece.bpe.model").unlink()
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)[3:]]
        (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
        files = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
        tokenizer = M2M100Tokenizer(*files, src_lang="de", tgt_lang="en")
    tokenizer.save_pretrained(folder)
    rows = [
        (tokenizer(a)["input_ids"], tokenizer(text_target=b)["input_ids"]) for a, b in zip(lines, others, strict=True)
    ]
    form: dict[str, Any] = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 48))
    }
    form |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    torch.manual_seed(0)
    # Rows after the tokens, as in the published tables
    config = M2M100Config(vocab_size=len(tokenizer) + (3 if nllb else 108), d_model=32, **form)
    made = M2M100ForConditionalGeneration(config).eval()
    teach(made, rows, pad=1, start=2, steps=steps)
    made.save_pretrained(folder)
    return made
