"""Log a few translations of every validation to the loggers that take text."""

from __future__ import annotations

import lightning as L

from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.training.lightning_parts.loggers import log_samples
from seq2seq.training.lightning_parts.task import TranslationTask

_MOST_SHOWN = 300  # characters of a sample: an image's line has many


class LogSamples(L.Callback):
    """Callback that logs the same `count` sentences at every validation: source, hypothesis and reference."""

    def __init__(self, count: int) -> None:
        self.count = count

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log them."""
        assert isinstance(pl_module, TranslationTask)
        if trainer.is_global_zero and pl_module.evaluation is not None and self.count:
            log_samples(trainer.loggers, samples(pl_module.evaluation, self.count), trainer.global_step)


def samples(result: Evaluation, count: int) -> list[tuple[str, str, str]]:
    """Choose (source, hypothesis, reference) of `count` sentences spread over the split."""
    size = len(result.sources)
    chosen = []
    for i in range(min(count, size)):
        # The middle of each of `count` equal parts: the same sentences at every validation.
        at = (2 * i + 1) * size // (2 * min(count, size))
        texts = (result.sources[at], result.hypotheses[at], result.references[at])
        source, hypothesis, reference = (t if len(t) <= _MOST_SHOWN else f"{t[:_MOST_SHOWN]}…" for t in texts)
        chosen.append((source, hypothesis, reference))
    return chosen
