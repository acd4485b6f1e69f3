"""Plan of the data: the `data` and `tokenizer` sections, with their corpora opened."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seq2seq.data.batching import longest_width
from seq2seq.data.context import PIECE
from seq2seq.data.multi_corpus import NamedCorpus, only_splits
from seq2seq.data.preflight import open_corpora
from seq2seq.data.streaming import TrainingStream
from seq2seq.data.updates import part_tokens
from seq2seq.settings.data import DataSettings
from seq2seq.settings.tokenizer import TokenizerSettings


@dataclass(frozen=True)
class DataPlan:
    """Settings that decide text, ids and batches.

    Args:
        data: The section; corpora of `data.corpora` may have other languages.
        parts: The corpora to prepare; a streamed corpus has only its validation and test sets here.
        tokenizer: The section, with the tags of all corpora among its symbols.
        stream: The training text that is read during training, if `data.streaming` is set.
        max_tokens: Tokens of a micro-batch, padding included; None until `data.max_tokens=auto` has been decided.
    """

    data: DataSettings
    parts: tuple[NamedCorpus, ...]
    tokenizer: TokenizerSettings
    cache_dir: Path
    seed: int
    stream: TrainingStream | None
    max_tokens: int | None

    @classmethod
    def of(
        cls,
        data: DataSettings,
        *,
        tokenizer: TokenizerSettings,
        seed: int,
        cache_dir: Path,
        parts: Sequence[NamedCorpus] | None = None,
    ) -> DataPlan:
        """Combine the sections `data` and `tokenizer`.

        Raises:
            ValueError: A corpus cannot be read, or two settings exclude each other.
        """
        if tokenizer.patches and (data.context or any(dataclasses.astuple(data.augment))):
            raise ValueError("data.augment and data.context are for text, and the source is images: leave them out")
        if parts is None:
            parts = open_corpora(data, tokenizer=tokenizer, cache_dir=cache_dir)
        others = [tokenizer.patches, data.context, *dataclasses.astuple(data.augment)]
        if tokenizer.factors and any([*others, *(part.corpus.clean.language for part in parts)]):
            raise ValueError("tokenizer.factors: leave out images, data.context, data.augment and data.clean.language")
        stream = None
        # The training text of a stream is never in the cache
        if data.streaming:
            train = replace(parts[0], corpus=only_splits(parts[0].corpus, ("train",)))
            stream = TrainingStream(train, data.shuffle_buffer, cache_dir)
            parts = (replace(parts[0], corpus=only_splits(parts[0].corpus, ("valid", "test"))),)
        # dict.fromkeys drops repeated tags and keeps their order, on which ids depend
        tags = dict.fromkeys(
            [*tokenizer.symbols, *(tag for part in parts for tag in part.tags), *([PIECE] * bool(data.context))]
        )
        return cls(
            data=data,
            parts=tuple(parts),
            tokenizer=replace(tokenizer, symbols=tuple(tags)),
            cache_dir=cache_dir,
            seed=seed,
            stream=stream,
            max_tokens=None if isinstance(data.max_tokens, str) else data.max_tokens,
        )

    @property
    def part_tokens(self) -> int:
        """Token budget of a batch before a machine cuts it into micro-batches; it bounds the length of a pair."""
        return part_tokens(self.data.batch_tokens) if self.data.batch_tokens else self.require_max_tokens()

    def require_max_tokens(self) -> int:
        """Return the tokens of a micro-batch; raise ValueError while `auto` is undecided."""
        if self.max_tokens is None:
            raise ValueError("only seq2seq.train decides data.max_tokens=auto: set data.max_tokens to a number")
        return self.max_tokens

    @property
    def all_parts(self) -> tuple[NamedCorpus, ...]:
        """The corpora to prepare, and the streamed one."""
        return (*self.parts, self.stream.part) if self.stream else self.parts

    @property
    def longest_allowed(self) -> int:
        """Length in tokens of the longest sentence allowed in training."""
        # The most permissive corpus decides; None sets no limit
        rules = [part.corpus.clean.max_length or math.inf for part in self.all_parts]
        return int(min(max(rules), longest_width(self.part_tokens)))

    @property
    def target_languages(self) -> list[str]:
        """Languages that a tag before the source asks for; none without `data.tag_target`."""
        return sorted({part.corpus.tgt for part in self.parts if self.data.tag_target})
