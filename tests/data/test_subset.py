"""Subsets of training text: seeded, nested, independent of the order of the text, in every kind of corpus."""

from __future__ import annotations

import logging
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toycorpus

from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import PreparedData, prepare_corpora
from seq2seq.data.text_files import warn_once
from seq2seq.runs.folder import config_hash


def plan(corpus: Path, *, seed: int = 1, cache: Path | None = None, **changes: Any) -> DataPlan:
    data = {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "clean": {"length_ratio": None}}
    data |= {split: str(corpus / split) for split in ("train", "valid", "test")} | changes
    tokenizer = {"vocab_size": 60, "byte_fallback": False}
    return toycorpus.data_plan(data, tokenizer=tokenizer, seed=seed, cache_dir=cache or corpus / "cache")


def prepare(corpus: Path, **changes: Any) -> PreparedData:
    return prepare_corpora(plan(corpus, **changes))


def pairs(prepared: PreparedData, split: str = "train") -> list[tuple[str, str]]:
    return list(zip(prepared.sources(split), prepared.references(split), strict=True))


def decoded(prepared: PreparedData) -> list[str]:
    """Decode the targets from their ids."""
    data = prepared.split("train")
    rows = data.ids(np.arange(len(data)))[1]
    return prepared.tokenizer.decode([rows.row(i).tolist() for i in range(len(rows.lengths))])


def test_subsets_follow_the_seed_and_lie_within_each_other(corpus, caplog):
    with caplog.at_level(logging.INFO):
        small, large = prepare(corpus, limit=40), prepare(corpus, limit=100)
    whole = prepare(corpus)
    assert [each.size("train") for each in (small, large, whole)] == [40, 100, 240]
    assert set(pairs(small)) < set(pairs(large)) < set(pairs(whole))
    # In the order of the corpus, with ids of the same text
    assert pairs(small) == [pair for pair in pairs(whole) if pair in set(pairs(small))]
    assert decoded(small) == [target for _, target in pairs(small)]
    other = prepare(corpus, limit=40, seed=2)
    # Runs with other seeds repeat one experiment
    assert {each.whole_fingerprint for each in (small, large, other)} == {prepare(corpus).fingerprint}
    assert len(set(pairs(other)) & set(pairs(small))) < 20
    for split in ("valid", "test"):
        assert pairs(small, split) == pairs(other, split) == pairs(whole, split)
    # A resumed run recognizes its subset by the fingerprint
    assert len({each.fingerprint for each in (small, large, whole, other)}) == 4
    assert re.search(r"\blimit +200\b", caplog.text)


def test_a_subset_depends_on_text_not_on_its_order(corpus, tmp_path):
    lines = [(corpus / f"train.{language}").read_text().splitlines() for language in ("de", "en")]
    shuffled = random.Random(3).sample(list(zip(*lines, strict=True)), k=len(lines[0]))
    for language, side in zip(("de", "en"), zip(*shuffled, strict=True), strict=True):
        (tmp_path / f"train.{language}").write_text("\n".join(side) + "\n")
    changed = prepare(corpus, train=str(tmp_path / "train"), cache=tmp_path / "cache", limit=40)
    assert set(pairs(changed)) == set(pairs(prepare(corpus, limit=40)))


def test_a_limit_leaves_the_held_out_pairs_unchanged(corpus):
    held: dict[str, Any] = {"valid": None, "test": None, "holdout": 30}
    small, whole = (prepare(corpus, **held, **more) for more in ({"limit": 40}, {}))
    assert small.size("train") == 40
    assert set(pairs(small)) < set(pairs(whole))
    assert decoded(small) == [target for _, target in pairs(small)]
    for split in ("valid", "test"):
        assert pairs(small, split) == pairs(whole, split)


def test_a_limit_beyond_the_corpus_is_told(corpus, caplog):
    whole = prepare(corpus)
    assert prepare(corpus, limit=240).fingerprint == whole.fingerprint
    assert "data.limit" not in caplog.text
    assert prepare(corpus, limit=100_000).fingerprint == whole.fingerprint
    assert "data.limit=100000 is more than the 240 training pairs of the corpus: all are used" in caplog.text


def test_each_of_several_corpora_is_limited_and_may_have_its_own(corpus):
    files = {"train": str(corpus / "valid")}
    entries = {"train": {"weight": 3}, "more": {**files, "weight": 1}, "all": {**files, "limit": None, "weight": 1}}
    mixed = prepare(corpus, limit=12, corpora=entries)
    assert [len(part) for part in mixed.split("train").parts] == [12, 12, 20]
    mixture = mixed.mixture()
    assert mixture is not None
    assert mixture.counts == [26, 9, 9]
    with pytest.raises(ValueError, match=r"limit=0"):
        plan(corpus, corpora={"train": {"limit": 0}})


def test_a_limited_stream_is_its_first_pairs(corpus, caplog):
    options = {"streaming": True, "shuffle_buffer": 10}
    warn_once.cache_clear()
    limited = prepare(corpus, limit=25, **options)
    stream = limited.stream()
    seen: set[int] = set()
    drawn = 0
    for batch in stream:
        seen |= set(batch.index.tolist())
        drawn += len(batch.index)
        if drawn >= 50:
            break
    assert drawn == 50
    assert seen == set(range(25))
    other = prepare(corpus, limit=26, **options)
    assert limited.fingerprint != other.fingerprint
    # Neither the limit nor the buffer changes the corpus that is limited
    whole = prepare(corpus, streaming=True)
    assert limited.whole_fingerprint == other.whole_fingerprint == whole.whole_fingerprint
    changed = prepare(corpus, train=str(corpus / "valid"), streaming=True)
    assert whole.whole_fingerprint != changed.whole_fingerprint
    assert "data.limit" not in caplog.text
    blocks = plan(corpus, limit=100_000, **options).stream.blocks  # type: ignore[union-attr]
    for _ in range(2):
        assert sum(len(src) for src, _ in blocks()) == 240
    assert caplog.text.count("data.limit=100000 is more than the 240 pairs of the stream: all are used") == 1


def test_a_limit_is_part_of_a_runs_name(corpus, tmp_path):
    composed = [toycorpus.settings(corpus, tmp_path, *more) for more in ((), ("data.limit=40",), ("data.limit=41",))]
    assert len({config_hash(each) for each in composed}) == 3
