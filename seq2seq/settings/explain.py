"""Explain in one line what is wrong with the words of a command that Hydra composes settings for."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from seq2seq.settings.aliases import elsewhere, setting_for
from seq2seq.settings.compose import compose_or_raise, one_line, plain_settings
from seq2seq.settings.dicts import flat
from seq2seq.settings.run import read_settings
from seq2seq.settings.values import shown, suggestion
from seq2seq.system.resources import choices, conf_dir

# Entries below these have names of the user's own, which can be deleted.
_USER_NAMED = ("mixer", "logger", "callbacks", "data.corpora", "data.tokenize", "data.columns")
# Flags that start a sweep.
_SWEEP = ("-m", "--multirun")
# Flags of which Hydra takes one.
_MODES = ("run", "multirun", "cfg", "info", "shell_completion")
# What Hydra raises for settings that it does not take; the last ones are slips of its own.
_ERRORS = (HydraException, OmegaConfBaseException, ValueError, AssertionError, AttributeError, TypeError)


def mistake(words: Sequence[str]) -> str:
    """Explain what Hydra would refuse of a command line, or what is wrong in all jobs of a sweep; "" if nothing is."""
    # Another configuration folder may have other keys.
    if any(word.startswith(("--config", "-c")) for word in words):
        return ""
    message, overrides = _explain_flags(words)
    message = message or explain(overrides)
    if message or not set(_SWEEP) & set(words):
        return message or _several_values(overrides)
    return _shared_folder(overrides) or _wrong_jobs(overrides)


def _explain_flags(words: Sequence[str]) -> tuple[str, list[str]]:
    """Explain what is not a flag of Hydra's, if anything is; return the words that are settings, too."""
    parser = get_args_parser()
    try:
        # argparse exits after its own usage of twenty lines.
        parser.error = _raise  # type: ignore[method-assign]
        given = parser.parse_args(list(words))
        # Hydra ends with a traceback
        modes = [f"--{mode.replace('_', '-')}" for mode in _MODES if getattr(given, mode)]
        refused = f"{' and '.join(modes)} exclude each other: leave one out" if len(modes) > 1 else ""
        return refused, list(given.overrides)
    except ValueError as error:
        flags = [option for action in parser._actions for option in action.option_strings]
        flag = next((word for word in words if word.startswith("-") and word.split("=")[0] not in flags), "")
        if not flag and set(_SWEEP) & set(words):
            # Right but for its place, which argparse does not take
            rest = " ".join(word for word in words if word not in _SWEEP)
            return f"-m stands before all settings: -m {shown(rest)}", []
        found = elsewhere(flag.lstrip("-").partition("=")[0]) or suggestion(flag, flags)
        hint = f"settings are written name=value{found}" if flag else str(error)
        return f"{shown(flag)} is not a flag: {hint} (--help lists all)" if flag else hint, []


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def explain(overrides: Sequence[str]) -> str:
    """Explain the first mistake that keeps settings, or a sweep's first job, from being composed; "" if none does."""
    for word in overrides:
        try:
            override = _parse(word)
        except _ERRORS as error:
            return _syntax(word, error)
        if message := _wrong_change(override, word) or _wrong_choice(override, word, overrides):
            return message
    chosen = _job(overrides)
    try:
        composed = compose_or_raise(chosen, return_hydra_config=True)
        # Folders of Hydra's own, which it makes before anything else.
        _ = str(composed.hydra.run.dir), str(composed.hydra.sweep.dir)
    except _ERRORS as error:
        return _refused(error, chosen)
    return _swept(composed, chosen)


def _several_values(overrides: Sequence[str]) -> str:
    """Explain a word with several values on the command line of a single run; "" if there is none."""
    word = next((word for word in overrides if _parse(word).is_sweep_override()), None)
    if word is None or any(word.startswith("hydra.mode=") for word in overrides):
        return ""
    key, _, value = word.partition("=")
    one = f", for a path {quoted}" if "/" in value and (quoted := _in_quotes(word)) else ""
    return f"{shown(word)} has several values: -m runs them all; for a list write {key}=[{shown(value)}]{one}"


def _shared_folder(overrides: Sequence[str]) -> str:
    """Explain a name `run` that several jobs of a sweep would have; "" if there is none."""
    names = [word.partition("=")[2] for word in overrides if word.startswith("run=")]
    swept = any(_parse(word).is_sweep_override() for word in overrides if not word.startswith("run="))
    if not swept or not names or names[-1] in ("", "null") or "$" in names[-1]:
        return ""
    return (
        f"run={shown(names[-1])} would be the folder of several jobs; leave run out, or name them apart with "
        f"'run={shown(names[-1])}-${{seed}}'"
    )


def _wrong_jobs(overrides: Sequence[str]) -> str:
    """Explain what is wrong with the values of a sweep's first job, if it is wrong in the last one, too."""
    first, last = (_job(overrides, index) for index in (0, -1))
    message = _wrong_values(first)
    return message if message and (first == last or _wrong_values(last) == message) else ""


def _wrong_values(words: Sequence[str]) -> str:
    # Known only in a job, as its number is.
    plain = [re.sub(r"\$\{hydra:[^}]*\}", "0", word) for word in words]
    try:
        composed = compose_or_raise(plain, return_hydra_config=True)
        with open_dict(composed):
            composed.pop("hydra")
        read_settings(plain_settings(composed))
    except (HydraException, OmegaConfBaseException) as error:
        return one_line(error)
    except ValueError as error:
        return str(error)
    return ""


@functools.cache
def _parse(word: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([word])
    return override


def _job(overrides: Sequence[str], index: int = 0) -> list[str]:
    """Return the words of one job of a sweep: of each word with several values the first one, or another."""
    job = []
    for word in overrides:
        override = _parse(word)
        values = _values(override)
        swept = override.is_sweep_override() and values
        job.append(f"{override.get_key_element()}={values[index]}" if swept else word)
    return job


def _values(override: Override) -> list[object]:
    """List the values that an override sweeps over, or its one value."""
    value = override.value()
    if isinstance(value, Glob):
        return list(value.filter(choices(_group(override))))
    if isinstance(value, IntervalSweep):
        return [value.start, value.end]
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [value]


def _group(override: Override) -> str:
    """Return the group that an override chooses a file of, if it does."""
    return override.get_key_element().lstrip("+~").partition("@")[0]


def _in_quotes(word: str) -> str:
    """Return a setting as a shell takes it, with its value in quotes; "" for a value that is a list or the like."""
    key, _, value = word.partition("=")
    text = value.replace('"', '\\"')
    quoted = f'{key}="{text}"'
    try:
        plain = len(value) < 1000 and not value.startswith(("[", "{", '"', "'"))
        known = plain and _parse(quoted).value() == value
    except _ERRORS:
        return ""
    return shlex.quote(quoted) if known else ""


def _syntax(word: str, error: Exception) -> str:
    if "=" not in word:
        hint = "write name=value, as in trainer.max_epochs=10 (--help lists the settings)"
        return f"'{shown(word)}' is not a setting with a value: {hint}"
    if quoted := _in_quotes(word):
        return f"{shown(word)} cannot be read: write {quoted}"
    # The parser's own words, without the copy of the text with a mark below.
    lines = [line.strip() for line in str(error).splitlines()]
    own = [line for line in lines if line and line != "^" and "https:" not in line and line not in word]
    quoted = "quotes keep spaces, commas, brackets and $ together, as in 'data.train=\"a, b.txt\"'"
    return f"'{shown(word)}' cannot be read ({shown(own[-1] if own else 'syntax')}): {quoted}"


def _wrong_change(override: Override, word: str) -> str:
    """Explain a key that may not be deleted, or a choice of a group that is added to another; "" if it may."""
    key = override.get_key_element().lstrip("+~")
    if override.is_delete() and not f"{key}.".startswith(tuple(f"{part}." for part in _USER_NAMED)):
        return f"{word}: a setting cannot be deleted; null turns off what can be off, and {key} left out is its default"
    # Beside a choice of the group without +, Hydra would drop this one without a word.
    if word.startswith("+") and (conf_dir() / key).is_dir():
        return f"{shown(word)}: {key} has a choice already; write {shown(word.lstrip('+'))}"
    return ""


def _wrong_choice(override: Override, word: str, overrides: Sequence[str]) -> str:
    """Explain the first of a group's choices that is no file of it; "" if all are, or if it sets no group."""
    group = _group(override)
    known = choices(group)
    further = any(each.lstrip("+").startswith("hydra.searchpath") for each in overrides)
    if override.is_delete() or not known or group.startswith("hydra/") or further:
        return ""
    values = _values(override)
    if not values:
        return f"{shown(word)} matches no choice (known: {', '.join(known)})"
    for value in values:
        # Of experiments, none is the default
        none = group == "experiment" and value in (None, "null")
        if not none and not (conf_dir() / group / f"{value}.yaml").is_file():
            return _no_choice(f"{override.get_key_element()}={shown(value)}", str(value), known)
    return ""


def _no_choice(word: str, name: str, known: Sequence[str]) -> str:
    return f"{shown(word)} is not a choice{suggestion(name, known)} (known: {', '.join(known)})"


def _swept(composed: DictConfig, chosen: Sequence[str]) -> str:
    """Explain the first mistake in what a sweeper's own settings sweep over."""
    # Optuna's and Hydra's own sweeper: {key: what the command line would have behind the =}.
    params = OmegaConf.select(composed, "hydra.sweeper.params")
    if not isinstance(params, DictConfig):
        return ""
    values = flat(OmegaConf.to_container(params))  # type: ignore[arg-type]
    # Its own settings, of the command line or of an experiment, are not read again, or this would not end.
    given = {_parse(word).get_key_element() for word in chosen}
    words = [f"{key}={value}" for key, value in values.items() if key not in given]
    kept = [word for word in chosen if "hydra.sweeper.params" not in word and "hydra/sweeper" not in word]
    message = explain([*kept, *words]) if words else ""
    return f"hydra.sweeper.params: {message}" if message else ""


def _refused(error: Exception, chosen: Sequence[str]) -> str:
    """Explain what Hydra refuses, by the word that it names."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        # `schema` holds the defaults of the group; it is not an option.
        return _no_choice(f"{group}={name}", name, sorted({*error.options} - {"schema"}))
    text = str(error)
    for word in chosen:
        key = _parse(word).get_key_element().lstrip("+~")
        # +key for a key that exists.
        if f"An item is already at '{key}'" in text:
            return f"{key} is a setting already: write {word.lstrip('+')}"
        if any(f"Could not {verb}" in text for verb in ("override", "append", "delete")) and f"'{key}'" in text:
            return _unknown_key(key, word, chosen) or one_line(error)
    return one_line(error)


def _unknown_key(key: str, word: str, overrides: Sequence[str]) -> str:
    # Their entries have names of the user's own.
    if key.startswith(("callbacks.", "logger.")) and not word.startswith("~"):
        return f"{key} is new: write +{word.lstrip('+')}"
    # The other overrides may choose a mixer, which decides which keys exist.
    known = _known_keys([other for other in overrides if other != word])
    # A key that exists was refused for its value, which Hydra's own words explain.
    return "" if key in known else f"{shown(key)} is not a setting{setting_for(key, known)} (--help lists all)"


def _known_keys(overrides: Sequence[str]) -> list[str]:
    """List the keys of all settings, sections and groups under those of `overrides` that compose."""
    try:
        composed = compose_or_raise(overrides, return_hydra_config=True)
    except _ERRORS:
        composed = compose_or_raise([], return_hydra_config=True)
    values = flat(OmegaConf.to_container(composed, resolve=False))  # type: ignore[arg-type]
    keys = {str(group) for group in composed.hydra.runtime.choices}
    for key in values:
        parts = key.split(".")
        keys |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    # Those that Hydra fills in are not settings.
    return sorted(key for key in keys if not key.startswith(("hydra.runtime", "hydra.overrides")))
