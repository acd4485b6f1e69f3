"""Compose settings with Hydra, and find the settings that a user chose."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from seq2seq.settings.classes import mixers_of
from seq2seq.settings.dicts import differences
from seq2seq.settings.hydra_call import REFUSALS, compose_or_raise, plain_settings, refusal, wrong_word
from seq2seq.settings.values import require_list
from seq2seq.system.resources import choices


def presets() -> list[str]:
    """List the presets: the files of conf/mixer."""
    return choices("mixer")


def self_mixers() -> list[str]:
    """List the self mixers: the files of conf/mixer/self except `none`, which is the empty slot."""
    return [name for name in choices("mixer/self") if name != "none"]


def compose_settings(overrides: Sequence[str] = (), **options: Any) -> DictConfig:
    """Compose the settings of `python -m seq2seq.train`, by options of `hydra.compose`; interpolations stay.

    Raises:
        ValueError: The overrides are no list, or Hydra refuses them; the message says why in one line.
    """
    require_list(overrides, "overrides")
    try:
        # An explanation composes again, so it is made only after Hydra has refused.
        return compose_or_raise(overrides, **options)
    except REFUSALS as error:
        # from None: the traceback is in Hydra's own files.
        raise ValueError(wrong_word(overrides) or refusal(error, overrides)) from None


def resolved_settings(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose settings as plain values, with interpolations resolved.

    Raises:
        ValueError: Hydra refuses the overrides, or an interpolation has no value.
    """
    return plain_settings(compose_settings(overrides))


# Sections that an experiment chooses as a whole, including the values that equal the defaults.
_WHOLE = ("model", "mixer", "optim")


def chosen_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys that the overrides `words` set; the name of a section stands for all of its keys.

    A choice of a file, as in mixer=gru, sets its section. An experiment sets the keys that it changes, and each of the
    sections model, mixer and optim as a whole if it changes any of its keys.
    """
    found: set[str] = set()
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key != "experiment":
            # mixer/self@mixer.encoder and mixer/cross are files for these sections.
            found.add(key.partition("@")[2] or key.replace("/", "."))
        elif value not in ("", "null"):
            for name, _, _ in differences(resolved_settings(), resolved_settings([word])):
                section = name.partition(".")[0]
                found.add(section if section in _WHOLE else name)
    return frozenset(found)


def typed_mixers(words: Sequence[str]) -> frozenset[str]:
    """Return the keys of the overrides `words` that choose a mixer, such as "mixer" (a preset) or "mixer.decoder"."""
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    chosen = [key for key in keys if key == "mixer" or key.startswith("mixer/") or key.endswith("._target_")]
    return chosen_settings([f"{key}=" for key in chosen])


def typed_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys of single settings among the overrides `words`, without choices of files."""
    keys = (word.lstrip("+~").partition("=")[0] for word in words)
    return frozenset(key for key in keys if "." in key and "@" not in key)


def is_chosen(key: str, chosen: Iterable[str]) -> bool:
    """Return True if `chosen` contains `key`, a section that contains it, or a key inside it."""
    return any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in chosen)


def cut_lists(config: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """Return plain settings whose `per_layer` lists have no more entries than the model has layers.

    Lists whose keys are among `typed` are not cut: building the model refuses them if they are too long.
    """
    result = copy.deepcopy(dict(config))
    mixer, model = result.get("mixer"), result.get("model")
    if not isinstance(mixer, dict) or not isinstance(model, dict):
        return result
    decoder = [model.get("decoder_layers")]
    encoder = [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0)]
    depths = {"encoder": encoder, "decoder": decoder, "cross": decoder}
    for slot, path, values in mixers_of(mixer):
        lists = values.get("per_layer")
        # Later checks refuse wrong values
        if not isinstance(lists, dict) or not all(isinstance(each, int) for each in depths[slot]):
            continue
        for key, entries in lists.items():
            if isinstance(entries, list) and not is_chosen(f"{path}.per_layer.{key}", typed):
                lists[key] = entries[: max(1, sum(depths[slot]))]
    return result
