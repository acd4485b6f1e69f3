"""Find the settings that a user chose, on the command line or by an experiment file, among all that have values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seq2seq.config.compose import resolved_settings
from seq2seq.config.dicts import differences

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


def _changed_by(word: str) -> set[str]:
    keys = {key for key, _, _ in differences(resolved_settings(), resolved_settings([word]))}
    return {section if (section := key.partition(".")[0]) in _WHOLE else key for key in keys}
