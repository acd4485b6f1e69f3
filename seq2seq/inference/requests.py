"""Requests for translations of lines: their search, their beginnings and what they must have."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from seq2seq.config.search import SamplingSettings, SearchSettings
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.search import Constrained, Drawn, Selection, Source


class Job(NamedTuple):
    """Search of lines: settings, and the selection where it is not that of the settings."""

    settings: SearchSettings
    selection: Selection | None
    suppress: tuple[int, ...] = ()


def make_job(
    settings: SearchSettings, *, eos: int, sampling: SamplingSettings | None, mbr: str | None, constrained: bool
) -> Job:
    """Return how to search.

    Args:
        eos: Id of the end.
        sampling: Draw instead of searching.
        mbr: The samples will be compared with each other, so that all are wanted.
        constrained: There are phrases that translations must have.

    Raises:
        ValueError: The wishes do not go together.
    """
    if mbr and not sampling:
        raise ValueError(f"mbr={mbr} compares samples with each other, so it needs sampling")
    if constrained and (sampling or settings.beam_groups > 1):
        raise ValueError("phrases are searched by one group, without sampling: choose beam_groups 1 and no samples")
    if constrained:
        return Job(settings, Constrained(eos))
    if sampling is None:
        return Job(settings, None)
    every = dataclasses.replace(settings, n_best=settings.beam_size) if mbr else settings
    return Job(every, Drawn(eos, sampling.temperature, sampling.top_k, sampling.top_p))


def make_sources(
    ids: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    sampling: SamplingSettings | None,
    prefixes: Sequence[str] | None,
    phrases: Sequence[Sequence[str]] | None,
) -> list[Source]:
    """Return the lines' ids with what is asked of their translations."""
    sources = [Source(row) for row in ids]
    if prefixes is not None:
        begins = _without_end(tokenizer, prefixes)
        sources = [source._replace(prefix=row) for source, row in zip(sources, begins, strict=True)]
    if phrases is not None:
        wanted = [[row for row in _without_end(tokenizer, texts) if row] for texts in phrases]
        sources = [source._replace(phrases=rows) for source, rows in zip(sources, wanted, strict=True)]
    if sampling is not None:
        sources = [source._replace(seed=line_seed(sampling.seed, source.ids)) for source in sources]
    return sources


def line_seed(seed: int, ids: Sequence[int]) -> int:
    """Return the seed of a line's samples, which depend on the line and not on where it stands."""
    digest = hashlib.blake2b(repr((seed, list(ids))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _without_end(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [row[:-1] for row in tokenizer.encode_tgt(texts)] if texts else []
