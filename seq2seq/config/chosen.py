"""Find the settings that a user chose, on the command line or by an experiment file, among all that have values."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from seq2seq.config.compose import resolved_settings
from seq2seq.config.dicts import differences
from seq2seq.config.mixer import mixers_of

# Sections that an experiment file means as a whole: settings of it that equal the defaults belong to its choice.
_WHOLE = ("model", "mixer", "optim")


def chosen_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys that the overrides `words` set; a section stands for all its keys, as in `mixer`.

    A choice of files, as in mixer=gru, sets its section. An experiment sets what it changes, and each of the sections
    model, mixer and optim as a whole if it changes anything in it.
    """
    found: set[str] = set()
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "experiment":
            if value not in ("", "null"):
                found |= _changed_by(word)
        else:
            # mixer/self@mixer.encoder and mixer/cross: the section that the file is put in
            found.add(key.partition("@")[2] or key.replace("/", "."))
    return frozenset(found)


def typed_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys of single settings that the overrides `words` set, without what a file or an experiment sets."""
    keys = (word.lstrip("+~").partition("=")[0] for word in words)
    return frozenset(key for key in keys if "." in key and "@" not in key)


def is_chosen(key: str, chosen: Iterable[str]) -> bool:
    """Return True if `chosen` has a key, a section that it is in, or one of its own keys."""
    return any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in chosen)


def cut_lists(config: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """Return plain settings in which the `per_layer` lists of presets are cut to the depth of a model of fewer layers.

    Lists whose keys are among `typed` are left as they are, and refused when the model is built if they are too long.
    """
    result = copy.deepcopy(dict(config))
    mixer, model = result.get("mixer"), result.get("model")
    if not isinstance(mixer, dict) or not isinstance(model, dict):
        return result
    depths = {"encoder": [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0)]}
    depths["decoder"] = depths["cross"] = [model.get("decoder_layers")]
    for slot, path, values in mixers_of(mixer):
        lists = values.get("per_layer")
        # Wrong values are refused by the checks that follow
        if not isinstance(lists, dict) or not all(isinstance(each, int) for each in depths[slot]):
            continue
        for key, entries in lists.items():
            if isinstance(entries, list) and not is_chosen(f"{path}.per_layer.{key}", typed):
                lists[key] = entries[: max(1, sum(depths[slot]))]
    return result


def _changed_by(word: str) -> set[str]:
    keys = {key for key, _, _ in differences(resolved_settings(), resolved_settings([word]))}
    return {section if (section := key.partition(".")[0]) in _WHOLE else key for key in keys}
