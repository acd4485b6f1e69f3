"""Find pairs for validation or test that a corpus trains on."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from seq2seq.data.cache_folder import cached
from seq2seq.data.cleaning import single_spaced, text_hashes
from seq2seq.data.context import sentence_of
from seq2seq.data.corpus import Corpus
from seq2seq.data.multi_corpus import NamedCorpus, section_of
from seq2seq.data.pace import Pace
from seq2seq.data.plan import DataPlan
from seq2seq.settings.data import SPLITS

log = logging.getLogger(__name__)

# A split of a corpus.
Text = tuple[NamedCorpus, Corpus, str]


def warn_of_trained_pairs(plan: DataPlan, loaded: Sequence[Corpus]) -> None:
    """Warn of pairs for validation or test that are among the training pairs of any corpus."""
    corpora = list(zip(plan.parts, loaded, strict=True))
    texts = [(part, corpus, split) for part, corpus in corpora for split in SPLITS if split in corpus.splits]
    for training in (text for text in texts if text[2] == "train"):
        sets = [text for text in texts if text[2] != "train" and _may_share(text, training)]
        counts = _count_shared(sets, training, plan.cache_dir) if sets else []
        for (part, corpus, split), count in zip(sets, counts, strict=True):
            if count:
                name = f"{section_of(part.name)}.{split}"
                log.warning(
                    "%s of the %s pairs of %s are also training pairs of %s.train, so scores on them are too high: "
                    "remove them from the training text, or name another file for %s",
                    f"{count:,}",
                    f"{len(corpus.splits[split]):,}",
                    name,
                    section_of(training[0].name),
                    name,
                )


def _may_share(text: Text, training: Text) -> bool:
    part, _, split = text
    # A corpus holds out all pairs of a source, and `validate_corpus` has warned of data.valid=data.train
    return part is not training[0] or part.corpus.place(split) not in (None, part.corpus.place("train"))


def _count_shared(sets: Sequence[Text], training: Text, cache_dir: Path) -> list[int]:
    """Count the pairs of each set that are training pairs, unless the cache has the counts."""
    key = repr([2, training[1].fingerprint, [(corpus.fingerprint, split) for _, corpus, split in sets]])
    folder = cache_dir / f"overlap-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def build(building: Path) -> None:
        evaluated = [np.concatenate([*_pair_hashes(text)]) for text in sets]
        shared = [np.zeros(len(hashes), dtype=bool) for hashes in evaluated]
        pace = Pace("looking for pairs of validation and test in training text", total=len(training[1].splits["train"]))
        for block in _pair_hashes(training):
            for hashes, seen in zip(evaluated, shared, strict=True):
                seen |= np.isin(hashes, block)
            pace.add(len(block))
        (building / "counts.json").write_text(json.dumps([int(seen.sum()) for seen in shared]))

    return cached(
        folder, "the trained pairs", build=build, read=lambda whole: json.loads((whole / "counts.json").read_text())
    )


def _pair_hashes(text: Text) -> Iterator[np.ndarray]:
    """Hash the pairs of a split, block by block; the direction of a pair, its spaces and its context do not count."""
    part, corpus, split = text
    # The sides in the order of their languages
    turned = part.corpus.tgt < part.corpus.src
    for src, tgt in corpus.blocks(split):
        sides = list(map(sentence_of, src)), tgt
        first, second = (map(single_spaced, side) for side in (sides[::-1] if turned else sides))
        yield text_hashes(map("\t".join, zip(first, second, strict=True)))
