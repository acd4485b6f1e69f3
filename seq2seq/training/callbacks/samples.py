"""Print a few translations of every validation, and log them, and how one reads its source, to loggers that can."""

from __future__ import annotations

import functools
import importlib.util

import lightning as L
import numpy as np
from rich.console import Console
from rich.markup import escape

from seq2seq.analysis.attention_image import attention_image
from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.training.lightning_parts.loggers import log_image, log_samples
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.machine.fsdp import is_sharded

_MOST_SHOWN = 300  # characters of a sample: the line of an image has many


class LogSamples(L.Callback):
    """Callback that shows the same `count` sentences at every validation: source, reference and hypothesis."""

    def __init__(self, count: int, *, console: Console) -> None:
        self.count = count
        self.console = console

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print and log the sentences."""
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        chosen = samples(pl_module.evaluation, self.count)
        for source, hypothesis, reference in chosen:
            for name, text in (("src", source), ("ref", reference), ("hyp", hypothesis)):
                self.console.print(f"  [dim]{name}[/] {escape(text)}", highlight=False, soft_wrap=True, emoji=False)
        if trainer.is_global_zero and chosen:
            log_samples(trainer.loggers, chosen, trainer.global_step)
            draw = functools.cache(lambda: _attention(pl_module, chosen[0]))
            log_image(trainer.loggers, "val/attention", draw, trainer.global_step)


def _attention(task: TranslationTask, sample: tuple[str, str, str]) -> np.ndarray | None:
    """Draw the decoder's weights over the source of a sample, if there are any."""
    # One rank alone cannot compute with a sharded model, and an image as a source has no pieces to name
    if is_sharded(task.model) or task.tokenizer.patches or not importlib.util.find_spec("PIL"):
        return None
    try:
        (attention,) = task.translator().attention([sample[:2]])
    except ValueError:  # a cross mixer without weights
        return None
    return attention and attention_image(attention)


def samples(result: Evaluation, count: int) -> list[tuple[str, str, str]]:
    """Choose (source, hypothesis, reference) of `count` sentences spread over the split."""
    size = len(result.sources)
    count = min(count, size)
    # The middle of each of `count` equal parts: the same sentences at every validation.
    places = [(2 * i + 1) * size // (2 * count) for i in range(count)]
    return [(_cut(result.sources[i]), _cut(result.hypotheses[i]), _cut(result.references[i])) for i in places]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
