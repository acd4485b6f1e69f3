"""Explain in one line what is wrong with a command line of settings."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from seq2seq.config.compose import compose_or_raise, one_line, plain_settings
from seq2seq.config.dicts import flat
from seq2seq.config.elsewhere import elsewhere, setting_for
from seq2seq.config.help import help_text
from seq2seq.config.lightning import explain_argument
from seq2seq.config.names import suggestion
from seq2seq.config.sections import read_sections
from seq2seq.config.values import shown
from seq2seq.resources import choices, conf_dir
from seq2seq.streams import whole_output

# Entries below these have names of the user's own, which can be added and deleted.
_USER_NAMED = ("mixer", "logger", "callbacks", "data.corpora", "data.tokenize", "data.columns")
# The same of Hydra's own settings.
_USER_NAMED_OF_HYDRA = (
    *("hydra.sweeper.params", "hydra.launcher.additional_parameters", "hydra.callbacks"),
    *("hydra.job.env_set", "hydra.job_logging", "hydra.hydra_logging", "hydra.launcher.env_set", "hydra.searchpath"),
)
# Exit status of an interrupted program, as shells report it.
INTERRUPTED = 128 + signal.SIGINT
# Flags that start a sweep.
_SWEEP = ("-m", "--multirun")
# Flags of which Hydra takes one.
_MODES = ("run", "multirun", "cfg", "info", "shell_completion")
# What Hydra raises for settings that it does not take; the last ones are slips of its own.
_ERRORS = (HydraException, OmegaConfBaseException, ValueError, AssertionError, AttributeError, TypeError)


def run_program(program: str, main: Callable[[], object]) -> None:
    """Run a program that Hydra composes settings for, once its command line is known to be right.

    Args:
        program: Begins the line of an error.
        main: Function decorated by `hydra.main`.
    """
    sys.argv[1:] = map(with_home, sys.argv[1:])
    try:
        try:
            with whole_output():
                refuse_mistakes(program)
        except BrokenPipeError:
            # The reader of the help has gone (| head): 128 + SIGPIPE
            sys.exit(141)
        main()
    except KeyboardInterrupt:
        # While Hydra composes; from then on, `main` says what stays.
        exit_interrupted(program)


def with_home(word: str) -> str:
    """Return a setting with the home folder in place of a `~` that begins its value: there, no shell replaces it."""
    return re.sub(r"^([\w.@/+]+=[\"']?)~(?=/)", lambda match: match[1] + os.path.expanduser("~"), word)


def exit_interrupted(program: str, remark: str = "") -> NoReturn:
    """Exit with one line and the status of an interrupted program."""
    print(f"{program}: interrupted{remark}", file=sys.stderr)
    sys.exit(INTERRUPTED)


def wants_traceback() -> bool:
    """Return True if errors are to show where they come from, by Hydra's own variable."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def refuse(program: str, message: object) -> NoReturn:
    """Exit with status 2 and the message of a mistake, and say how to see where it was found."""
    print(f"{program}: {message}\n(HYDRA_FULL_ERROR=1 shows where)", file=sys.stderr)
    sys.exit(2)


def refuse_mistakes(program: str, words: Sequence[str] | None = None) -> None:
    """Print one line and exit with status 2 if something is wrong with `words`; answer --help.

    Args:
        program: Begins the printed line.
        words: The command line; None for that of this process.
    """
    words = sys.argv[1:] if words is None else words
    if {"-h", "--help"} & set(words):
        print(help_text(program))
        sys.exit(0)
    # Another configuration folder may have other keys, and whoever wants the trace gets it.
    if wants_traceback() or any(word.startswith(("--config", "-c")) for word in words):
        return
    message, overrides = _explain_flags(words)
    composed = None
    if not message:
        message, composed = _compose_first(overrides)
    message = message or _several_values(words, overrides) or _shared_folder(words, overrides)
    message = message or _unknown_file(overrides)
    # --cfg and the like show settings, right or wrong.
    if composed is not None and not message and all(word in _SWEEP for word in words if word.startswith("-")):
        message = _explain_values(overrides, composed)
    if message:
        refuse(program, message)


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
        name = flag.lstrip("-").partition("=")[0]
        found = elsewhere(name) or suggestion(flag, flags)
        hint = f"settings are written name=value{found}" if flag else str(error)
        return f"{shown(flag)} is not a flag: {hint} (--help lists all)" if flag else hint, []


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def explain(overrides: Sequence[str]) -> str:
    """Explain the first mistake that keeps settings from being composed, or an unknown key; "" if there is none."""
    return _compose_first(overrides)[0]


def _compose_first(overrides: Sequence[str]) -> tuple[str, DictConfig | None]:
    """Compose the first job of what may be a sweep, Hydra's own settings with it; "", or what keeps it from that."""
    chosen: list[str] = []
    for word in overrides:
        try:
            override = _parse(word)
        except _ERRORS as error:
            return _syntax(word, error), None
        if wrong := _refused_change(override, word) or _empty_glob(override, word):
            return wrong, None
        chosen.append(_one_choice(override, word))
    try:
        composed = compose_or_raise(chosen, return_hydra_config=True)
    except MissingConfigException as error:
        return _unknown_choice(error, chosen), None
    except _ERRORS as error:
        return _refused(error, chosen), None
    try:
        # Folders of Hydra's own, which it makes before anything else.
        _ = str(composed.hydra.run.dir), str(composed.hydra.sweep.dir)
    except OmegaConfBaseException as error:
        return one_line(error), None
    return _swept(composed, chosen), composed


def _several_values(words: Sequence[str], overrides: Sequence[str]) -> str:
    """Explain a word with several values on the command line of a single run; "" if there is none."""
    if set(_SWEEP) & set(words) or any(word.startswith("hydra.mode=") for word in overrides):
        return ""
    word = next((word for word in overrides if _parse(word).is_sweep_override()), None)
    if word is None:
        return ""
    key, _, value = word.partition("=")
    one = f", for a path {quoted}" if "/" in value and (quoted := _in_quotes(word)) else ""
    return f"{shown(word)} has several values: -m runs them all; for a list write {key}=[{shown(value)}]{one}"


def _shared_folder(words: Sequence[str], overrides: Sequence[str]) -> str:
    """Explain a name `run` that several jobs of a sweep would have; "" if there is none."""
    parsed = [_parse(word) for word in overrides]
    swept = [each for each in parsed if each.is_sweep_override() and each.key_or_group != "run"]
    names = [word.partition("=")[2] for word, each in zip(overrides, parsed, strict=True) if each.key_or_group == "run"]
    if not swept or not set(_SWEEP) & set(words) or not names or names[-1] in ("", "null") or "$" in names[-1]:
        return ""
    return (
        f"run={shown(names[-1])} would be the folder of several jobs; leave run out, or name them apart with "
        f"'run={shown(names[-1])}-${{seed}}'"
    )


def _unknown_file(overrides: Sequence[str]) -> str:
    """Explain the first value of a sweep over a group's files that has no file; "" if all have one."""
    for word in overrides:
        override = _parse(word)
        group = _group(override)
        # A glob stands for files that there are
        globs = isinstance(override.value(), Glob)
        if globs or not override.is_choice_sweep() or not (conf_dir() / group).is_dir():
            continue
        for value in override.sweep_string_iterator():
            if not (conf_dir() / group / f"{value}.yaml").is_file():
                chosen = f"{override.get_key_element()}={value}"
                if message := explain([chosen if other == word else other for other in overrides]):
                    return message
    return ""


def _explain_values(overrides: Sequence[str], composed: DictConfig) -> str:
    """Explain what is wrong with the values of settings that can be composed; "" if nothing is.

    Args:
        composed: The first job, Hydra's own settings with it.
    """
    # A sweep's first and last jobs: what is wrong in both is wrong in all.
    first, last = ([_one_choice(_parse(word), word, index) for word in overrides] for index in (0, -1))
    message = _wrong_values(first, composed)
    return message if message and (first == last or _wrong_values(last) == message) else ""


def _wrong_values(words: Sequence[str], composed: DictConfig | None = None) -> str:
    """Explain the first wrong value of a job; `composed` is what `words` compose to, if that is known."""
    # Known only in a job, as its number is.
    plain = [re.sub(r"\$\{hydra:[^}]*\}", "0", word) for word in words]
    try:
        if composed is None or plain != list(words):
            composed = compose_or_raise(plain, return_hydra_config=True)
        with open_dict(composed):
            composed.pop("hydra")
        read_sections(plain_settings(composed))
    except (HydraException, OmegaConfBaseException) as error:
        return one_line(error)
    except ValueError as error:
        return str(error)
    return ""


@functools.cache
def _parse(word: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([word])
    return override


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
    # The parser's own words, without the copy of the text with a mark below.
    lines = [line.strip() for line in str(error).splitlines()]
    reason = next(
        (line for line in reversed(lines) if line and line != "^" and "https:" not in line and line not in word),
        "not in Hydra's syntax",
    )
    if quoted := _in_quotes(word):
        return f"{shown(word)} cannot be read: write {quoted}"
    quoted = "quotes keep spaces, commas, brackets and $ together, as in 'data.train=\"a, b.txt\"'"
    return f"'{shown(word)}' cannot be read ({shown(reason)}): {quoted}"


def _refused_change(override: Override, word: str) -> str:
    """Explain a key that may not be deleted, or added to Hydra's own settings; "" if it may."""
    key = override.get_key_element().lstrip("+~")
    user_named = any(key == part or key.startswith(f"{part}.") for part in _USER_NAMED)
    if override.is_delete() and not user_named:
        return f"{word}: a setting cannot be deleted; null turns off what can be off, and {key} left out is its default"
    # Beside a choice of the group without +, Hydra would drop this one without a word.
    if (override.is_add() or override.is_force_add()) and (conf_dir() / key).is_dir():
        return f"{shown(word)}: {key} has a choice already; write {shown(word.lstrip('+'))}"
    user_named_of_hydra = any(key == part or key.startswith((f"{part}.", f"{part}@")) for part in _USER_NAMED_OF_HYDRA)
    if (override.is_add() or override.is_force_add()) and key.startswith("hydra.") and not user_named_of_hydra:
        # What exists needs no +, so all that is left is a key that nothing reads.
        return "" if override.is_force_add() and key in _known_keys([]) else _unknown_key(key, word, [])
    return ""


def _empty_glob(override: Override, word: str) -> str:
    """Explain a sweep over the files that a glob matches, if it matches none; "" otherwise."""
    value, known = override.value(), choices(_group(override))
    if not isinstance(value, Glob) or value.filter(known):
        return ""
    return f"{shown(word)} matches no choice (known: {', '.join(known)})"


def _one_choice(override: Override, word: str, index: int = 0) -> str:
    """Return an override with one of the values that it sweeps over, the first or that of another index."""
    if not override.is_sweep_override():
        return word
    # A sweep is composed job by job; one of its values shows an unknown key.
    value = override.value()
    if isinstance(value, IntervalSweep):
        values = [value.start, value.end]
    elif isinstance(value, Glob):
        values = value.filter(choices(_group(override)))
    else:
        values = list(override.sweep_string_iterator())
    if not values:
        return f"{override.get_key_element()}=null"
    return f"{override.get_key_element()}={values[index]}"


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
    text = str(error)
    if text.startswith("Config group override must"):
        return _no_file(chosen) or one_line(error)
    for word in chosen:
        key = _parse(word).get_key_element().lstrip("+~")
        if f"Could not override '{key}'" in text and key in _groups():
            return _no_file([word]) or one_line(error)
        # +key for a key that exists.
        if f"An item is already at '{key}'" in text:
            return f"{key} is a setting already: write {word.lstrip('+')}"
        if f"Could not override '{key}'" in text or f"Could not append '{key}'" in text:
            return _unknown_key(key, word, chosen) or one_line(error)
        if "Could not delete" in text and f"'{key}'" in text:
            return f"{word}: there is no {key}{setting_for(key, _known_keys([]))}"
    return one_line(error)


def _no_file(words: Sequence[str]) -> str:
    """Explain a group that is set to something else than the name of a file, as in data=3."""
    for word in words:
        override = _parse(word)
        group = override.get_key_element()
        if group in _groups() and not isinstance(override.value(), str):
            return f"{shown(word)} is not a choice (known: {', '.join(choices(group))})"
    return ""


def _groups() -> list[str]:
    """List the groups of settings that are chosen by the name of a file."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")


def _unknown_choice(error: MissingConfigException, overrides: Sequence[str]) -> str:
    """Explain a file that a group does not have, as in mixer=transfomer."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    word = next((word for word in overrides if word.endswith(f"={name}")), f"{group}={name}")
    # `schema` holds the defaults of the group; it is not an option.
    known = sorted(option for option in error.options or () if option != "schema")
    near = suggestion(name, known)
    return f"{shown(word)} is not a choice{near} (known: {', '.join(known)})" if known else one_line(error)


def _unknown_key(key: str, word: str, overrides: Sequence[str]) -> str:
    if explained := explain_argument(key):
        return explained
    # Their entries have names of the user's own.
    if key.startswith(("callbacks.", "logger.")):
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
    groups = [str(group) for group in composed.hydra.runtime.choices]
    keys = [*values, *{section for key in values for section in _sections(key)}, *groups]
    # Those that Hydra fills in are not settings.
    return sorted(key for key in dict.fromkeys(keys) if not key.startswith(("hydra.runtime", "hydra.overrides")))


def _sections(key: str) -> Iterator[str]:
    parts = key.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])
