"""Prepare a corpus once, before training needs it: `python -m seq2seq.prepare data=wmt14_de_en data.num_proc=16`."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.options.command_line import exit_without_training

if __name__ == "__main__":
    # Before the imports that would fail
    exit_without_training("prepare")

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seq2seq.settings.hydra_call import plain_settings
from seq2seq.system.resources import conf_dir
from seq2seq.training.command import exit_interrupted, refuse, run_program, wants_traceback
from seq2seq.training.plan import RunPlan, plan_of_words

if TYPE_CHECKING:
    from seq2seq.data.preparation import PreparedData

log = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
def main(config: DictConfig) -> None:
    """Prepare the corpus of a training run; a wrong setting gives one line on stderr and exit status 2."""
    try:
        chosen = HydraConfig.get()
        prepare(plan_of_words(plain_settings(config), chosen.overrides.task, chosen.runtime.choices["mixer"]))
    except ValueError as error:
        if wants_traceback():
            raise
        refuse("prepare", error)
    except KeyboardInterrupt:
        exit_interrupted("prepare", "; finished parts are kept")


def prepare(plan: RunPlan) -> None:
    """Make the tokenizer and the cache that a run needs, and log their folders and sizes.

    Raises:
        ValueError: The corpus cannot be read.
    """
    # These import torch
    from seq2seq import checkpoint
    from seq2seq.data.preparation import prepare_corpora
    from seq2seq.training import checks, finetune

    start = time.monotonic()
    # Fine-tuning writes the tokenizer of the checkpoint to the cache
    start_from = checkpoint.load(plan.run.init_from, trust=plan.trust) if plan.run.init_from else None
    if start_from:
        section = finetune.adopt_data(plan.data, start_from.meta, origin=str(plan.run.init_from), chosen=plan.chosen)
        plan = dataclasses.replace(plan, data=section)
        finetune.require_same_tokenizer(plan, start_from.tokenizer, str(plan.run.init_from))
    # The same plan as in training, whose fingerprints name the folders
    cache = Path(plan.run.cache)
    data = prepare_corpora(checks.make_data_plan(plan, start_from))
    log.info("prepared in %.1f s, in %s:", time.monotonic() - start, cache)
    for what, folder in data.folders.items():
        log.info("  %-24s%s (%s)", what, folder, _size(folder))
    sizes = ", ".join(f"{data.size(split):,} {split}" for split in data.splits)
    log.info("%s pairs; %s", sizes, _batches(data, plan.trainer.accumulate, plan.trainer.processes))


def _batches(data: PreparedData, window: int, processes: int) -> str:
    """Describe the batches of an epoch in one line."""
    # Imports Lightning
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

    batches = TranslationDataModule(data, window=window, processes=processes)
    # None is `auto`, which only the device of the training can measure
    if data.plan.max_tokens is not None:
        batches.describe()
    if data.plan.stream:
        return "training text is streamed"
    if data.plan.max_tokens is None:
        return "training decides how large batches are (data.max_tokens=auto)"
    return f"batches an epoch: {batches.batches_per_epoch:,}"


def _size(folder: Path) -> str:
    """Format the size of a file, or of all files in a folder, in MB (10^6 bytes)."""
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    return f"{sum(path.stat().st_size for path in files) / 1e6:,.1f} MB"


if __name__ == "__main__":
    run_program("prepare", main)
