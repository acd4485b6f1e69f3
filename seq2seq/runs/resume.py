"""Resume a run from a checkpoint; refuse one with other settings or another text."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.data.tokenizer import same_pieces
from seq2seq.metadata import KEY
from seq2seq.runs.folder import BUDGETS, HARMLESS, ORIGIN, PER_PROCESS, ROUNDING, RunFolder, with_window
from seq2seq.runs.results import read_config
from seq2seq.runs.training_state import newest_state, read_state, require_fit, updates
from seq2seq.settings.dicts import differences, without
from seq2seq.settings.run import present_settings
from seq2seq.settings.values import written
from seq2seq.system.slurm import requeued

log = logging.getLogger(__name__)

# Settings that name a file. Only its content counts: text and tokenizer are compared when they are read.
_PLACE = re.compile(r"data\.(corpora\..+\.)?(train|valid|test)(\..+)?|tokenizer\.((src|tgt)_)?model")
# Most changed settings that a message lists.
_LISTED = 5


def resolve_resume(
    resume: str | None, folder: RunFolder, *, named: bool = False, force: bool = False
) -> tuple[RunFolder, Path | None]:
    """Return the folder to run in and the state to continue from, None for a fresh start.

    A run that is named by path continues in its own folder. A job that SLURM starts again continues its own work,
    whatever its command says.

    Args:
        resume: None, "auto", or a run's folder or a state in it.
        folder: The folder that the settings name.
        named: True if the setting `run` names the folder, False if a hash of the settings does.
        force: A new run may replace an earlier one that has lost its states.

    Raises:
        ValueError: The path is not a run's, its states are damaged, or a new run would replace an earlier one.
    """
    path = None
    if resume not in (None, "auto"):
        folder, path = _named(str(resume))
    if resume == "auto" and (found := newest_state(folder)):
        return folder, found
    found = newest_state(folder) if requeued() else None
    # The job may have advanced beyond the checkpoint that it began with
    if found and (path is None or (updates(found) or 0) >= (updates(path) or 0)):
        return folder, found
    # A requeued job may have ended between its first checkpoint for use and its first state
    if path is None and not requeued():
        folder.require_unused(resume or "null", force=force)
    if resume == "auto":
        unnamed = (
            " (its name depends on all settings, budgets included; to continue a run under other settings, give both "
            "commands run=<name>, or this one resume=<folder>)"
        )
        log.info("resume=auto: %s holds no run yet, so a new one starts%s", folder.path, "" if named else unnamed)
    return folder, path


def is_repeated(folder: RunFolder, config: Mapping[str, Any]) -> bool:
    """Return True if the folder has a finished run of these settings, budgets included."""
    if not (folder.states and folder.config.is_file() and folder.read_results().get("ended_by")):
        return False
    both = (read_config(folder.config), present_settings(config))
    return not any(differences(*(without(with_window(each), HARMLESS) for each in both)))


def _named(resume: str) -> tuple[RunFolder, Path]:
    """Return the run's folder and the state that resume=<path> names."""
    # Absolute, like the paths of the run's folder
    path = Path(resume).absolute()
    if path.is_dir():
        path = newest_state(RunFolder(path)) or RunFolder(path).last
    if not path.is_file():
        raise ValueError(f"resume={resume}: no such file; name a run's folder, or use resume=auto")
    if path.suffix == ".safetensors":
        raise ValueError(
            f"resume={resume}: holds only weights, no training state; name the run's folder, or start a new "
            f"run from these weights with init_from={resume}"
        )
    folder = RunFolder.of_checkpoint(path)
    if folder is None:
        raise ValueError(
            f"resume={resume}: is in no run's folder, as runs/<name>/checkpoints/last.ckpt; copy the whole folder, and "
            "resume the copy"
        )
    return folder, path


class Resumed(NamedTuple):
    """The state of a training to continue from.

    Attributes:
        corpus: Fingerprint of the text it was trained on.
        tokenizer: State of its tokenizer.
        max_tokens: Size of a micro-batch that data.max_tokens=auto chose.
        threads: Threads of a run on a CPU, if it continues in as many processes.
        continued: Changes of settings that altered the course of training, the last one included: {"update",
            "changes"}.
        new: Names of the weights that its first checkpoint (`init_from`) did not give; None if they are unknown.
        start_digest: Digest of its first checkpoint.
    """

    path: Path
    step: int
    corpus: str
    tokenizer: dict[str, Any]
    max_tokens: int | None = None
    threads: int | None = None
    continued: Sequence[Mapping[str, Any]] = ()
    new: Sequence[str] | None = None
    start_digest: str | None = None

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], folder: RunFolder) -> Resumed:
        """Read `path`, and log changes of the budget.

        Args:
            path: A run's last.ckpt, or another state in its folder.
            config: The settings of the command that resumes.
            folder: The folder in which the run continues.

        Raises:
            ValueError: The file is not the state of a training, the run in `folder` has continued since, or settings
                besides HARMLESS, BUDGETS and ROUNDING have changed and `force` is not set.
        """
        payload = read_state(path, mmap=True)
        origin = payload[ORIGIN]
        # Fill in all defaults on both sides, because the state of an earlier version lacks newer settings
        before, now = present_settings(origin["settings"]), present_settings(config)
        # `with_window`, so that micro-batches of an update are compared over all ranks
        free = (*HARMLESS, *BUDGETS, *ROUNDING)
        moved, changed = [], []
        for key, a, b in differences(*(without(with_window(each), free) for each in (before, now))):
            text = _change(f"{key} (times all processes)" if key in PER_PROCESS else key, a, b)
            (moved if _PLACE.fullmatch(key) else changed).append(text)
        if moved:
            log.info("files may have moved, if their content is the same: %s", _some(moved))
        if changed and not config["force"]:
            forcible = False
            with contextlib.suppress(ValueError):
                require_fit(payload, config, path)
                forcible = True
            raise _another_run(path, _some(changed), forcible=forcible)
        for change in changed:
            log.warning("force=true: %s", change)
        # A longer or shorter budget is the usual reason to resume with other settings
        budgets = [each for each in differences(before, now) if each[0] in BUDGETS]
        if budgets:
            log.info("the run continues under another budget: %s", "; ".join(_change(*each) for each in budgets))
            changed += [_change(*each) for each in budgets if _moves_rates(each[0], before, now)]
        require_fit(payload, config, path)
        step = payload["global_step"]
        later = updates(folder.last) if path != folder.last else None
        if later is not None and later > step:
            raise ValueError(
                f"resume={path} is from update {step:,}, but the run in {folder.path} has reached update {later:,}: "
                "continue it with resume=auto, or copy the folder with this file as its last.ckpt, and resume the "
                "copy"
            )
        trainer = config["trainer"]
        return cls(
            path=path,
            step=step,
            corpus=origin["corpus"],
            tokenizer=payload[KEY]["tokenizer"],
            max_tokens=origin["max_tokens"],
            threads=origin["threads"] if payload["processes"] == trainer["devices"] * trainer["nodes"] else None,
            continued=[*(origin["continued"] or ()), *([{"update": step, "changes": changed}] if changed else ())],
            new=origin.get("new"),
            start_digest=origin.get("start_digest"),
        )

    def require_same_text(self, corpus: str, *, force: bool = False) -> None:
        """Raise ValueError if the fingerprint of the corpus has changed.

        Args:
            force: Accept another corpus, with a warning.
        """
        if self.corpus != corpus:
            reason = "the text of the corpus (training, validation or test), or how it is cleaned, has changed since"
            if not force:
                raise _another_run(self.path, reason)
            log.warning("force=true: %s", reason)

    def require_same_pieces(self, tokenizer: Mapping[str, Any]) -> None:
        """Raise ValueError if the state of the tokenizer has changed: the embeddings have no meaning for others."""
        if not same_pieces(self.tokenizer, tokenizer):
            raise _another_run(self.path, "the tokenizer has changed since", forcible=False)


def _moves_rates(key: str, *settings: Mapping[str, Any]) -> bool:
    """Return True for a bound that the learning rate follows: of updates or epochs, or of time if neither is set."""
    counts = ("max_steps", "max_epochs")
    counted = any(each["trainer"].get(count) for each in settings for count in counts)
    bounds = counts if counted else ("max_time",)
    annealed = any(each["optim"]["schedule"] == "anneal" for each in settings)
    return annealed and key in [f"trainer.{bound}" for bound in bounds]


def _change(key: str, before: Any, now: Any) -> str:
    return f"{key} was {written(before)} and is now {written(now)}"


def _some(changed: Sequence[str]) -> str:
    """Join the first changes: with another mixer there are dozens."""
    more = len(changed) - _LISTED
    return "; ".join(changed[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _another_run(path: Path, reason: str, *, forcible: bool = True) -> ValueError:
    rest = " (force=true continues anyway)" if forcible else ""
    return ValueError(
        f"{path} cannot be continued: {reason}; resume it with the settings and text it was trained on, "
        f"or start a new run with resume=null: move {path.parents[1]} away, or set run=<name>{rest}"
    )
