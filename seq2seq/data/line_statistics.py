"""Statistics of training lines, which show the lines that a model can translate without cutting them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seq2seq.data.context import sentence_of
from seq2seq.data.dataset import EncodedCorpus
from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.sentences import sentences
from seq2seq.data.streaming import TrainingStream
from seq2seq.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Share and number of unusual lines in a split above which a warning is logged.
_UNUSUAL = 0.05
_FEWEST = 4
# Number of training pairs in the sample, which are evenly spaced.
SAMPLE = 4000


class LineStatistics(NamedTuple):
    """Statistics of training lines; the defaults describe single sentences of any length.

    Attributes:
        sentences: Median number of sentences in a source line.
        most_sentences: 99th percentile of this number, or the 90th if the median is one: a model that has seen few
            lines of two sentences drops one of the two.
        most_pieces: 99th percentile of pieces in a source line, without tags and eos.
        longest: Pieces of the longest source line, if known.
        least_ratio: First percentile of target pieces over source pieces.
    """

    sentences: int = 1
    most_sentences: int = 1
    most_pieces: int | None = None
    longest: int | None = None
    least_ratio: float = 0.0

    @classmethod
    def of_lines(cls, counts: Sequence[int], pieces: np.ndarray, longest: int | None) -> LineStatistics:
        """Compute the statistics of lines.

        Args:
            pieces: Pieces of each source and target, (N, 2), without tags and eos.
        """
        lengths = np.maximum(1, pieces)
        median = _percentile(counts, 50)
        return cls(
            sentences=median,
            most_sentences=_percentile(counts, 99 if median > 1 else 90),
            most_pieces=_percentile(lengths[:, 0], 99),
            longest=longest,
            least_ratio=float(np.quantile(lengths[:, 1] / lengths[:, 0], 0.01)),
        )

    @classmethod
    def of_stream(cls, stream: TrainingStream, tokenizer: Tokenizer, most: int) -> LineStatistics:
        """Compute the statistics of a stream's first pairs, at most `SAMPLE` and at most `most`."""
        counts: list[int] = []
        pieces: list[np.ndarray] = []
        for sources, tgt in stream.blocks(min(SAMPLE, most)):
            src = list(map(sentence_of, sources))
            counts += [len(sentences(line, stream.part.corpus.src)) for line in src]
            sides = tokenizer.encode_src(src), tokenizer.encode_tgt(tgt)
            # Without eos
            pieces.append(np.array([[len(row) - 1 for row in side] for side in sides]).T)
        return cls.of_lines(counts, np.concatenate(pieces), None)

    @classmethod
    def of_pairs(cls, corpora: Sequence[tuple[NamedCorpus, EncodedCorpus]]) -> LineStatistics:
        """Compute the statistics of about `SAMPLE` training pairs of all corpora together."""
        counts: list[int] = []
        pieces: list[np.ndarray] = []
        longest = 0
        total = sum(len(pairs) for _, pairs in corpora)
        for part, pairs in corpora:
            sizes = pairs.pieces
            longest = max(longest, int(sizes[0].max()))
            chosen = np.unique(np.linspace(0, len(pairs) - 1, max(1, SAMPLE * len(pairs) // total)).astype(np.int64))
            counts += [len(sentences(src, part.corpus.src)) for src, _ in pairs.pairs(chosen)]
            pieces.append(np.stack([side[chosen] for side in sizes], 1))
        return cls.of_lines(counts, np.concatenate(pieces), longest)

    @classmethod
    def of_checkpoint(cls, meta: Mapping[str, Any]) -> LineStatistics:
        """Read the statistics of an untrusted `seq2seq` entry; missing or invalid ones get the defaults."""
        entry = meta.get("lines")
        known = entry if isinstance(entry, dict) else {}
        # Only numbers above 0 are valid
        return cls(
            **{key: known[key] for key in cls._fields if type(known.get(key)) in (int, float) and known[key] > 0}
        )

    @classmethod
    def common(cls, several: Sequence[LineStatistics]) -> LineStatistics:
        """Return the statistics of an ensemble: the minimum of each value over the members."""
        sides = zip(*several, strict=True)
        return cls(*(min((value for value in values if value is not None), default=None) for values in sides))  # type: ignore[arg-type]

    def covers(self, count: int, pieces: int) -> bool:
        """Return True if a line of `count` sentences and `pieces` pieces is not longer than most training lines."""
        return count <= self.most_sentences and pieces <= (self.most_pieces or pieces)


def warn_of_other_lines(
    known: LineStatistics, split: str, corpora: Sequence[tuple[NamedCorpus, EncodedCorpus]]
) -> None:
    """Warn if validation or test has longer lines than training, whose statistics are `known`."""
    beyond = total = 0
    for part, pairs in corpora:
        pieces, _ = pairs.pieces
        counts = (len(sentences(line, part.corpus.src)) for line in pairs.lines("src"))
        beyond += sum(not known.covers(count, size) for count, size in zip(counts, pieces.tolist(), strict=True))
        total += len(pairs)
    # By definition, one line in a hundred is expected
    if beyond > max(_FEWEST, _UNUSUAL * total):
        log.warning(
            "%s of the %s lines of data.%s have more sentences or pieces than most training lines (%d and %d), and are "
            "translated as they are: seq2seq.score --sentences auto translates them in parts",
            f"{beyond:,}",
            f"{total:,}",
            split,
            known.most_sentences,
            known.most_pieces,
        )


def _percentile(values: Sequence[int] | np.ndarray, percent: float) -> int:
    return max(1, int(np.percentile(np.asarray(values), percent, method="inverted_cdf")))
