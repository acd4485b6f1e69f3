"""A mistyped key on the command line, told with the keys that are like it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from seq2seq.config.dicts import flat
from seq2seq.config.moved import new_key
from seq2seq.resources import conf_dir


def refuse_unknown(program: str, words: Sequence[str] | None = None) -> None:
    """One line on stderr and exit code 2 if one of `words`, the command line, sets a key that there is not.

    Hydra, which would only offer to add the key, is left to tell of every other mistake.
    """
    words = sys.argv[1:] if words is None else words
    if os.environ.get("HYDRA_FULL_ERROR") == "1" or any(word.startswith(("--config", "-c")) for word in words):
        return
    if message := unknown_key([word for word in words if not word.startswith("-")]):
        print(f"{program}: {message}\n(HYDRA_FULL_ERROR=1 shows where)", file=sys.stderr)
        sys.exit(2)


def unknown_key(overrides: Sequence[str]) -> str:
    """What to tell of the first of `overrides` whose key is unknown; "" if there is none, or another mistake."""
    try:
        chosen = [_first_choice(word) for word in overrides]
        wrong = _refused(chosen)
    except HydraException:
        return ""
    if wrong is None:
        return ""
    key = wrong.split("=", 1)[0]
    if moved := new_key(key):
        return f"{key} is now {moved}"
    near = difflib.get_close_matches(key, _keys([word for word in chosen if word != wrong]), n=3, cutoff=0.5)
    like = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{key} is no setting{like} (--cfg job lists all)"


def _first_choice(word: str) -> str:
    """An override, with the first of the values that it sweeps over; HydraException if it is none."""
    (override,) = OverridesParser.create().parse_overrides([word])
    if not override.is_sweep_override():
        return word
    first = next(iter(override.sweep_string_iterator()), None)
    return f"{override.get_key_element()}={first}"


def _refused(overrides: Sequence[str]) -> str | None:
    """The first override without which the settings compose further; None if all of them compose."""
    error = _error(overrides)
    if error is None:
        return None
    for word in overrides:
        if not word.startswith(("+", "~")) and f"Could not override '{word.split('=', 1)[0]}'" in error:
            return word
    return None


def _error(overrides: Sequence[str]) -> str | None:
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            compose("train", list(overrides))
    except HydraException as error:
        return str(error)
    return None


def _keys(overrides: Sequence[str]) -> list[str]:
    """All keys, those of sections too, under what of `overrides` composes."""
    chosen = [] if _error(overrides) else list(overrides)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("train", chosen, return_hydra_config=True)
    values = flat(OmegaConf.to_container(composed, resolve=False))  # type: ignore[arg-type]
    sections = {name for key in values for name in _parents(key)}
    return [*values, *sorted(sections)]


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
