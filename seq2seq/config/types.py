"""Settings of another kind than their defaults: a word where conf has a number, or true or false."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.config.dicts import flat
from seq2seq.resources import conf_dir

# By section (the first is the top level), the files of conf that have its keys; the last one counts.
_FILES = {
    "": ["train"],
    "data.": ["data/files"],
    "model.": ["model/tiny"],
    "optim.": ["optim/adadelta", "optim/anneal", "optim/cosine", "optim/adam"],
    "tokenizer.": ["tokenizer/default"],
    "trainer.": ["trainer/default"],
}
# What some settings may be besides.
_ALSO: dict[str, tuple[Any, ...]] = {"data.max_tokens": ("auto",), "data.temperature": (math.inf,)}
_OFF = (None, False, math.inf)  # of data.clean


def require_kinds(config: Mapping[str, Any]) -> None:
    """ValueError, naming the setting of the resolved `config`, unless all are of the kind of their default in conf.

    Where that is true or false, so must the value be (or 0 or 1); where it is a number, a finite one. Settings that
    are something else by default, null too, are left to the classes that they belong to; so are a mixer's numbers.
    """
    given = flat(config)
    for key, default in (_defaults() | _flags(given)).items():
        value = given.get(key, default)
        if value in _ALSO.get(key, _OFF if key.startswith("data.clean.") else ()):
            continue
        shown = f"{key}={'null' if value is None else value}"
        if isinstance(default, bool):
            if value not in (True, False):
                raise ValueError(f"{shown} is neither true nor false")
        elif isinstance(default, int | float) and not is_number(value):
            raise ValueError(f"{shown} is no finite number")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@functools.cache
def _defaults() -> dict[str, Any]:
    files = ((section, conf_dir() / f"{name}.yaml") for section, names in _FILES.items() for name in names)
    return {section + key: value for section, file in files for key, value in _load(file).items()}


def _flags(given: Mapping[str, Any]) -> dict[str, bool]:
    """The settings of mixers, among those `given` by key, that are true or false in conf, and what they are there."""
    known, found = _mixer_flags(), {}
    for key in given:
        slot, _, name = key.rpartition(".")
        if key.startswith("mixer.") and (flag := known.get((given.get(f"{slot}._target_"), name))) is not None:
            found[key] = flag
    return found


@functools.cache
def _mixer_flags() -> dict[tuple[Any, str], bool]:
    """By class and setting, what is true or false in conf/mixer."""
    loaded = map(_load, (conf_dir() / "mixer").glob("*/*.yaml"))
    return {(one.get("_target_"), key): value for one in loaded for key, value in one.items() if type(value) is bool}


def _load(file: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    loaded = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(loaded, dict)
    return flat({str(key): value for key, value in loaded.items()})
