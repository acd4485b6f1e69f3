"""Plan of the data: the `data` and `tokenizer` sections, checked and put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seq2seq.data.batching import longest_width
from seq2seq.data.multi_corpus import NamedCorpus, only_splits
from seq2seq.data.preflight import open_corpora
from seq2seq.data.streaming import StreamSettings
from seq2seq.data.updates import part_tokens
from seq2seq.settings.data import DataSettings
from seq2seq.settings.tokenizer import TokenizerSettings


@dataclass(frozen=True)
class DataPlan:
    """Settings that decide text, ids and batches.

    Args:
        src: SplitFiles language, of the section; a further corpus may have another.
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
    parts: tuple[NamedCorpus, ...]
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
    def of(
        cls,
        data: DataSettings,
        *,
        tokenizer: TokenizerSettings,
        seed: int,
        cache_dir: Path,
        parts: Sequence[NamedCorpus] | None = None,
    ) -> DataPlan:
        """Put the sections `data` and `tokenizer` together.

        Args:
            parts: The corpora, if they were opened already.

        Raises:
            ValueError: A corpus cannot be read, or two settings exclude each other.
        """
        if parts is None:
            parts = open_corpora(data, tokenizer=tokenizer, cache_dir=cache_dir)
        stream = None
        # The training text leaves the parts: it is never in the cache
        if data.streaming:
            stream = StreamSettings.of(data, parts, cache_dir=cache_dir)
            parts = (replace(parts[0], corpus=only_splits(parts[0].corpus, ("valid", "test"))),)
        # Symbols that the tokenizer is trained with; the streamed corpus has the tags of its part
        tags = [tag for part in parts for tag in part.tags]
        auto = data.max_tokens == "auto"
        return cls(
            src=data.src,
            tgt=data.tgt,
            parts=tuple(parts),
            # dict.fromkeys drops repeated tags and keeps their order, on which ids depend
            tokenizer=replace(tokenizer, symbols=tuple(dict.fromkeys([*tokenizer.symbols, *tags]))),
            cache_dir=cache_dir,
            seed=seed,
            stream=stream,
            # A number, as its field has no word but `auto`
            max_tokens=None if auto else int(data.max_tokens),
            auto=auto,
            batch_tokens=data.batch_tokens,
            num_proc=data.num_proc,
            num_workers=data.num_workers,
            temperature=data.temperature,
            tag_target=data.tag_target,
            tokenize=data.tokenize,
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
    def all_parts(self) -> tuple[NamedCorpus, ...]:
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
