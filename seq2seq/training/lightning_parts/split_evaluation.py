"""Evaluate a split during a run: its evaluator, the results of all ranks, and what its lengths mean for the score."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from seq2seq.data.batching import Batch
from seq2seq.data.text_form import form_difference
from seq2seq.evaluation.evaluator import Evaluation, Evaluator
from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.inference.translator import Translator
from seq2seq.metadata import search_settings
from seq2seq.search.graphs import Graphs, cuda_graphs
from seq2seq.training.bounds.divergence import require_finite_loss, require_finite_weights
from seq2seq.training.machine.compilation import eager
from seq2seq.training.machine.fsdp import is_sharded, make_parts, make_whole
from seq2seq.training.objective.loss import LossSums

if TYPE_CHECKING:
    from seq2seq.training.lightning_parts.datamodule import EvalTexts
    from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# A warning comes beyond this share of references that no translation can reach the length of.
_MANY = 0.01


class SplitEvaluations:
    """Validations and the test of a task: each starts, adds batches and finishes."""

    def __init__(self, task: TranslationTask) -> None:
        self._task = task
        self._evaluator: Any = None
        self._split = "valid"
        self._told: set[str] = set()  # splits whose lengths have been logged

    def start(self, split: str) -> None:
        """Start to evaluate a split, unless the weights are useless."""
        task = self._task
        # Ranks decode different numbers of steps, so sharded weights are gathered first.
        make_whole(task.model)
        require_finite_weights(task.model, task.optim, step=task.trainer.global_step)
        self._split = split
        self._evaluator = make_evaluator(task, task.trainer.datamodule.texts, split)  # type: ignore[attr-defined]

    def add(self, batch: Batch) -> None:
        """Decode a batch and sum its losses."""
        with eager(self._task.model):
            self._evaluator.add(batch, self._finite_losses)

    def finish(self, name: str) -> None:
        """Score the split, and log its scores under a name."""
        evaluator, self._evaluator = self._evaluator, None  # its texts go with it
        task = self._task
        task.evaluation = result_of_all_ranks(evaluator, world_size=task.trainer.world_size)
        # All ranks know the same of it by now.
        if self._split not in self._told and task.trainer.is_global_zero:
            log_lengths(evaluator, self._split)
            # An early validation has little of the references' characters
            if self._split == "test":
                log_forms(evaluator)
        self._told.add(self._split)
        # Every rank has the same values already: they come from gathered texts and summed losses.
        values = {f"{name}/{key}": value for key, value in task.evaluation.numbers().items()}
        task.log_dict(values, logger=False, batch_size=1, rank_zero_only=True)
        make_parts(task.model)

    def _finite_losses(self, batch: Batch) -> LossSums:
        """Compute the summed losses of a batch, which come before its translations."""
        task = self._task
        sums = task.sum_losses(batch)
        require_finite_loss(sums.loss, task.optim, step=task.trainer.global_step, split=self._split)
        return sums


def make_evaluator(task: TranslationTask, data: EvalTexts, split: str) -> Evaluator:
    """Make the evaluator of a split, with the search of the task at this moment."""
    search = task.search
    translator = Translator(
        model=task.model,
        tokenizer=task.tokenizer,
        meta=task.description,
        settings=search,
        device=task.device,
        max_len=min(LONGEST_SOURCE, search.max_len or LONGEST_SOURCE),
        graphs=decoding_graphs(task),
    )
    return Evaluator(
        translator,
        data.sources(split),
        data.references(split),
        tokenize=task.description["tokenize"],
        directions=data.directions(split),
        limit=task.sentences.get(split),
    )


def decoding_graphs(task: TranslationTask) -> Graphs | None:
    """Return what captures decoding steps on a GPU, the same in all of a run; None where steps stay plain."""
    # Sharded layers are hooked by the host, and weights in bf16 are decoded within Lightning's own default type
    narrow = any(parameter.dtype != torch.float32 for parameter in task.model.parameters())
    if task.device.type != "cuda" or is_sharded(task.model) or narrow:
        return None
    return vars(task).setdefault("decoding_graphs", cuda_graphs(task.device, quiet=True))


def result_of_all_ranks(evaluator: Evaluator, *, world_size: int) -> Evaluation:
    """Score what every rank decoded; all of them call it together, and compute the same."""
    if world_size > 1:
        # Every rank decoded sentences of its own: gather their texts and losses.
        parts: list[Any] = [None] * world_size
        dist.all_gather_object(parts, evaluator.partial())
        evaluator.merge(parts)
    return evaluator.result()


def log_lengths(evaluator: Evaluator, split: str) -> None:
    """Warn of pairs that were cut, and of references that are longer than a translation may be."""
    size = len(evaluator.texts().sources)
    translator = evaluator.translator
    if evaluator.cut:
        log.warning(
            "%s set: %d of %d pairs have a side of more than %d pieces, and count as cut there (%s)",
            split, len(evaluator.cut), size, translator.max_len, _first_lines(evaluator.cut),
        )  # fmt: skip
    if len(evaluator.beyond) > _MANY * size:
        search = translator.settings
        # A validation has the lower of its own limit and the test's, which the checkpoint keeps.
        own = search.max_len_ratio < search_settings(translator.meta).max_len_ratio
        prefix = "trainer.val_" if own else "search."
        log.warning(
            "%s set: %d of %d references are longer than a translation may be (%g * source + %d pieces): "
            "raise %smax_len_ratio",
            split, len(evaluator.beyond), size, search.max_len_ratio, search.max_len_extra, prefix,
        )  # fmt: skip


def log_forms(evaluator: Evaluator) -> None:
    """Warn of translations that are not in the Unicode form of the references."""
    texts = evaluator.texts()
    if found := form_difference(texts.hypotheses, texts.references):
        log.warning("test set: translations and references differ in Unicode form: %s", found)


def _first_lines(rows: set[int]) -> str:
    lines = [f"{row + 1:,}" for row in sorted(rows)[:3]]
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(lines)}{', ...' if len(rows) > 3 else ''}"
