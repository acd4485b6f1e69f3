"""One training run: its settings checked, its parts built, fitted, tested and reported."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import shlex
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from seq2seq import distributed, files
from seq2seq.config.sections import read_sections
from seq2seq.config.trainer import bounded
from seq2seq.experiments import folder as runs
from seq2seq.experiments import hydra_callback
from seq2seq.training import finetune
from seq2seq.training.errors import TrainingFault, as_fault
from seq2seq.training.loggers import make_loggers, require_installed

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.config.search import SearchSettings
    from seq2seq.config.tokenizer import PatchGrid
    from seq2seq.data.plan import DataPlan
    from seq2seq.evaluation.evaluator import Evaluation
    from seq2seq.training.budget import Budget
    from seq2seq.training.callbacks.signals import TrainingInterrupt
    from seq2seq.training.datamodule import TranslationDataModule
    from seq2seq.training.run_state import RunState
    from seq2seq.training.task import TranslationTask

log = logging.getLogger(__name__)


def train(config: dict[str, Any], *, mixer: str) -> float:
    """Train as the resolved plain `config` says, score the test set, and return the best validation BLEU.

    `mixer` names the run's folder. ValueError for settings that cannot work, before anything is written.
    """
    import torch

    _quiet_lightning()
    tf32 = config["trainer"]["precision"] == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # recurrent layers; torch's own default is True
    return Run(config, mixer=mixer).execute()


class Run:
    """One training run: its checked settings, its folder and its parts."""

    def __init__(self, config: dict[str, Any], *, mixer: str) -> None:
        from seq2seq import checkpoint
        from seq2seq.data.preparation import validate_corpora
        from seq2seq.training import hardware

        self.sections = read_sections(config)
        self.settings = self.sections.trainer
        self.optim = self.sections.optim
        self.seed = self.sections.run.seed
        config = {**config, "trainer": bounded(config["trainer"])}
        self.config, self.mixer = config, mixer
        self.config_yaml = OmegaConf.to_yaml(config)
        swept = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
        distributed.require_startable(self.settings.processes, sweep=swept)
        hardware.require_sharding(self.settings)
        self.search = self._search_settings()
        require_installed(config["logger"])
        self.accelerator = hardware.resolve_accelerator(self.settings)
        self.precision = hardware.resolve_precision(self.settings.precision, self.accelerator)
        self.start = checkpoint.load(config["init_from"]) if config["init_from"] else None
        self._check_model()
        self.data_plan = self._data_plan()
        self.tokenize = _score_tokenizer(config["data"], self.data_plan.tgt)
        _check_convention(config["data"], self.data_plan.tgt)
        self._check_positions()
        validate_corpora(self.data_plan)
        self.folder, last = runs.resolve_resume(config["resume"], runs.RunFolder(runs.folder_of(config, mixer)))
        self.resumed = runs.Resumed.open(last, config) if last else None
        self._check_budget()

    def execute(self) -> float:
        """Prepare, fit, test, report; the best validation BLEU."""
        from seq2seq.training.threads import use_threads

        self.data = self._prepared()
        with use_threads(self._threads()) as threads:
            return self._train(threads if self.accelerator == "cpu" else None)

    def _train(self, threads: int | None) -> float:
        from seq2seq.training.callbacks.assemble import make_callbacks
        from seq2seq.training.run_state import RunState

        if distributed.is_first_process():
            self.folder.create(self.config_yaml)
        log.info("run folder: %s", self.folder.path)
        state = RunState(self.settings)
        task = self._task(state.budget)
        callbacks = make_callbacks(
            state=state,
            task=task,
            settings=self.settings,
            folder=self.folder,
            config_yaml=self.config_yaml,
            origin={"settings": self.config, "corpus": self.prepared.fingerprint, "threads": threads},
            job=hydra_callback.job_folder(),
        )
        trainer = self._trainer(callbacks)
        self._fit(trainer, task)
        if trainer.is_global_zero:
            self._warn_of_clock(state.ended_by, trainer.global_step)
        self._report(trainer, task, self._results(task, trainer, state) | {"threads": threads})
        log.info("results: %s", self.folder.results)
        log.info("translate with: %s", runs.translate_command(self.folder.best))
        return state.best.bleu

    def _threads(self) -> int | None:
        """Choose the number of threads of a run on a CPU; None leaves it to torch."""
        from seq2seq.training import threads

        if self.accelerator != "cpu":
            return None
        count = threads.known_threads(self.settings.threads, self.resumed.threads if self.resumed else None)
        # Several processes share the cores, and compiling takes longer than a wrong choice costs.
        if count is not None or self.settings.processes > 1 or self.settings.compile:
            return count
        return threads.measure_threads(self._task, threads.typical_shape(self.prepared), precision=self.precision)

    def _prepared(self) -> TranslationDataModule:
        from seq2seq.data.preparation import prepare_corpora
        from seq2seq.training.datamodule import TranslationDataModule

        self.prepared = prepare_corpora(self.data_plan, validate=False)
        if self.resumed:
            state = self.prepared.tokenizer.to_state()
            self.resumed.require_same_text(self.prepared.fingerprint, state, force=self.config["force"])
        if self.data_plan.max_tokens is None:
            self.prepared = self.prepared.with_max_tokens(self._largest_budget())
        data = TranslationDataModule(self.prepared)
        data.describe()
        return data

    def _warn_of_clock(self, ended_by: str | None, step: int) -> None:
        """Say so where the clock ended a run that was to have a number of updates or epochs."""
        given = self.config["trainer"]
        counts = " and ".join(f"trainer.{key}={given[key]}" for key in ("max_steps", "max_epochs") if given[key])
        if ended_by == "max_time" and counts:
            log.warning(
                "trainer.max_time=%s ended the run at update %d, before %s; with trainer.max_time=null the clock ends "
                "no run", given["max_time"], step, counts
            )  # fmt: skip

    def _report(self, trainer: L.Trainer, task: TranslationTask, results: dict[str, Any]) -> None:
        """Write results.json, then score the test set and write it again; what it says of this very update stays."""
        earlier = trainer.strategy.broadcast(self.folder.read_results())
        if earlier.get("steps") == results["steps"]:
            log.info("nothing was left to train: %s stays", self.folder.results)
            results = earlier
        elif trainer.is_global_zero:
            files.write_text(self.folder.config, self.config_yaml)
            files.write_json(self.folder.results, results)
        tested = results.get("test", {}).get("search") == dataclasses.asdict(self.search)
        if not self.settings.test or tested or "stopped" in results:
            return
        results = results | {"test": self._test(trainer, task)}
        if trainer.is_global_zero:
            files.write_json(self.folder.results, results)

    def _search_settings(self) -> SearchSettings:
        from seq2seq.build import max_positions

        search = self.sections.search
        if search.n_best != 1:
            raise ValueError(
                f"search.n_best={search.n_best}: a score is that of the best translation alone; leave it at 1 "
                "(seq2seq.translate --n-best lists more)"
            )
        return dataclasses.replace(search, max_len=max_positions(self.config))

    def _check_model(self) -> None:
        """Build the model without memory, so that impossible sizes are found before any work."""
        import torch

        from seq2seq.build import build_model

        tokenizer = self.sections.tokenizer
        sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": tokenizer.joint}
        sizes |= _picture(tokenizer.patches)
        if self.start:
            sizes = {key: value for key, value in self.start.meta["model"].items() if key not in ("model", "mixer")}
            finetune.require_same_model(self.start.meta["model"], self.config, self.config["init_from"])
        with torch.device("meta"):
            build_model(self._model_config(sizes))

    def _check_positions(self) -> None:
        """ValueError if the model's positions do not reach to the end of the longest training sentence, padding too."""
        from seq2seq.build import bounds
        from seq2seq.data.batching import longest_width, padded_width

        most = self.search.max_len
        if not most:
            return
        longest = self.data_plan.longest_allowed
        named = ", ".join(f"{key}={n}" for key, n in bounds(self.config).items())
        otherwise = f"data.clean.max_length={longest_width(most)}, or sinusoidal positions and mixers without max_len"
        if longest == math.inf:
            raise ValueError(f"{named}, and data.max_tokens=auto bounds no sentence: set {otherwise}")
        if longest > longest_width(most):
            needed = int(padded_width(int(longest)))
            raise ValueError(
                f"{named} is too few for training sentences of up to {longest} pieces, padded to {needed}; "
                f"set it to {needed} or more, or {otherwise}"
            )

    def _check_budget(self) -> None:
        """What a resumed run found for data.max_tokens=auto is kept, on whatever device; else ValueError on a CPU."""
        from seq2seq.training.auto_batch_size import require_gpu

        auto = self.data_plan.auto
        if auto and self.resumed and self.resumed.max_tokens:
            self.data_plan = self.data_plan.with_max_tokens(self.resumed.max_tokens)
        elif auto and self.settings.sharded:
            raise ValueError(
                "data.max_tokens=auto measures a whole model on each GPU, and trainer.strategy=fsdp has none: "
                "set data.max_tokens to a number"
            )
        elif auto:
            require_gpu(self.accelerator)

    def _largest_budget(self) -> int:
        """What data.max_tokens=auto is on this process's device; the processes agree when they meet."""
        import torch

        from seq2seq.training.auto_batch_size import find_budget

        on_gpu = self.accelerator == "gpu"
        return find_budget(
            self._task,
            longest=self.prepared.longest,
            device=torch.device("cuda", distributed.local_rank()) if on_gpu else torch.device("cpu"),
            precision=self.precision,
            copies=(self.settings.processes > 1) + (self.settings.ema is not None),
        )

    def _model_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.config["model"], "mixer": self.config["mixer"], **sizes}

    def _data_plan(self) -> DataPlan:
        from seq2seq.data.plan import DataPlan
        from seq2seq.data.streaming import refuse_epochs

        cache, tokenizer = Path(self.config["cache"]), dict(self.config["tokenizer"])
        if self.start:
            tokenizer |= finetune.ready_models(self.start.tokenizer, cache)
        data = DataPlan.from_mapping(self.config["data"], tokenizer=tokenizer, seed=self.seed, cache_dir=cache)
        if data.stream:
            refuse_epochs(self.settings)
        return data

    def _task(self, budget: Budget | None = None) -> TranslationTask:
        import torch
        from torch.utils.checkpoint import checkpoint as activation_checkpoint

        from seq2seq import checkpoint
        from seq2seq.build import build_model
        from seq2seq.training.task import TranslationTask

        data, tokenizer = self.data_plan, self.prepared.tokenizer
        sizes = {
            "src_vocab_size": tokenizer.src_vocab_size,
            "tgt_vocab_size": tokenizer.tgt_vocab_size,
            "pad_id": tokenizer.pad_id,
            "joint": tokenizer.joint,
            **_picture(tokenizer.patches),
        }
        torch.manual_seed(self.seed)
        model = build_model(self._model_config(sizes))
        if self.start:
            model.load_state_dict(self.start.model.state_dict())
        if self.settings.checkpoint_activations:
            for layer in (*model.encoder.layers, *model.decoder.layers):
                layer.forward = functools.partial(activation_checkpoint, layer.forward, use_reentrant=False)
        if self.settings.compile:
            # In place and part by part: the loss calls the parts, and names in the checkpoint stay.
            for part in (model.encoder, model.decoder, model.output):
                part.compile(dynamic=True)
        description = checkpoint.describe(
            model_config=self._model_config(sizes),
            tokenizer=tokenizer,
            src_lang=data.src,
            tgt_lang=data.tgt,
            tokenize=self.tokenize,
            data=str(self.config["data"]["name"]),
            search=self.search,
        )
        if data.target_languages:
            description["tgt_langs"] = data.target_languages
        return TranslationTask(
            model=model,
            tokenizer=tokenizer,
            description=description,
            optim=self.optim,
            search=dataclasses.replace(self.search, beam_size=self.settings.val_beam_size),
            seed=self.seed,
            val_sentences=self.settings.val_sentences,
            max_skipped=self.settings.max_skipped,
            budget=budget,
        )

    def _trainer(self, callbacks: list[Any]) -> L.Trainer:
        import lightning as L

        from seq2seq.training.callbacks.window_end import NEVER
        from seq2seq.training.checkpoint_io import plugins
        from seq2seq.training.fsdp import make_strategy

        return L.Trainer(
            accelerator=self.accelerator,
            devices=self.settings.devices,
            num_nodes=self.settings.nodes,
            strategy=make_strategy(self.settings),
            precision=self.precision,  # type: ignore[arg-type]
            # `Stopping` and `Validation` own the budget and the validation interval.
            max_epochs=-1,
            min_epochs=0,
            val_check_interval=NEVER,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            # A validation gathers the weights of a sharded model, which training then uses.
            inference_mode=not self.settings.sharded,
            accumulate_grad_batches=self.settings.accumulate,
            use_distributed_sampler=False,
            callbacks=callbacks,
            plugins=plugins(),
            logger=self._loggers(),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder.path,
        )

    def _loggers(self) -> list[Any]:
        return make_loggers(self.config["logger"], self.folder, step=self.resumed.step if self.resumed else 0)

    def _fit(self, trainer: L.Trainer, task: TranslationTask) -> None:
        from seq2seq.training.callbacks.signals import TrainingInterrupt, interruptible

        parameters = sum(p.numel() for p in task.model.parameters())
        log.info("%s parameters, %s on %s", f"{parameters:,}", self.precision, self.accelerator)
        if self.resumed:
            log.info("resuming from %s", self.resumed.path)
        try:
            with interruptible():
                trainer.fit(task, datamodule=self.data, ckpt_path=self.resumed.path if self.resumed else None)
        except TrainingInterrupt as stop:
            self._stopped(stop)
        except (OSError, RuntimeError, MemoryError, TrainingFault) as error:
            raise self._fault(error, task) from error

    def _fault(self, error: Exception, task: TranslationTask) -> Exception:
        """What ends the run for a reason of the data or the machine, with how to go on; any other error as it is."""
        told = error if isinstance(error, TrainingFault) else None
        told = told or as_fault(error, shape=task.batch_shape, max_tokens=self.data.max_tokens)
        if told is None:
            return error
        if told.details:
            files.write_json(
                self.folder.path / f"fault-{distributed.rank()}.json", {"fault": str(told), **told.details}
            )
        kept = f"{self.folder.last} is whole: continue with resume=auto (force=true if settings changed)"
        return TrainingFault(f"{told}; {kept if self.folder.last.exists() else 'there was no checkpoint yet'}")

    def _stopped(self, stop: TrainingInterrupt) -> NoReturn:
        """Say what is left and how to go on, have SLURM run the job again if it announced the end, and exit."""
        if self.folder.last.exists():
            log.info(
                "stopped (%s); %s is usable:\n  continue:  the same command with resume=auto\n  translate: %s",
                stop, self.folder.last, runs.translate_command(self.folder.last),
            )  # fmt: skip
        else:
            log.info("stopped (%s), before there was a checkpoint", stop)
        if job := distributed.requeue(stop.signum):
            log.info("job %s is queued again", job)
        sys.exit(128 + stop.signum)

    def _test(self, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
        from lightning.pytorch.plugins import Precision

        from seq2seq import checkpoint
        from seq2seq.training.callbacks.signals import TrainingInterrupt, interruptible
        from seq2seq.training.fsdp import load_weights

        log.info("scoring the test set with %s (beam %d)", self.folder.best, self.search.beam_size)
        if self.precision == "bf16-true" and not self.settings.sharded:
            # As `translate` and `score` load the checkpoint. FSDP has its own precision: there, bf16 weights decode.
            trainer.strategy.precision_plugin = Precision()
            task.float()
        load_weights(task, checkpoint.read(self.folder.best)["state_dict"])
        task.search = self.search
        try:
            with interruptible():
                trainer.test(task, datamodule=self.data, verbose=False)
        except TrainingInterrupt as stop:
            ready = runs.translate_command(self.folder.best)
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
        return result.report() | self._as_papers(result) | {"search": dataclasses.asdict(self.search)}

    def _as_papers(self, result: Evaluation) -> dict[str, Any]:
        """The test score under `data.convention`, if one is set."""
        from seq2seq.evaluation.moses_bleu import convention_bleu

        data = self.config["data"]
        if not data.get("convention"):
            return {}
        found = convention_bleu(
            result.hypotheses,
            result.references,
            convention=data["convention"],
            lang=self.data_plan.tgt,
            lowercase=bool(data.get("lowercase")),
        )
        log.info("test: %s", found)
        return {"convention": found._asdict()}

    def _results(self, task: TranslationTask, trainer: L.Trainer, state: RunState) -> dict[str, Any]:
        from seq2seq import checkpoint

        return {
            "run": self.folder.path.name,
            "mixer": self.mixer,
            "command": shlex.join(["python", "-m", "seq2seq.train", *HydraConfig.get().overrides.task])
            if HydraConfig.initialized()
            else None,
            **state.report(),
            "steps": trainer.global_step,
            "skipped_updates": task.skipped.count,
            "parameters": sum(p.numel() for p in task.model.parameters()),
            "padding": round(self.data.padding_share, 4),
            "max_tokens": self.data.max_tokens,
            "precision": self.precision,
            "accelerator": self.accelerator,
            "versions": checkpoint.versions(),
            "git_revision": runs.git_revision(),
            "corpus": self.prepared.fingerprint,
        }


def _quiet_lightning() -> None:
    """No tips, and no warnings about what is so on purpose."""
    from lightning.fabric.utilities.warnings import PossibleUserWarning

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")


def _picture(patches: PatchGrid | None) -> dict[str, Any]:
    """What the model is told of a source that is pictures."""
    return {"patches": dataclasses.asdict(patches)} if patches else {}


def _score_tokenizer(data: Mapping[str, Any], lang: str) -> str:
    from seq2seq.evaluation.metrics import check_tokenize, tokenize_for

    return check_tokenize((data.get("tokenize") or {}).get(lang) or tokenize_for(lang))


def _check_convention(data: Mapping[str, Any], lang: str) -> None:
    from seq2seq.evaluation.moses_bleu import check_convention

    if data.get("convention"):
        check_convention(data["convention"], lang)
