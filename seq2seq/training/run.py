"""Run a plan: prepare, train, score the test set, report."""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.plugins import Precision

from seq2seq import checkpoint, distributed, files
from seq2seq.data.preparation import prepare_corpora, validate_corpora
from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.evaluation.moses_bleu import convention_bleu
from seq2seq.experiments.folder import RunFolder, folder_of, git_revision, translate_command
from seq2seq.experiments.resume import Resumed, resolve_resume
from seq2seq.training import checks, hardware
from seq2seq.training.assembly import make_task, make_trainer
from seq2seq.training.auto_batch_size import find_budget
from seq2seq.training.budget import Budget
from seq2seq.training.callbacks.assemble import make_callbacks
from seq2seq.training.callbacks.signals import TrainingInterrupt, interruptible
from seq2seq.training.datamodule import TranslationDataModule
from seq2seq.training.errors import TrainingFault, as_fault
from seq2seq.training.fsdp import load_weights
from seq2seq.training.loggers import make_loggers
from seq2seq.training.plan import RunPlan
from seq2seq.training.run_state import RunState
from seq2seq.training.task import TranslationTask
from seq2seq.training.threads import known_threads, measure_threads, typical_shape, use_threads

log = logging.getLogger(__name__)


def train(plan: RunPlan) -> float:
    """Train, score the test set, and return the best validation BLEU.

    Raises:
        ValueError: settings that cannot work, before anything is written.
        TrainingFault: the data or the machine ended the run.
    """
    _quiet_lightning()
    tf32 = plan.trainer.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # recurrent layers; torch's own default is True
    return Run(plan).execute()


class Run:
    """Training run: its plan as resolved on this machine, its folder and its parts.

    Args:
        callbacks: More callbacks of Lightning, called before the run's own.

    Raises:
        ValueError: settings that cannot work; nothing has been written.
    """

    def __init__(self, plan: RunPlan, *, callbacks: Sequence[L.Callback] = ()) -> None:
        self.plan = plan
        self.callbacks = list(callbacks)
        # Checks of the settings and the machine come first; those that build or read something follow.
        distributed.require_startable(plan.trainer.processes, sweep=plan.job is not None)
        hardware.require_sharding(plan.trainer)
        self.accelerator = hardware.resolve_accelerator(plan.trainer)
        self.precision = hardware.resolve_precision(plan.trainer.precision, self.accelerator)
        self.search = checks.bounded_search(plan)
        self.start = checkpoint.load(plan.run.init_from) if plan.run.init_from else None
        checks.check_model(plan, self.start)
        data_plan = checks.plan_data(plan, self.start)
        self.tokenize = checks.score_tokenizer(plan, data_plan.tgt)
        checks.check_positions(plan, data_plan)
        validate_corpora(data_plan)
        self.folder, last = resolve_resume(plan.run.resume, RunFolder(folder_of(plan.config, plan.mixer)))
        self.resumed = Resumed.open(last, plan.config) if last else None
        self.data_plan = checks.decide_max_tokens(plan, data_plan, self.resumed, self.accelerator)

    def execute(self) -> float:
        """Prepare, train, test and report; return the best validation BLEU."""
        self.data = self._prepared_data()
        # For training and the test alike: the number of threads changes rounding.
        with use_threads(self._threads()) as threads:
            return self._train(threads if self.accelerator == "cpu" else None)

    def _train(self, threads: int | None) -> float:
        if distributed.is_first_process():
            self.folder.create(self.plan.config_yaml)
        log.info("run folder: %s", self.folder.path)
        # The parts that share a state: task (learning rate), callbacks (budget, best score), report.
        state = RunState(self.plan.trainer)
        task = self._task(state.budget)
        callbacks = make_callbacks(
            state=state,
            task=task,
            settings=self.plan.trainer,
            folder=self.folder,
            config_yaml=self.plan.config_yaml,
            origin={"settings": self.plan.config, "corpus": self.prepared.fingerprint, "threads": threads},
            job=self.plan.job,
        )
        trainer = make_trainer(
            self.plan,
            accelerator=self.accelerator,
            precision=self.precision,
            callbacks=[*self.callbacks, *callbacks],
            loggers=make_loggers(
                self.plan.config["logger"], self.folder, step=self.resumed.step if self.resumed else 0
            ),
            folder=self.folder.path,
        )
        # Train, then score the test set with the best weights and write results.json.
        self._fit(trainer, task)
        if trainer.is_global_zero:
            _warn_of_clock(self.plan, state.ended_by, trainer.global_step)
        self._report(trainer, task, self._results(task, trainer, state) | {"threads": threads})
        log.info("results: %s", self.folder.results)
        log.info("translate with: %s", translate_command(self.folder.best))
        return state.best.bleu

    def _prepared_data(self) -> TranslationDataModule:
        self.prepared = prepare_corpora(self.data_plan, validate=False)
        if self.resumed:
            # Before any training: another text or tokenizer would make the checkpoint's position meaningless.
            state = self.prepared.tokenizer.to_state()
            self.resumed.require_same_text(self.prepared.fingerprint, state, force=self.plan.run.force)
        if self.data_plan.max_tokens is None:  # auto, and no earlier part of the run decided it
            self.prepared = self.prepared.with_max_tokens(self._largest_batch())
        data = TranslationDataModule(self.prepared)
        data.describe()
        return data

    def _threads(self) -> int | None:
        """Choose the number of threads of a run on a CPU; None leaves it to torch."""
        if self.accelerator != "cpu":
            return None
        settings = self.plan.trainer
        count = known_threads(settings.threads, self.resumed.threads if self.resumed else None)
        # Several processes share the cores, and compiling takes longer than a wrong choice costs.
        if count is not None or settings.processes > 1 or settings.compile:
            return count
        return measure_threads(self._task, typical_shape(self.prepared), precision=self.precision)

    def _largest_batch(self) -> int:
        """Find the batch size for data.max_tokens=auto on this rank's device; the ranks agree when they meet."""
        on_gpu = self.accelerator == "gpu"
        return find_budget(
            self._task,
            longest=self.prepared.longest,
            device=torch.device("cuda", distributed.local_rank()) if on_gpu else torch.device("cpu"),
            precision=self.precision,
            # DDP's buckets of gradients, and the average of the weights.
            copies=(self.plan.trainer.processes > 1) + (self.plan.trainer.ema is not None),
        )

    def _task(self, budget: Budget | None = None) -> TranslationTask:
        return make_task(
            self.plan, self.prepared, search=self.search, tokenize=self.tokenize, start=self.start, budget=budget
        )

    def _fit(self, trainer: L.Trainer, task: TranslationTask) -> None:
        parameters = sum(p.numel() for p in task.model.parameters())
        log.info("%s parameters, %s on %s", f"{parameters:,}", self.precision, self.accelerator)
        if self.resumed:
            log.info("resuming from %s", self.resumed.path)
        try:
            with interruptible():
                trainer.fit(task, datamodule=self.data, ckpt_path=self.resumed.path if self.resumed else None)
        except TrainingInterrupt as stop:
            _stop(stop, self.folder)
        except (OSError, RuntimeError, MemoryError, TrainingFault) as error:
            raise self._fault(error, task) from error

    def _fault(self, error: Exception, task: TranslationTask) -> Exception:
        """Explain an error of the data or the machine, and how to go on; return any other error as it is."""
        fault = error if isinstance(error, TrainingFault) else None
        fault = fault or as_fault(error, shape=task.batch_shape, max_tokens=self.data.max_tokens)
        if fault is None:
            return error
        if fault.details:
            path = self.folder.path / f"fault-{distributed.rank()}.json"  # several ranks may fail at once
            files.write_json(path, {"fault": str(fault), **fault.details})
        kept = f"{self.folder.last} is whole: continue with resume=auto (force=true if settings changed)"
        return TrainingFault(f"{fault}; {kept if self.folder.last.exists() else 'there was no checkpoint yet'}")

    def _results(self, task: TranslationTask, trainer: L.Trainer, state: RunState) -> dict[str, Any]:
        """Collect the entries of results.json, but for the test score."""
        return {
            "run": self.folder.path.name,
            "mixer": self.plan.mixer,
            "command": self.plan.command,
            **state.report(),
            "steps": trainer.global_step,
            "skipped_updates": task.skipped.count,
            "parameters": sum(p.numel() for p in task.model.parameters()),
            "padding": round(self.data.padding_share, 4),
            "max_tokens": self.data.max_tokens,
            "precision": self.precision,
            "accelerator": self.accelerator,
            "versions": checkpoint.versions(),
            "git_revision": git_revision(),
            "corpus": self.prepared.fingerprint,
        }

    def _report(self, trainer: L.Trainer, task: TranslationTask, results: dict[str, Any]) -> None:
        """Write results.json, score the test set, and write it again; entries of this very update stay."""
        # From rank 0, so that every rank takes the same branch below.
        earlier = trainer.strategy.broadcast(self.folder.read_results())
        if earlier.get("steps") == results["steps"]:
            _report_earlier(self.plan, earlier, self.folder)
            results = earlier
        elif trainer.is_global_zero:
            files.write_text(self.folder.config, self.plan.config_yaml)
            files.write_json(self.folder.results, results)
        # Nothing is left to do if the same search has scored these weights.
        tested = results.get("test", {}).get("search") == dataclasses.asdict(self.search)
        if not self.plan.trainer.test or tested or "stopped" in results:
            return
        results = results | {"test": self._test(trainer, task)}
        if trainer.is_global_zero:
            files.write_json(self.folder.results, results)

    def _test(self, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
        """Score the test set with the best checkpoint."""
        log.info("scoring the test set with %s (beam %d)", self.folder.best, self.search.beam_size)
        if self.precision == "bf16-true" and not self.plan.trainer.sharded:
            # As `translate` and `score` load the checkpoint. FSDP has its own precision: there, bf16 weights decode.
            trainer.strategy.precision_plugin = Precision()
            task.float()
        # The last weights are in the task; the best are in the file.
        load_weights(task, checkpoint.read(self.folder.best)["state_dict"])
        task.search = self.search
        try:
            with interruptible():
                trainer.test(task, datamodule=self.data, verbose=False)
        except TrainingInterrupt as stop:
            ready = translate_command(self.folder.best)
            log.info(
                "stopped (%s) while scoring the test set; training is done, and best.ckpt is ready: %s", stop, ready
            )
            sys.exit(128 + stop.signum)
        result = task.evaluation
        assert result is not None
        log.info("test: %s\ntest: %s", result.bleu, result.chrf)
        if trainer.is_global_zero:
            self.folder.save_test(src=result.sources, ref=result.references, hyp=result.hypotheses)
        for name, score in result.directions:
            log.info("test %s: %s", name, score)
        return result.report() | _as_papers(result, self.plan) | {"search": dataclasses.asdict(self.search)}


def _report_earlier(plan: RunPlan, results: dict[str, Any], folder: RunFolder) -> None:
    """Log the scores of a run that had already ended, and warn if the clock ended it."""
    score = results.get("test", {}).get("bleu")
    log.info(
        "nothing was left to train: %s stays%s", folder.results, "" if score is None else f", test BLEU {score:.2f}"
    )
    # with a count beside the clock, `_warn_of_clock` has said so
    counted = plan.trainer.max_steps or plan.trainer.max_epochs
    if results.get("ended_by") == "max_time" and not counted:
        log.warning(
            "the clock ended this run (trainer.max_time=%s s) after %s epochs, perhaps before it had learned enough: "
            "continue it under another bound, for example with trainer.max_time=null trainer.max_epochs=N resume=auto "
            "and run=%s, or delete %s and start again",
            results.get("max_time"),
            results.get("epochs"),
            folder.path.name,
            folder.path,
        )


def _warn_of_clock(plan: RunPlan, ended_by: str | None, step: int) -> None:
    """Warn if the clock ended a run that was to have a number of updates or epochs."""
    section = plan.config["trainer"]
    # Without such a bound the clock is the intended end, and no warning is due.
    counts = " and ".join(f"trainer.{key}={section[key]}" for key in ("max_steps", "max_epochs") if section[key])
    if ended_by == "max_time" and counts:
        log.warning(
            "trainer.max_time=%s ended the run at update %d, before %s; with trainer.max_time=null the clock ends "
            "no run",
            section["max_time"],
            step,
            counts,
        )


def _as_papers(result: Evaluation, plan: RunPlan) -> dict[str, Any]:
    """Score the test set under `data.convention`, if one is set."""
    if not plan.data.convention:
        return {}
    score = convention_bleu(
        result.hypotheses,
        result.references,
        convention=plan.data.convention,
        lang=plan.data.tgt,
        lowercase=plan.data.lowercase,
    )
    log.info("test: %s", score)
    return {"convention": score._asdict()}


def _stop(stop: TrainingInterrupt, folder: RunFolder) -> NoReturn:
    """Log how to go on, have SLURM run the job again if it announced the end, and exit."""
    if folder.last.exists():
        log.info(
            "stopped (%s); %s is usable:\n  continue:  the same command with resume=auto\n  translate: %s",
            stop,
            folder.last,
            translate_command(folder.last),
        )
    else:
        log.info("stopped (%s), before there was a checkpoint", stop)
    if job := distributed.requeue(stop.signum):
        log.info("job %s is queued again", job)
    # The shell's convention for a process that a signal ended.
    sys.exit(128 + stop.signum)


def _quiet_lightning() -> None:
    """Turn off Lightning's tips, and its warnings about what is so on purpose."""
    # INFO is about devices and tips; the run logs its own device.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
