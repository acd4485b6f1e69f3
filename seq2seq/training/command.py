"""Run the commands train and prepare: help, errors in one line, exit statuses."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable
from typing import NoReturn

from hydra._internal import utils

from seq2seq.options.command_line import Parser
from seq2seq.settings.declare import settings_rows
from seq2seq.settings.hydra_call import REFUSALS, mistake, refusal
from seq2seq.settings.run import SECTIONS
from seq2seq.settings.values import written
from seq2seq.sweeps.hydra_callback import JobError
from seq2seq.system.resources import choices
from seq2seq.system.stdio import print_error, whole_output

# Exit status of an interrupted program, as shells report it.
INTERRUPTED = 128 + signal.SIGINT
_TRAIN = """\
Train a translator: prepare the corpus, train, validate with BLEU, and score the test set. A run has one folder below
runs/, named by its settings. The same command with resume=auto continues the run.

usage: python -m seq2seq.train [group=choice] [setting=value] ... [-m]

  python -m seq2seq.train                                              the embedded corpus, minutes on a CPU
  python -m seq2seq.train mixer=transformer data=files data.train=my/train data.src=de data.tgt=en trainer.max_time=1h
  python -m seq2seq.train -m mixer=transformer,dynamicconv seed=1,2    a sweep: a run for each combination
"""
_PREPARE = """\
Prepare a corpus before training needs it: read, clean, learn the tokenizer, encode. It takes the settings of
seq2seq.train; data, tokenizer, seed, cache and init_from decide what is prepared.

usage: python -m seq2seq.prepare [group=choice] [setting=value] ...

  python -m seq2seq.prepare data=wmt14_de_en data.num_proc=16
"""
# Kinds of allowed values that the help does not mention, because the default shows them.
_PLAIN = ("a word", "a word or null", "true or false", "a mapping {key: value}", "anything")
# Meanings of the groups of conf/.
_GROUPS = {
    "mixer": "token mixers of encoder and decoder; mixer/self@mixer.decoder=gru replaces one slot",
    "data": "corpus; data=files reads your own",
    "model": "size",
    "optim": "optimizer and schedule of the learning rate",
    "tokenizer": "SentencePiece models, or patches of images",
    "trainer": "bounds, validation, hardware",
    "search": "search of the test set",
    "logger": "loggers of Lightning",
    "experiment": "published recipe or experiment: choices and settings together",
    "hydra/launcher": "where the runs of a sweep (-m) run (also submitit_local)",
}


def run_program(program: str, main: Callable[[], object]) -> None:
    """Run a program whose settings Hydra composes; if Hydra refuses a setting, exit with one line and status 2.

    Args:
        program: Name of the program, with which an error message begins.
        main: Function decorated by `hydra.main`.
    """
    sys.argv[1:] = map(with_home, sys.argv[1:])
    try:
        try:
            with whole_output():
                refuse_mistakes(program)
        except BrokenPipeError:
            # The reader of the help has left (| head): 128 + SIGPIPE
            sys.exit(141)
        # Hydra's own function would print an error on many lines, and exit.
        utils.run_and_report = lambda work: work()
        try:
            main()
        except JobError:
            # The sweep has reported the failed job.
            sys.exit(1)
        except (*REFUSALS, OSError) as error:
            words = [word for word in sys.argv[1:] if word[0] != "-" and ("=" in word or word[0] == "~")]
            # Hydra makes the folders of its own settings; other errors of files are not mistakes
            folder = next((word for word in words if word.startswith("hydra.")), None)
            # A missing file of settings is both
            refused = isinstance(error, REFUSALS)
            if wants_traceback() or not (refused or folder):
                raise
            refuse(program, refusal(error, words) if refused else f"{folder}: {error.strerror}")
    except KeyboardInterrupt:
        # Ctrl-C while Hydra composes; `main` has its own handler.
        exit_interrupted(program)


def with_home(word: str) -> str:
    """Replace a `~` that begins the value of a setting by the home folder, which the shell does not do."""
    return re.sub(r"^([\w.@/+]+=[\"']?)~(?=/)", lambda match: match[1] + os.path.expanduser("~"), word)


def exit_interrupted(program: str, remark: str = "") -> NoReturn:
    """Exit with one line and the status of an interrupted program."""
    print(f"{program}: interrupted{remark}", file=sys.stderr)
    sys.exit(INTERRUPTED)


def wants_traceback() -> bool:
    """Return True if Hydra's variable asks for the traceback of errors."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def refuse(program: str, message: object) -> NoReturn:
    """Exit with status 2 and the message of a mistake, and name the variable that shows its traceback."""
    print_error(f"{program}: {message}")
    print_error("(HYDRA_FULL_ERROR=1 shows where)")
    sys.exit(2)


def refuse_mistakes(program: str) -> None:
    """Exit with one line and status 2 if something is wrong with the command line; answer --help."""
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print(help_text(program))
        sys.exit(0)
    if not wants_traceback() and (message := mistake(words)):
        refuse(program, message)


def help_text(program: str) -> str:
    """Return the help of `train` or `prepare`: usage, groups and their choices, all settings."""
    usage = Parser.as_typed(_TRAIN if program == "train" else _PREPARE)
    parts = [usage, "groups, and the files of conf/ to choose from:"]
    for group, meaning in _GROUPS.items():
        names = ", ".join(choices(group))
        parts.append(_item(f"{group}=", f"{meaning}: {names}"))
    parts.append("\nsettings = default: meaning (what is allowed); --cfg job shows the values that conf/ sets instead:")
    for section, cls in SECTIONS.items():
        parts += [
            _item(f"{name} = {written(value)}", meaning if wanted in _PLAIN else f"{meaning} ({wanted})")
            for name, value, meaning, wanted in settings_rows(cls, section)
        ]
    parts.append("\nFurther flags are Hydra's: -m (sweep), --cfg job (show settings), --hydra-help.")
    return "\n".join(parts)


def _item(name: str, text: str) -> str:
    """Format a name with its text next to it or below it."""
    body = textwrap.indent(textwrap.fill(text, width=84, break_long_words=False), " " * 36)
    return f"  {name:<32}  {body.lstrip()}" if len(name) <= 32 else f"  {name}\n{body}"
