"""Export a plain Transformer as Hugging Face's MarianMTModel, with the files of its tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.data.languages import language_tag, tagged_languages, tags_of
from seq2seq.data.moses_bpe import MosesBpe
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.agreement import Rows, drawn_sources, require_agreement, specials
from seq2seq.inference.export.plain_transformer import (
    LAYER,
    UnsupportedError,
    halves_order,
    plain_weights,
    require_plain,
    vocabularies,
    write_piece_models,
)
from seq2seq.metadata import search_settings
from seq2seq.system.files import write_json
from seq2seq.system.packages import require

# Rows of Marian's table of positions; a larger table makes loading slower.
_POSITIONS = 1024
# Values of settings that Marian can express.
EXPRESSED = {"norm": ("post",), "positions": ("sinusoidal",), "src_positions": ("sinusoidal",)}


def write_marian(folder: Path, loaded: Loaded) -> int:
    """Write a folder for MarianMTModel and MarianTokenizer, compare it with ours, and return how many sentences agree.

    Raises:
        UnsupportedError: Marian cannot express the model.
        ValueError: Transformers is missing, or the model translates differently.
    """
    heads = require_plain(loaded.meta["model"], "MarianMTModel", EXPRESSED)
    tokenizer = loaded.tokenizer
    if isinstance(tokenizer.src, MosesBpe):
        raise UnsupportedError("MarianTokenizer reads SentencePiece models, and this tokenizer is of Moses and BPE")
    transformers = require("transformers", "MarianMTModel", extra="export")
    model = transformers.MarianMTModel(_config(transformers, loaded, heads)).eval()
    weights = _weights(loaded)
    # Marian computes its tables of positions, and has no `shared` if source and target have different tables
    known = [name for name in model.state_dict() if "embed_positions" not in name]
    model.load_state_dict({name: weights[name] for name in known}, strict=False)
    model.generation_config = _generation(transformers, loaded)
    model.save_pretrained(folder)
    _write_tokenizer(transformers, folder, loaded)
    # Read back, to compare the files and not the model in memory
    written = transformers.MarianMTModel.from_pretrained(folder).eval()
    _require_ids(transformers.MarianTokenizer.from_pretrained(folder), loaded)
    tags = tags_of(loaded.meta, tokenizer).source
    return require_agreement(loaded.model, tokenizer, _translate(written, tokenizer), what="MarianMTModel", tags=tags)


def _config(transformers: Any, loaded: Loaded, heads: int) -> Any:
    settings = loaded.meta["model"]["model"]
    model, tokenizer = loaded.model, loaded.tokenizer
    sides = {}
    for side, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder.layers)):
        sides |= {
            f"{side}_layers": len(layers),
            f"{side}_attention_heads": heads,
            f"{side}_ffn_dim": settings["ffn_dim"],
        }
    return transformers.MarianConfig(
        **sides,
        vocab_size=tokenizer.src_vocab_size,
        decoder_vocab_size=tokenizer.tgt_vocab_size,
        d_model=settings["dim"],
        activation_function=settings["activation"],
        dropout=settings["dropout"],
        activation_dropout=settings["activation_dropout"],
        attention_dropout=settings.get("attention_dropout", 0.0),
        scale_embedding=settings["scale_embedding"],
        max_position_embeddings=_POSITIONS,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        # The targets of Marian's own models begin with pad
        decoder_start_token_id=tokenizer.bos_id,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=settings["tie"] == "all",
        tie_word_embeddings=settings["tie"] != "none",
    )


def _generation(transformers: Any, loaded: Loaded) -> Any:
    """Return the settings of `generate` that are closest to our search settings."""
    search = search_settings(loaded.meta)
    tokenizer = loaded.tokenizer
    return transformers.GenerationConfig(
        num_beams=search.beam_size,
        length_penalty=search.length_penalty,
        max_length=_POSITIONS // 2,
        min_new_tokens=search.min_len or None,
        no_repeat_ngram_size=search.no_repeat_ngram or None,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        decoder_start_token_id=tokenizer.bos_id,
        # Tokens that our search never chooses
        suppress_tokens=specials(tokenizer).never,
    )


def _weights(loaded: Loaded) -> dict[str, Tensor]:
    """Return the weights by Marian's names."""
    # Our sines and cosines alternate, Marian's sines come first: the whole residual stream gets Marian's order
    ours = plain_weights(loaded.model, halves_order(loaded.meta["model"]["model"]["dim"]))
    weights = {
        "model.shared.weight": ours["encoder.embedding.table.weight"],
        "model.encoder.embed_tokens.weight": ours["encoder.embedding.table.weight"],
        "model.decoder.embed_tokens.weight": ours["decoder.embedding.table.weight"],
        "lm_head.weight": ours["output.weight"],
        "final_logits_bias": ours.get("output.bias", torch.zeros(len(ours["output.weight"])))[None],
    }
    for side, stack in (("encoder", loaded.model.encoder.layers), ("decoder", loaded.model.decoder.layers)):
        for layer in (f"{side}.layers.{number}" for number in range(len(stack))):
            for name, parts in LAYER.items():
                weight = ours.get(f"{layer}.{name}.weight")
                # An encoder reads no source
                if weight is None:
                    continue
                bias = ours.get(f"{layer}.{name}.bias", torch.zeros(len(weight)))
                for part, one, other in zip(parts, weight.chunk(len(parts)), bias.chunk(len(parts)), strict=True):
                    weights |= {f"model.{layer}.{part}.weight": one, f"model.{layer}.{part}.bias": other}
    return weights


def _write_tokenizer(transformers: Any, folder: Path, loaded: Loaded) -> None:
    tokenizer = loaded.tokenizer
    write_piece_models(folder, tokenizer)
    source, target = vocabularies(tokenizer)
    tags = {language_tag(language): f">>{language}<<" for language in tagged_languages(loaded.meta)}
    source, target = ([tags.get(piece, piece) for piece in side] for side in (source, target))
    files = {"vocab": source} if tokenizer.joint else {"vocab": source, "target_vocab": target}
    for name, pieces in files.items():
        write_json(folder / f"{name}.json", {piece: i for i, piece in enumerate(pieces)})
    special = {f"{name}_token": target[getattr(tokenizer, f"{name}_id")] for name in ("unk", "eos", "pad")}
    transformers.MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
        target_vocab_file=None if tokenizer.joint else str(folder / "target_vocab.json"),
        source_lang=loaded.meta["src_lang"],
        target_lang=loaded.meta["tgt_lang"],
        model_max_length=_POSITIONS,
        separate_vocabs=not tokenizer.joint,
        **special,
    ).save_pretrained(folder)


def _require_ids(theirs: Any, loaded: Loaded) -> None:
    """Raise ValueError unless both tokenizers cut the same text into the same ids."""
    ours = loaded.tokenizer
    tags = tags_of(loaded.meta, ours).source
    start = f">>{loaded.meta['tgt_lang']}<<" if tags else ""
    lines = [ours.src.decode(row[:-1]) for row in drawn_sources(ours)]
    for line, ids in zip(lines, ours.encode_src(lines), strict=True):
        if (found := theirs(start + line)["input_ids"]) != (ids := [*tags, *ids]):
            raise ValueError(
                f"MarianTokenizer does not cut text as this model's tokenizer does, and was not written: of {line!r} "
                f"it makes {found}, not {ids}; please report this"
            )


def _translate(model: Any, tokenizer: Tokenizer) -> Callable[[Rows, int], Rows]:
    @torch.inference_mode()
    def translate(rows: Rows, limit: int) -> Rows:
        # At most limit - 1 tokens and eos, without the rules of the run's search
        options = {"num_beams": 1, "do_sample": False, "max_length": None, "max_new_tokens": limit - 1}
        options |= {"min_new_tokens": 0, "no_repeat_ngram_size": 0}
        # One sentence at a time, like our search
        found = [model.generate(torch.tensor([row]), **options)[0].tolist()[1:] for row in rows]
        return [list(itertools.takewhile(lambda i: i != tokenizer.eos_id, ids)) for ids in found]

    return translate
