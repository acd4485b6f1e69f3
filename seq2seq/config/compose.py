"""Compose the settings of a run with Hydra, and explain in one line what Hydra refuses."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seq2seq.config.dicts import flat
from seq2seq.config.lightning import explain_argument
from seq2seq.config.moved import new_key
from seq2seq.resources import conf_dir


def presets() -> list[str]:
    """List the presets: the files of conf/mixer."""
    return sorted(path.stem for path in (conf_dir() / "mixer").glob("*.yaml"))


def self_mixers() -> list[str]:
    """List the self mixers: the files of conf/mixer/self but for the empty slot's."""
    return sorted(path.stem for path in (conf_dir() / "mixer" / "self").glob("*.yaml") if path.stem != "none")


def require_known(name: str, known: Sequence[str], what: str) -> str:
    """Return `name`.

    Raises:
        ValueError: it is not among `known`; names those that are spelled alike.
    """
    if name in known:
        return name
    hint = _near(name, known) or f"; there are {', '.join(known)}"
    raise ValueError(f"unknown {what} '{name}'{hint}")


def compose_settings(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the settings of `python -m seq2seq.train` with these overrides; interpolations stay.

    Raises:
        ValueError: Hydra refuses the overrides; says why in one line.
    """
    try:
        # Explaining composes again, so only where Hydra has refused.
        return _compose(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        # from None: Hydra's trace of its own files helps nobody.
        raise ValueError(explain(overrides) or _one_line(error)) from None


def resolved_settings(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose settings as plain values, interpolations resolved.

    Raises:
        ValueError: Hydra refuses the overrides, or an interpolation has no value.
    """
    config = compose_settings(overrides)
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(_one_line(error)) from None


def _one_line(error: Exception) -> str:
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return f"settings: {'; '.join(lines)}"


def refuse_mistakes(program: str, words: Sequence[str] | None = None) -> None:
    """Print one line and exit with status 2 if one of `words`, the command line, sets an unknown key or choice.

    Hydra would only offer to add an unknown key. It is left to report every other mistake.

    Args:
        program: Begins the printed line.
        words: None for those of this process.
    """
    words = sys.argv[1:] if words is None else words
    # Another configuration folder may have other keys, and whoever wants the trace gets it.
    if os.environ.get("HYDRA_FULL_ERROR") == "1" or any(word.startswith(("--config", "-c")) for word in words):
        return
    # Flags of Hydra itself (-m, --cfg) are not overrides.
    if message := explain([word for word in words if not word.startswith("-")]):
        print(f"{program}: {message}\n(HYDRA_FULL_ERROR=1 shows where)", file=sys.stderr)
        sys.exit(2)


def explain(overrides: Sequence[str]) -> str:
    """Explain the first override of an unknown key or choice; "" if there is none, or another mistake."""
    chosen: list[str] = []
    # Hydra names the key that it refuses, or the file that it misses; the word that set it is looked up by that.
    try:
        chosen += [_first_choice(word) for word in overrides]
        _compose(chosen)
    except MissingConfigException as error:
        return _unknown_choice(error, chosen)
    except HydraException as error:
        # +key for a key that exists.
        if added := [word for word in chosen if f"An item is already at '{_key(word)}'" in str(error)]:
            return f"{_key(added[0])} is a setting already: write {added[0].lstrip('+')}"
        word = next((word for word in chosen if _is_refused(word, error)), None)
        return _unknown_key(word, chosen) if word else ""
    return ""


def _compose(overrides: Sequence[str], **options: Any) -> DictConfig:
    # An absolute path, which also works from console scripts and launchers.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", list(overrides), **options)


def _first_choice(word: str) -> str:
    """Return an override with the first of the values that it sweeps over; HydraException if it is none."""
    (override,) = OverridesParser.create().parse_overrides([word])
    if not override.is_sweep_override():
        return word
    # A sweep is composed job by job; its first value shows an unknown key.
    first = next(iter(override.sweep_string_iterator()), None)
    return f"{override.get_key_element()}={first}"


def _key(word: str) -> str:
    return word.split("=", 1)[0].lstrip("+")


def _is_refused(word: str, error: HydraException) -> bool:
    key = word.split("=", 1)[0]
    # Those that add or delete a key are refused for other reasons.
    return not word.startswith(("+", "~")) and f"Could not override '{key}'" in str(error)


def _unknown_choice(error: MissingConfigException, overrides: Sequence[str]) -> str:
    """Explain a file that a group does not have, as in mixer=transfomer."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    word = next((word for word in overrides if word.endswith(f"={name}")), f"{group}={name}")
    # `schema` holds the defaults of the group; it is not an option.
    known = sorted(option for option in error.options or () if option != "schema")
    if not known:
        return ""
    return f"{word} is no choice{_near(name, known)} (known: {', '.join(known)})"


def _unknown_key(word: str, overrides: Sequence[str]) -> str:
    key = word.split("=", 1)[0]
    if moved := new_key(key):
        return f"{key} is now {moved}"
    if explained := explain_argument(key):
        return explained
    # Their entries have names of the user's own.
    if key.startswith(("callbacks.", "logger.")):
        return f"{key} is new: write +{word}"
    # The other overrides may choose a mixer, which decides which keys exist.
    known = _known_keys([other for other in overrides if other != word])
    return f"{key} is no setting{_near(key, known)} (--cfg job lists all)"


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _known_keys(overrides: Sequence[str]) -> list[str]:
    """List the keys of all settings and sections under those of `overrides` that compose."""
    try:
        composed = _compose(overrides, return_hydra_config=True)
    except HydraException:
        composed = _compose([], return_hydra_config=True)
    values = flat(OmegaConf.to_container(composed, resolve=False))  # type: ignore[arg-type]
    return [*values, *sorted({section for key in values for section in _sections(key)})]


def _sections(key: str) -> Iterator[str]:
    parts = key.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])
