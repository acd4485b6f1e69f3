"""Evaluate a split during a run: decode it on all ranks, score it, and warn of sentences that are too long."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
import torch.distributed as dist

from seq2seq import checkpoint
from seq2seq.data.batching import Batch
from seq2seq.data.ragged import Ragged
from seq2seq.data.text_checks import form_difference
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.evaluator import Evaluation, Evaluator
from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.inference.translator import Translator
from seq2seq.metadata import search_settings
from seq2seq.network.model import Seq2Seq
from seq2seq.search.graphs import Graphs, cuda_graphs
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.training.bounds.divergence import require_finite_loss, require_finite_weights
from seq2seq.training.machine.compilation import eager
from seq2seq.training.machine.fsdp import is_sharded, make_parts, make_whole
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.guided_alignment import guided_losses
from seq2seq.training.objective.loss import LossSums

if TYPE_CHECKING:
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

log = logging.getLogger(__name__)

# A warning is logged if more than this share of the references is longer than any translation.
_MANY = 0.01


class EvaluatedModule(L.LightningModule):
    """The part of a task that validates and tests a model.

    Args:
        description: The model, languages and search that a checkpoint keeps for translation.
        search: The search of validations; the test replaces it.
        sentences: Numbers of "valid" and "test" sentences that are evaluated (default: all).
        teacher: A fixed model with the same vocabulary, for `optim.teacher`.
    """

    teacher: Seq2Seq | None
    links: Ragged | None = None  # of the training pairs, for `optim.guided_alignment`

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        description: dict[str, Any],
        optim: OptimSettings,
        search: SearchSettings,
        sentences: Mapping[str, int | None] | None = None,
        teacher: Seq2Seq | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.description = description
        self.optim = optim
        self.search = search
        self.sentences = sentences or {}
        # Set past torch's registration: neither a checkpoint nor the optimizer has the teacher's weights
        vars(self)["teacher"] = teacher
        self.evaluation: Evaluation | None = None  # the last one
        self._evaluator: Any = None
        self._split = "valid"
        self._reported: set[str] = set()  # splits whose lengths have been logged

    def sum_losses(self, batch: Batch) -> LossSums:
        """Sum the losses of a batch; training uses R-Drop, the teacher or links, if there are any."""
        teacher = self.teacher
        if teacher is not None and teacher.output.weight.device != batch.src.device:
            teacher.to(batch.src.device)
        if self.training and self.links is not None:
            return guided_losses(self.model, batch, self.optim, self.links, teacher=teacher)
        return sum_losses(self.model, batch, self.optim, teacher=teacher)

    def translator(self, search: SearchSettings | None = None) -> Translator:
        """Return a translator that shares the model, which is put into evaluation mode.

        Args:
            search: Default: the search that checkpoints keep, by which the test set is translated.
        """
        search = search or dataclasses.replace(search_settings(self.description), max_len=self.search.max_len)
        return Translator(
            model=self.model.eval(),
            tokenizer=self.tokenizer,
            meta=self.description,
            settings=search,
            device=self.device,
            max_len=min(LONGEST_SOURCE, search.max_len or LONGEST_SOURCE),
            graphs=decoding_graphs(self),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with the current weights, see `seq2seq.checkpoint.save`."""
        checkpoint.save(path, checkpoint.Stored(self.description, self.model.state_dict()))

    def on_validation_epoch_start(self) -> None:
        """Start a validation."""
        self._start("valid")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Decode a batch and sum its losses."""

        def finite_losses(batch: Batch) -> LossSums:
            sums = self.sum_losses(batch)
            require_finite_loss(sums.loss, self.optim, step=self.trainer.global_step, split=self._split)
            return sums

        with eager(self.model):
            self._evaluator.add(batch, finite_losses)

    def on_validation_epoch_end(self) -> None:
        """Score the validation set and log it."""
        self._finish("val")

    def on_test_epoch_start(self) -> None:
        """Start the test."""
        self._start("test")

    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        """Score the test set and log it."""
        self._finish("test")

    def _start(self, split: str) -> None:
        """Start to evaluate a split; refuse weights that are not finite."""
        # Ranks decode different numbers of steps, so sharded weights are gathered first.
        make_whole(self.model)
        require_finite_weights(self.model, self.optim, step=self.trainer.global_step)
        self._split = split
        self._evaluator = make_evaluator(self, self.trainer.datamodule, split)  # type: ignore[attr-defined]

    def _finish(self, name: str) -> None:
        """Score the split, and log its scores under a name; all ranks must call this together."""
        evaluator, self._evaluator = self._evaluator, None  # the evaluator's texts are freed with it
        if self.trainer.world_size > 1:
            # Every rank decoded other sentences: gather their texts and losses.
            parts: list[Any] = [None] * self.trainer.world_size
            dist.all_gather_object(parts, evaluator.partial())
            evaluator.merge(parts)
        evaluation: Evaluation = evaluator.result()
        self.evaluation = evaluation
        # After the merge all ranks know all lengths.
        if self._split not in self._reported and self.trainer.is_global_zero:
            log_lengths(evaluator, self._split)
            texts = evaluator.texts()
            # Only in the test: translations of an early validation have few of the references' characters
            if self._split == "test" and (found := form_difference(texts.hypotheses, texts.references)):
                log.warning("test set: translations and references differ in Unicode form: %s", found)
        self._reported.add(self._split)
        # Every rank has the same values: they come from gathered texts and summed losses.
        values = {f"{name}/{key}": value for key, value in evaluation.numbers().items()}
        self.log_dict(values, logger=False, batch_size=1, rank_zero_only=True)
        make_parts(self.model)


def make_evaluator(task: EvaluatedModule, data: TranslationDataModule, split: str) -> Evaluator:
    """Make the evaluator of a split, with the task's current search."""
    return Evaluator(
        task.translator(task.search),
        data.prepared.sources(split),
        data.prepared.references(split),
        tokenize=task.description["tokenize"],
        directions=data.directions(split),
        limit=task.sentences.get(split),
    )


def decoding_graphs(task: EvaluatedModule) -> Graphs | None:
    """Return the graphs that capture decoding steps on a GPU, one object for the whole run; None for plain steps."""
    # Not for sharded layers, whose hooks run on the host, nor for bf16 weights, which decode with another default dtype
    narrow = any(parameter.dtype != torch.float32 for parameter in task.model.parameters())
    if task.device.type != "cuda" or is_sharded(task.model) or narrow:
        return None
    return vars(task).setdefault("decoding_graphs", cuda_graphs(task.device, quiet=True))


def log_lengths(evaluator: Evaluator, split: str) -> None:
    """Warn of pairs that were cut, and of references that are longer than any translation."""
    size = len(evaluator.texts().sources)
    translator = evaluator.translator
    if evaluator.cut:
        lines = [f"{row + 1:,}" for row in sorted(evaluator.cut)]
        log.warning(
            "%s set: %d of %d pairs have a side of more than %d pieces, and count as cut there (line%s %s%s)",
            split, len(lines), size, translator.max_len,
            "s" if len(lines) > 1 else "", ", ".join(lines[:3]), ", ..." if len(lines) > 3 else "",
        )  # fmt: skip
    if len(evaluator.beyond) > _MANY * size:
        search = translator.settings
        # A validation has the lower of two limits: its own, and the test's, which the checkpoint keeps.
        own = search.max_len_ratio < search_settings(translator.meta).max_len_ratio
        prefix = "trainer.val_" if own else "search."
        log.warning(
            "%s set: %d of %d references are longer than a translation may be (%g * source + %d pieces): "
            "raise %smax_len_ratio",
            split, len(evaluator.beyond), size, search.max_len_ratio, search.max_len_extra, prefix,
        )  # fmt: skip
