"""Settings of the section `data`: the text, its cleaning, batches and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from seq2seq.settings.declare import SET, Section, internal, setting
from seq2seq.settings.tokenizer import VOCAB_SIZE

METRICS = ("bleu", "chrf", "chrf++", "ter", "accuracy")
# The default metrics; TER takes seconds for a line of 100 words.
USUAL_METRICS = ("bleu", "chrf")
# Tokenizations for BLEU in papers before sacreBLEU.
CONVENTIONS = ("tokenized", "compound-split")
# Maximum number of bootstrap resamples: the sentence indices of all resamples are in memory at once.
MOST_SAMPLES = 100_000
# Tokens of a micro-batch on a CPU with max_tokens=auto; larger micro-batches are not faster.
CPU_MICRO_BATCH = 4096
# Most sentences of context before a source.
MOST_CONTEXT = 100
SPLITS = ("train", "valid", "test")
# sacreBLEU's tokenizers by target language; `metrics.tokenize_for` chooses for other languages.
TOKENIZE = {"de": "13a", "en": "13a", "fr": "13a", "ro": "13a", "zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Settings of the hub have an effect if `path` is set.
_HUB = {"path": SET}


@dataclasses.dataclass(frozen=True)
class CleanSettings(Section):
    """Rules that drop training pairs; null or false turns one off. Lengths count pieces, eos included."""

    section: ClassVar[str] = "data.clean"

    invalid_utf8: bool | None = setting(True, "text that was not UTF-8 (or holds U+FFFD)")
    empty: bool | None = setting(True, "an empty side")
    same: bool | None = setting(True, "source = target")
    language: float | bool | None = setting(
        None, "a side in another language with at least this probability (0.8); needs py3langid", above=0, most=1
    )
    duplicates: bool | None = setting(True, "the same pair again")
    max_length: int | bool | None = setting(
        250, "pieces per side; pairs longer than max_tokens are always dropped", least=1
    )
    length_ratio: float | bool | None = setting(3.0, "pieces of the longer side over pieces of the shorter", least=1)
    length_deviation: float | bool | None = setting(
        None, "standard deviations of log(target pieces / source pieces) from the corpus's mean (4)", above=0
    )


@dataclasses.dataclass(frozen=True)
class AugmentSettings(Section):
    """Shares of the training pairs that are changed, drawn anew each epoch; a pair has at most one change."""

    section: ClassVar[str] = "data.augment"

    upper: float = setting(0.0, "share of pairs in capitals, both sides", least=0, most=1)
    title: float = setting(0.0, "share of pairs whose words begin with a capital, both sides", least=0, most=1)
    lower: float = setting(0.0, "share of pairs without capitals, both sides", least=0, most=1)
    typos: float = setting(0.0, "share of pairs with typing errors in the source", least=0, most=1)
    terms: float = setting(0.0, "share of pairs with translations of words in the source", least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := sum(dataclasses.astuple(self))) > 1 + 1e-9:
            raise ValueError(f"data.augment: the shares are {total:g} together; they may be at most 1")


def _both_named(data: DataSettings) -> str:
    named = not data.corpora and data.valid is not None and data.test is not None
    return "with data.valid and data.test: leave it out, or set one of them to null" if named else ""


@dataclasses.dataclass(frozen=True)
class CorpusSettings(Section):
    """Settings of one corpus: languages, files and cleaning.

    If `path` is set, `train`, `valid` and `test` are splits of this data set; otherwise they are files. If `valid` or
    `test` is null, `holdout` training pairs take its place.

    Args:
        splits: The splits of the corpus; a corpus of a mixture may lack some.
    """

    section: ClassVar[str] = "data"

    # Required: every corpus has its own.
    src: str = setting(help="source language", example="de")
    tgt: str = setting(help="target language", example="en")
    train: Any = setting(None, "training text: a file, a prefix, [source, target], {language: file}, or a split")
    valid: Any = setting(None, "validation text; null = pairs held out of training")
    test: Any = setting(None, "test text; null = pairs held out of training")
    # The hub's own settings.
    path: str | None = setting(None, "a data set of the hub, or a folder in the hub's layout")
    config: str | None = setting(None, "subset of the hub's data set, by name (config of datasets)", needs=_HUB)
    data_dir: str | None = setting(None, "subset of the hub's data set, by folder (data_dir of datasets)", needs=_HUB)
    revision: str | None = setting(None, "revision of the hub's data set", needs=_HUB)
    # The layout of the files.
    languages: tuple[str, ...] | None = setting(None, "languages of the corpus, checked before anything is loaded")
    columns: Mapping[str, str | int] | None = setting(
        None, "{language: column} where columns are not named by language; numbers for CSV and TSV without header"
    )
    format: str | None = setting(None, "text, json, csv, tsv, tmx or parquet; null goes by the file's suffix")
    holdout: int = setting(
        1000, "training pairs held out for each of valid and test that is null", least=1, idle=_both_named
    )
    limit: int | None = setting(
        None, "pairs sampled from each corpus (the first ones of a stream); null = all", least=1
    )
    context: int = setting(
        0,
        "preceding sources of the document put before each source; a blank line ends a document",
        least=0,
        most=MOST_CONTEXT,
    )
    clean: CleanSettings = setting(CleanSettings(), "rules that drop training pairs; null or false turns one off")
    # Set by the program for an entry of data.corpora.
    splits: tuple[str, ...] = internal(SPLITS)

    def place(self, split: str) -> Any:
        """Return the setting that names the source of `split`."""
        return getattr(self, split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(CorpusSettings):
    """Settings of the section `data`: a corpus, further training corpora, batches and scores."""

    name: str = setting(help="name of the data set, in the run's name and in the checkpoint")
    corpora: Mapping[str, Any] | None = setting(
        None, 'further training corpora: {name: {train: ..., tag: "<bt>", weight: 2, src: .., tgt: ..}}'
    )
    temperature: float = setting(
        1.0, "corpora are drawn by size^(1/temperature); 1: every pair once an epoch", least=1, needs={"corpora": SET}
    )
    tag_target: bool = setting(False, "a piece such as <2en> before every source, for several target languages")
    alignment: str | None = setting(
        None, "word alignments of data.train for optim.guided_alignment, a Pharaoh file; null = IBM Model 1"
    )
    streaming: bool = setting(False, "read training text while training instead of preparing it")
    shuffle_buffer: int = setting(
        100_000, "pairs of a stream that are shuffled together", least=1, needs={"streaming": (True,)}
    )
    augment: AugmentSettings = setting(AugmentSettings(), "shares of training pairs that are changed on the fly")
    # A pair of a few pieces fits in 8 tokens.
    max_tokens: int | str = setting(
        4096,
        "tokens of a micro-batch, rows * longest side; auto: as many as memory holds",
        words=("auto",),
        least=8,
    )
    batch_tokens: int | None = setting(
        None, "tokens of an update over all devices; null: by trainer.accumulate", least=8
    )
    vocab_size: int = setting(VOCAB_SIZE, "pieces of a tokenizer that is trained", least=5, most=2**24)
    num_proc: int = setting(1, "processes that encode the text; the result is the same", least=1, most=1024)
    num_workers: int = setting(0, "processes that make batches; 0 = the training process itself", least=0, most=1024)
    tokenize: Mapping[str, str] = setting(
        dict(TOKENIZE), "sacreBLEU tokenizer by target language; for others as in `score`"
    )
    convention: str | None = setting(None, "also score the test set on tokens, as papers do", choices=CONVENTIONS)
    lowercase: bool = setting(False, "lower-case text for data.convention", needs={"convention": CONVENTIONS})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streaming:
            self._check_stream()
        if self.max_tokens == "auto" and self.batch_tokens is None:
            raise ValueError(
                "data.max_tokens=auto also needs the tokens of an update, for example data.batch_tokens=25000"
            )

    def _check_stream(self) -> None:
        if self.corpora and {*self.corpora} != {"train"}:
            raise ValueError("data.streaming=true reads one corpus: leave data.corpora out")
        # Held-out pairs are chosen by hashes of the whole text
        for split in SPLITS[1:]:
            if self.place(split) is None:
                raise ValueError(f"data.streaming=true cannot hold pairs out of training: set data.{split}")
        if self.clean.length_deviation:
            raise ValueError(
                f"data.clean.length_deviation={self.clean.length_deviation:g} needs statistics of the whole corpus, "
                "and data.streaming=true reads it only once: set it to null; length_ratio needs none"
            )
        # Each of several workers would read all of the text
        if self.num_workers > 1:
            raise ValueError(f"data.num_workers={self.num_workers}: one worker reads a stream; set 0 or 1")
