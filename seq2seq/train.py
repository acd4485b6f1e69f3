"""Train a translator: `python -m seq2seq.train data=phrasebook mixer=dynamicconv trainer.max_epochs=10`."""

from __future__ import annotations

import logging
import os
import shlex
import sys

from seq2seq.options.command_line import exit_without_training

if __name__ == "__main__":
    # Before the imports that would fail
    exit_without_training("train")

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seq2seq.settings.hydra_call import plain_settings
from seq2seq.sweeps import hydra_callback
from seq2seq.system.resources import conf_dir
from seq2seq.system.slurm import requeued
from seq2seq.training.command import INTERRUPTED, exit_interrupted, refuse, run_program, wants_traceback
from seq2seq.training.machine.environment import VARIABLES
from seq2seq.training.plan import RunPlan, plan_of_words

# These variables must be set before torch is imported
os.environ.update(VARIABLES | os.environ)


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
def main(config: DictConfig) -> float:
    """Train with the composed settings, and return the best validation BLEU.

    A wrong setting gives one line on stderr and exit status 2; a fault of the data or the machine gives status 1.
    """
    try:
        plan = _plan(config)
        # This imports torch and Lightning; a wrong setting has been reported before
        return _train(plan)
    except ValueError as error:
        if wants_traceback():
            raise
        _fail_job_of_sweep(error)
        refuse("train", error)
    except KeyboardInterrupt:
        hydra_callback.record_stop(INTERRUPTED)
        exit_interrupted("train")
    except SystemExit as stop:
        hydra_callback.record_stop(stop.code)
        raise


def _plan(config: DictConfig) -> RunPlan:
    """Check the settings, and add what Hydra knows about this run: its command, label and job."""
    # The words of the command line without Hydra's own: they name the run, and its command repeats them
    chosen = HydraConfig.get()
    overrides = list(chosen.overrides.task)
    command = shlex.join(["python", "-m", "seq2seq.train", *overrides])
    preset = chosen.runtime.choices["mixer"]
    return plan_of_words(plain_settings(config), overrides, preset, command=command, job=hydra_callback.job_folder())


def _train(plan: RunPlan) -> float:
    """Train by a checked plan; exit with status 1 for a fault of the data or the machine."""
    run = plan.run
    # Before the slow imports; `TrainingRun` decides all other cases
    if run.resume is None and not (run.init_from or plan.job or plan.trainer.dry_run or requeued()):
        plan.folder.require_unused(force=run.force)
    from seq2seq.system import ranks
    from seq2seq.training import checks
    from seq2seq.training.bounds.faults import TrainingFault

    # Check the model first: this does not need Lightning, which takes three times as long to import as torch
    model = None if plan.run.init_from else checks.check_model(plan, None)
    from seq2seq.training.run import train

    # Rank 0 logs for all; warnings of other ranks still show
    if not ranks.is_first_process():
        logging.disable(logging.INFO)
    try:
        return train(plan, model=model)
    except TrainingFault as fault:
        _fail_job_of_sweep(fault)
        print(f"train: {fault}", file=sys.stderr)
        sys.exit(1)


def _fail_job_of_sweep(error: Exception) -> None:
    """In a sweep, raise an error that fails only this job; sys.exit would end the whole sweep."""
    if hydra_callback.job_folder():
        raise hydra_callback.JobError(str(error)) from error


if __name__ == "__main__":
    run_program("train", main)
