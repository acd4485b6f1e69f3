"""Read models of fairseq: Transformer, LightConv and DynamicConv, with Moses and BPE or SentencePiece.

Reference:
    Ott et al. 2019, 'fairseq: A Fast, Extensible Toolkit for Sequence Modeling'; Wu et al. 2019, 'Pay Less Attention
    with Lightweight and Dynamic Convolutions'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seq2seq.data.moses_bpe import SPECIALS, MosesBpe, read_dictionary, read_merges
from seq2seq.data.shared_vocabulary import with_vocabulary
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.imports.shared import (
    Languages,
    Published,
    attention_slots,
    file_in,
    read_piece_model,
    refuse_leftovers,
    take,
    take_side,
    take_tables,
    transformer_settings,
)
from seq2seq.inference.imports.torch_pickle import plain, read_torch_pickle
from seq2seq.settings.search import SearchSettings

# Files of codes of subword-nmt and fastBPE, and SentencePiece models, as archives name them.
_CODES = ("bpecodes", "bpe.codes", "codes", "code", "*.codes", "*.code")
_PIECES = ("sentencepiece.bpe.model", "spm.model", "*.spm", "*.model")
# Names of weights in earlier versions and in LightConv, and the names of today's Transformer.
_RENAMED = (
    (r"^(encoder\.layers\.\d+)\.layer_norms\.1\.", r"\1.final_layer_norm."),
    (r"\.layer_norms\.0\.", ".self_attn_layer_norm."),
    (r"\.layer_norms\.1\.", ".encoder_attn_layer_norm."),
    (r"\.layer_norms\.2\.", ".final_layer_norm."),
    (r"\.(conv_layer_norm|layer_norm1)\.", ".self_attn_layer_norm."),
    (r"\.layer_norm2\.", ".final_layer_norm."),
    (r"^decoder\.(embed_out|embed_out\.weight|output_projection\.weight)$", "lm_head.weight"),
)
# Arguments of models that compute more than this program's, with weights of the same names.
_UNREAD = ("cross_self_attention", "encoder_langtok", "decoder_langtok", "langs")
# Row of the first position in a table of learned positions, after the id of padding.
_FIRST_POSITION = 2
# Buffers that follow from the settings, and a bias that later versions of DynamicConv store but never add.
_IGNORED = re.compile(r"(.*\.)?(version|_float_tensor|conv\.conv_bias)|(en|de)coder\.embed_positions\.weights")


def recognizes(path: Path) -> bool:
    """Return True for a file .pt, or a folder with one and with dictionaries."""
    return path.suffix == ".pt" if path.is_file() else any(path.glob("*.pt")) and any(path.glob("dict.*.txt"))


def read(path: Path, languages: Languages) -> Published:
    """Read a checkpoint, which has the files of its tokenizer next to it.

    Args:
        path: The file, or its folder if it has only one.

    Raises:
        ValueError: A file is missing or damaged, or the model cannot be expressed.
    """
    found = [path] if path.is_file() else sorted(path.glob("*.pt"))
    if len(found) != 1:
        raise ValueError(f"{path}: has {len(found)} files .pt ({', '.join(map(str, found[:5]))}); name one of them")
    folder = found[0].parent
    file = file_in(folder, found[0].name)
    state = read_torch_pickle(file)
    args = _args(state, file)
    source, target = languages.resolve(folder, args.get("source_lang"), args.get("target_lang"))
    theirs = _weights_of(state, file)
    model, mixer = _settings(args, theirs, file)
    weights = _weights(theirs, model, mixer, file)
    return Published(
        model=model,
        mixer=mixer,
        weights=weights,
        # The names of the files have the languages of the training
        tokenizer=_tokenizer(folder, args.get("source_lang") or source, args.get("target_lang") or target, weights),
        src_lang=source,
        tgt_lang=target,
        # As fairseq-generate, which writes no empty translation
        search=SearchSettings(min_len=1),
    )


def _args(state: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the arguments of the training as one dictionary, of old and new checkpoints."""
    if state.get("args") is not None:
        return plain(state["args"])
    sections = plain(state.get("cfg") or {})
    merged: dict[str, Any] = {}
    # Arguments of the model decide, since a task may have some of the same name
    for part in (sections.get("task"), sections.get("model")):
        merged |= part if isinstance(part, dict) else {}
    if not merged:
        raise ValueError(f"{file}: is not a checkpoint of fairseq: it has neither args nor cfg")
    return merged


def _weights_of(state: Mapping[str, Any], file: Path) -> dict[str, Tensor]:
    """Return the weights by the names of fairseq's Transformer today."""
    weights = state.get("model")
    if not isinstance(weights, Mapping) or not all(isinstance(each, Tensor) for each in weights.values()):
        raise ValueError(f"{file}: is not a checkpoint of fairseq: it has no weights by the name of model")
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if _IGNORED.fullmatch(name):
            continue
        # A view may repeat a few numbers as often as it likes, and a copy of it would fill the memory
        if weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
            raise ValueError(f"{file}: its weight {name} is larger than the numbers that the file has for it")
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        projections = name.rpartition(".in_proj_")
        if projections[1]:
            # Queries, keys and values were one matrix
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                found[f"{projections[0]}.{letter}_proj.{projections[2]}"] = part
        else:
            found[name] = weight
    return found


def _settings(
    args: Mapping[str, Any], weights: Mapping[str, Tensor], file: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections `model` and `mixer`, with the sizes of the weights."""
    if found := [name for name in _UNREAD if args.get(name)]:
        raise ValueError(
            f"{file}: was trained with {found[0]}={args[found[0]]!r}, but multilingual models and joint "
            "attention to source and target are not supported"
        )
    dim = _size(weights, "encoder.embed_tokens.weight", 1, file)
    layers = {tuple(name.split(".")[:3:2]) for name in weights if ".layers." in name}
    depths = {side: sum(each[0] == side for each in layers) for side in ("encoder", "decoder")}
    config = {
        "d_model": dim,
        "activation_function": args.get("activation_fn") or "relu",
        "scale_embedding": not args.get("no_scale_embedding"),
        "dropout": args.get("dropout") or 0.0,
        "attention_dropout": args.get("attention_dropout") or 0.0,
        "activation_dropout": args.get("activation_dropout") or args.get("relu_dropout") or 0.0,
    }
    for side, depth in depths.items():
        config[f"{side}_layers"] = depth
        config[f"{side}_ffn_dim"] = _size(weights, f"{side}.layers.0.fc1.weight", 0, file)
        config[f"{side}_attention_heads"] = args.get(f"{side}_attention_heads") or 8
    pre = bool(args.get("decoder_normalize_before"))
    if bool(args.get("encoder_normalize_before")) != pre:
        raise ValueError(
            f"{file}: its encoder and decoder place the norms differently; only one place for both is supported"
        )
    tables = [weights[name] for side in depths if (name := f"{side}.embed_positions.weight") in weights]
    if tables:
        config["max_position_embeddings"] = min(map(len, tables)) - _FIRST_POSITION
    source, target = (_positions(args, side) for side in depths)
    tie = "target" if args.get("share_decoder_input_output_embed") else "none"
    if args.get("share_all_embeddings"):
        tie = "all"
    model = transformer_settings(config, file) | {
        "norm": "pre" if pre else "post",
        "positions": target,
        "src_positions": None if source == target else source,
        "tie": tie,
        "weight_dropout": float(args.get("weight_dropout") or 0.0),
    }
    mixer = attention_slots(config, bias=True)
    for side, depth in depths.items():
        if f"{side}.layers.0.linear1.weight" in weights:
            mixer[side] = _convolution(args, weights, side, depth, dim, file)
    return model, mixer


def _convolution(
    args: Mapping[str, Any], weights: Mapping[str, Tensor], side: str, depth: int, dim: int, file: Path
) -> dict[str, Any]:
    """Return the settings of the LightConv or DynamicConv of one side."""
    heads = int(args.get(f"{side}_attention_heads") or 8)
    dynamic = f"{side}.layers.0.conv.weight_linear.weight" in weights
    kind, module = ("DynamicConv", "dynamicconv") if dynamic else ("LightConv", "lightconv")
    name = "conv.weight_linear.weight" if dynamic else "conv.weight"
    kernels = [take(dict(weights), f"{side}.layers.{layer}.{name}") for layer in range(depth)]
    inner = _size(weights, f"{side}.layers.0.linear2.weight", 1, file)
    if inner != dim:
        raise ValueError(
            f"{file}: the convolutions of its {side} have {inner} channels, the model {dim}; they must be equal"
        )
    return {
        "_target_": f"seq2seq.mixers.{module}.{kind}",
        "num_heads": heads,
        "glu": _size(weights, f"{side}.layers.0.linear1.weight", 0, file) == 2 * inner,
        "softmax": bool(args.get("weight_softmax", True)),
        "weight_dropout": float(args.get("weight_dropout") or 0.0),
        # (H K, D), or (H, 1, K)
        "per_layer": {"kernel_size": [len(each) // heads if dynamic else each.shape[-1] for each in kernels]},
    }


def _weights(
    theirs: dict[str, Tensor], model: Mapping[str, Any], mixer: Mapping[str, Any], file: Path
) -> dict[str, Tensor]:
    """Return the weights by our names."""
    weights = take_tables(theirs, prefix="", tie=model["tie"], folder=file)
    if model["tie"] == "none":
        weights["output.bias"] = weights["output.weight"].new_zeros(len(weights["output.weight"]))
    for side in ("encoder", "decoder"):
        if (rows := theirs.pop(f"{side}.embed_positions.weight", None)) is not None:
            rows = rows[_FIRST_POSITION:][: model["max_len"]]
            weights[f"{side}.embedding.positions.table.weight"] = rows
        convolves = "kernel_size" in mixer[side].get("per_layer", {})
        layers = model[f"{side}_layers"]
        weights |= take_side(theirs, side, layers, prefix="", norm=model["norm"], attends=not convolves)
        for layer in range(layers if convolves else 0):
            weights |= _take_convolution(theirs, f"{side}.layers.{layer}", mixer[side]["num_heads"])
    refuse_leftovers(theirs, file)
    return weights


def _take_convolution(weights: dict[str, Tensor], name: str, heads: int) -> dict[str, Tensor]:
    """Remove the weights of a layer's convolution, and return them by our names."""
    found = {
        f"{name}.mix.f.{ours}.{kind}": take(weights, f"{name}.{their}.{kind}")
        for their, ours in (("linear1", "inner"), ("linear2", "out"))
        for kind in ("weight", "bias")
    }
    predicted = weights.pop(f"{name}.conv.weight_linear.weight", None)
    if predicted is not None:
        return found | {f"{name}.mix.f.kernel.weight": predicted}
    return found | {f"{name}.mix.f.weight": take(weights, f"{name}.conv.weight").reshape(heads, -1)}


def _tokenizer(folder: Path, source: str, target: str, weights: Mapping[str, Tensor]) -> Tokenizer:
    """Make the tokenizer of the files in a folder."""
    files = [file_in(folder, f"dict.{lang}.txt") for lang in (source, target)]
    words = [_parsed(read_dictionary, file) for file in files]
    for side, file, own in zip(("encoder", "decoder"), files, words, strict=True):
        rows = len(weights[f"{side}.embedding.table.weight"])
        if len(own) + len(SPECIALS) != rows:
            raise ValueError(
                f"{file}: has {len(own)} words, which make {len(own) + len(SPECIALS)} ids with fairseq's own, but the "
                f"{side} has {rows} embeddings: it is the dictionary of another model"
            )
    langs = (source, target)
    if paths := _cutters(folder, _CODES, langs):
        parsed = [_parsed(read_merges, path) for path in paths]
        models = [
            MosesBpe(langs=langs, merges=merges, words=own, whole_ends=whole_ends).to_bytes()
            for own, (merges, whole_ends) in zip(words, parsed, strict=True)
        ]
    elif paths := _cutters(folder, _PIECES, langs):
        bos, pad, eos, unk = SPECIALS
        special = {"unk": unk, "bos": eos, "eos": eos, "pad": pad}
        models = [
            with_vocabulary(read_piece_model(folder, path.name), [*SPECIALS, *own], special=special, controls=[bos])
            for own, path in zip(words, paths, strict=True)
        ]
    else:
        raise ValueError(
            f"{folder}: has neither codes of BPE ({_CODES[0]}) nor a SentencePiece model ({_PIECES[0]}) for both "
            f"languages; copy the file that cut its training text there under one of these names, or one file for each "
            f"language, such as {source}.codes or {source}.model"
        )
    return Tokenizer(src_model=models[0], tgt_model=models[1] if models[1] != models[0] else None)


def _cutters(folder: Path, names: tuple[str, ...], langs: tuple[str, str]) -> list[Path]:
    """Return the file that cuts text of each language: its own, as spm.ja.model, or the one for both; else [].

    Raises:
        ValueError: A language has several.
    """
    groups = [[path for path in sorted(folder.glob(name)) if path.is_file()] for name in names]
    named = {path: set(langs).intersection(path.name.split(".")) for group in groups for path in group}
    common = next(filter(None, ([path for path in group if not named[path]] for group in groups)), [])
    found = [[path for path in named if lang in named[path]] or common for lang in langs]
    for lang, paths in zip(langs, found, strict=True):
        if len(paths) > 1:
            listed = ", ".join(path.name for path in paths)
            raise ValueError(
                f"{folder}: text of {lang} may be cut by {listed}; keep only the one that cut its training text"
            )
    return [paths[0] for paths in found] if all(found) else []


def _parsed(parse: Any, path: Path) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _size(weights: Mapping[str, Tensor], name: str, axis: int, file: Path) -> int:
    """Return a size of a weight."""
    weight = weights.get(name)
    if weight is None or weight.ndim <= axis:
        raise ValueError(f"{file}: is not a Transformer, LightConv or DynamicConv: its weights lack {name}")
    return weight.shape[axis]


def _positions(args: Mapping[str, Any], side: str) -> str:
    """Return the setting of a side's positions."""
    if args.get("no_token_positional_embeddings"):
        return "none"
    return "learned" if args.get(f"{side}_learned_pos") else "fairseq"
