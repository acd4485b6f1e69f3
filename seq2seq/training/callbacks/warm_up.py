"""Do before the clock starts what would take its time, and learn how long a validation takes."""

from __future__ import annotations

import logging
import time

import lightning as L
import torch

from seq2seq.data.batching import Batch
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.lightning_parts.kernel_warm_up import warm_kernels
from seq2seq.training.lightning_parts.split_evaluation import make_evaluator
from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# Share of a limit of time from which on a validation is called long.
_LONG = 0.25
# Bytes a second that a checkpoint is written with, where none has been written yet, and float32 numbers that
# best.safetensors and last.ckpt have together for each weight: the weight twice, and two moments.
_WRITTEN, _SAVED = 1e9, 4


class WarmUp(L.Callback):
    """Callback that compiles kernels, and estimates the first validation's time, which a limit of time reserves."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.settings: TrainerSettings = budget.settings

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compile kernels, and time a batch of the validation, unless an earlier part of the run has measured one."""
        assert isinstance(pl_module, TranslationTask)
        data: TranslationDataModule = trainer.datamodule  # type: ignore[attr-defined]
        if pl_module.device.type == "cuda":
            context = trainer.precision_plugin.train_step_context
            warm_kernels(pl_module.model, pl_module.optim, data.shapes(), device=pl_module.device, context=context)
        limit = self.settings.max_time
        # Ranks with a part of the model each would have to gather it
        if limit is None or self.budget.validation_seconds or self.settings.sharded:
            return
        seconds = validation_seconds(trainer, pl_module, data)
        (seconds,) = self.budget.agreement.maxima([seconds])
        self.budget.validation_seconds = seconds
        if seconds > _LONG * limit and trainer.is_global_zero:
            log.warning(
                "a validation takes about %.1f s of trainer.max_time=%g s: raise the limit, or validate on fewer "
                "sentences with trainer.val_sentences",
                seconds, limit,
            )  # fmt: skip


def validation_seconds(trainer: L.Trainer, task: TranslationTask, data: TranslationDataModule) -> float:
    """Estimate the seconds of a validation by its middle batch, decoded with the weights as they are.

    Translations of an untrained model do not end before their limit, so that a later validation takes less.
    """
    loader = data.val_dataloader()
    evaluator = make_evaluator(task, data.texts, "valid")
    # Without the sentences that trainer.val_sentences leaves out
    batches = [rows for rows in map(evaluator.chosen, loader.batch_sampler) if len(rows)]  # type: ignore[arg-type]
    batch: Batch = loader.dataset.__getitems__(batches[len(batches) // 2])  # type: ignore[attr-defined]
    batch = Batch(*(part.to(task.device) for part in batch))
    took = 0.0
    task.eval()
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        # On a GPU the first time loads and tunes
        for _ in range(2 if task.device.type == "cuda" else 1):
            began = time.monotonic()
            evaluator.add(batch, task.sum_losses)
            took = time.monotonic() - began
    task.train()
    weights = sum(parameter.numel() for parameter in task.parameters())
    return took * len(batches) + _SAVED * 4 * weights / _WRITTEN
