"""Find pairs that one corpus holds out and another one trains on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from seq2seq.data.cleaning import single_spaced, text_hashes
from seq2seq.data.corpus import Corpus
from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.plan import DataPlan
from seq2seq.settings.data import SPLITS

log = logging.getLogger(__name__)


def warn_of_trained_pairs(plan: DataPlan, loaded: Sequence[Corpus]) -> None:
    """Warn of pairs that one corpus holds out for validation or test, and that another one trains on."""
    corpora = list(zip(plan.parts, loaded, strict=True))
    held = [
        (part, split, np.concatenate([*_pair_hashes(part, corpus, split)]))
        for part, corpus in corpora
        for split in SPLITS[1:]
        if split in corpus.splits and part.corpus.place(split) is None
    ]
    for other, corpus in corpora:
        evaluated = [(*each, np.zeros(len(each[2]), dtype=bool)) for each in held if each[0] is not other]
        if not evaluated or "train" not in corpus.splits:
            continue
        for block in _pair_hashes(other, corpus, "train"):
            for *_, hashes, seen in evaluated:
                seen |= np.isin(hashes, block)
        for part, split, hashes, seen in evaluated:
            if seen.any():
                log.warning(
                    "%d of the %d pairs that %s holds out as data.%s are training pairs of %s, too, so that scores on "
                    "them are too high: name files for data.valid and data.test, or take these pairs out",
                    int(seen.sum()),
                    len(hashes),
                    part.name,
                    split,
                    other.name,
                )


def _pair_hashes(part: NamedCorpus, corpus: Corpus, split: str) -> Iterator[np.ndarray]:
    """Hash the pairs of a split, block by block; the direction of a pair and its spaces do not count."""
    # The sides in the order of their languages
    turned = part.corpus.tgt < part.corpus.src
    for src, tgt in corpus.blocks(split):
        first, second = (map(single_spaced, side) for side in ((tgt, src) if turned else (src, tgt)))
        yield text_hashes(map("\t".join, zip(first, second, strict=True)))
