"""Run a plan: prepare, train, score the test set, report."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

import lightning as L
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning

from seq2seq import checkpoint
from seq2seq.data.batching import padded_width
from seq2seq.data.preparation import prepare_corpora, text_fingerprint
from seq2seq.kernels.fused import fused
from seq2seq.metadata import describe
from seq2seq.network.build import build_model, max_positions
from seq2seq.network.model import Seq2Seq
from seq2seq.runs.folder import RunFolder, translate_command
from seq2seq.runs.resume import Resumed, is_repeated, resolve_resume
from seq2seq.runs.summary import summary
from seq2seq.settings.data import CPU_MICRO_BATCH
from seq2seq.sweeps.job_records import record_run
from seq2seq.system import files, ranks
from seq2seq.system.memory import keep_freed_memory
from seq2seq.training import checks, finetune
from seq2seq.training.auto_batch_size import Rehearsal, find_max_tokens
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.bounds.divergence import Divergence
from seq2seq.training.bounds.faults import TrainingFault, as_fault
from seq2seq.training.callbacks.signals import TrainingInterrupt, interruptible
from seq2seq.training.dry_run import DRY_SENTENCES, dry_run
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.lightning_parts.loggers import check_loggers, log_settings, make_loggers
from seq2seq.training.lightning_parts.replay import resolve_graphs
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.lightning_parts.user_classes import user_callbacks
from seq2seq.training.loop import STATE_KEYS, make_callbacks
from seq2seq.training.machine import hardware
from seq2seq.training.make_trainer import load_teacher, make_trainer, prepare_for_training, validation_search
from seq2seq.training.objective.guided_alignment import align_pieces
from seq2seq.training.objective.trained_weights import choose_trained
from seq2seq.training.plan import RunPlan
from seq2seq.training.test_and_report import write_report
from seq2seq.training.threads import known_threads, measure_threads, typical_shape, use_threads

log = logging.getLogger(__name__)


def train(plan: RunPlan, *, model: Seq2Seq | None = None) -> float:
    """Train, score the test set, and return the best validation BLEU.

    Args:
        model: The result of `checks.check_model` for the plan, if there is one.

    Raises:
        ValueError: The settings cannot work; nothing has been trained.
        TrainingFault: The data or the machine ended the run.
    """
    with process_for(plan):
        if plan.trainer.dry_run:
            return dry_run(plan, lambda short: TrainingRun(short, model=model).execute())
        return TrainingRun(plan, model=model).execute()


@contextlib.contextmanager
def process_for(plan: RunPlan) -> Iterator[None]:
    """Set what a run needs in the whole process; a signal in this block exits by the shell's convention."""
    _quiet_libraries()
    tf32 = plan.trainer.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # recurrent layers; torch's own default is True
    # `Signals` replaces these handlers while Lightning trains.
    with interruptible():
        try:
            yield
        except TrainingInterrupt as stop:
            _leave(stop, "nothing has been trained")


class TrainingRun:
    """Training run: its plan as resolved on this machine, its folder and its parts.

    Before `execute` only caches are written. The constructor raises ValueError for settings that cannot work.

    Args:
        callbacks: More callbacks of Lightning, called before the run's own.
        model: See `train`.
    """

    def __init__(self, plan: RunPlan, *, callbacks: Sequence[L.Callback] = (), model: Seq2Seq | None = None) -> None:
        # First the checks that need neither model nor data.
        self.callbacks = [*callbacks, *user_callbacks(plan.run.callbacks, taken=set(STATE_KEYS))]
        check_loggers(plan.loggers)
        ranks.require_startable(plan.trainer.devices, plan.trainer.nodes, sweep=plan.job is not None)
        self.accelerator = hardware.resolve_accelerator(plan.trainer)
        self.precision = hardware.resolve_precision(plan.trainer.precision, self.accelerator)
        hardware.require_autocast(plan.trainer, self.precision)
        # The checkpoint to start from decides settings of the plan, and with them all that follows.
        self.start = checkpoint.load(plan.start, trust=plan.trust) if plan.start else None
        self.plan = plan = finetune.adopt(plan, self.start) if self.start else plan
        # The folder, with the state to resume from: refused before anything is loaded.
        resume = plan.run.resume
        # A search of discrete values repeats points
        if plan.job and resume is None and is_repeated(plan.folder, plan.config):
            log.info("%s holds a finished run of these settings: this job has its score", plan.folder.path)
            resume = "auto"
        self.folder, last = resolve_resume(resume, plan.folder, named=plan.run.run is not None, force=plan.run.force)
        self._found = self.folder.version()
        # The model.
        positions = max_positions(plan.config, trust=plan.trust)
        self.search = dataclasses.replace(plan.search, max_len=positions)
        self.src_multiple = hardware.src_multiple(self.accelerator, positions)
        model = model or checks.check_model(plan, self.start)
        hardware.require_kernels(model, self.accelerator)
        hardware.require_packing(model, self.accelerator, self.precision)
        # Links of pieces are looked up on the host
        looks_up = checks.guides(plan, model)
        self.graphs = not looks_up and resolve_graphs(plan.trainer, self.accelerator)
        # The data.
        data_plan = checks.plan_data(plan, self.start)
        self.tokenize = checks.score_tokenizer(plan, plan.data.tgt)
        self.resumed = Resumed.open(last, plan.config, self.folder) if last else None
        # A resumed run keeps the digest, as its first checkpoint may have changed since
        digest = checkpoint.digest(plan.start) if plan.start and not self.resumed else None
        self.start_digest = self.resumed.start_digest if self.resumed else digest
        if plan.data.max_tokens == "auto" and self.resumed and self.resumed.max_tokens:
            # Another size would change the random numbers of micro-batches.
            data_plan = dataclasses.replace(data_plan, max_tokens=self.resumed.max_tokens)
        elif plan.data.max_tokens == "auto" and plan.trainer.sharded:
            raise ValueError(
                "data.max_tokens=auto measures a whole model on each GPU, and trainer.strategy=fsdp has none: "
                "set data.max_tokens to a number"
            )
        self.data_plan = data_plan
        # State that the message of a fault depends on.
        self.trained = False
        # Names of the weights that the start did not give
        self.new = set[str]()
        self._trial_shape: tuple[int, int, int] | None = None
        self._trained_task: TranslationTask | None = None

    def execute(self) -> float:
        """Prepare, train, test and report, alone in the run's folder; return the best validation BLEU."""
        first = ranks.is_first_process()
        try:
            with self.folder.reserved() if first else contextlib.nullcontext():
                if first and self.folder.version() != self._found:
                    raise ValueError(f"another run in {self.folder.path} has just ended: give the same command again")
                if first and self.plan.job:
                    record_run(self.plan.job, self.folder.path)
                self.prepare()
                if self.accelerator == "cpu":
                    keep_freed_memory()
                # Training and the test use the same number of threads, because the number changes rounding.
                with use_threads(self._threads()):
                    return self._train()
        except TrainingInterrupt as stop:
            translate = translate_command(self.folder.path, trust=self.plan.trust)
            usable = f"\n  translate: {translate}" if self.folder.best.exists() else ""
            _leave(stop, f"{_how_to_continue(self.folder, trained=self.trained)}{usable}")
        except (OSError, RuntimeError, MemoryError, FloatingPointError, TrainingFault) as error:
            fault = self._fault(error)
            if fault is error:
                raise  # with its own cause
            raise fault from error

    def _train(self) -> float:
        plan = self.plan
        if ranks.is_first_process():
            self.folder.create(plan.config_yaml)
            # last.ckpt is missing or damaged: at the next save it must not replace previous.ckpt, which is whole
            if self.resumed and self.resumed.path == self.folder.previous:
                self.folder.last.unlink(missing_ok=True)
        log.info("run folder: %s", self.folder.path)
        # Shared by the task (learning rate), the callbacks (budget, best score) and the report.
        state = RunState(plan.trainer, plan.run.callbacks, self.resumed and self.resumed.continued)
        task = self._trained_task = self.task(state.budget)
        loggers = make_loggers(plan.loggers, self.folder, step=self.resumed.step if self.resumed else 0)
        if not self.resumed:
            log_settings(loggers, plan.config)
        trainer = make_trainer(self, [*self.callbacks, *make_callbacks(self, state, task)], loggers)
        parameters = list(task.model.parameters())
        total = sum(each.numel() for each in parameters)
        trained = sum(each.numel() for each in parameters if each.requires_grad)
        some = "" if trained == total else f", {trained:,} of them trained"
        log.info("%s parameters%s, %s on %s", f"{total:,}", some, self.precision, self.accelerator)
        if self.resumed:
            log.info("resuming from %s", self.resumed.path)
        with fused(plan.trainer.fused):
            trainer.fit(task, datamodule=self.data, ckpt_path=self.resumed.path if self.resumed else None)
        self.trained = True
        results = write_report(self, state, trainer, task)
        # The results of a dry run are deleted.
        if not plan.trainer.dry_run:
            log.info("%s", summary(self.folder, results, trust=plan.trust))
        # The run is done, so its SLURM job is not queued again, but a sweep ends.
        if state.signum:
            log.info("stopped (%s) when the test was scored", signal.Signals(state.signum).name)
            _exit(state.signum)
        return state.best.bleu

    def prepare(self) -> None:
        """Prepare the corpora, choose the micro-batch of `data.max_tokens=auto`, and open `data`."""
        force = self.plan.run.force
        # Another text or tokenizer would make the checkpoint's position meaningless. Preparing the text may take hours.
        known = text_fingerprint(self.data_plan) if self.resumed else None
        if self.resumed and known:
            self.resumed.require_same_text(known, force=force)
        self.prepared = prepare_corpora(self.data_plan)
        if self.resumed:
            if not known:
                self.resumed.require_same_text(self.prepared.fingerprint, force=force)
            self.resumed.require_same_pieces(self.prepared.tokenizer.to_state())
        self.links = align_pieces(self.prepared) if self.plan.optim.guided_alignment else None
        if self.data_plan.max_tokens is None:  # auto, and no earlier part of the run decided it
            self.prepared = self.prepared.with_max_tokens(self._largest_batch())
            self.data_plan = self.prepared.plan
        self.data = TranslationDataModule(
            self.prepared,
            src_multiple=self.src_multiple,
            window=self.plan.trainer.accumulate,
            processes=self.plan.trainer.processes,
        )
        self.data.describe()
        checks.look_at_references(self.data, self.tokenize)
        # Fine-tuning needs few updates
        if not self.start:
            checks.look_at_updates(self.data, self.plan.trainer)

    def _threads(self) -> int | None:
        """Choose the number of threads of a run on a CPU; None leaves it to torch."""
        if self.accelerator != "cpu":
            return None
        settings = self.plan.trainer
        count = known_threads(settings.threads, self.resumed.threads if self.resumed else None, settings.devices)
        # Not measured: several processes share the cores.
        if count is not None or settings.processes > 1:
            return count
        self._trial_shape = typical_shape(self.prepared)
        return measure_threads(lambda: self._rehearsal(torch.device("cpu")), self._trial_shape)

    def _largest_batch(self) -> int:
        """Find the micro-batch for data.max_tokens=auto on this rank's device; the ranks agree when they meet."""
        if self.accelerator != "gpu":
            return max(CPU_MICRO_BATCH, int(padded_width(max(self.prepared.longest))))
        device = torch.device("cuda", ranks.local_rank())
        most = self.data_plan.part_tokens
        return find_max_tokens(lambda: self._rehearsal(device), device=device, most=most, replayed=self.graphs)

    def _rehearsal(self, device: torch.device) -> Rehearsal:
        return Rehearsal(
            self.task(),
            longest=self.prepared.longest,
            device=device,
            precision=self.precision,
            # The gradients that several processes exchange, and the average of the weights.
            copies=(self.plan.trainer.processes > 1) + (self.plan.trainer.ema is not None),
            src_multiple=self.src_multiple,
        )

    def task(self, budget: Budget | None = None) -> TranslationTask:
        """Build the model, from the seed or the start's weights, and the task that trains it, from prepared corpora."""
        plan, prepared, start = self.plan, self.prepared, self.start
        data = prepared.plan
        tokenizer = prepared.tokenizer
        classifies = plan.model.decoder_layers == 0
        if classifies and data.stream:
            raise ValueError(
                "model.decoder_layers=0 needs all targets before training, but data.streaming reads them during it"
            )
        # A class and eos
        if classifies and prepared.longest[1] > 2:
            raise ValueError(
                "model.decoder_layers=0 is a classifier, whose targets are one piece each, and a target of data.train "
                f"has {prepared.longest[1] - 1}: write each class as one word (maple_tree) and set tokenizer.type=word "
                "tokenizer.byte_fallback=false, or set model.decoder_layers=1 or more"
            )
        config = plan.model_config(tokenizer.sizes | checks.image_sizes(tokenizer.patches))
        torch.manual_seed(plan.run.seed)  # right before the weights are drawn
        model = build_model(config, trust=plan.trust)
        # Tables with rows for new pieces are new, too
        new = finetune.new_weights(model, start.model.state_dict()) if start else set[str]()
        if start:
            finetune.keep_weights(model, finetune.start_weights(start, tokenizer))
            finetune.start_mixers(model, start.model, new)
        # The run's own checkpoint, which replaces a start that is gone, has them already
        self.new = new if self.resumed is None or self.resumed.new is None else set(self.resumed.new)
        choose_trained(model, plan.optim, new=self.new)
        prepare_for_training(model, plan.trainer)
        description = describe(  # stored in every checkpoint, so translation needs no other file
            model_config=config,
            tokenizer=tokenizer,
            src_lang=plan.data.src,
            tgt_lang=plan.data.tgt,
            tokenize=self.tokenize,
            data=plan.data.name,
            search=self.search,
            tgt_langs=finetune.target_languages_of(data, start),
            # Images have no statistics of lines
            lines=None if tokenizer.patches else prepared.statistics._asdict(),
            preset=plan.mixer,
            context=plan.data.context,
            terms=plan.data.augment.terms > 0,
        )
        return TranslationTask(
            model=model,
            tokenizer=tokenizer,
            description=description,
            optim=plan.optim,
            search=validation_search(self.search, plan.trainer),
            seed=plan.run.seed,
            sentences={"valid": plan.trainer.val_sentences, "test": DRY_SENTENCES if plan.trainer.dry_run else None},
            max_skipped=plan.trainer.max_skipped,
            budget=budget,
            graphs=self.graphs,
            teacher=load_teacher(plan, tokenizer, longest=data.longest_allowed),
            links=self.links,
        )

    def _fault(self, error: Exception) -> Exception:
        """Explain an error of the data or the machine, and how to continue; return any other error as it is."""
        if isinstance(error, Divergence):
            return error
        fault = as_fault(
            error,
            shape=self._trained_task.batch_shape if self._trained_task else self._trial_shape,
            max_tokens=self.data_plan.max_tokens,
            batch_tokens=self.data_plan.data.batch_tokens,
            replayed=self.graphs,
        )
        if fault is None:
            return error
        if details := dict(fault.details):
            # A stream has no text to look up.
            if "training_pairs" in details and "train" in self.prepared.splits:
                details["text"] = [self.prepared.split("train").pairs(rows) for rows in details["training_pairs"]]
            # A file for each rank, as several may fail at once; the fault itself matters more than a full disk.
            with contextlib.suppress(OSError):
                files.write_json(self.folder.path / f"fault-{ranks.rank()}.json", {"fault": str(fault), **details})
        return TrainingFault(f"{fault}; {_how_to_continue(self.folder, trained=self.trained)}")


def _how_to_continue(folder: RunFolder, *, trained: bool) -> str:
    if not folder.states:
        return "there was no checkpoint yet: the same command starts over"
    if trained:
        return f"training is done, and {folder.best} is whole: resume=auto continues with the test"
    return f"{folder.last} is whole: continue with resume=auto (force=true if settings or the text changed)"


def _leave(stop: TrainingInterrupt, rest: str) -> NoReturn:
    """Have SLURM run the job again if it announced the end, and exit.

    Args:
        rest: The rest of the message that the run has stopped.
    """
    # SLURM signals a job that it requeues
    with interruptible(signal.SIG_IGN):
        log.info("stopped (%s); %s", stop, rest)
        try:
            if job := ranks.requeue(stop.signum):
                log.info("job %s is queued again", job)
        except RuntimeError as error:
            log.error("%s", error)
        _exit(stop.signum)


def _exit(signum: int) -> NoReturn:
    """Exit by the shell's convention for signals; the other ranks exit with 0.

    Launchers kill all ranks as soon as one fails, and rank 0 may still have to requeue the job or upload results.
    """
    sys.exit(128 + signum if ranks.is_first_process() else 0)


def _quiet_libraries() -> None:
    """Turn off messages of libraries that do not concern the user."""
    logging.getLogger("datasets").setLevel(logging.WARNING)  # lists the versions of installed libraries
    # Lightning gives tips, and logs the devices, which the run also logs.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
