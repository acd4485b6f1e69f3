"""A plain dictionary becomes a Seq2Seq; no Hydra here, so a checkpoint needs none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from seq2seq.embedding import Embedding, GridPositions, PatchProjection, make_positions, make_table
from seq2seq.mixer import CrossMixer, SelfMixer, require_probability
from seq2seq.model import NORMS, Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, Seq2Seq

TIES = ("all", "target", "none")


class TargetError(ValueError):
    """A `_target_` that is not a mixer of this package or of a package that the user trusts."""


def build_model(config: Mapping[str, Any], *, trust: Sequence[str] = ()) -> Seq2Seq:
    """The model of {"model", "mixer", "src_vocab_size", "tgt_vocab_size", "pad_id", "joint"}.

    `model` and `mixer` are the sections of the same name in conf/, resolved; where the source is pictures there is also
    "patches": {"height", "width", "size", "bits"} (see pictures.PatchGrid). `trust` names packages, besides this one,
    whose mixers may be built. Bad values are ValueErrors (TargetError for a forbidden `_target_`).
    """
    model = config["model"]
    _check_model(model)
    extra = config["mixer"].get("extra_encoder_layers", 0)
    depth = model["encoder_layers"] + extra
    if depth < 1:
        raise ValueError(
            f"mixer.extra_encoder_layers {extra} leaves {depth} encoder layers; raise it by {1 - depth} or more"
        )
    src_table, tgt_table = _tables(config)
    encoder = Encoder(
        embedding=_embedding(model, src_table, _source_positions(config)),
        layers=_encoder_layers(config, depth, trust),
        final_norm=model["norm"] == "pre",
    )
    memory_dim = encoder.layers[-1].out_dim
    assert isinstance(memory_dim, int)
    layers = _decoder_layers(config, memory_dim, trust)
    decoder = Decoder(
        embedding=_embedding(model, tgt_table, _positions(model, "positions")),
        layers=layers,
        final_norm=model["norm"] == "pre",
    )
    return Seq2Seq(encoder=encoder, decoder=decoder, output=_output(model, tgt_table, layers[-1].out_dim))


def resolve(target: str, contract: type[nn.Module], *, trust: Sequence[str] = ()) -> type[nn.Module]:
    """The class named by dotted path `target`, which must subclass `contract` and be defined in a trusted package."""
    packages = ("seq2seq", *trust)
    allowed = f"allowed are mixers defined in {', '.join(packages)} (name further packages to trust explicitly)"
    module_name, _, name = str(target).rpartition(".")
    if module_name.split(".")[0] not in packages:
        raise TargetError(f"_target_ {target!r} is not trusted; {allowed}")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise TargetError(f"_target_ {target!r} cannot be imported ({error}); {allowed}") from None
    if not isinstance(found, type) or found.__module__.split(".")[0] not in packages:
        raise TargetError(f"_target_ {target!r} is no class of a trusted package; {allowed}")
    if not issubclass(found, contract) or found is contract:
        raise TargetError(f"_target_ {target!r} is no {contract.__name__}; {allowed}")
    return found


def bounds(config: Mapping[str, Any]) -> dict[str, int]:
    """The settings that bound the length of a sequence on either side, and their values.

    Learned positions have model.max_len; a mixer of bounded length says so by its own setting of that name.
    """
    model = config["model"]
    learned = "learned" in (model["positions"], model.get("src_positions"))
    found = {"model.max_len": model["max_len"]} if learned else {}
    parts: list[tuple[str, Any]] = [("mixer", config["mixer"])]
    while parts:
        path, part = parts.pop()
        parts += [(f"{path}.{key}", value) for key, value in part.items() if isinstance(value, Mapping)]
        value = part.get("max_len")
        if value is not None:
            found[f"{path}.max_len"] = min(value) if isinstance(value, list | tuple) else value  # a list: per_layer
    return found


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that the model of `config` can take on either side; None where there is no limit."""
    return min(bounds(config).values(), default=None)


def layer_values(slot: Mapping[str, Any], layer: int, num_layers: int) -> dict[str, Any]:
    """One layer's own target and arguments from a slot of the mixer section.

    A `pattern` names which of `kinds` each layer is, from the bottom, and starts over where it ends; `per_layer` lists
    give one value per layer and repeat their last entry. A list longer than the stack is a ValueError.
    """
    if "kinds" in slot:
        _entry(slot["pattern"], layer, num_layers, "pattern")
        kind = slot["pattern"][layer % len(slot["pattern"])]
        if kind not in slot["kinds"]:
            raise ValueError(f"pattern names {kind!r}, but the kinds are {', '.join(slot['kinds'])}")
        return layer_values(slot["kinds"][kind], layer, num_layers)
    values = {key: value for key, value in slot.items() if key != "per_layer"}
    for key, entries in (slot.get("per_layer") or {}).items():
        values[key] = _entry(entries, layer, num_layers, f"per_layer.{key}")
    return values


def _entry(entries: Any, layer: int, num_layers: int, name: str) -> Any:
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(f"{name} must be a list of one value per layer, not {entries!r}")
    if len(entries) > num_layers:
        raise ValueError(
            f"{name} lists {len(entries)} values for {num_layers} layers: {list(entries)}; "
            f"shorten it to at most {num_layers} (a shorter list is continued), or add layers"
        )
    return entries[min(layer, len(entries) - 1)]


def _make(contract: type[nn.Module], slot: Mapping[str, Any], where: str, trust: Sequence[str], **given: Any) -> Any:
    values = dict(slot)
    if "_target_" not in values:
        raise ValueError(f"mixer.{where} has no _target_: {values}")
    target = values.pop("_target_")
    found = resolve(target, contract, trust=trust)
    try:
        return found(**given, **values)
    except TypeError as error:
        raise ValueError(f"mixer.{where}: {target} does not take these settings: {error}") from error
    except ValueError as error:
        raise ValueError(f"mixer.{where}: {error}") from error


def build_self_mixer(
    values: Mapping[str, Any], *, dim: int, causal: bool, where: str = "encoder", trust: Sequence[str] = ()
) -> SelfMixer:
    """One self mixer from one layer's target and arguments; `where` it stands is told in errors (ValueError)."""
    return _make(SelfMixer, values, where, trust, dim=dim, causal=causal)


def _self_mixer(config: Mapping[str, Any], where: str, layer: int, depth: int, dim: int, trust: Sequence[str]) -> Any:
    slot = config["mixer"].get(where)
    if not slot:
        return None
    values = layer_values(slot, layer, depth)
    patches = config.get("patches")
    if patches and where == "encoder" and values.get("grid_width", 0) is None:
        values["grid_width"] = _columns(patches)
    return build_self_mixer(values, dim=dim, causal=where == "decoder", where=where, trust=trust)


def _feed_forward(model: Mapping[str, Any], dim: int) -> FeedForward | None:
    if not model["ffn_dim"]:
        return None
    return FeedForward(
        dim=dim, ffn_dim=model["ffn_dim"], activation=model["activation"], dropout=model["activation_dropout"]
    )


def _encoder_layers(config: Mapping[str, Any], depth: int, trust: Sequence[str]) -> list[EncoderLayer]:
    model, layers = config["model"], []
    dim = model["dim"]
    for layer in range(depth):
        mixer = _self_mixer(config, "encoder", layer, depth, dim, trust)
        width = dim if mixer is None else mixer.out_dim
        layers.append(
            EncoderLayer(dim=dim, self_mixer=mixer, feed_forward=_feed_forward(model, width), **_around(model))
        )
        dim = width
    return layers


def _decoder_layers(config: Mapping[str, Any], memory_dim: int, trust: Sequence[str]) -> list[DecoderLayer]:
    model, layers = config["model"], []
    dim, depth = model["dim"], model["decoder_layers"]
    if not config["mixer"].get("cross"):
        raise ValueError("mixer.cross is empty, but a decoder must read the source; set e.g. mixer/cross=attention")
    for layer in range(depth):
        own = _self_mixer(config, "decoder", layer, depth, dim, trust)
        width = dim if own is None else own.out_dim
        values = layer_values(config["mixer"]["cross"], layer, depth)
        cross = _make(CrossMixer, values, "cross", trust, dim=width, memory_dim=memory_dim)
        ffn = _feed_forward(model, cross.out_dim)
        layers.append(DecoderLayer(dim=dim, self_mixer=own, cross_mixer=cross, feed_forward=ffn, **_around(model)))
        dim = cross.out_dim
    return layers


def _around(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"norm": model["norm"], "dropout": model["dropout"], "residual": model["residual"]}


def _tables(config: Mapping[str, Any]) -> tuple[nn.Embedding | PatchProjection, nn.Embedding]:
    model, dim = config["model"], config["model"]["dim"]
    if patches := config.get("patches"):
        if model["tie"] == "all":
            raise ValueError("model.tie=all: a picture has no table to share with the target; set model.tie=target")
        source = PatchProjection(dim=dim, size=patches["size"], bits=patches["bits"])
        return source, make_table(config["tgt_vocab_size"], dim, config["pad_id"])
    src = make_table(config["src_vocab_size"], dim, config["pad_id"])
    if model["tie"] != "all":
        return src, make_table(config["tgt_vocab_size"], dim, config["pad_id"])
    if config["joint"] and config["src_vocab_size"] != config["tgt_vocab_size"]:
        raise ValueError(
            f"a joint vocabulary has one size, not {config['src_vocab_size']} for the source and "
            f"{config['tgt_vocab_size']} for the target; set tokenizer.joint=false and model.tie=target"
        )
    if not config["joint"]:
        raise ValueError(
            "model.tie=all shares one table between source and target, but their vocabularies are separate; "
            "set tokenizer.joint=true or model.tie=target"
        )
    return src, src


def _positions(model: Mapping[str, Any], setting: str) -> nn.Module | None:
    return make_positions(model[setting], dim=model["dim"], max_len=model["max_len"], setting=f"model.{setting}")


def _source_positions(config: Mapping[str, Any]) -> nn.Module | None:
    model, patches = config["model"], config.get("patches")
    if model.get("src_positions") != "grid":
        return _positions(model, "src_positions" if model.get("src_positions") else "positions")
    if not patches:
        raise ValueError("model.src_positions=grid is for pictures (tokenizer=patches); choose another")
    return GridPositions(dim=model["dim"], width=_columns(patches))


def _columns(patches: Mapping[str, Any]) -> int:
    return patches["width"] // patches["size"]


def _embedding(
    model: Mapping[str, Any], table: nn.Embedding | PatchProjection, positions: nn.Module | None
) -> Embedding:
    # the scale makes up for a table's small numbers, which a projection has not
    scale = model["scale_embedding"] and isinstance(table, nn.Embedding)
    return Embedding(table=table, positions=positions, dropout=model["dropout"], scale=scale)


def _output(model: Mapping[str, Any], table: nn.Embedding, readout_dim: int) -> nn.Linear:
    tied = model["tie"] != "none"
    if tied and readout_dim != model["dim"]:
        raise ValueError(
            f"the output layer reads {readout_dim} numbers, the table has {model['dim']}; set model.tie=none"
        )
    output = nn.Linear(readout_dim, table.num_embeddings, bias=not tied)
    if tied:
        output.weight = table.weight
    else:
        nn.init.xavier_uniform_(output.weight)
        nn.init.zeros_(output.bias)
    return output


def _check_model(model: Mapping[str, Any]) -> None:
    for key in ("dim", "encoder_layers", "decoder_layers", "max_len"):
        if not isinstance(model[key], int) or model[key] < 1:
            raise ValueError(f"model.{key} is {model[key]!r}; choose a whole number from 1")
    if not isinstance(model["ffn_dim"], int) or model["ffn_dim"] < 0:
        raise ValueError(f"model.ffn_dim is {model['ffn_dim']!r}; choose a whole number (0 for no feed-forward)")
    if model["tie"] not in TIES:
        raise ValueError(f"model.tie is {model['tie']!r}; choose one of {', '.join(TIES)}")
    if model["norm"] not in NORMS:
        raise ValueError(f"model.norm is {model['norm']!r}; choose one of {', '.join(NORMS)}")
    for key in ("dropout", "activation_dropout"):
        require_probability(model[key], f"model.{key}")
