"""Call Hydra to compose settings, and explain in one line why it refuses the words of a command."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seq2seq.settings.aliases import elsewhere, setting_for
from seq2seq.settings.dicts import flat
from seq2seq.settings.run import read_settings
from seq2seq.settings.values import shown, suggestion
from seq2seq.system.errors import first_line
from seq2seq.system.resources import choices, conf_dir

# Entries of these have names of the user's own, and may be deleted.
_USER_NAMED = ("mixer.", "logger.", "callbacks.", "data.corpora.", "data.tokenize.", "data.columns.")
# Sections that are filled by a file, and the groups that choose it.
_GROUPS = {
    "mixer.encoder": "mixer/self@mixer.encoder",
    "mixer.decoder": "mixer/self@mixer.decoder",
    "mixer.cross": "mixer/cross",
    "hydra.launcher": "hydra/launcher",
}
# Settings that are names of files and folders, most often.
_NAMES = ("run", "runs", "data.name", "data.train", "data.valid", "data.test", "init_from", "resume")
# Flags that choose what Hydra does; it takes at most one of them.
_MODES = ("run", "multirun", "cfg", "info", "shell_completion")
# Exceptions of Hydra for settings that it refuses.
REFUSALS = (HydraException, OmegaConfBaseException)


def compose_or_raise(overrides: Sequence[str], **options: Any) -> DictConfig:
    """Compose settings; errors of Hydra and OmegaConf are not caught."""
    # Hydra runs this command, and may have been given another configuration folder.
    if GlobalHydra.instance().is_initialized():
        return compose("train", list(overrides), **options)
    # An absolute path, which also works from console scripts and launchers.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", list(overrides), **options)


def plain_settings(config: DictConfig) -> dict[str, Any]:
    """Return composed settings as plain values, with interpolations resolved.

    Raises:
        ValueError: An interpolation has no value, or leads back to itself.
    """
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    except RecursionError:
        raise ValueError("settings: an interpolation ${...} leads back to itself") from None


def one_line(error: Exception) -> str:
    """Return the first line of an error of Hydra; the other lines are advice about Hydra's own files."""
    return f"settings: {first_line(error)}"


def mistake(words: Sequence[str]) -> str:
    """Explain the first mistake of a command line that can be found before Hydra composes; else return ""."""
    # Another configuration folder may have other keys.
    if any(word.startswith(("--config", "-c")) for word in words):
        return ""
    parser = get_args_parser()
    given, rest = parser.parse_known_args(list(words))
    if rest and rest[0].startswith("-"):
        flags = [option for action in parser._actions for option in action.option_strings]
        flag = rest[0].partition("=")[0]
        found = elsewhere(flag.lstrip("-")) or suggestion(flag, flags)
        return f"{shown(rest[0])} is not a flag: settings are written name=value{found} (--help lists all)"
    if rest:
        return f"{shown(rest[0])} comes after a flag: write flags such as -m before all settings"
    modes = [f"--{mode.replace('_', '-')}" for mode in _MODES if getattr(given, mode)]
    if len(modes) > 1:
        return f"{' and '.join(modes)} exclude each other: leave one out"
    message = wrong_word(given.overrides)
    if message or not given.multirun:
        return message
    return _shared_folder(given.overrides) or _wrong_job(given.overrides)


def wrong_word(overrides: Sequence[str]) -> str:
    """Explain the first word that cannot be parsed, or that chooses an unknown file of a group; else return ""."""
    for word in overrides:
        try:
            override = _parse(word)
        # Hydra raises ValueError and the other errors of this tuple for some words that it cannot parse.
        except (*REFUSALS, ValueError, AssertionError, AttributeError, TypeError) as error:
            return _syntax(word, error)
        if message := (
            _other_name(override, word) or _wrong_change(override, word) or _wrong_choice(override, word, overrides)
        ):
            return message
    return ""


def _other_name(override: Override, word: str) -> str:
    """Explain a name that Hydra reads as a number, as it reads 2026_11_29 as 20261129; else return ""."""
    key, _, text = word.partition("=")
    value = None if override.is_sweep_override() else override.value()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key.lstrip("+") not in _NAMES or not is_number or str(value) == text:
        return ""
    return f"{shown(word)} is the number {value}: write '{key}=\"{shown(text)}\"'"


def refusal(error: Exception, words: Sequence[str]) -> str:
    """Explain an error of Hydra by the word that it names."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        # `schema` holds the defaults of the group; it is not an option.
        return _no_choice(f"{group}={name}", name, sorted({*error.options} - {"schema"}))
    text = str(error)
    # The key inside a mapping that OmegaConf refuses.
    inner = str(getattr(error.__cause__, "full_key", ""))
    for word in words:
        key = _key(word)
        if "--multirun" in text and _parse(word).is_sweep_override():
            _, _, value = word.partition("=")
            one = f"for a list write {key}=[{shown(value)}], for a name with commas '{key}=\"{shown(value)}\"'"
            if choices(key.partition("@")[0]):
                one = "without it, choose one"
            return f"{shown(word)} has several values: -m runs them all; {one}"
        # The word adds, as +key, a key that exists.
        if f"An item is already at '{key}'" in text:
            return f"{key} is a setting already: write {word.lstrip('+')}"
        if any(f"Could not {verb}" in text for verb in ("override", "append", "delete")) and f"'{key}'" in text:
            wrong = inner if inner.startswith(f"{key}.") else key
            return _unknown_key(wrong, word, words) or one_line(error)
    return one_line(error)


def _shared_folder(overrides: Sequence[str]) -> str:
    """Explain a setting `run` that several jobs of a sweep would share; else return ""."""
    names = [word.partition("=")[2] for word in overrides if _key(word) == "run"]
    swept = any(_parse(word).is_sweep_override() for word in overrides if _key(word) != "run")
    if not swept or not names or names[-1] in ("", "null") or "$" in names[-1]:
        return ""
    name = shown(names[-1])
    return f"run={name} would be the folder of several jobs: leave run out, or write 'run={name}-${{hydra:job.num}}'"


def _wrong_job(overrides: Sequence[str]) -> str:
    """Explain why the first and the last job of a sweep are refused, before it makes its folder; else return ""."""
    message = _refused_job(overrides, 0)
    return message if message and message == _refused_job(overrides, -1) else ""


def _refused_job(overrides: Sequence[str], place: int) -> str:
    """Explain why the job with the values at this place of every list is refused; else return ""."""
    job = []
    for word in overrides:
        override = _parse(word)
        if not override.is_sweep_override():
            job.append(word)
        elif values := _values(override):
            job.append(f"{override.get_key_element()}={values[place]}")
    # Only a job knows the value of ${hydra:...}, such as its number.
    job = [re.sub(r"\$\{hydra:[^}]*\}", "0", word) for word in job]
    try:
        read_settings(plain_settings(compose_or_raise(job)))
    except REFUSALS as error:
        return refusal(error, job)
    except (ValueError, AttributeError, AssertionError) as error:
        # Hydra raises the last two for some words that it cannot parse.
        return str(error)
    return ""


@functools.cache
def _parse(word: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([word])
    return override


def _key(word: str) -> str:
    """Return the key, or the group, of a word."""
    return _parse(word).get_key_element().lstrip("+~")


def _values(override: Override) -> list[object]:
    """List the values that a word sweeps over, or its one value; an interval has an empty list."""
    value = override.value()
    if isinstance(value, Glob):
        return list(value.filter(choices(override.get_key_element().partition("@")[0])))
    if isinstance(value, IntervalSweep):
        return []
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [value]


def _syntax(word: str, error: Exception) -> str:
    """Explain a word that Hydra cannot parse."""
    if "=" not in word:
        hint = "write name=value, as in trainer.max_epochs=10 (--help lists the settings)"
        return f"'{shown(word)}' is not a setting with a value: {hint}"
    key = word.partition("=")[0]
    quotes = f"put a value with special characters in quotes, as in '{shown(key)}=\"a=b, c\"'"
    return f"'{shown(word)}' cannot be read ({shown(str(error))}): {quotes}"


def _wrong_change(override: Override, word: str) -> str:
    """Explain a setting that may not be deleted, or a choice of a file written otherwise; else return ""."""
    key = _key(word)
    place, _, value = word.partition("=")
    group = _GROUPS.get(key.replace("/", "."))
    if group and group != place and not override.is_delete() and override.value() is not None and "{" not in value:
        return f"{shown(word)}: a file is chosen by its group; write {group}={shown(value)}"
    if override.is_delete() and (key == "mixer" or not f"{key}.".startswith(_USER_NAMED)):
        return (
            f"{word}: a setting cannot be deleted; leave {key} out for its default, or set it to null, which turns off "
            "what can be off"
        )
    # Hydra would drop the added choice without a word.
    if word.startswith("+") and (conf_dir() / key).is_dir():
        return f"{shown(word)}: {key} has a choice already; write {shown(word.lstrip('+'))}"
    return ""


def _wrong_choice(override: Override, word: str, overrides: Sequence[str]) -> str:
    """Explain the first choice of a group that is not one of its files, in any job of a sweep."""
    group = _key(word).partition("@")[0]
    known = choices(group)
    # Packages and further folders add choices of their own.
    further = group.startswith("hydra/") or any(each.lstrip("+").startswith("hydra.searchpath") for each in overrides)
    if override.is_delete() or not known or further:
        return ""
    values = _values(override)
    for value in values:
        is_default = group == "experiment" and value in (None, "null")
        if not is_default and not (conf_dir() / group / f"{value}.yaml").is_file():
            return _no_choice(f"{override.get_key_element()}={shown(value)}", str(value), known)
    return "" if values else _no_choice(shown(word), "", known)


def _no_choice(word: str, name: str, known: Sequence[str]) -> str:
    return f"{word} is not a choice{suggestion(name, known)} (known: {', '.join(known)})"


def _unknown_key(key: str, word: str, words: Sequence[str]) -> str:
    """Explain a key that no setting has; "" for a key that exists, which was refused for its value."""
    # Users name the entries of these sections.
    if key.startswith(("callbacks.", "logger.", "data.corpora.")) and not word.startswith("~"):
        return f"{key} is new: write +{word.lstrip('+')}"
    # The other words may choose a mixer, which decides which keys exist.
    others = [other for other in words if other != word and not _parse(other).is_sweep_override()]
    try:
        composed = compose_or_raise(others, return_hydra_config=True)
    except REFUSALS:
        composed = compose_or_raise([], return_hydra_config=True)
    known = {str(group) for group in composed.hydra.runtime.choices}
    for name in flat(OmegaConf.to_container(composed, resolve=False)):  # type: ignore[arg-type]
        parts = name.split(".")
        known |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    # Hydra fills these in; they are not settings.
    names = sorted(each for each in known if not each.startswith(("hydra.runtime", "hydra.overrides")))
    return "" if key in known else f"{shown(key)} is not a setting{setting_for(key, names)} (--help lists all)"
