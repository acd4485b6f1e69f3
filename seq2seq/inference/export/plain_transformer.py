"""Recognize plain Transformers, which other programs can express, and describe their weights and vocabularies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.data.moses_bpe import MosesBpe
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import TOKENIZER_FILES
from seq2seq.inference.export.layouts import CODES
from seq2seq.network.embedding import Embedding
from seq2seq.network.make_mixer import layer_values
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.values import shown

# The mixer of a plain Transformer in each slot.
_ATTENTION = {
    "encoder": "seq2seq.mixers.attention.Attention",
    "decoder": "seq2seq.mixers.attention.Attention",
    "cross": "seq2seq.mixers.attention.CrossAttention",
}
# Parts of a layer by our names (see `plain_weights`), with their names in fairseq and Transformers.
LAYER = {
    "mix.norm": ("self_attn_layer_norm",),
    "mix.f.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mix.f.out": ("self_attn.out_proj",),
    "read.norm": ("encoder_attn_layer_norm",),
    "read.f.query": ("encoder_attn.q_proj",),
    "read.f.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "read.f.out": ("encoder_attn.out_proj",),
    "transform.norm": ("final_layer_norm",),
    "transform.f.up": ("fc1",),
    "transform.f.down": ("fc2",),
}
# Rows of the table of positions, if a model has no limit.
POSITIONS = 4096


class UnsupportedError(ValueError):
    """Error of a model that another program cannot express; the message names the settings."""


def require_plain(config: Mapping[str, Any], what: str, allowed: Mapping[str, tuple[str, ...]]) -> int:
    """Check that a model is a Transformer that another program can express, and return its number of heads.

    Args:
        config: The model's settings.
        what: The other program.
        allowed: The values that it can express, by setting of the section `model`.

    Raises:
        UnsupportedError: The other program cannot express the model; the message names every such setting.
    """
    model = config["model"]
    wrong = {
        "the source is images (tokenizer=patches)": config.get("patches"),
        "source words have factors (tokenizer.factors)": config.get("factors"),
        "model.decoder_layers is 0 (a classifier)": not model["decoder_layers"],
        "model.ffn_dim is 0": not model["ffn_dim"],
    }
    reasons = [*_wrong_mixers(config), *(reason for reason, holds in wrong.items() if holds)]
    # src_positions is null if both sides have the same kind of positions
    values = {**model, "src_positions": model.get("src_positions") or model["positions"]}
    choices = {"residual": (True,), "encoder_stages": (1,), **allowed}
    reasons += [f"model.{key} is {shown(values[key])}" for key in choices if values[key] not in choices[key]]
    if reasons:
        raise UnsupportedError(
            f"{what} cannot express this model: {'; '.join(reasons)}. --format huggingface takes "
            "any model (without MarianMT's files), --format onnx all that torch's exporter takes"
        )
    return next(int(values["num_heads"]) for _, values in _layers(config))


def _layers(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the slot and the settings of every mixer."""
    model = config["model"]
    mixer = config["mixer"]
    for slot in _ATTENTION:
        depth = model["decoder_layers"]
        if slot == "encoder":
            depth = model["encoder_layers"] + mixer.get("extra_encoder_layers", 0)
        for layer in range(depth):
            yield slot, layer_values(mixer.get(slot) or {}, layer, depth)


def _wrong_mixers(config: Mapping[str, Any]) -> list[str]:
    """Name the mixers that are not plain attention, each slot once."""
    reasons: dict[str, str] = {}
    heads = set()
    for slot, values in _layers(config):
        target = values.get("_target_", "none")
        heads.add(values.get("num_heads"))
        if target != _ATTENTION[slot]:
            reasons[slot] = f"mixer.{slot} is {target.rpartition('.')[2]}, not attention"
        elif values.get("weights", "softmax") != "softmax":
            reasons[slot] = f"mixer.{slot}.weights is {values['weights']}"
        elif values.get("rotary"):
            reasons[slot] = f"mixer.{slot}.rotary is true"
        elif values.get("num_kv_heads") not in (None, values.get("num_heads")):
            reasons[slot] = f"mixer.{slot}.num_kv_heads is {values['num_kv_heads']}"
    if not reasons and len(heads) > 1:
        reasons["heads"] = f"its layers have different numbers of heads ({', '.join(map(str, sorted(heads)))})"
    return list(reasons.values())


def position_table(embedding: Embedding) -> Tensor:
    """Return the positions that an embedding adds, (positions, D); the first POSITIONS if there is no limit."""
    weight: Any = embedding.table.weight
    if embedding.positions is None:
        return torch.zeros(POSITIONS, weight.shape[1])
    learned = getattr(embedding.positions, "table", None)
    count = POSITIONS if learned is None else learned.num_embeddings
    with torch.no_grad():
        return embedding.positions(torch.arange(count)).float()


def halves_order(dim: int) -> Tensor:
    """Return the order of channels, (dim,), in which sinusoidal positions have all sines before all cosines."""
    return torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])


def in_order(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Reorder the residual stream of a plain Transformer: channel c is channel order[c] of the given weights, (D,).

    Every layer reads and writes in this order, so the model computes the same. Tied weights stay one tensor.
    """
    # Weights that read the stream have its channels in their columns; weights that write it, in their rows. The
    # key_value of cross-attention reads the encoder's output, which is a stream as well
    reads = (".qkv.weight", ".query.weight", ".key_value.weight", ".up.weight", ".table.weight", "output.weight")
    writes = (".out.weight", ".down.weight", ".down.bias", ".out.bias", "norm.weight", "norm.bias")
    # A weight by its memory, so that tied weights stay one
    done: dict[int, Tensor] = {}
    ordered = {}
    for name, weight in weights.items():
        if name.endswith(reads):
            weight = done.setdefault(weight.data_ptr(), weight[:, order])
        elif name.endswith(writes):
            weight = weight[order]
        ordered[name] = weight
    return ordered


def plain_weights(model: Seq2Seq, order: Tensor | None = None) -> dict[str, Tensor]:
    """Return the weights of a plain Transformer by names that do not depend on the place of the norms.

    A layer has mix.f.qkv, mix.f.out, mix.norm, transform.f.up, transform.f.down, transform.norm, and in the decoder
    read.f.query, read.f.key_value, read.f.out, read.norm. Attention with biases has a bias of all its projections, zero
    for keys.

    Args:
        order: See `in_order`.
    """
    own = model.state_dict() if order is None else in_order(model.state_dict(), order)
    weights = {re.sub(r"\.(pre|post)_norm\.", ".norm.", name): weight for name, weight in own.items()}
    for name in [name for name in weights if name.endswith(".value_bias")]:
        prefix = name.removesuffix("value_bias")
        value = weights.pop(name)
        # Keys have no biases
        parts = [torch.zeros_like(value), value]
        if f"{prefix}query_bias" in weights:
            weights[f"{prefix}qkv.bias"] = torch.cat([weights.pop(f"{prefix}query_bias"), *parts])
        else:
            weights[f"{prefix}key_value.bias"] = torch.cat(parts)
    return weights


def vocabularies(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the pieces of source and target by their ids, as the tools that cut text spell them.

    Special ids without a piece get a name.
    """
    names = {tokenizer.pad_id: "<pad>", tokenizer.bos_id: "<s>", tokenizer.eos_id: "</s>"}
    sides = []
    for model, size in ((tokenizer.src, tokenizer.src_vocab_size), (tokenizer.tgt, tokenizer.tgt_vocab_size)):
        spelled = model.symbols.__getitem__ if isinstance(model, MosesBpe) else model.id_to_piece
        pieces = [spelled(i) for i in range(model.get_piece_size())]
        # After the model's pieces come special ids and, on the smaller side, unused ids
        sides.append([*pieces, *(names.get(i, f"<unused {i}>") for i in range(len(pieces), size))])
    return sides[0], sides[1]


def write_piece_models(folder: Path, tokenizer: Tokenizer) -> None:
    """Write a SentencePiece model for each side, the same for both if there is one, or the codes of BPE."""
    if isinstance(tokenizer.src, MosesBpe):
        (folder / CODES).write_text(tokenizer.src.codes(), encoding="utf-8")
        return
    state = tokenizer.to_state()
    for key, file in TOKENIZER_FILES.items():
        (folder / file).write_bytes(state.get(key) or state["src_model"])
