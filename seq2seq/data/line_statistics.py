"""Statistics of training lines: what a model has seen, which tells what it can translate as one line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq.data.dataset import MixedPairs, PairDataset
from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.sentences import sentences
from seq2seq.settings.data import SPLITS

if TYPE_CHECKING:
    from seq2seq.data.preparation import PreparedData

log = logging.getLogger(__name__)

# Share and number of the lines of a split that are unlike training, beyond which that is told.
_UNUSUAL = 0.05
_FEWEST = 4
# Training pairs that the statistics are of, at equal distances.
SAMPLE = 4000


class LineStatistics(NamedTuple):
    """Statistics of training lines.

    Attributes:
        sentences: Sentences of a source line, the median.
        most_sentences: Sentences that 99% of the source lines do not exceed; 90% where the median is one, since a model
            that has seen few lines of two sentences drops one of them.
        most_pieces: Pieces that 99% of the source lines do not exceed, without tags and the end.
        longest: Pieces of the longest source line.
        least_ratio: Pieces of the target for each one of the source, which 99% of the pairs reach.
    """

    # Of a checkpoint without statistics: a model of single sentences of any length
    sentences: int = 1
    most_sentences: int = 1
    most_pieces: int | None = None
    longest: int | None = None
    least_ratio: float = 0.0

    @classmethod
    def of_lines(cls, counts: Sequence[int], pieces: np.ndarray, longest: int | None) -> LineStatistics:
        """Compute the statistics of lines.

        Args:
            counts: Sentences of each source line.
            pieces: Pieces of each source and target, (N, 2), without tags and ends.
            longest: Pieces of the longest source line, where that is known.
        """
        lengths = np.maximum(1, pieces)
        median = _quantile(counts, 0.5)
        return cls(
            sentences=median,
            most_sentences=_quantile(counts, 0.99 if median > 1 else 0.9),
            most_pieces=_quantile(lengths[:, 0], 0.99),
            longest=longest,
            least_ratio=float(np.quantile(lengths[:, 1] / lengths[:, 0], 0.01)),
        )

    @classmethod
    def of_training(cls, data: PreparedData) -> LineStatistics:
        """Compute the statistics of prepared training text, of a stream by its beginning."""
        counts: list[int] = []
        if stream := data.plan.stream:
            rows: list[tuple[int, int]] = []
            for src, tgt in stream.head(min(SAMPLE, data.plan.tokenizer.input_sentence_size)):
                counts += [len(sentences(line, stream.corpus.src)) for line in src]
                sides = data.tokenizer.encode_src(src), data.tokenizer.encode_tgt(tgt)
                # Without the ends
                rows += zip(*([len(row) - 1 for row in side] for side in sides), strict=True)
            return cls.of_lines(counts, np.array(rows), None)
        pieces = []
        longest = 0
        for part, each in _sets(data, "train"):
            own = each.src_lengths - 1 - len(each.tags)
            longest = max(longest, int(own.max()))
            size = max(1, SAMPLE * len(each) // data.size("train"))
            chosen = np.unique(np.linspace(0, len(each) - 1, size).astype(np.int64))
            counts += [len(sentences(src, part.corpus.src)) for src, _ in each.pairs(chosen.tolist())]
            pieces.append(np.stack([own[chosen], each.tgt_lengths[chosen] - 1], 1))
        return cls.of_lines(counts, np.concatenate(pieces), longest)

    @classmethod
    def of_checkpoint(cls, meta: Mapping[str, Any]) -> LineStatistics:
        """Read the statistics of an untrusted `seq2seq` entry; missing or invalid ones get the defaults."""
        entry = meta.get("lines")
        known = entry if isinstance(entry, dict) else {}
        # A number above 0 is needed, as every count and the ratio is
        return cls(
            **{key: known[key] for key in cls._fields if type(known.get(key)) in (int, float) and known[key] > 0}
        )

    @classmethod
    def common(cls, several: Sequence[LineStatistics]) -> LineStatistics:
        """Return the statistics of an ensemble: what all members have seen."""
        sides = zip(*several, strict=True)
        return cls(*(min((value for value in values if value is not None), default=None) for values in sides))  # type: ignore[arg-type]

    def covers(self, count: int, pieces: int) -> bool:
        """Return True for a line of so many sentences and pieces if it is not longer than most training lines."""
        return count <= self.most_sentences and pieces <= (self.most_pieces or pieces)


def warn_of_other_lines(data: PreparedData) -> None:
    """Warn of validation and test text that has other lines than training, which are translated as they are."""
    known = data.statistics
    for split in SPLITS[1:]:
        beyond = 0
        for part, each in _sets(data, split):
            pieces = each.src_lengths - 1 - len(each.tags)
            counts = (len(sentences(line, part.corpus.src)) for line in each.lines("src"))
            beyond += sum(not known.covers(count, size) for count, size in zip(counts, pieces.tolist(), strict=True))
        # By their definition one in a hundred is to be expected
        if beyond > max(_FEWEST, _UNUSUAL * data.size(split)):
            log.warning(
                "%s of the %s lines of data.%s have more sentences or pieces than most training lines (%d and "
                "%d), and are translated as they are: seq2seq.score --sentences auto translates them in parts",
                f"{beyond:,}",
                f"{data.size(split):,}",
                split,
                known.most_sentences,
                known.most_pieces,
            )


def _sets(data: PreparedData, split: str) -> list[tuple[NamedCorpus, PairDataset]]:
    """List the corpora of a split, with their encoded pairs."""
    whole = data.split(split)
    parts = [part for part in data.plan.parts if split in part.corpus.splits]
    return list(zip(parts, whole.parts if isinstance(whole, MixedPairs) else [whole], strict=True))


def _quantile(values: Sequence[int] | np.ndarray, q: float) -> int:
    """Return the least value that a share of `q` of the values does not exceed, at least 1."""
    return max(1, int(np.quantile(np.asarray(values), q, method="inverted_cdf")))
