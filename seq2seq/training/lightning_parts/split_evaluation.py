"""Evaluate a split during a run: decode it on all ranks, score it, and warn of sentences that are too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from seq2seq.data.text_checks import form_difference
from seq2seq.evaluation.evaluator import Evaluation, Evaluator
from seq2seq.metadata import search_settings
from seq2seq.search.graphs import Graphs, cuda_graphs
from seq2seq.training.machine.fsdp import is_sharded

if TYPE_CHECKING:
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
    from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# A warning is logged if more than this share of the references is longer than any translation.
_MANY = 0.01


def make_evaluator(task: TranslationTask, data: TranslationDataModule, split: str) -> Evaluator:
    """Make the evaluator of a split, with the task's current search."""
    return Evaluator(
        task.translator(task.search),
        data.prepared.sources(split),
        data.prepared.references(split),
        tokenize=task.description["tokenize"],
        directions=data.directions(split),
        limit=task.sentences.get(split),
    )


def decoding_graphs(task: TranslationTask) -> Graphs | None:
    """Return the graphs that capture decoding steps on a GPU, one object for the whole run; None for plain steps."""
    # Not for sharded layers, whose hooks run on the host, nor for bf16 weights, which decode with another default dtype
    narrow = any(parameter.dtype != torch.float32 for parameter in task.model.parameters())
    if task.device.type != "cuda" or is_sharded(task.model) or narrow:
        return None
    return vars(task).setdefault("decoding_graphs", cuda_graphs(task.device, quiet=True))


def warn_of_split(evaluator: Evaluator, evaluation: Evaluation, split: str) -> None:
    """Warn of pairs that were cut, of references longer than any translation, and of texts in two Unicode forms."""
    size = len(evaluation.sources)
    # Only in the test: translations of an early validation have few of the references' characters
    if split == "test" and (found := form_difference(evaluation.hypotheses, evaluation.references)):
        log.warning("test set: translations and references differ in Unicode form: %s", found)
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
