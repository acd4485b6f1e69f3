"""Seeded subsets of training text (`data.limit`): the same pairs on every machine, smaller ones within larger ones."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seq2seq.data.cache_folder import cached
from seq2seq.data.cleaning import Dropped, text_hashes

if TYPE_CHECKING:
    from seq2seq.data.corpus import Corpus

log = logging.getLogger(__name__)


def limited(corpus: Corpus, limit: int | None, *, seed: int, cache_dir: Path, name: str) -> Corpus:
    """Return the corpus with a subset of `limit` training pairs; validation and test stay as they are.

    A pair is chosen by its text and the seed alone: those whose hashes are the smallest, so that the subset of a
    smaller limit lies within that of a larger one.

    Args:
        corpus: After the rules on text, and after pairs have been held out.
        limit: None for all pairs.
        seed: Another seed gives another subset.
        cache_dir: Gets a folder with the rows of the subset.
        name: The corpus in messages.
    """
    if limit is None or "train" not in corpus.splits:
        return corpus
    size = len(corpus.splits["train"])
    if limit >= size:
        if limit > size:
            log.warning(
                "data.limit=%d is more than the %s training pairs of %s: all are used", limit, f"{size:,}", name
            )
        return corpus
    key = repr((corpus.fingerprint, "limit", limit, seed))
    fingerprint = hashlib.sha256(key.encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        np.save(folder / "train.npy", _smallest(corpus, limit, seed))

    def read(folder: Path) -> np.ndarray:
        return np.load(folder / "train.npy", mmap_mode="r")

    rows = cached(cache_dir / f"limit-{fingerprint}", f"the subset of {name}", build=build, read=read)
    return corpus.with_training_rows(np.asarray(rows), fingerprint, Dropped("limit", size - limit, ""))


def _smallest(corpus: Corpus, limit: int, seed: int) -> np.ndarray:
    """Choose the `limit` pairs of smallest hashes; return their sorted rows in the training split."""
    # The seed goes into the hash, so that each seed orders the pairs anew
    hashes = [
        text_hashes(f"{seed}\n{src}\n{tgt}" for src, tgt in zip(*block, strict=True))
        for block in corpus.blocks("train")
    ]
    # Stable: of equal pairs the first ones, for every limit
    return np.sort(np.argsort(np.concatenate(hashes), kind="stable")[:limit])
