"""Export a plain Transformer as Hugging Face's MarianMTModel, with the files of its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.data.languages import target_tags
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import TOKENIZER_FILES
from seq2seq.inference.export.agreement import DisagreementError, Rows, drawn_sources, require_agreement
from seq2seq.inference.export.ctranslate2_model import vocabularies
from seq2seq.inference.export.plain_transformer import (
    UnsupportedError,
    halves_order,
    require_plain,
    stream_weights,
)
from seq2seq.metadata import search_settings
from seq2seq.system.files import write_json
from seq2seq.system.packages import require

# Positions that Marian's table has; it is computed in Python whenever a model is loaded.
_POSITIONS = 1024
# Values of settings that it can express.
EXPRESSED = {"norm": ("post",), "positions": ("sinusoidal",), "src_positions": ("sinusoidal",)}


def require_marian(loaded: Loaded) -> int:
    """Check that Marian can express a model, and return its number of heads.

    Raises:
        UnsupportedError: It cannot.
    """
    config = loaded.meta["model"]
    heads = require_plain(config, "MarianMTModel", EXPRESSED)
    if target_tags(loaded.meta, loaded.tokenizer):
        raise UnsupportedError("MarianMTModel cannot express this model: its sources begin with a tag of a language")
    return heads


def write_marian(folder: Path, loaded: Loaded) -> int:
    """Write a folder for MarianMTModel and MarianTokenizer, compare it with ours, and return how many sentences agree.

    Raises:
        ValueError: Transformers is missing, Marian cannot express the model, or it translates otherwise.
    """
    heads = require_marian(loaded)
    transformers = require("transformers", "MarianMTModel", extra="export")
    tokenizer = loaded.tokenizer
    model = transformers.MarianMTModel(_config(transformers, loaded, heads)).eval()
    _load(model, marian_weights(loaded))
    model.generation_config = _generation(transformers, loaded)
    model.save_pretrained(folder)
    _write_tokenizer(transformers, folder, loaded)
    # Read back: what is compared is what will be used
    written = transformers.MarianMTModel.from_pretrained(folder).eval()
    _require_ids(transformers.MarianTokenizer.from_pretrained(folder), tokenizer)
    return require_agreement(loaded.model, tokenizer, _translate(written, tokenizer), what="MarianMTModel")


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
        # Not pad, with which the models of Marian itself begin
        decoder_start_token_id=tokenizer.bos_id,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=settings["tie"] == "all",
        tie_word_embeddings=settings["tie"] != "none",
    )


def _generation(transformers: Any, loaded: Loaded) -> Any:
    """Return the settings of `generate` that are nearest to our search's."""
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
        # What our search never draws
        suppress_tokens=[tokenizer.pad_id, tokenizer.bos_id],
    )


def marian_weights(loaded: Loaded) -> dict[str, Tensor]:
    """Return the weights by Marian's names; its sines come before its cosines, and every projection has a bias."""
    # In ours sines and cosines alternate: the channels of the whole stream are put in Marian's order
    ours = stream_weights(loaded.model, halves_order(loaded.meta["model"]["model"]["dim"]))
    tables = {side: ours[f"{side}.embedding.table.weight"] for side in ("encoder", "decoder")}
    weights = {
        "model.shared.weight": tables["encoder"],
        "model.encoder.embed_tokens.weight": tables["encoder"],
        "model.decoder.embed_tokens.weight": tables["decoder"],
        "lm_head.weight": ours["output.weight"],
        "final_logits_bias": ours.get("output.bias", torch.zeros(len(ours["output.weight"])))[None],
    }
    for side, stack in (("encoder", loaded.model.encoder.layers), ("decoder", loaded.model.decoder.layers)):
        for number in range(len(stack)):
            layer = f"{side}.layers.{number}"
            mine = {name.removeprefix(f"{layer}."): part for name, part in ours.items() if name.startswith(f"{layer}.")}
            weights |= {f"model.{layer}.{name}": part for name, part in _layer(mine).items()}
    return weights


def _layer(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of one layer by Marian's names."""
    parts = dict(zip("qkv", ours["mix.f.qkv.weight"].chunk(3), strict=True))
    weights = _attention("self_attn", parts, ours["mix.f.out.weight"])
    norms = {"self_attn_layer_norm": "mix", "final_layer_norm": "transform"}
    if "read.f.query.weight" in ours:
        key, value = ours["read.f.key_value.weight"].chunk(2)
        parts = {"q": ours["read.f.query.weight"], "k": key, "v": value}
        weights |= _attention("encoder_attn", parts, ours["read.f.out.weight"])
        norms["encoder_attn_layer_norm"] = "read"
    for theirs, name in (("fc1", "up"), ("fc2", "down")):
        weights |= {f"{theirs}.{kind}": ours[f"transform.f.{name}.{kind}"] for kind in ("weight", "bias")}
    for theirs, name in norms.items():
        weights |= {f"{theirs}.{kind}": ours[f"{name}.post_norm.{kind}"] for kind in ("weight", "bias")}
    return weights


def _attention(name: str, parts: dict[str, Tensor], out: Tensor) -> dict[str, Tensor]:
    weights = {}
    for part, weight in (*parts.items(), ("out", out)):
        weights[f"{name}.{part}_proj.weight"] = weight
        # Ours has none
        weights[f"{name}.{part}_proj.bias"] = torch.zeros(len(weight))
    return weights


def _load(model: Any, weights: dict[str, Tensor]) -> None:
    known = model.state_dict()
    # Where source and target have different tables there is no `shared`
    model.load_state_dict({name: part for name, part in weights.items() if name in known}, strict=False)
    # The tables of positions are Marian's own
    missing = [name for name in known if name not in weights and "embed_positions" not in name]
    assert not missing, missing


def _write_tokenizer(transformers: Any, folder: Path, loaded: Loaded) -> None:
    tokenizer = loaded.tokenizer
    state = tokenizer.to_state()
    for key, file in TOKENIZER_FILES.items():
        (folder / file).write_bytes(state.get(key) or state["src_model"])
    source, target = vocabularies(tokenizer)
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


def _require_ids(theirs: Any, ours: Tokenizer) -> None:
    """Check that both tokenizers cut the same text into the same ids."""
    lines = [ours.src.decode(row[:-1]) for row in drawn_sources(ours)]
    for line, ids in zip(lines, ours.encode_src(lines), strict=True):
        if (found := theirs(line)["input_ids"]) != ids:
            raise DisagreementError(
                f"MarianTokenizer does not cut text as this model's tokenizer does, and was not written: of {line!r} "
                f"it makes {found}, not {ids}; please report this"
            )


def _translate(model: Any, tokenizer: Tokenizer) -> Any:
    @torch.inference_mode()
    def translate(rows: Rows, limit: int) -> Rows:
        # At most limit - 1 tokens and eos; one sentence at a time, as ours
        options = {"num_beams": 1, "do_sample": False, "max_length": None, "max_new_tokens": limit - 1}
        # Of the search, not of what the model computes
        options |= {"min_new_tokens": 0, "no_repeat_ngram_size": 0}
        found = [model.generate(torch.tensor([row]), **options)[0].tolist()[1:] for row in rows]
        return [_until(ids, tokenizer.eos_id) for ids in found]

    return translate


def _until(ids: Sequence[int], eos: int) -> list[int]:
    return list(ids[: ids.index(eos)]) if eos in ids else list(ids)
