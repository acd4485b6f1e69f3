"""Start a new run from a checkpoint's weights and tokenizer (`init_from=<checkpoint>`)."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.data.cache_folder import cached
from seq2seq.data.context import context_size
from seq2seq.data.extension import origins
from seq2seq.data.languages import tagged_languages, target_languages
from seq2seq.data.multi_corpus import parts_of
from seq2seq.data.plan import DataPlan
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.network.make_mixer import model_differences
from seq2seq.network.mixer import SelfMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.network.weight_blocks import take_values, value_layer
from seq2seq.settings.classes import SLOTS, class_names, mixers_of, read_mixers
from seq2seq.settings.compose import cut_lists, is_chosen
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
_SIZES = {name: name for name in ("num_heads", "ffn_dim", "max_len")}


def require_same_model(
    before: Mapping[str, Any],
    config: Mapping[str, Any],
    plan: RunPlan,
    *,
    chosen: Iterable[str] | None = None,
    swapped: Collection[str] = (),
) -> None:
    """Raise ValueError for a setting of model or mixer with which the weights would compute another function.

    The message names the first difference and the override that removes it.

    Args:
        before: The settings of the checkpoint.
        config: The settings of the run.
        plan: The plan, for messages and trusted packages.
        chosen: Keys that the user chose: only these are compared. None compares all keys.
        swapped: Slots with a new mixer (see `swapped_slots`), which are not compared.
    """
    # Hydra adds and removes arguments of mixers that are written, not their defaults
    old, new = (flat(present_settings(each)) for each in (before, config))
    for key, _, _ in model_differences(before, config, trust=plan.trust):
        # The depth of an encoder may change with its mixer
        slot = "encoder" if key == "mixer.extra_encoder_layers" else _slot(key)
        if (chosen is None or is_chosen(key, chosen)) and slot not in swapped:
            there, here = old.get(key, UNSET), new.get(key, UNSET)
            where = f"init_from={plan.run.init_from}: {key}"
            raise ValueError(f"{where} is {there} there and {here} here; {_remedy(key, there, here)}")


def _slot(key: str) -> str:
    """Return the slot of a key of the section `mixer`; "" for any other key."""
    section, _, rest = key.partition(".")
    return rest.partition(".")[0] if section == "mixer" else ""


def swapped_slots(before: Mapping[str, Any], config: Mapping[str, Any], plan: RunPlan) -> list[str]:
    """List the slots whose mixer the user replaced on purpose, so that the run keeps only the weights that fit.

    A preset (mixer=...) replaces mixers of other classes; a file for one slot replaces any other mixer.

    Args:
        before: The settings of the checkpoint.
        config: The settings of the run, with the sections `model` and `mixer`.
        plan: The plan, for what the user typed.
    """
    typed = set(map(_slot, plan.replaced))
    differing = {_slot(key) for key, *_ in model_differences(before, config, trust=plan.trust)}
    found = []
    for slot in SLOTS:
        one, other = (
            [each["_target_"] for _, _, each in mixers_of({slot: part["mixer"].get(slot)})] for part in (before, config)
        )
        if slot in typed & differing or ("mixer" in plan.replaced and one != other):
            found.append(slot)
    return found


def keep_weights(model: Seq2Seq, weights: Mapping[str, Tensor]) -> None:
    """Load the weights that fit `model` by name and shape; its others stay as drawn."""
    model.load_state_dict(_fitting(model, weights), strict=False)


def new_weights(model: Seq2Seq, weights: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the model's weights that are absent from `weights`, or have another shape there."""
    return model.state_dict().keys() - _fitting(model, weights).keys()


def start_mixers(model: Seq2Seq, start: Seq2Seq, new: Collection[str]) -> None:
    """Start mixers whose weights are `new` from the values of those they replace, where sizes agree; log which.

    Attention with fixed weights is a convolution of the same values.
    """
    drawn = {id(each) for name, each in model.named_parameters() if name in new}
    before = dict(start.named_modules())
    taken: dict[str, Tensor] = {}
    for name, mixer in model.named_modules():
        layer = value_layer(mixer) if isinstance(mixer, SelfMixer) and name in before else None
        values = take_values(mixer, before[name]) if layer is not None and id(layer.weight) in drawn else None
        if values is not None:
            taken[f"{name}.values"] = values
    if taken:
        log.info("init_from: new mixers start from the checkpoint's values: %s", _by_module(taken))


def report_new_weights(model: Seq2Seq, start: Seq2Seq, origin: str) -> None:
    """Log how many weights of `model` come from `start`, which are new, and which weights of `start` were left out."""
    kept = _fitting(model, start.state_dict())
    own = dict(model.named_parameters())
    new = {name: each for name, each in own.items() if name not in kept}
    left = {name: each for name, each in start.named_parameters() if name not in kept}
    total = sum(each.numel() for each in own.values())
    same = total - sum(each.numel() for each in new.values())
    log.info("init_from=%s: %s of %s parameters are the checkpoint's", origin, f"{same:,}", f"{total:,}")
    for what, part in (("new", new), ("left out", left)):
        if part:
            log.info("  %s: %s", what, _by_module(part))


def _fitting(model: Seq2Seq, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = model.state_dict()
    return {name: each for name, each in weights.items() if name in own and own[name].shape == each.shape}


def _by_module(weights: Mapping[str, Tensor]) -> str:
    """Count the numbers in weights by module, the layers of a stack together: "49,152 in decoder.layers.0-2.mix.f"."""
    counts: Counter[tuple[str, str]] = Counter()
    layers: defaultdict[tuple[str, str], dict[int, None]] = defaultdict(dict)
    for name, weight in weights.items():
        stack, found, rest = name.partition(".layers.")
        # Two names after the layer's number: a sublayer, and its mixer or norm
        number, *inner = rest.split(".")
        place = (f"{stack}.layers", ".".join(inner[:2])) if found else (name.rpartition(".")[0], "")
        counts[place] += weight.numel()
        if found:
            layers[place][int(number)] = None
    texts = []
    for (outer, inner), count in counts.items():
        numbers = sorted(layers[outer, inner])
        whole = len(numbers) > 1 and numbers == [*range(numbers[0], numbers[-1] + 1)]
        shown_layers = f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))
        texts.append(f"{count:,} in " + ".".join(filter(None, (outer, shown_layers, inner))))
    return "; ".join(texts)


def _remedy(key: str, there: Any, here: Any) -> str:
    if key.endswith("_target_"):
        return "leave mixer=... out, or replace mixers with mixer=... or mixer/self@mixer.decoder=... by name"
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
    before = {name: old[name] for name in ("model", "mixer")}
    here = _sized(plan, before["model"], chosen)
    swapped = swapped_slots(before, here, plan)
    require_same_model(old, here, plan, chosen=chosen, swapped=swapped)
    require_same_tokenizer(plan, start.tokenizer, origin)
    # Settings come from the checkpoint, unless they were chosen.
    sections = copy.deepcopy(before)
    sections["mixer"] |= {slot: here["mixer"].get(slot, {}) for slot in swapped}
    for key, _, value in differences(before, here):
        # A preset may add layers to an encoder; here the encoder keeps its depth
        typed = key in chosen if key == "mixer.extra_encoder_layers" else is_chosen(key, chosen)
        if typed and value != UNSET and _slot(key) not in swapped:
            put(sections, key, value)
    # If a mixer's dropout equals the dropout of the checkpoint's model, it follows the user's choice for the model.
    followed = {name: own for name, own in _FOLLOWED.items() if is_chosen(f"model.{name}", chosen)}
    _follow(sections["mixer"], followed, before["model"], sections["model"], chosen)
    sections = cut_lists(sections, _arguments(chosen))
    for slot in swapped:
        there, own = ("+".join(dict.fromkeys(class_names(each)[slot])) for each in (before["mixer"], sections["mixer"]))
        text = f"{own}, in place of the checkpoint's {there}" if own != there else f"{own} with other arguments"
        log.info("init_from: mixer.%s is %s", slot, text)
    optim = plan.optim
    if not any(is_chosen(key, chosen) for key in ("optim.lr", "optim.peak_lr")):
        # Low-rank updates start at zero and need higher rates
        rate = LEARNING_RATE * (10 if optim.lora else 1)
        log.info(
            "init_from: the highest learning rate is %g, for fine-tuning (from scratch it would be %g); optim.lr=... "
            "sets another",
            rate,
            optim.lr,
        )
        optim = dataclasses.replace(optim, lr=rate)
    # A setting within the mixer, such as its dropout, chooses no preset.
    label = plan.mixer if "mixer" in chosen else _label(start.meta)
    if swapped and "mixer" not in chosen:
        # The replaced slots, without the preset of conf/train.yaml
        label = "+".join([label, *plan.mixer.split("+")[1:]])
    try:
        model = read_section(ModelSettings, sections["model"], "model")
        mixers = read_mixers(sections["mixer"])
        return dataclasses.replace(plan, data=data, optim=optim, model=model, mixers=mixers, mixer=label)
    except ValueError as error:
        # The settings of the run have been checked before: the wrong value comes from the checkpoint.
        raise ValueError(f"init_from={origin}: {error}") from None


def _sized(plan: RunPlan, model: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """Return the sections model and mixer as they would be if the settings had been composed with a checkpoint's model.

    Args:
        model: The checkpoint's section, which the keys that the user chose replace.
    """
    given = plan.config["model"]
    sections = {"model": dict(model), "mixer": copy.deepcopy(plan.config["mixer"])}
    sections["model"] |= {key: value for key, value in given.items() if is_chosen(f"model.{key}", chosen)}
    # A chosen file of conf/mixer refers to sizes and dropout of the model; a typed argument does not
    typed = _arguments(chosen)
    for names in (_SIZES, _FOLLOWED):
        _follow(sections["mixer"], names, given, sections["model"], typed)
    return cut_lists(sections, typed)


def _arguments(chosen: Iterable[str]) -> list[str]:
    """Return the chosen keys that are arguments of mixers, such as mixer.encoder.num_heads, not whole mixers."""
    return [key for key in chosen if key.count(".") > 1]


def _follow(
    mixer: Any, names: Mapping[str, str], before: Mapping[str, Any], after: Mapping[str, Any], chosen: Collection[str]
) -> None:
    """Give arguments of mixers that have the model's value `before` its value `after`, except chosen ones, in place.

    Args:
        mixer: A section `mixer`.
        names: Settings of the model, with the arguments that follow them.
    """
    for name, own in names.items():
        for _, path, values in mixers_of(mixer):
            if own in values and values[own] == before.get(name) and not is_chosen(f"{path}.{own}", chosen):
                values[own] = after[name]


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
    if (read := context_size(meta)) != data.context:
        log.warning("init_from=%s: the checkpoint has data.context=%d, this run %d", origin, read, data.context)
    if meta.get("terms") is True and not data.augment.terms:
        log.warning("init_from=%s: the checkpoint was trained with data.augment.terms, this run is not", origin)
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


def require_same_tokenizer(plan: RunPlan, tokenizer: Tokenizer, origin: str) -> None:
    """Raise ValueError for a chosen tokenizer setting that differs: the weights need the checkpoint's tokenizer.

    A setting of a tokenizer's training, as an experiment has it, gets a warning.
    """
    settings = plan.tokenizer
    free = {"sampling_alpha", "extend"}
    free |= {"model", "src_model", "tgt_model"} if settings.ready_models else set()
    free |= {"character_coverage", "input_sentence_size", "seed"} if settings.extend else set()
    known: dict[str, Any] = {"vocab_size": [tokenizer.src_vocab_size, tokenizer.tgt_vocab_size]}
    known |= {"joint": [tokenizer.joint], "factors": [tokenizer.to_state().get("factors")]}
    known |= {"normalizer": [tokenizer.normalizer], "byte_fallback": [bool(tokenizer.byte_of)]}
    # data=files or tokenizer=... chooses a file of conf/, whose values are defaults, not choices of the user
    keys = [each for each in plan.chosen or () if each not in ("data", "tokenizer")]
    for name, value in plan.config["tokenizer"].items():
        # Sampling affects training, not the pieces; the others extend the tokenizer
        if name in free or value in known.get(name, ()):
            continue
        names = [f"{section}.{name}" for section in ("data", "tokenizer")]
        key = next((each for each in names if is_chosen(each, keys)), None)
        there = " and ".join(dict.fromkeys(map(str, known.get(name, ()))))
        if key and there:
            raise ValueError(f"init_from={origin}: {key} is {there} there and {value} here; leave it out")
        if key:
            log.warning("init_from=%s: %s=%s has no effect on its tokenizer", origin, key, written(value))


def start_weights(start: Loaded, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return a checkpoint's weights with rows for all pieces of a tokenizer that extends its own.

    The row of a new piece is the mean of the old rows of its `origins`, so that its logit is the mean of theirs, and
    the most probable token stays the same until the first update.
    """
    weights = start.model.state_dict()
    if tokenizer.fingerprint == start.tokenizer.fingerprint:
        return weights
    rows = origins(start.tokenizer, tokenizer)
    tables = {"encoder.embedding.table.weight": "src", "encoder.embedding.table.pieces.weight": "src"}
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
    return dataclasses.replace(settings, factors=state.get("factors"), **models)
