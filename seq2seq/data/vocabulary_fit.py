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


def _fit(model: SentencePieceProcessor | MosesBpe, lines: Sequence[str]) -> tuple[str, int, int]:
    """Describe how a model cuts lines; count the pieces, and the pieces that are bytes or unknown."""
    ids = [each for row in model.encode(list(lines), out_type=int) for each in row]
    strange = sum(model.is_byte(each) or each == model.unk_id() for each in ids)
    words = [word for line in lines for word in line.split()]
    characters = sum(map(len, words))
    if characters > _LONGEST_WORD * len(words):
        return f"{len(ids) / characters:.1f} pieces a character", len(ids), strange
    return f"{len(ids) / max(len(words), 1):.1f} pieces a word", len(ids), strange


def report_fit(tokenizer: Tokenizer, plan: DataPlan, origin: str) -> None:
    """Log how the tokenizer of the checkpoint `origin` encodes the first training pairs of each local corpus."""
    parts = [part.corpus for part in plan.all_parts if "train" in part.corpus.splits]
    samples = [sample_pairs(corpus, cache_dir=plan.cache_dir) for corpus in parts]
    sides = {"target": (tokenizer.tgt, [line for _, tgt in samples for line in tgt])}
    # Images are encoded without a model
    if not tokenizer.patches:
        sources = [without_factors(line, tokenizer.factors) for src, _ in samples for line in src]
        sides = {"source": (tokenizer.src, sources)} | sides
    fits = {side: _fit(model, lines) for side, (model, lines) in sides.items() if any(lines)}
    if not fits:
        return
    pieces = sum(count for _, count, _ in fits.values())
    strange = sum(count for *_, count in fits.values())
    log.info(
        "init_from: the checkpoint's tokenizer cuts the new text into %s; %.1f%% of them are bytes or unknown",
        " and ".join(f"{cut} ({side})" for side, (cut, *_) in fits.items()),
        100 * strange / max(pieces, 1),
    )
    for side, (_, pieces, strange) in fits.items():
        share = strange / max(pieces, 1)
        if share > _HOPELESS:
            log.warning(
                "init_from=%s: %.0f%% of the pieces of the %s text are bytes or unknown, because the checkpoint's "
                "tokenizer lacks its characters: tokenizer.extend=2000 adds up to 2000 pieces for them; for a new "
                "vocabulary start a run without init_from",
                origin,
                100 * share,
                side,
            )
