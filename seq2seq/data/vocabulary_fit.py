"""Measure how well a tokenizer that was trained on other text fits a corpus."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seq2seq.data.factors import without_factors
from seq2seq.data.raw_pairs import sample_pairs

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

    from seq2seq.data.moses_bpe import MosesBpe
    from seq2seq.data.plan import DataPlan
    from seq2seq.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Share of bytes and unknown pieces above which training does not help.
_HOPELESS = 0.2
# Mean characters per word above which a text counts as having no spaces.
_LONGEST_WORD = 12


class Fit:
    """Counts of encoded lines: pieces, pieces that are bytes or unknown, words, and characters."""

    def __init__(self, model: SentencePieceProcessor | MosesBpe, lines: Sequence[str]) -> None:
        ids = [each for row in model.encode(list(lines), out_type=int) for each in row]
        words = [word for line in lines for word in line.split()]
        self.pieces = len(ids)
        self.strange = sum(model.is_byte(each) or each == model.unk_id() for each in ids)
        self.words = len(words)
        self.characters = sum(map(len, words))

    def __str__(self) -> str:
        if self.characters > _LONGEST_WORD * self.words:
            return f"{self.pieces / self.characters:.1f} pieces a character"
        return f"{self.pieces / max(self.words, 1):.1f} pieces a word"


def report_fit(tokenizer: Tokenizer, plan: DataPlan, origin: str) -> None:
    """Log how the tokenizer of the checkpoint `origin` encodes the first training pairs of each local corpus."""
    parts = [part.corpus for part in plan.all_parts if "train" in part.corpus.splits]
    samples = [sample_pairs(corpus, cache_dir=plan.cache_dir) for corpus in parts]
    sides = {"target": (tokenizer.tgt, [line for _, tgt in samples for line in tgt])}
    # Images are encoded without a model
    if not tokenizer.patches:
        sources = [without_factors(line, tokenizer.factors) for src, _ in samples for line in src]
        sides = {"source": (tokenizer.src, sources)} | sides
    fits = {side: Fit(model, lines) for side, (model, lines) in sides.items() if any(lines)}
    if not fits:
        return
    strange = sum(fit.strange for fit in fits.values()) / max(sum(fit.pieces for fit in fits.values()), 1)
    log.info(
        "init_from: the checkpoint's tokenizer cuts the new text into %s; %.1f%% of them are bytes or unknown",
        " and ".join(f"{fit} ({side})" for side, fit in fits.items()),
        100 * strange,
    )
    for side, fit in fits.items():
        share = fit.strange / max(fit.pieces, 1)
        if share > _HOPELESS:
            log.warning(
                "init_from=%s: %.0f%% of the pieces of the %s text are bytes or unknown, as the checkpoint's tokenizer "
                "lacks its characters: tokenizer.extend=2000 adds up to so many pieces for them; for a new "
                "vocabulary start a run without init_from",
                origin,
                100 * share,
                side,
            )
