"""Parts that importers share: files of a folder, layers of a Transformer, languages."""

from __future__ import annotations

import json
import logging
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from seq2seq.checkpoint import MAX_TOKENIZER
from seq2seq.data.languages import closest_codes, primary_subtag
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.agreement import specials
from seq2seq.inference.export.plain_transformer import LAYER
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.values import shown
from seq2seq.system.errors import first_line
from seq2seq.system.files import read_file
from seq2seq.system.json_file import read_json

log = logging.getLogger(__name__)

# Activations by the names of other programs.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
_CODE = re.compile(r"\w[\w-]*")
# The first bytes of a file that a clone without Git LFS has in place of a large one.
_LFS = b"version https://git-lfs"
# Ends of the names of biases of attention, in our terms.
_BIASES = (".f.query_bias", ".f.value_bias", ".f.query.bias", ".f.out.bias")
# Settings of `generate` that change translations and are not read, with the values that change nothing.
_UNREAD = {
    "do_sample": False,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "diversity_penalty": 0,
    "exponential_decay_length_penalty": None,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": [],
    "force_words_ids": [],
}


class Published(NamedTuple):
    """A model of another program in the terms of this one.

    Attributes:
        model: Settings of the section `model`.
        mixer: Settings of the section `mixer`.
        weights: Weights by the names of `Seq2Seq`; a tied weight is one tensor under one or more names.
        tgt_langs: Target languages of a model whose sources begin with the tag of a language.
        search: The search that the model's authors chose.
    """

    model: dict[str, Any]
    mixer: dict[str, Any]
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    src_lang: str
    tgt_lang: str
    search: SearchSettings
    tgt_langs: Sequence[str] = ()


class Languages(NamedTuple):
    """The languages that the user names; None for a language that is read from the folder."""

    src: str | None = None
    tgt: str | None = None

    def resolve(
        self, folder: Path, src: str | None, tgt: str | None, tagged: Sequence[str] = (), sources: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Return source and target language.

        Args:
            src: The source language that the folder names, if any.
            tgt: Its target language.
            tagged: Target languages that have tags; the target language is one of them.
            sources: Source languages that have tags, likewise.

        Raises:
            ValueError: A language is unknown.
        """
        source = _tagged(folder, "source", "--src-lang", self.src, src, sources)
        target = _tagged(folder, "target", "--tgt-lang", self.tgt, tgt, tagged)
        if source is None or target is None:
            raise ValueError(f"{folder}: does not name its languages; give them by --src-lang and --tgt-lang")
        # Languages become part of file names
        if wrong := [code for code in (source, target) if not _CODE.fullmatch(code)]:
            raise ValueError(f"{folder}: {shown(wrong[0])} is not a language; name one by --src-lang or --tgt-lang")
        return source, target


def _tagged(
    folder: Path, side: str, option: str, named: str | None, told: str | None, tagged: Sequence[str]
) -> str | None:
    """Return the tagged language that the user or the files name; without tags, any language that they name."""
    given = named or told
    wanted = primary_subtag(given or "")
    if named and told and not tagged and wanted != primary_subtag(told):
        log.warning("%s: its files say %s, and %s says %s", folder, told, option, named)
    same = closest_codes(given or "", tagged)
    choices = [given] if given in tagged or not tagged else same if given else list(tagged)
    if len(choices) != 1:
        offered = same or sorted(tagged, key=lambda code: code[:2].lower() != wanted[:2])
        listed = ", ".join(offered[:20]) + (", ..." if len(offered) > 20 else "")
        problem = f"{shown(given)} is {'ambiguous' if same else f'not one of its {side} languages'}; " if given else ""
        raise ValueError(f"{folder}: {problem}name its default {side} language by {option}, one of {listed}")
    return choices[0]


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file that the model needs.

    Raises:
        ValueError: The file is missing, or a pointer of Git LFS.
    """
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{folder}: has no file {name}, which the model needs; copy the whole folder")
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise ValueError(f"{path}: is a pointer of Git LFS, not the file itself; download the file (git lfs pull)")
    return path


def read_ids(path: Path) -> dict[str, Any]:
    """Read a JSON file with pieces of text, whose control characters `read_json` would change.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        found = json.loads(read_file(path))
    except ValueError as error:
        raise ValueError(f"{path}: is damaged ({error}); copy it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: is damaged (it holds no dictionary); copy it again")
    return found


def added_tokens(folder: Path, about: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens that a user of Transformers has added to a tokenizer, by their ids.

    Args:
        about: The content of tokenizer_config.json.
    """
    path = folder / "added_tokens.json"
    found = {number: name for name, number in read_ids(path).items()} if path.is_file() else {}
    return found | {int(number): each["content"] for number, each in about.get("added_tokens_decoder", {}).items()}


def warn_of_added(folder: Path, names: Sequence[str]) -> None:
    """Log that added tokens are cut into pieces like other text."""
    if names:
        more = ", ..." if len(names) > 5 else ""
        listed = f"{', '.join(map(shown, names[:5]))}{more}"
        log.warning("%s: added tokens in text (%s) are cut into pieces like other text", folder, listed)


def read_piece_model(folder: Path, name: str) -> bytes:
    """Read a SentencePiece model.

    Raises:
        ValueError: The file is missing or too large.
    """
    return read_file(file_in(folder, name), MAX_TOKENIZER)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights that Transformers stores, as safetensors or as a file of torch, in one or more files.

    Raises:
        ValueError: There are none, or they are damaged.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        names = [name] if (folder / name).is_file() else []
        if not names and index.is_file():
            names = sorted(set(map(str, read_json(index).get("weight_map", {}).values())))
        if names:
            weights: dict[str, Tensor] = {}
            for each in names:
                # An index may come from a stranger
                weights |= _read_tensors(file_in(folder, Path(each).name))
            return weights
    raise ValueError(f"{folder}: has no weights, neither model.safetensors nor pytorch_model.bin")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        # Tensors and plain values alone: no code of the file runs
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        if not isinstance(loaded, Mapping) or not all(isinstance(each, Tensor) for each in loaded.values()):
            raise ValueError("it holds more than tensors")
        return dict(loaded)
    # Torch's own message advises to run the code in the file
    except pickle.UnpicklingError:
        raise ValueError(f"{path}: is damaged, or holds more than tensors; download it again") from None
    except Exception as error:  # errors of safetensors, zip and torch
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}: {first_line(error)})") from None


def take(weights: dict[str, Tensor], name: str) -> Tensor:
    """Remove a weight and return it.

    Raises:
        ValueError: No weight has that name.
    """
    if name not in weights:
        raise ValueError(f"its weights lack {name}")
    return weights.pop(name)


def take_side(
    theirs: dict[str, Tensor], side: str, layers: int, *, prefix: str, norm: str, attends: bool = True
) -> dict[str, Tensor]:
    """Remove the layers of a Transformer's encoder or decoder, and its last norm; return them by our names.

    Args:
        theirs: Weights in the names of fairseq and Transformers.
        side: "encoder" or "decoder".
        prefix: What precedes the side in their names.
        norm: "pre" or "post".
        attends: The self mixers are attention; the weights of any other stay.
    """
    found = {}
    if norm == "pre":
        final = f"{side}.layer_norm"
        found |= {f"{side}.norm.{kind}": take(theirs, f"{prefix}{final}.{kind}") for kind in ("weight", "bias")}
    for layer in (f"{side}.layers.{number}" for number in range(layers)):
        for name, parts in LAYER.items():
            if (name.startswith("read.") and side == "encoder") or (name.startswith("mix.f.") and not attends):
                continue
            own = f"{layer}.{name}".replace(".norm", f".{norm}_norm")
            named = [f"{prefix}{layer}.{part}" for part in parts]
            tensors = [take(theirs, f"{part}.weight") for part in named]
            found[f"{own}.weight"] = torch.cat(tensors) if len(named) > 1 else tensors[0]
            if len(named) == 1:
                found[f"{own}.bias"] = take(theirs, f"{named[0]}.bias")
                continue
            *queries, keys, values = named
            # It adds the same number to all scores of a query, which the softmax cancels
            theirs.pop(f"{keys}.bias", None)
            attention = own.rpartition(".")[0]
            found[f"{attention}.value_bias"] = take(theirs, f"{values}.bias")
            found |= {f"{attention}.query_bias": take(theirs, f"{each}.bias") for each in queries}
    return found


def take_tables(theirs: dict[str, Tensor], *, prefix: str, tie: str, folder: Path) -> dict[str, Tensor]:
    """Remove the tables of embeddings in the names of Transformers; return them by our names.

    Raises:
        ValueError: There is none.
    """
    shared = theirs.pop(f"{prefix}shared.weight", None)
    names = (f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight", "lm_head.weight")
    tables = [theirs.pop(name, shared) for name in names]
    # A file may hold a tied table under any of its names
    found = [table for table in tables if table is not None]
    if not found:
        raise ValueError(f"{folder}: its weights have no table of embeddings")
    encoder, decoder, output = (found[0] if table is None else table for table in tables)
    if tie == "all":
        decoder = output = encoder
    elif tie == "target":
        decoder = output = found[-1] if tables[1] is None else decoder
    elif decoder is encoder:
        decoder = encoder.clone()
    return {
        "encoder.embedding.table.weight": encoder,
        "decoder.embedding.table.weight": decoder,
        "output.weight": output,
    }


def attention_slots(config: Mapping[str, Any], *, bias: bool) -> dict[str, Any]:
    """Return the settings of the section `mixer` for a Transformer, from the config.json of Transformers."""
    values = {"dropout": float(config.get("attention_dropout", 0.0))} | ({"bias": True} if bias else {})

    def slot(side: str, name: str) -> dict[str, Any]:
        heads = config[f"{side}_attention_heads"]
        return {"_target_": f"seq2seq.mixers.attention.{name}", "num_heads": heads, **values}

    return {
        "extra_encoder_layers": 0,
        "encoder": slot("encoder", "Attention"),
        "decoder": slot("decoder", "Attention"),
        "cross": slot("decoder", "CrossAttention"),
    }


def transformer_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings of the section `model` that Transformers' config.json has for all families.

    Raises:
        ValueError: A value cannot be expressed.
    """
    activation = config["activation_function"]
    if activation not in ACTIVATIONS:
        raise ValueError(f"{folder}: activation_function {activation} is not known; known are {', '.join(ACTIVATIONS)}")
    encoder, decoder = config["encoder_ffn_dim"], config["decoder_ffn_dim"]
    if encoder != decoder:
        raise ValueError(
            f"{folder}: its feed-forwards have {encoder} units in the encoder and {decoder} in the decoder, and this "
            "program has one size (model.ffn_dim)"
        )
    return {
        "dim": config["d_model"],
        "ffn_dim": encoder,
        "num_heads": config["decoder_attention_heads"],
        "encoder_layers": config["encoder_layers"],
        "encoder_stages": 1,
        "decoder_layers": config["decoder_layers"],
        "residual": True,
        "activation": ACTIVATIONS[activation],
        "src_positions": None,
        "max_len": config.get("max_position_embeddings", 1024),
        "scale_embedding": bool(config.get("scale_embedding", False)),
        "dropout": float(config.get("dropout", 0.1)),
        "activation_dropout": float(config.get("activation_dropout", 0.0)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
        "weight_dropout": 0.0,
    }


def refuse_leftovers(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raise ValueError if weights are left that no part of the model has taken."""
    if weights:
        first = next(iter(weights))
        raise ValueError(f"{folder}: {len(weights)} of its weights have no place here, the first is {first}")


def express(
    theirs: dict[str, Tensor],
    config: Mapping[str, Any],
    folder: Path,
    *,
    tokenizer: Tokenizer,
    languages: tuple[str, str],
    tgt_langs: Sequence[str],
    **settings: str,
) -> Published:
    """Convert a model of Hugging Face Transformers to a `Published` one.

    Args:
        theirs: All of its weights but positions, which follow from the settings.
        config: Its config.json.
        languages: Source and target language.
        settings: `tie`, `norm` and `positions` of the section `model`.
    """
    tie, norm = settings["tie"], settings["norm"]
    weights = take_tables(theirs, prefix="model.", tie=tie, folder=folder)
    bias = theirs.pop("final_logits_bias", weights["output.weight"].new_zeros(1, len(weights["output.weight"])))[0]
    if tie == "none" or bias.any():
        weights["output.bias"] = bias
    for side in ("encoder", "decoder"):
        weights |= take_side(theirs, side, config[f"{side}_layers"], prefix="model.", norm=norm)
    refuse_leftovers(theirs, folder)
    # Attention without biases has biases of zero
    biases = {name: weights[name] for name in weights if name.endswith(_BIASES)}
    biased = any(each.any() for each in biases.values())
    if not biased:
        weights = {name: weight for name, weight in weights.items() if name not in biases}
    # An old folder has the settings of `generate` in config.json alone
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    chosen = {name: value for each in (config, generation) for name, value in each.items() if value is not None}
    _warn_of_unread(folder, chosen, specials(tokenizer).never)
    # min_length counts the start, and both count the tag of the target language
    least = chosen.get("min_new_tokens", chosen.get("min_length", 1) - 1) - tokenizer.tags_targets
    has_bias = tie != "none" and "output.bias" in weights
    return Published(
        model=transformer_settings(config, folder) | settings | {"output_bias": has_bias},
        mixer=attention_slots(config, bias=biased),
        weights=weights,
        tokenizer=tokenizer,
        src_lang=languages[0],
        tgt_lang=languages[1],
        search=SearchSettings(
            beam_size=chosen.get("num_beams", 1),
            length_penalty=float(chosen.get("length_penalty", 1.0)),
            min_len=max(least, 0),
            no_repeat_ngram=chosen.get("no_repeat_ngram_size", 0),
        ),
        tgt_langs=tgt_langs,
    )


def _warn_of_unread(folder: Path, chosen: Mapping[str, Any], never: Sequence[int]) -> None:
    """Log the settings of `generate` that are not read; tokens that are never generated here need no rule."""
    idle = [*never, *([token] for token in never)]
    unread = []
    for name, neutral in _UNREAD.items():
        value = chosen.get(name, neutral)
        # All models of OPUS-MT forbid pad
        if isinstance(value, list):
            value = [each for each in value if each not in idle]
        if value != neutral:
            unread.append(name)
    if unread:
        log.warning("%s: translations differ by settings of generate that are not read: %s", folder, ", ".join(unread))
