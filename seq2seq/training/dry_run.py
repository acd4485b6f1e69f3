"""Try every stage of a run in a minute or two: `trainer.dry_run=true`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seq2seq.runs.folder import RunFolder
from seq2seq.system import ranks
from seq2seq.system.files import LOCK
from seq2seq.training.plan import RunPlan

log = logging.getLogger(__name__)

# Sentences of the validation and of the test; updates of training.
DRY_SENTENCES, DRY_UPDATES = 8, 2
# Settings that make the run short. Batches (of their final size), model, precision and processes do not change.
_SHORT = {
    "max_steps": DRY_UPDATES, "max_time": None, "patience": None, "median_stop": None, "val_time": None,
    "val_sentences": DRY_SENTENCES, "log_steps": 1, "accumulate_start": None,
}  # fmt: skip


def dry_run(plan: RunPlan, execute: Callable[[RunPlan], float]) -> float:
    """Execute `plan` with two updates, one validation and one test, in a folder that is deleted afterwards.

    Args:
        execute: Trains by a plan and returns the best validation BLEU, which `dry_run` returns too.
    """
    began = time.monotonic()
    short = shortened(plan)
    if plan.run.resume:
        log.info("dry run: resume=%s is left out, and a new run is tried", plan.run.resume)
    # Weights & Biases gets no page for a dry run.
    os.environ["WANDB_MODE"] = "offline"
    around = RunFolder(short.folder.path.parent)
    with _emptied(around) if ranks.is_first_process() else contextlib.nullcontext():
        score = execute(short)
    log.info(
        "dry run: all stages work (%d updates, a checkpoint, a validation%s of %d sentences each) after %.0f s; "
        "only the prepared corpus was kept",
        DRY_UPDATES, " and a test" if short.trainer.test else "", DRY_SENTENCES, time.monotonic() - began,
    )  # fmt: skip
    return score


def shortened(plan: RunPlan) -> RunPlan:
    """Return the plan of the dry run, under a name that no other run has."""
    # A number of threads that is set is tried; measuring the best number would take seconds.
    short: dict[str, Any] = {**_SHORT, "threads": plan.trainer.threads or 1}
    # A stream needs an interval, so a missing one is refused here as in the run itself.
    if plan.trainer.val_steps or plan.trainer.val_time:
        short["val_steps"] = DRY_UPDATES
    # In a folder that `_emptied` reserves: releasing it deletes the folders that the dry run has made
    run = dataclasses.replace(plan.run, run=f"{plan.folder.path.name}.dry-run/run", resume=None)
    return dataclasses.replace(plan, run=run, trainer=dataclasses.replace(plan.trainer, **short))


@contextlib.contextmanager
def _emptied(folder: RunFolder) -> Iterator[None]:
    """Empty the folder before and after the block; raise ValueError if another dry run is using it."""
    with folder.reserved():
        # An earlier dry run may have been killed
        _clear(folder.path)
        try:
            yield
        finally:
            _clear(folder.path)


def _clear(folder: Path) -> None:
    """Delete everything in a reserved folder but its lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)
