"""Plan of the data: the `data` and `tokenizer` sections, checked and put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seq2seq.config.data import DataSettings
from seq2seq.config.settings import read_section
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.data.batching import longest_width
from seq2seq.data.multi_corpus import Part, only_splits, parts_of
from seq2seq.data.streaming import StreamSettings
from seq2seq.data.updates import part_tokens


@dataclass(frozen=True)
class DataPlan:
    """Settings that decide text, ids and batches.

    Args:
        src: Source language, of the section; a further corpus may have another.
        tgt: Target language.
        parts: The corpora to prepare; of a streamed corpus, its validation and test sets alone.
        stream: The training text that is read during training, if `data.streaming` is set.
        max_tokens: Tokens of a micro-batch, padding included; None until `data.max_tokens=auto` has been decided.
        auto: True if `data.max_tokens` is `auto`, decided or not.
        batch_tokens: Tokens of an update, over all ranks; None if it is a number of micro-batches.
        tokenize: sacreBLEU's tokenizers by language, where they are not the usual ones.
    """

    src: str
    tgt: str
    parts: tuple[Part, ...]
    tokenizer: TokenizerSettings
    cache_dir: Path
    seed: int
    stream: StreamSettings | None
    max_tokens: int | None
    auto: bool
    batch_tokens: int | None
    num_proc: int
    num_workers: int
    temperature: float
    tag_target: bool
    tokenize: Mapping[str, str]

    @classmethod
    def from_mapping(
        cls,
        data: Mapping[str, Any],
        *,
        tokenizer: TokenizerSettings | Mapping[str, Any],
        seed: int,
        cache_dir: Path,
    ) -> DataPlan:
        """Read the plain `data` and `tokenizer` sections.

        Raises:
            ValueError: A value is impossible, or two of them exclude each other. No file is opened.
        """
        parts = tuple(parts_of(data))
        settings = read_section(DataSettings, data, "data")
        cache_dir = Path(cache_dir)
        if not isinstance(tokenizer, TokenizerSettings):
            tokenizer = read_section(TokenizerSettings, tokenizer, "tokenizer")
        stream = None
        # The training text leaves the parts: it is never in the cache
        if settings.streaming:
            stream = StreamSettings.of(settings, parts, cache_dir=cache_dir)
            parts = (replace(parts[0], corpus=only_splits(parts[0].corpus, ("valid", "test"))),)
        # Symbols that the tokenizer is trained with; the streamed corpus has the tags of its part
        tags = [tag for part in parts for tag in part.tags]
        auto = settings.max_tokens == "auto"
        return cls(
            src=settings.src,
            tgt=settings.tgt,
            parts=parts,
            # dict.fromkeys drops repeated tags and keeps their order, on which ids depend
            tokenizer=replace(tokenizer, symbols=tuple(dict.fromkeys([*tokenizer.symbols, *tags]))),
            cache_dir=cache_dir,
            seed=int(seed),
            stream=stream,
            # A number, as its field has no word but `auto`
            max_tokens=None if auto else int(settings.max_tokens),
            auto=auto,
            batch_tokens=settings.batch_tokens,
            num_proc=settings.num_proc,
            num_workers=settings.num_workers,
            temperature=settings.temperature,
            tag_target=settings.tag_target,
            tokenize=settings.tokenize,
        )

    def with_max_tokens(self, max_tokens: int) -> DataPlan:
        """Return the same plan with a decided batch size."""
        return replace(self, max_tokens=max_tokens)

    @property
    def part_tokens(self) -> int:
        """Tokens of a batch of sentences of similar length, which bounds a pair; a machine may cut it further."""
        return part_tokens(self.batch_tokens) if self.batch_tokens else self.require_max_tokens()

    def require_max_tokens(self) -> int:
        """Return the size of a micro-batch in tokens; ValueError while `auto` has not been decided."""
        if self.max_tokens is None:
            raise ValueError("data.max_tokens=auto is decided by seq2seq.train alone: set data.max_tokens to a number")
        return self.max_tokens

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """Corpora to prepare, and the streamed one."""
        return (*self.parts, self.stream.part) if self.stream else self.parts

    @property
    def longest_allowed(self) -> int:
        """Length in tokens of the longest sentence allowed in training."""
        # The most permissive corpus decides; None bounds nothing
        rules = [part.corpus.clean.max_length or math.inf for part in self.all_parts]
        return int(min(max(rules), longest_width(self.part_tokens)))

    @property
    def target_languages(self) -> list[str]:
        """Languages that a tag before the source asks for; none without `data.tag_target`."""
        return sorted({part.corpus.tgt for part in self.parts if self.tag_target})
