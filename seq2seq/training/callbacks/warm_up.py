"""Compile kernels and estimate the time of a validation, before the clock starts."""

from __future__ import annotations

import logging
import time

import lightning as L
import torch

from seq2seq.data.batching import Batch
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.lightning_parts.kernel_warm_up import warm_kernels
from seq2seq.training.lightning_parts.split_evaluation import make_evaluator
from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# A validation that takes more than this share of a limit of time is called long.
_LONG = 0.25
# Assumed rate of writing checkpoints, in bytes per second, and bytes for each weight in best.safetensors and last.ckpt:
# the weight twice and two moments, in float32.
_WRITTEN, _SAVED = 1e9, 16


class WarmUp(L.Callback):
    """Callback that compiles kernels, and estimates the first validation's time, which a limit of time reserves."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compile kernels, and time a batch of the validation, unless an earlier part has measured a validation."""
        assert isinstance(pl_module, TranslationTask)
        data: TranslationDataModule = trainer.datamodule  # type: ignore[attr-defined]
        if pl_module.device.type == "cuda":
            context = trainer.precision_plugin.train_step_context
            warm_kernels(pl_module.model, pl_module.optim, data.shapes(), device=pl_module.device, context=context)
        limit = self.budget.settings.max_time
        # An estimate would have to gather a sharded model
        if limit is None or self.budget.validation_seconds or self.budget.settings.sharded:
            return
        (seconds,) = self.budget.agreement.maxima([validation_seconds(trainer, pl_module, data)])
        self.budget.validation_seconds = seconds
        if seconds > _LONG * limit and trainer.is_global_zero:
            log.warning(
                "a validation takes about %.1f s of trainer.max_time=%g s: raise the limit, or validate on fewer "
                "sentences with trainer.val_sentences",
                seconds, limit,
            )  # fmt: skip


def validation_seconds(trainer: L.Trainer, task: TranslationTask, data: TranslationDataModule) -> float:
    """Estimate the seconds of a validation from its middle batch.

    An untrained model does not end its translations before their limit, so later validations take less time.
    """
    loader = data.val_dataloader()
    evaluator = make_evaluator(task, data, "valid")
    # Without the sentences that trainer.val_sentences leaves out
    batches = [rows for rows in map(evaluator.chosen, loader.batch_sampler) if len(rows)]  # type: ignore[arg-type]
    weights = sum(parameter.numel() for parameter in task.parameters())
    saving = _SAVED * weights / _WRITTEN
    # Few sentences for many ranks
    if not batches:
        return saving
    batch: Batch = loader.dataset.__getitems__(batches[len(batches) // 2])  # type: ignore[attr-defined]
    batch = Batch(*(part.to(task.device) for part in batch))
    took = 0.0
    task.eval()
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        # On a GPU the first pass loads and tunes kernels, so the second pass is timed
        for _ in range(2 if task.device.type == "cuda" else 1):
            began = time.monotonic()
            evaluator.add(batch, task.sum_losses)
            took = time.monotonic() - began
    task.train()
    return took * len(batches) + saving
