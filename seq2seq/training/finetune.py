"""Start a new run from a checkpoint's weights and tokenizer (`init_from=<checkpoint>`)."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq import checkpoint
from seq2seq.checkpoint import Loaded
from seq2seq.data.cache_folder import cached
from seq2seq.data.extension import origins
from seq2seq.data.languages import tagged_languages, target_languages
from seq2seq.data.multi_corpus import parts_of
from seq2seq.data.plan import DataPlan
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.network.make_mixer import model_differences
from seq2seq.settings.classes import mixers_of, read_mixers
from seq2seq.settings.compose import is_chosen
from seq2seq.settings.data import DataSettings
from seq2seq.settings.declare import read_section
from seq2seq.settings.dicts import UNSET, differences, flat, put
from seq2seq.settings.model import ModelSettings
from seq2seq.settings.run import present_settings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.settings.values import shown, written
from seq2seq.training.plan import RunPlan

log = logging.getLogger(__name__)

# Highest learning rate of a run that starts from weights, unless the user sets a rate: a fortieth (tiny) to a fifth
# (big) of the rates from scratch, as in the fine-tuning recipes of Marian and fairseq.
LEARNING_RATE = 1e-4
# Settings of the model, each with the argument of mixers that refers to it in conf/mixer.
_FOLLOWED = {"attention_dropout": "dropout", "weight_dropout": "weight_dropout"}


def load_start(start: str | None, *, trust: Sequence[str]) -> Loaded | None:
    """Load the checkpoint that a run starts from, or the best checkpoint of a folder; return None without `start`."""
    if start is None:
        return None
    return checkpoint.load(start, trust=trust)


def require_same_model(before: Mapping[str, Any], plan: RunPlan, *, chosen: Iterable[str] | None = None) -> None:
    """Raise ValueError for a setting of model or mixer with which the weights would compute another function.

    The message names the first difference and the override that removes it.

    Args:
        before: The settings of the checkpoint.
        chosen: Keys that the user chose: only these are compared. None compares all keys.
    """
    # Hydra adds and removes arguments of mixers that are written, not their defaults
    old, new = (flat(present_settings(each)) for each in (before, plan.config))
    for key, _, _ in model_differences(before, plan.config, trust=plan.trust):
        if chosen is None or is_chosen(key, chosen):
            there, here = old.get(key, UNSET), new.get(key, UNSET)
            where = f"init_from={plan.run.init_from}: {key}"
            raise ValueError(f"{where} is {there} there and {here} here; {_remedy(key, there, here)}")


def _remedy(key: str, there: Any, here: Any) -> str:
    if key.endswith("_target_"):
        return "leave mixer=... out, or choose the mixer=... that the checkpoint was trained with"
    if there == UNSET:
        return f"add ~{key}"
    # As the command line spells it: + adds a key that is absent here, quotes keep blanks together.
    value = there if isinstance(there, str) else json.dumps(there)
    word = f"{'+' if here == UNSET else ''}{key}={value}"
    return f"add {word}" if " " not in word else f"add '{word}'"


def adopt(plan: RunPlan, start: Loaded) -> RunPlan:
    """Return the plan with the checkpoint's model and languages and a fine-tuning rate, unless the user chose them.

    Raises:
        ValueError: A choice of the user contradicts the checkpoint; the message names both values.
    """
    origin = str(plan.run.init_from)
    chosen = plan.chosen
    data = adopt_data(plan.data, start.meta, origin=origin, chosen=chosen)
    # A plan from Python does not know what was chosen, so every setting counts as chosen.
    if chosen is None:
        return plan
    old = present_settings(start.meta["model"])
    require_same_model(old, plan, chosen=chosen)
    _require_same_tokenizer(plan, start.tokenizer, origin)
    # Settings come from the checkpoint, unless they were chosen.
    before = {name: old[name] for name in ("model", "mixer")}
    sections = copy.deepcopy(before)
    for key, _, here in differences(before, {name: plan.config[name] for name in before}):
        if is_chosen(key, chosen) and here != UNSET:
            put(sections, key, here)
    # If a mixer's dropout equals the dropout of the checkpoint's model, it follows the user's choice for the model.
    for name, own in _FOLLOWED.items():
        for _, path, values in mixers_of(sections["mixer"]) if is_chosen(f"model.{name}", chosen) else ():
            if values.get(own) == before["model"][name] and not is_chosen(f"{path}.{own}", chosen):
                values[own] = sections["model"][name]
    optim = plan.optim
    if not any(is_chosen(key, chosen) for key in ("optim.lr", "optim.peak_lr")):
        log.info(
            "init_from: the highest learning rate is %g, for fine-tuning (from scratch it would be %g); optim.lr=... "
            "sets another",
            LEARNING_RATE,
            optim.lr,
        )
        optim = dataclasses.replace(optim, lr=LEARNING_RATE)
    # A setting within the mixer, such as its dropout, chooses no preset.
    label = plan.mixer if "mixer" in chosen else _label(start.meta)
    try:
        model = read_section(ModelSettings, sections["model"], "model")
        mixers = read_mixers(sections["mixer"])
        return dataclasses.replace(plan, data=data, optim=optim, model=model, mixers=mixers, mixer=label)
    except ValueError as error:
        # The settings of the run have been checked before: the wrong value comes from the checkpoint.
        raise ValueError(f"init_from={origin}: {error}") from None


def adopt_data(
    data: DataSettings, meta: Mapping[str, Any], *, origin: str, chosen: Iterable[str] | None
) -> DataSettings:
    """Return the section `data` with languages and tag of the checkpoint `origin`, unless the user chose them.

    A run that translates between other languages than the checkpoint gets a warning.

    Args:
        meta: The `seq2seq` entry of the checkpoint.
        chosen: Keys that the user chose; None if every key counts as chosen.

    Raises:
        ValueError: The checkpoint's sources begin with a tag, and the user chose data.tag_target=false.
    """
    # data=files chooses a file of conf/, whose languages are defaults, not choices of the user
    keys = None if chosen is None else [each for each in chosen if each != "data"]
    own = {"src": str(meta["src_lang"]), "tgt": str(meta["tgt_lang"])}
    # A known data set has fixed languages, in either direction; the user's files may have any languages
    known = data.languages or ((data.src, data.tgt) if data.path else own.values())
    # Languages become part of file names, and the checkpoint may come from a stranger
    valid = all(re.fullmatch(r"[\w-]+", code) for code in own.values())
    if keys is not None and valid and set(own.values()) <= set(known):
        free = {side: code for side, code in own.items() if not is_chosen(f"data.{side}", keys)}
        taken = {side: code for side, code in free.items() if getattr(data, side) != code}
        if taken:
            words = " ".join(f"data.{side}={shown(code)}" for side, code in taken.items())
            log.info("init_from: %s, as the checkpoint translates", words)
        data = dataclasses.replace(data, **taken)
    if tagged_languages(meta) and not data.tag_target:
        if keys is None or is_chosen("data.tag_target", keys):
            raise ValueError(
                f"init_from={origin}: data.tag_target is true there and false here; add data.tag_target=true"
            )
        log.info("init_from: data.tag_target=true, as the checkpoint's sources begin with the tag of a language")
        data = dataclasses.replace(data, tag_target=True)
    there = {f"{own['src']}-{target}": None for target in target_languages(meta)}
    here = {part.direction: None for part in parts_of(data)}
    if not here.keys() <= there.keys():
        translates, runs = (shown(", ".join(each)) for each in (there, here))
        log.warning("init_from=%s: the checkpoint translates %s, this run %s", origin, translates, runs)
    return data


def target_languages_of(data: DataPlan, start: Loaded | None) -> list[str]:
    """Return the target languages that have tags: the run's own, then further languages of the checkpoint."""
    own = data.target_languages
    return list(dict.fromkeys([*own, *(tagged_languages(start.meta) if own and start else ())]))


def _require_same_tokenizer(plan: RunPlan, tokenizer: Tokenizer, origin: str) -> None:
    """Raise ValueError for a chosen tokenizer setting that differs: the weights need the checkpoint's tokenizer."""
    settings = plan.tokenizer
    free = {"sampling_alpha", "extend"}
    free |= {"model", "src_model", "tgt_model"} if settings.ready_models else set()
    free |= {"character_coverage", "input_sentence_size", "seed"} if settings.extend else set()
    known = {"vocab_size": [tokenizer.src_vocab_size, tokenizer.tgt_vocab_size], "joint": [tokenizer.joint]}
    # data=files or tokenizer=... chooses a file of conf/, whose values are defaults, not choices of the user
    keys = [each for each in plan.chosen or () if each not in ("data", "tokenizer")]
    for name, value in plan.config["tokenizer"].items():
        # Sampling affects training, not the pieces; the others extend the tokenizer
        if name in free or value in known.get(name, ()):
            continue
        names = [f"{section}.{name}" for section in ("data", "tokenizer")]
        key = next((each for each in names if is_chosen(each, keys)), None)
        there = " and ".join(map(str, sorted(set(known.get(name, ())))))
        reason = f"is {there} there and {value} here" if there else f"({written(value)}) has no effect on its tokenizer"
        if key:
            raise ValueError(f"init_from={origin}: {key} {reason}; leave it out")


def start_weights(start: Loaded, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return a checkpoint's weights with rows for all pieces of a tokenizer that extends its own.

    The row of a new piece is the mean of the old rows of its `origins`, so that its logit is the mean of theirs, and
    the most probable token stays the same until the first update.
    """
    weights = start.model.state_dict()
    if tokenizer.fingerprint == start.tokenizer.fingerprint:
        return weights
    rows = origins(start.tokenizer, tokenizer)
    tables = {"encoder.embedding.table.weight": "src"}
    tables |= dict.fromkeys(("decoder.embedding.table.weight", "output.weight", "output.bias"), "tgt")
    for name, side in tables.items():
        if name in weights and side in rows:
            weights[name] = torch.stack([weights[name][list(ids)].mean(0) for ids in rows[side]])
    return weights


def _label(meta: Mapping[str, Any]) -> str:
    """Return the label of a checkpoint's mixer, or the module of its first class if it has no valid label."""
    preset = meta.get("preset")
    # The label becomes part of names and tables, and the file may come from a stranger
    if isinstance(preset, str) and re.fullmatch(r"[\w.+-]{1,100}", preset):
        return preset
    # The first mixer of the encoder, or the cross mixer if the encoder has no mixers.
    first = next(values for slot, _, values in mixers_of(meta["model"]["mixer"]) if slot != "decoder")
    return str(first["_target_"]).split(".")[-2]


def ready_models(tokenizer: Tokenizer, settings: TokenizerSettings, cache: Path) -> TokenizerSettings:
    """Write a checkpoint's SentencePiece models to `cache`; return `settings` that name these models instead."""
    state = tokenizer.to_state()
    # Named by content: runs from one checkpoint share the files.
    folder = cache / f"init-{tokenizer.fingerprint}"
    paths = {side: folder / f"{side}.model" for side in ("src_model", "tgt_model") if side in state}

    def build(building: Path) -> None:
        for side, path in paths.items():
            (building / path.name).write_bytes(state[side])

    def read(whole: Path) -> None:
        for side, path in paths.items():
            if (whole / path.name).read_bytes() != state[side]:
                raise ValueError(f"{path.name} is not the checkpoint's")

    cached(folder, "the checkpoint's tokenizer", build=build, read=read)
    models: dict[str, Any] = {"model": None, "src_model": None} | {side: str(path) for side, path in paths.items()}
    # Images have no model on the source's side; one model for both sides is stored as the source's.
    if tokenizer.patches:
        models |= {"src_model": None, "patches": tokenizer.patches}
    elif len(paths) == 1:
        models = {"model": models["src_model"], "src_model": None, "tgt_model": None}
    return dataclasses.replace(settings, **models)
