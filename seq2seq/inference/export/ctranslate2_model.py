"""Export a plain Transformer for CTranslate2, a fast inference engine in C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.inference.export.agreement import Rows, require_agreement, specials
from seq2seq.inference.export.layouts import MODEL_TYPE
from seq2seq.inference.export.plain_transformer import (
    plain_weights,
    position_table,
    require_plain,
    vocabularies,
    write_piece_models,
)
from seq2seq.system.packages import require

_PURPOSE = "--format ctranslate2"
# Values of settings that CTranslate2 can express.
EXPRESSED = {"norm": ("pre", "post"), "src_positions": ("sinusoidal", "fairseq", "learned", "none")}
# GELU is the exact form, with the error function.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def write_ctranslate2(folder: Path, loaded: Loaded, *, positions: int | None, tags: list[int]) -> int:
    """Write the folder of a CTranslate2 model, compare it with ours, and return how many sentences agree.

    Raises:
        ValueError: CTranslate2 is missing, cannot express the model, or translates differently.
    """
    config = loaded.meta["model"]
    # Checked before the package is required: installing it would not help
    heads = require_plain(config, "CTranslate2", EXPRESSED)
    ctranslate2 = require("ctranslate2", _PURPOSE, extra="export")
    specs = require("ctranslate2.specs", _PURPOSE, extra="export")
    model = loaded.model
    tokenizer = loaded.tokenizer
    spec = specs.TransformerSpec.from_config(
        (len(model.encoder.layers), len(model.decoder.layers)),
        heads,
        pre_norm=config["model"]["norm"] == "pre",
        activation=getattr(specs.Activation, _ACTIVATIONS[config["model"]["activation"]]),
    )
    weights = plain_weights(model)
    for name, table in (("encoder", spec.encoder.embeddings[0]), ("decoder", spec.decoder.embeddings)):
        side = getattr(spec, name)
        embedding = getattr(model, name).embedding
        table.weight = _numbers(weights[f"{name}.embedding.table.weight"])
        side.scale_embeddings = embedding.scale != 1.0
        # A table, since CTranslate2's own formula has other rates
        side.position_encodings.encodings = _numbers(position_table(embedding))
        if f"{name}.norm.weight" in weights:
            _set(side.layer_norm, weights, f"{name}.norm")
        for number, layer in enumerate(side.layer):
            _set_layer(layer, weights, f"{name}.layers.{number}")
    _set(spec.decoder.projection, weights, "output")
    source, target = vocabularies(tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.add_source_eos = True
    spec.config.bos_token = spec.config.decoder_start_token = target[tokenizer.bos_id]
    spec.config.eos_token = target[tokenizer.eos_id]
    spec.config.unk_token = target[tokenizer.unk_id]
    # CTranslate2 ignores entries that it does not know
    spec.config.add_attribute("model_type", MODEL_TYPE)
    spec.validate()
    # Equal variables, such as tied embeddings, are stored once
    spec.optimize()
    spec.save(str(folder))
    write_piece_models(folder, tokenizer)
    # One thread is enough for a dozen short sentences
    engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    translate = _translate(engine, source, target, never=[target[token] for token in specials(tokenizer).never])
    return require_agreement(model, tokenizer, translate, what="CTranslate2", positions=positions, tags=tags)


def _set_layer(spec: Any, weights: Mapping[str, Tensor], layer: str) -> None:
    parts = {
        "mix.f.qkv": spec.self_attention.linear[0],
        "mix.f.out": spec.self_attention.linear[1],
        "mix.norm": spec.self_attention.layer_norm,
        "transform.f.up": spec.ffn.linear_0,
        "transform.f.down": spec.ffn.linear_1,
        "transform.norm": spec.ffn.layer_norm,
    }
    if f"{layer}.read.norm.weight" in weights:
        cross = spec.attention
        parts |= dict(zip(("read.f.query", "read.f.key_value", "read.f.out"), cross.linear, strict=True))
        parts["read.norm"] = cross.layer_norm
    for name, part in parts.items():
        _set(part, weights, f"{layer}.{name}")


def _set(spec: Any, weights: Mapping[str, Tensor], name: str) -> None:
    """Set the weights of a linear layer or a layer norm."""
    theirs = {"weight": "gamma", "bias": "beta"} if name.endswith("norm") else {"weight": "weight", "bias": "bias"}
    for kind, attribute in theirs.items():
        if f"{name}.{kind}" in weights:
            setattr(spec, attribute, _numbers(weights[f"{name}.{kind}"]))


def _numbers(weight: Tensor) -> Any:
    return weight.detach().float().contiguous().numpy()


def _translate(translator: Any, source: list[str], target: list[str], never: list[str]) -> Callable[[Rows, int], Rows]:
    ids = {piece: i for i, piece in enumerate(target)}

    def translate(rows: Rows, limit: int) -> Rows:
        results = translator.translate_batch(
            # CTranslate2 adds the last id, eos
            [[source[i] for i in row[:-1]] for row in rows],
            beam_size=1,
            # At most limit - 1 tokens and eos
            max_decoding_length=limit - 1,
            # CTranslate2's own default forbids an empty translation
            min_decoding_length=0,
            # Tokens that our search never chooses
            suppress_sequences=[[piece] for piece in never],
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return translate
