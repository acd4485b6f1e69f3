"""Decode and score a split, for the validations and the test of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.batching import Batch
from seq2seq.data.context import fit_context
from seq2seq.data.multi_corpus import Direction
from seq2seq.data.text_files import is_blank
from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.inference.translator import Translator
from seq2seq.metrics import scorers
from seq2seq.search import longest_target

# Loss, negative log-likelihood and target tokens, each summed over a batch.
Losses = tuple[Tensor, Tensor, Tensor]


class Evaluation(NamedTuple):
    """Scores of a split and its texts in file order; loss and nll are in nats per target token.

    Attributes:
        directions: Name and BLEU of each direction, if the split has several.
    """

    bleu: scorers.Score
    chrf: scorers.Score
    loss: float
    nll: float
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    directions: tuple[tuple[str, scorers.Score], ...] = ()

    @property
    def perplexity(self) -> float:
        """exp(nll), infinite if that overflows float64."""
        return math.exp(self.nll) if self.nll < 700 else math.inf

    def numbers(self) -> dict[str, float]:
        """Return the scores by name."""
        scores = {"bleu": self.bleu.value, "chrf": self.chrf.value, "loss": self.loss, "nll": self.nll}
        scores |= {f"bleu_{name}": score.value for name, score in self.directions}
        return scores | {"perplexity": self.perplexity}

    def report(self) -> dict[str, Any]:
        """Return the scores by name, the number of sentences and sacreBLEU's signatures, for results.json."""
        signatures = [self.bleu.signature, self.chrf.signature, *(score.signature for _, score in self.directions)]
        return self.numbers() | {"sentences": len(self.references), "signatures": signatures}


class Partial(NamedTuple):
    """Results of one rank; see `Evaluator` for `cut` and `beyond`.

    Attributes:
        sums: Sums of loss, negative log-likelihood and target tokens.
        hypotheses: Translations by the number of their sentence.
    """

    sums: Tensor
    hypotheses: dict[int, str]
    cut: frozenset[int] = frozenset()
    beyond: frozenset[int] = frozenset()


@dataclasses.dataclass(eq=False)
class Evaluator:
    """Decodes a split with a translator and scores the translations.

    A training loader feeds it batches of ids. Translations are stored by the number of their sentence, so that a
    sentence decoded by two ranks counts once.

    Args:
        sources: Raw source lines of the split, in file order.
        references: Raw target lines.
        tokenize: sacreBLEU's tokenizer for BLEU; directions with different ones are scored by character together.
        directions: Parts of the split that are scored separately as well.
        limit: Number of sentences that are evaluated, spread over the file (default: all).

    Attributes:
        cut: Numbers of the sentences with a side that was cut to the longest allowed length.
        beyond: Numbers of the sentences whose reference is longer than a translation may be.
    """

    translator: Translator
    sources: list[str]
    references: list[str]
    _: dataclasses.KW_ONLY
    tokenize: str = "13a"
    directions: Sequence[Direction] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        # Decided by the text: the ids of a blank line still have eos
        self._blank = frozenset(i for i, line in enumerate(self.sources) if is_blank(line))
        # Spread over the file: neighboring lines are often of one document or, mixed, of one direction
        self._chosen: np.ndarray | None = None
        if self.limit is not None and self.limit < len(self.sources):
            self._chosen = np.linspace(0, len(self.sources) - 1, self.limit).round().astype(int)
        # float64, so that sums over a large split stay exact
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._hypotheses: dict[int, str] = {}
        self.cut: set[int] = set()
        self.beyond: set[int] = set()

    def chosen(self, rows: np.ndarray) -> np.ndarray:
        """Return the sentences among `rows` that are evaluated."""
        return rows if self._chosen is None else rows[np.isin(rows, self._chosen)]

    def add(self, batch: Batch, losses: Callable[[Batch], Losses]) -> None:
        """Decode a batch and sum its losses, both on pairs cut to the longest allowed length.

        Args:
            losses: Returns loss, negative log-likelihood and number of target tokens, each summed over a batch.
        """
        # With a limit, a batch may have no sentence left
        if self._chosen is not None:
            batch = select_rows(batch, np.isin(batch.index.cpu().numpy(), self._chosen))
        if batch.src.shape[0] == 0:
            return
        batch = self._crop(batch)
        loss, nll, tokens = losses(batch)
        sums = torch.stack([loss, nll, tokens.to(loss.dtype)])
        # The sums stay on the device of the first batch: no synchronization per batch
        self._sums = self._sums.to(sums.device) + sums
        self._hypotheses |= self._decode(batch)

    def partial(self) -> Partial:
        """Return the results of this rank, on the CPU, for `merge`."""
        return Partial(self._sums.cpu(), self._hypotheses, frozenset(self.cut), frozenset(self.beyond))

    def merge(self, parts: Sequence[Partial]) -> None:
        """Gather the results of all ranks, so that every rank computes the same scores."""
        self._sums = torch.stack([part.sums for part in parts]).sum(0)
        self._hypotheses = {index: line for part in parts for index, line in part.hypotheses.items()}
        self.cut = {number for part in parts for number in part.cut}
        self.beyond = {number for part in parts for number in part.beyond}

    def result(self) -> Evaluation:
        """Score the translations, of the split and of each direction that has a sentence."""
        order = sorted(self._hypotheses)
        sources, references, hypotheses = (
            [lines[i] for i in order] for lines in (self.sources, self.references, self._hypotheses)
        )
        loss, nll, tokens = self._sums.tolist()
        parts = [(part, [i for i in order if i in part.rows]) for part in self.directions]
        # Where target languages have different tokenizers, only characters serve all of them
        alike = len({part.tokenize for part in self.directions}) <= 1
        return Evaluation(
            bleu=self._bleu(order, self.tokenize if alike else "char"),
            chrf=scorers.chrf(hypotheses, references),
            loss=loss / tokens,
            nll=nll / tokens,
            sources=sources,
            references=references,
            hypotheses=hypotheses,
            directions=tuple((part.name, self._bleu(rows, part.tokenize)) for part, rows in parts if rows),
        )

    def _bleu(self, rows: Sequence[int], tokenize: str) -> scorers.Score:
        hypotheses, references = ([lines[i] for i in rows] for lines in (self._hypotheses, self.references))
        return scorers.bleu(hypotheses, references, tokenize=tokenize)

    def _crop(self, batch: Batch) -> Batch:
        translator = self.translator
        tokenizer = translator.tokenizer
        # An image has a fixed size and is never cut
        longest = tokenizer.patches.ids if tokenizer.patches else translator.max_len
        # Attention's memory also grows with the square of the target's length
        tgt_longest = min(LONGEST_SOURCE, translator.settings.max_len or LONGEST_SOURCE)
        batch = self._fit_context(batch, longest)
        cropped = crop(batch, longest, tgt_longest, eos_id=tokenizer.eos_id)
        tgt = batch.tgt_mask.sum(1)  # (B,)
        cut = (batch.src_mask.sum(1) > longest) | (tgt > tgt_longest)  # (B,)
        limits = [longest_target(length, translator.settings) for length in cropped.src_mask.sum(1).tolist()]
        beyond = tgt > tgt.new_tensor(limits)  # (B,)
        self.cut |= set(batch.index[cut].tolist())
        # A blank source has an empty translation in any case
        self.beyond |= set(batch.index[beyond].tolist()) - self._blank
        return cropped

    def _fit_context(self, batch: Batch, longest: int) -> Batch:
        """Drop sentences of a context until at most `longest` ids are left, as the translator does."""
        tokenizer = self.translator.tokenizer
        rows = (batch.src_mask.sum(1) > longest).nonzero().flatten().tolist() if tokenizer.separator is not None else []
        if not rows:
            return batch
        tags = len(self.translator.tags.source)
        src, mask = batch.src.clone(), batch.src_mask.clone()
        for row in rows:
            ids = batch.src[row][batch.src_mask[row]].tolist()
            kept = [*ids[:tags], *fit_context(ids[tags:], tokenizer.separator, longest - tags)]
            src[row] = tokenizer.pad_id
            src[row, : len(kept)] = src.new_tensor(kept)
            mask[row, len(kept) :] = False
        return batch._replace(src=src, src_mask=mask)

    def _decode(self, batch: Batch) -> dict[int, str]:
        """Translate each sentence as the translator translates lines: a blank source has an empty translation."""
        numbers = batch.index.tolist()
        pieces = batch.src_mask.sum(1).tolist()
        # As in `encoded_pairs`, neither a blank line nor a lone eos reaches the model
        wanted = np.array([i not in self._blank and n > 1 for i, n in zip(numbers, pieces, strict=True)])
        batch = select_rows(batch, wanted)
        starts = batch.tgt_out[:, :1] if self.translator.tokenizer.tags_targets else None
        candidates = self.translator.decode(batch.src, batch.src_mask, starts)
        decoded = {i: row[0].text for i, row in zip(batch.index.tolist(), candidates, strict=True)}
        return dict.fromkeys(numbers, "") | decoded


def crop(batch: Batch, src_len: int, tgt_len: int, *, eos_id: int) -> Batch:
    """Cut a batch to `src_len` source pieces, the last one eos, and `tgt_len` target pieces.

    Shape:
        Sources become (B, min(S, src_len)), targets (B, min(T, tgt_len)); `index` stays (B,).
    """
    cut = batch.src_mask.sum(1) > src_len  # (B,)
    src = batch.src[:, :src_len].clone()  # (B, min(S, src_len)); a copy, since eos is written into it
    # A cut row fills the width: its last piece is in the last column
    src[cut, -1] = eos_id
    # A cut target has no eos: the model must not see a sentence end in the middle
    target = {name: getattr(batch, name)[:, :tgt_len] for name in ("tgt_in", "tgt_out", "tgt_mask")}
    return batch._replace(src=src, src_mask=batch.src_mask[:, :src_len], **target)


def select_rows(batch: Batch, keep: np.ndarray) -> Batch:
    """Select the rows of a batch where `keep` (B,) is True, still padded to the width of the whole batch."""
    rows = torch.from_numpy(keep).to(batch.src.device)  # (B,) bool
    return Batch(*(tensor[rows] for tensor in batch))
