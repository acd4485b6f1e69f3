"""Report a run that has ended: results.json, and the score of the test set with the best checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.plugins import Precision

from seq2seq import checkpoint
from seq2seq.metadata import versions
from seq2seq.metrics.moses_bleu import convention_bleu
from seq2seq.runs.folder import git_revision
from seq2seq.runs.results import read_config
from seq2seq.system import files
from seq2seq.training.lightning_parts.loggers import log_results
from seq2seq.training.machine.compilation import count_graphs, is_compiled
from seq2seq.training.machine.fsdp import load_weights

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.evaluation.evaluator import Evaluation
    from seq2seq.runs.folder import RunFolder
    from seq2seq.settings.search import SearchSettings
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
    from seq2seq.training.lightning_parts.run_state import RunState
    from seq2seq.training.lightning_parts.task import TranslationTask
    from seq2seq.training.plan import RunPlan

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Report of a run.

    Args:
        search: How the test set is decoded.
        precision: Lightning's name of it.
    """

    plan: RunPlan
    folder: RunFolder
    search: SearchSettings
    precision: str
    accelerator: str
    data: TranslationDataModule
    state: RunState

    def write(self, trainer: L.Trainer, task: TranslationTask) -> None:
        """Write results.json, score the test set, and write it again; entries of this very update stay."""
        results = self._entries(trainer, task)
        if trainer.is_global_zero:
            _warn_of_clock(self.plan, self.state.ended_by, trainer.global_step)
        # From rank 0, so that every rank takes the same branch below.
        earlier = trainer.strategy.broadcast(self.folder.read_results())
        known = all(earlier.get(key) == results[key] for key in ("steps", "best_step"))
        if known:
            _report_earlier(earlier, self.folder)
            results = earlier
        elif trainer.is_global_zero:
            files.write_text(self.folder.config, self.plan.config_yaml)
            files.write_json(self.folder.results, results)
        # Nothing is left to do if the same search has scored these weights, by the same convention.
        tested = results.get("test", {}).get("search") == dataclasses.asdict(self.search)
        tested = tested and not trainer.strategy.broadcast(known and self._scores_otherwise())
        due = self.plan.trainer.test and not tested and "stopped" not in results
        if due:
            # Scores, settings and command belong together, also of a run that had ended under others
            began = time.monotonic()
            results = results | {"command": self.plan.command, "test": self._test(trainer, task)}
            results["test_seconds"] = round(time.monotonic() - began, 2)
            log.info("the test took %.0f s", results["test_seconds"])
            if trainer.is_global_zero:
                files.write_text(self.folder.config, self.plan.config_yaml)
                files.write_json(self.folder.results, results)
        if trainer.is_global_zero and (due or not known):
            log_results(trainer.loggers, self.plan.config, results, trainer.global_step)

    def _scores_otherwise(self) -> bool:
        """Return True if the settings in the folder score the test set by another convention."""
        try:
            before = read_config(self.folder.config)["data"]
        except (OSError, ValueError):
            return False
        now = self.plan.config["data"]
        return any(before.get(key) != now.get(key) for key in ("convention", "lowercase", "tokenize"))

    def _entries(self, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
        """Collect the entries of results.json, but for the test score."""
        return {
            "run": self.folder.path.name,
            "mixer": self.plan.mixer,
            "command": self.plan.command,
            **self.state.report(),
            "steps": trainer.global_step,
            "skipped_updates": task.skipped.count,
            "parameters": sum(p.numel() for p in task.model.parameters()),
            "padding": round(self.data.padding_share, 4),
            "max_tokens": self.data.max_tokens,
            "accumulate": trainer.accumulate_grad_batches,
            "precision": self.precision,
            "accelerator": self.accelerator,
            **_compilation(task),
            **_decoding(task),
            **({"passes": task.replay.counts} if task.replay else {}),
            "versions": versions(),
            "git_revision": git_revision(),
            "corpus": self.data.prepared.fingerprint,
            "whole_corpus": self.data.prepared.whole_fingerprint,
            "threads": torch.get_num_threads() if self.accelerator == "cpu" else None,
        }

    def _test(self, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
        """Score the test set with the best checkpoint."""
        log.info(
            "scoring the test set, %s sentences, with %s (beam %d)%s",
            f"{min(self.data.prepared.size('test'), task.sentences.get('test') or sys.maxsize):,}",
            self.folder.best,
            self.search.beam_size,
            "; trainer.max_time does not count it" if self.plan.trainer.max_time else "",
        )
        if self.precision == "bf16-true" and not self.plan.trainer.sharded:
            # As `translate` and `score` load the checkpoint. FSDP has its own precision: there, bf16 weights decode.
            trainer.strategy.precision_plugin = Precision()
            task.float()
        # The last weights are in the task; the best are in the file.
        load_weights(task.model, checkpoint.with_tied(task.model, checkpoint.read(self.folder.best).weights))
        task.search = self.search
        trainer.test(task, datamodule=self.data, verbose=False)
        result = task.evaluation
        assert result is not None
        log.info("test: %s\ntest: %s", result.bleu, result.chrf)
        if trainer.is_global_zero:
            self.folder.save_test(src=result.sources, ref=result.references, hyp=result.hypotheses)
        for name, score in result.directions:
            log.info("test %s: %s", name, score)
        return result.report() | _as_papers(result, self.plan) | {"search": dataclasses.asdict(self.search)}


def _compilation(task: TranslationTask) -> dict[str, Any]:
    """Return the entries about torch.compile: if it was used, its graphs, and calls that it had none for."""
    if not is_compiled(task.model):
        return {"compiled": False}
    graphs = count_graphs()
    if graphs.eager:
        log.warning("%d calls found no compiled graph, and ran without: see torch's warnings above", graphs.eager)
    return {"compiled": True, "graphs": graphs.compiled, "eager_calls": graphs.eager}


def _decoding(task: TranslationTask) -> dict[str, Any]:
    """Return the entries about graphs of decoding steps, which a GPU replays."""
    graphs = vars(task).get("decoding_graphs")  # the task has left its device by now
    return {"decoding_graphs": graphs.count, "decoding_capture_seconds": round(graphs.seconds, 2)} if graphs else {}


def _report_earlier(results: dict[str, Any], folder: RunFolder) -> None:
    """Log the scores of a run that had already ended, and what ended it."""
    score = results.get("test", {}).get("bleu")
    log.info(
        "nothing was left to train (ended by %s): %s stays%s",
        results.get("ended_by"),
        folder.results,
        "" if score is None else f", test BLEU {score:.2f}",
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
