"""Report a run that has ended: results.json, and the score of the test set with the best checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.plugins import Precision

from seq2seq import checkpoint
from seq2seq.metadata import versions
from seq2seq.metrics.moses_bleu import convention_bleu
from seq2seq.network.low_rank import merge_low_rank
from seq2seq.runs.folder import git_revision
from seq2seq.system import files
from seq2seq.training.lightning_parts.loggers import log_results
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.machine.fsdp import load_weights

if TYPE_CHECKING:
    from seq2seq.training.run import TrainingRun

log = logging.getLogger(__name__)


def write_report(run: TrainingRun, state: RunState, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
    """Write results.json, score the test set, and write and return the results; keep results of the same update."""
    # Checkpoints have the sums of weights and low-rank updates, under the plain names
    merge_low_rank(task.model)
    results = _entries(run, state, trainer, task)
    if trainer.is_global_zero:
        _warn_of_clock(run, state, trainer.global_step)
    # From rank 0, so that every rank takes the same branch below.
    earlier = trainer.strategy.broadcast(run.folder.read_results())
    known = all(earlier.get(key) == results[key] for key in ("steps", "best_step"))
    if known:
        results = earlier
        score = results.get("test", {}).get("bleu")
        log.info(
            "nothing was left to train (ended by %s): %s stays%s",
            results.get("ended_by"),
            run.folder.results,
            "" if score is None else f", test BLEU {score:.2f}",
        )
    else:
        _save(run, trainer, results)
    # The test is done if these weights have been scored in the same way.
    done = results.get("test", {})
    tested = all(done.get(key) == value for key, value in _scoring(run).items())
    due = run.plan.trainer.test and not tested and "stopped" not in results
    if due:
        began = time.monotonic()
        # Record the command that gave the scores.
        results = results | {"command": run.plan.command, "test": _test(run, trainer, task)}
        results["test_seconds"] = round(time.monotonic() - began, 2)
        _save(run, trainer, results)
    if trainer.is_global_zero and (due or not known):
        log_results(trainer.loggers, run.plan.config, results, trainer.global_step)
    return results


def _save(run: TrainingRun, trainer: L.Trainer, results: dict[str, Any]) -> None:
    """Write results and the settings that gave them."""
    if trainer.is_global_zero:
        files.write_text(run.folder.config, run.plan.config_yaml)
        files.write_json(run.folder.results, results)


def _scoring(run: TrainingRun) -> dict[str, Any]:
    """Return the settings by which the test set is scored, as results.json keeps them."""
    data = run.plan.config["data"]
    scoring = {key: data[key] for key in ("convention", "lowercase", "tokenize")}
    return {"search": dataclasses.asdict(run.search), "scoring": scoring}


def _warn_of_clock(run: TrainingRun, state: RunState, step: int) -> None:
    """Warn if the clock ended a run that also had a limit of updates or epochs."""
    settings = run.plan.trainer
    limits = {"max_steps": settings.max_steps, "max_epochs": settings.max_epochs}
    counts = " and ".join(f"trainer.{key}={limit}" for key, limit in limits.items() if limit)
    if state.ended_by == "max_time" and counts:
        log.warning(
            "trainer.max_time=%s ended the run at update %d, before %s; set trainer.max_time=null to train that "
            "long, or set trainer.max_time alone, so that the learning rate falls in time",
            run.plan.config["trainer"]["max_time"],
            step,
            counts,
        )


def _entries(run: TrainingRun, state: RunState, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
    """Collect the entries of results.json, except the test score."""
    entries: dict[str, Any] = {
        "run": run.folder.path.name,
        "mixer": run.plan.mixer,
        "command": run.plan.command,
        **state.report(),
        "steps": trainer.global_step,
        "skipped_updates": task.skipped.count,
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "padding": round(run.data.padding_share, 4),
        "max_tokens": run.data.max_tokens,
        "accumulate": trainer.accumulate_grad_batches,
        "precision": run.precision,
        "accelerator": run.accelerator,
        "versions": versions(),
        "git_revision": git_revision(),
        "corpus": run.data.prepared.fingerprint,
        "whole_corpus": run.data.prepared.whole_fingerprint,
        "tokenizer": run.data.prepared.tokenizer.fingerprint,
        "threads": torch.get_num_threads() if run.accelerator == "cpu" else None,
    }
    # Graphs of decoding steps, which a GPU replays. They are not created here: the task has left its device by now.
    if decoding := vars(task).get("decoding_graphs"):
        entries["decoding_graphs"] = decoding.count
        entries["decoding_capture_seconds"] = round(decoding.seconds, 2)
    if run.start_digest:
        entries["init_from"] = run.start_digest
    if task.replay:
        entries["passes"] = task.replay.counts
    return entries


def _test(run: TrainingRun, trainer: L.Trainer, task: TranslationTask) -> dict[str, Any]:
    """Score the test set with the best checkpoint."""
    log.info(
        "scoring the test set, %s sentences, with %s (beam %d)%s",
        f"{min(run.data.prepared.size('test'), task.sentences.get('test') or sys.maxsize):,}",
        run.folder.best,
        run.search.beam_size,
        "; trainer.max_time does not count it" if run.plan.trainer.max_time else "",
    )
    if run.precision == "bf16-true" and not run.plan.trainer.sharded:
        # Decode in float32, as `translate` and `score` do. A sharded model decodes with its bf16 weights.
        trainer.strategy.precision_plugin = Precision()
        task.float()
    # The last weights are in the task; the best are in the file.
    load_weights(task.model, checkpoint.with_tied(task.model, checkpoint.read(run.folder.best).weights))
    task.search = run.search
    trainer.test(task, datamodule=run.data, verbose=False)
    result = task.evaluation
    assert result is not None
    log.info("test: %s\ntest: %s", result.bleu, result.chrf)
    if trainer.is_global_zero:
        run.folder.save_test(src=result.sources, ref=result.references, hyp=result.hypotheses)
    for name, score in result.directions:
        log.info("test %s: %s", name, score)
    report = result.report()
    data = run.plan.data
    if data.convention:
        published = convention_bleu(
            result.hypotheses,
            result.references,
            convention=data.convention,
            lang=data.tgt,
            lowercase=data.lowercase,
        )
        log.info("test: %s", published)
        report["convention"] = published._asdict()
    return report | _scoring(run)
