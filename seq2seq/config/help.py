"""Help of the commands that take settings, made of the same declarations as docs/settings.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from seq2seq.config.sections import SECTIONS
from seq2seq.config.settings import defaults, describe, keys, nested_class
from seq2seq.config.values import shown
from seq2seq.resources import choices

_TRAIN = """\
Train a translator: prepare the corpus, train, validate with BLEU, and score the test set. Everything is in one folder
below runs/, which is named by the settings; the same command with resume=auto continues it.

usage: python -m seq2seq.train [group=choice] [setting=value] ... [-m]

  python -m seq2seq.train                                              the embedded corpus, minutes on a CPU
  python -m seq2seq.train mixer=transformer data=files data.train=my/train data.src=de data.tgt=en trainer.max_time=1h
  python -m seq2seq.train -m mixer=transformer,dynamicconv seed=1,2    a sweep: a run for each combination
"""
_PREPARE = """\
Prepare a corpus before training needs it: read, clean, learn the tokenizer, encode. It takes the settings of
seq2seq.train; those of data, tokenizer, seed, cache and init_from decide what is prepared.

usage: python -m seq2seq.prepare [group=choice] [setting=value] ...

  python -m seq2seq.prepare data=wmt14_de_en data.num_proc=16
"""
# What goes without saying: most of these are seen from the default.
_PLAIN = ("a word", "a word or null", "true or false", "a mapping {key: value}", "anything")
# What each group of conf/ chooses.
_GROUPS = {
    "mixer": "token mixers of encoder and decoder; mixer/self@mixer.decoder=gru replaces one slot",
    "data": "corpus; files are your own",
    "model": "size",
    "optim": "optimizer and schedule of the learning rate",
    "tokenizer": "SentencePiece models, or patches of images",
    "trainer": "bounds, validation, hardware",
    "search": "search of the test set",
    "logger": "loggers of Lightning",
    "experiment": "published recipe or experiment: choices and settings together",
    "hydra/launcher": "where the runs of a sweep (-m) run",
}


def help_text(program: str) -> str:
    """Return the help of `train` or `prepare`: usage, groups and their choices, all settings."""
    parts = [_TRAIN if program == "train" else _PREPARE, "groups, and the files of conf/ to choose from:"]
    for group, meaning in _GROUPS.items():
        names = ", ".join(choices(group))
        parts.append(_item(f"{group}=", f"{meaning}: {names}"))
    parts.append("\nsettings = default: meaning (what is allowed); what conf/ chooses instead is shown by --cfg job:")
    for section, cls in SECTIONS.items():
        parts += [
            _item(f"{name} = {_shown(value)}", meaning if wanted in _PLAIN else f"{meaning} ({wanted})")
            for name, value, meaning, wanted in settings_rows(cls, section)
        ]
    parts.append("\nFurther flags are Hydra's: -m (sweep), --cfg job (show settings), --hydra-help.")
    return "\n".join(parts)


def settings_rows(cls: type, section: str) -> Iterator[tuple[str, Any, str, str]]:
    """Yield name, default, help and allowed values of every setting of a section; "" is the top level."""
    written: Mapping[str, Any] = defaults(cls)
    for name, field in keys(cls).items():
        full = f"{section}.{name}" if section else name
        nested = nested_class(cls, name)
        # A section that is off has no settings to show.
        if nested and isinstance(written[name], Mapping):
            yield from settings_rows(nested, full)
        else:
            yield full, written[name], field.metadata["help"], describe(cls, name)


def _shown(value: Any) -> str:
    return shown(value) if value is None or isinstance(value, bool) else str(value).replace("'", "")


def _item(name: str, text: str) -> str:
    """Return a name and, beside or below it, its text."""
    lines = textwrap.wrap(text, width=84, break_long_words=False)
    first = f"  {name:<32}  {lines[0]}" if len(name) <= 32 else f"  {name}\n{'':36}{lines[0]}"
    return "\n".join([first, *(f"{'':36}{line}" for line in lines[1:])])
