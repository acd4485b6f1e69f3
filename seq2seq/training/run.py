"""Run a plan: prepare, train, score the test set, report."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.loggers.logger import Logger

from seq2seq.checkpoint import Loaded
from seq2seq.data.batching import padded_width
from seq2seq.data.preparation import PreparedData, prepare_corpora
from seq2seq.kernels.fused import fused
from seq2seq.network.build import max_positions
from seq2seq.network.model import Seq2Seq
from seq2seq.runs.folder import RunFolder, translate_command
from seq2seq.runs.resume import Resumed, resolve_resume
from seq2seq.settings.data import CPU_MICRO_BATCH
from seq2seq.sweeps.job_records import record_run
from seq2seq.system import files, ranks
from seq2seq.training import checks, finetune
from seq2seq.training.auto_batch_size import find_max_tokens
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.bounds.divergence import Divergence
from seq2seq.training.bounds.faults import TrainingFault, as_fault
from seq2seq.training.callbacks.signals import TrainingInterrupt, interruptible
from seq2seq.training.dry_run import dry_run
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.lightning_parts.loggers import check_loggers, log_settings, make_loggers
from seq2seq.training.lightning_parts.replay import resolve_graphs
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.lightning_parts.user_classes import user_callbacks
from seq2seq.training.loop import STATE_KEYS, make_callbacks
from seq2seq.training.machine import compilation, hardware
from seq2seq.training.make_trainer import make_task, make_trainer
from seq2seq.training.plan import RunPlan
from seq2seq.training.test_and_report import Report
from seq2seq.training.threads import known_threads, measure_threads, typical_shape, use_threads

log = logging.getLogger(__name__)


def train(plan: RunPlan, *, model: Seq2Seq | None = None) -> float:
    """Train, score the test set, and return the best validation BLEU.

    Args:
        model: What `checks.check_model` has built of the plan, if it has.

    Raises:
        ValueError: settings that cannot work, before anything is written.
        TrainingFault: the data or the machine ended the run.
    """
    _quiet_lightning()
    tf32 = plan.trainer.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # recurrent layers; torch's own default is True
    # From the checks on; while Lightning trains, `Signals` has handlers of its own.
    with interruptible():
        try:
            if plan.trainer.dry_run:
                # Before the name of its folder is made
                start = finetune.load_start(plan.start, trust=plan.trust)
                plan = finetune.adopt(plan, start) if start else plan
                return dry_run(plan, lambda short: Run(short, start=start, model=model).execute())
            return Run(plan, model=model).execute()
        except TrainingInterrupt as stop:
            log.info("stopped (%s) while the settings were checked; nothing was written", stop)
            _leave(stop)


class Run:
    """Training run: its plan as resolved on this machine, its folder and its parts.

    Args:
        callbacks: More callbacks of Lightning, called before the run's own.
        start: The checkpoint that the run starts from, if the plan has been adapted to it.
        model: What `checks.check_model` has built of the plan, if it has.

    Raises:
        ValueError: settings that cannot work; nothing has been written.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        callbacks: Sequence[L.Callback] = (),
        start: Loaded | None = None,
        model: Seq2Seq | None = None,
    ) -> None:
        self.plan = plan
        # Checks of the settings and the machine come first; those that build or read something follow.
        self.callbacks = [*callbacks, *user_callbacks(plan.run.callbacks, taken=set(STATE_KEYS))]
        check_loggers(plan.loggers)
        ranks.require_startable(plan.trainer.devices, plan.trainer.nodes, sweep=plan.job is not None)
        self.accelerator = hardware.resolve_accelerator(plan.trainer)
        self.precision = hardware.resolve_precision(plan.trainer.precision, self.accelerator)
        hardware.require_autocast(plan.trainer, self.precision)
        self.start = start or finetune.load_start(plan.start, trust=plan.trust)
        if self.start and not start:
            plan = self.plan = finetune.adopt(plan, self.start)
        self.search = checks.bounded_search(plan)
        model = model or checks.check_model(plan, self.start)
        hardware.require_packing(model, self.accelerator, self.precision)
        self.compile = compilation.resolve_compile(plan.trainer, self.accelerator, model)
        self.graphs = resolve_graphs(plan.trainer, self.accelerator, compiled=self.compile)
        data_plan = checks.plan_data(plan, self.start)
        self.tokenize = checks.score_tokenizer(plan, plan.data.tgt)
        self.folder, last = resolve_resume(plan.run.resume, plan.folder, named=plan.run.run is not None)
        self._found = self.folder.version()
        self.resumed = Resumed.open(last, plan.config, self.folder) if last else None
        self.data_plan = checks.decide_max_tokens(plan, data_plan, self.resumed)
        self.src_multiple = hardware.src_multiple(self.accelerator, max_positions(plan.config, trust=plan.trust))
        self.trained = False
        self._batch_shape: Callable[[], Sequence[int] | None] = lambda: None  # for the message of a fault

    def execute(self) -> float:
        """Prepare, train, test and report, alone in the run's folder; return the best validation BLEU."""
        try:
            with interruptible(), _reserved(self.folder, self._found):
                if self.plan.job and ranks.is_first_process():
                    record_run(self.plan.job, self.folder.path)
                self.data = self._prepared_data()
                hardware.keep_freed_memory(self.accelerator)
                # For training and the test alike: the number of threads changes rounding.
                with use_threads(self._threads()):
                    return self._train()
        except TrainingInterrupt as stop:
            _stop(stop, self.folder, trained=self.trained, trust=self.plan.trust)
        except (OSError, RuntimeError, MemoryError, FloatingPointError, TrainingFault) as error:
            fault = self._fault(error)
            if fault is error:
                raise  # with what it came from
            raise fault from error

    def _train(self) -> float:
        if ranks.is_first_process():
            self.folder.create(self.plan.config_yaml)
        log.info("run folder: %s", self.folder.path)
        # The parts that share a state: task (learning rate), callbacks (budget, best score), report.
        state = RunState(self.plan.trainer, self.plan.run.callbacks, self.resumed and self.resumed.continued)
        task = self._task(state.budget)
        self._batch_shape = lambda: task.batch_shape
        callbacks = make_callbacks(
            state=state,
            task=task,
            settings=self.plan.trainer,
            folder=self.folder,
            config_yaml=self.plan.config_yaml,
            origin={"settings": self.plan.config, "corpus": self.prepared.fingerprint},
            job=self.plan.job,
        )
        trainer = make_trainer(
            self.plan,
            accelerator=self.accelerator,
            precision=self.precision,
            callbacks=[*self.callbacks, *callbacks],
            loggers=self._loggers(),
            folder=self.folder.path,
        )
        # Train, then score the test set with the best weights and write results.json.
        self._fit(trainer, task)
        self.trained = True
        report = Report(
            plan=self.plan,
            folder=self.folder,
            search=self.search,
            precision=self.precision,
            accelerator=self.accelerator,
            data=self.data,
            state=state,
        )
        report.write(trainer, task)
        # Those of a dry run are deleted.
        _end(state, self.folder if not self.plan.trainer.dry_run else None, self.plan.trust)
        return state.best.bleu

    def _loggers(self) -> list[Logger]:
        """Make the loggers; a run that begins logs its settings."""
        loggers = make_loggers(self.plan.loggers, self.folder, step=self.resumed.step if self.resumed else 0)
        if not self.resumed:
            log_settings(loggers, self.plan.config)
        return loggers

    def _prepared_data(self) -> TranslationDataModule:
        self.prepared = prepare_corpora(self.data_plan)
        if self.resumed:
            # Before any training: another text or tokenizer would make the checkpoint's position meaningless.
            state = self.prepared.tokenizer.to_state()
            self.resumed.require_same_text(self.prepared.fingerprint, state, force=self.plan.run.force)
        if self.data_plan.max_tokens is None:  # auto, and no earlier part of the run decided it
            self.prepared = self.prepared.with_max_tokens(self._largest_batch())
            self.data_plan = self.prepared.plan
        sizes = {"window": self.plan.trainer.accumulate, "processes": self.plan.trainer.processes}
        data = TranslationDataModule(self.prepared, src_multiple=self.src_multiple, **sizes)
        data.describe()
        checks.look_at_references(data.texts, self.tokenize)
        return data

    def _threads(self) -> int | None:
        """Choose the number of threads of a run on a CPU; None leaves it to torch."""
        if self.accelerator != "cpu":
            return None
        count = known_threads(self.plan.trainer.threads, self.resumed.threads if self.resumed else None)
        # Several processes share the cores, and compiling takes longer than a wrong choice costs.
        if count is not None or self.plan.trainer.processes > 1 or self.compile:
            return count
        shape = typical_shape(self.prepared)
        self._batch_shape = lambda: shape
        return measure_threads(self._task, shape, precision=self.precision)

    def _largest_batch(self) -> int:
        """Find the micro-batch for data.max_tokens=auto on this rank's device; the ranks agree when they meet."""
        if self.accelerator != "gpu":
            return max(CPU_MICRO_BATCH, int(padded_width(max(self.prepared.longest))))
        return find_max_tokens(
            self._task,
            longest=self.prepared.longest,
            most=self.data_plan.part_tokens,
            device=torch.device("cuda", ranks.local_rank()),
            precision=self.precision,
            # The gradients that several processes exchange, and the average of the weights.
            copies=(self.plan.trainer.processes > 1) + (self.plan.trainer.ema is not None),
            src_multiple=self.src_multiple,
            replayed=self.graphs,
        )

    def _task(self, budget: Budget | None = None) -> TranslationTask:
        return make_task(
            self.plan,
            self.prepared,
            search=self.search,
            tokenize=self.tokenize,
            start=self.start,
            budget=budget,
            compile=self.compile,
            graphs=self.graphs,
        )

    def _fit(self, trainer: L.Trainer, task: TranslationTask) -> None:
        parameters = sum(p.numel() for p in task.model.parameters())
        log.info("%s parameters, %s on %s", f"{parameters:,}", self.precision, self.accelerator)
        if self.resumed:
            log.info("resuming from %s", self.resumed.path)
        with fused(self.plan.trainer.fused):
            trainer.fit(task, datamodule=self.data, ckpt_path=self.resumed.path if self.resumed else None)

    def _fault(self, error: Exception) -> Exception:
        """Explain an error of the data or the machine, and how to go on; return any other error as it is."""
        if isinstance(error, Divergence):
            return error
        fault = error if isinstance(error, TrainingFault) else None
        given = {key: getattr(self.data_plan, key) for key in ("max_tokens", "batch_tokens")}
        fault = fault or as_fault(error, shape=self._batch_shape(), replayed=self.graphs, **given)
        if fault is None:
            return error
        if fault.details:
            path = self.folder.path / f"fault-{ranks.rank()}.json"  # several ranks may fail at once
            # The fault itself matters more than a full disk.
            with contextlib.suppress(OSError):
                files.write_json(path, {"fault": str(fault), **_with_text(fault.details, self.prepared)})
        return TrainingFault(f"{fault}; {_how_to_go_on(self.folder, trained=self.trained)}")


@contextlib.contextmanager
def _reserved(folder: RunFolder, found: int | None) -> Iterator[None]:
    """Hold the lock of the folder, on the rank that writes.

    Args:
        found: The version of the folder that the run has looked at.

    Raises:
        ValueError: Another run has it, or had it since this one looked for a checkpoint.
    """
    if not ranks.is_first_process():
        yield
        return
    with folder.reserved():
        if folder.version() != found:
            raise ValueError(f"another run in {folder.path} has just ended: give the same command again")
        yield


def _how_to_go_on(folder: RunFolder, *, trained: bool) -> str:
    if not folder.last.exists():
        return "there was no checkpoint yet"
    if trained:
        return f"training is done, and {folder.best} is whole: resume=auto goes on with the test"
    return f"{folder.last} is whole: continue with resume=auto (force=true if settings changed)"


def _with_text(details: Mapping[str, Any], prepared: PreparedData) -> dict[str, Any]:
    """Add the text of the training pairs that a fault names, batch by batch; a stream has none to look up."""
    if "training_pairs" not in details or "train" not in prepared.splits:
        return {**details}
    return {**details, "text": [prepared.split("train").pairs(rows) for rows in details["training_pairs"]]}


def _end(state: RunState, folder: RunFolder | None, trust: Sequence[str]) -> None:
    """Log where the results are, and exit if a signal arrived when the test was nearly done."""
    if folder:
        log.info("results: %s", folder.results)
        log.info("translate with: %s", translate_command(folder.path, trust=trust))
    # The run is done, and not queued again; a sweep ends.
    if state.signum:
        log.info("stopped (%s) when the test was scored", signal.Signals(state.signum).name)
        sys.exit(128 + state.signum)


def _stop(stop: TrainingInterrupt, folder: RunFolder, *, trained: bool, trust: Sequence[str]) -> NoReturn:
    """Log how to go on, and exit."""
    if trained:
        log.info(
            "stopped (%s) before the test was scored; training is done, and the best checkpoint is ready:\n"
            "  score:     the same command with resume=auto\n  translate: %s",
            stop,
            translate_command(folder.path, trust=trust),
        )
    elif folder.last.exists():
        log.info(
            "stopped (%s); %s is whole:\n  continue:  the same command with resume=auto%s",
            stop,
            folder.last,
            f"\n  translate: {translate_command(folder.path, trust=trust)}" if folder.best.exists() else "",
        )
    else:
        log.info("stopped (%s) before the first checkpoint: the same command starts anew", stop)
    _leave(stop)


def _leave(stop: TrainingInterrupt) -> NoReturn:
    """Have SLURM run the job again if it announced the end, and exit by the shell's convention for signals."""
    if job := ranks.requeue(stop.signum):
        log.info("job %s is queued again", job)
    sys.exit(128 + stop.signum)


def _quiet_lightning() -> None:
    """Turn off Lightning's tips, and its warnings about what is so on purpose."""
    logging.getLogger("datasets").setLevel(logging.WARNING)  # versions of libraries that are there
    # Of Inductor, about a softmax of its own
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
    # INFO is about devices and tips; the run logs its own device.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
