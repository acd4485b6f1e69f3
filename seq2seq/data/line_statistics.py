"""Statistics of training lines: what a model has seen, which tells what it can translate as one line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq.config.data import SPLITS
from seq2seq.data.cleaning import Pairs
from seq2seq.data.dataset import MixedPairs, PairDataset
from seq2seq.data.multi_corpus import Part
from seq2seq.data.sentences import sentences
from seq2seq.data.tokenizer import Tokenizer

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
        most_sentences: Sentences that 99% of the source lines do not exceed.
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
    def of_lines(
        cls, samples: Iterable[tuple[str, Pairs]], tokenizer: Tokenizer, longest: int | None
    ) -> LineStatistics:
        """Compute the statistics of samples of training pairs, each with the code of its source language."""
        counts: list[int] = []
        pieces: list[tuple[int, int]] = []
        for language, (src, tgt) in samples:
            counts += [len(sentences(line, language)) for line in src]
            # Without the end
            sides = (
                [len(row) - 1 for row in encode] for encode in (tokenizer.encode_src(src), tokenizer.encode_tgt(tgt))
            )
            pieces += zip(*sides, strict=True)
        lengths = np.maximum(1, np.array(pieces))  # (N, 2)
        return cls(
            sentences=_quantile(counts, 0.5),
            most_sentences=_quantile(counts, 0.99),
            most_pieces=_quantile(lengths[:, 0], 0.99),
            longest=longest,
            least_ratio=float(np.quantile(lengths[:, 1] / lengths[:, 0], 0.01)),
        )

    @classmethod
    def of_training(cls, data: PreparedData) -> LineStatistics:
        """Compute the statistics of prepared training text."""
        plan = data.plan
        if plan.stream:
            # Its longest line is not known
            head = plan.stream.head(SAMPLE)
            return cls.of_lines(((plan.src, block) for block in head), data.tokenizer, None)
        samples = []
        longest = 0
        for part, each in _sets(data, "train"):
            # Without the end
            longest = max(longest, int(each.src_lengths.max()) - 1 - len(each.tags))
            size = max(1, SAMPLE * len(each) // data.size("train"))
            rows = np.unique(np.linspace(0, len(each) - 1, size).astype(np.int64))
            src, tgt = zip(*each.pairs(rows.tolist()), strict=True)
            samples.append((part.corpus.src, (list(src), list(tgt))))
        return cls.of_lines(samples, data.tokenizer, longest)

    @classmethod
    def of_checkpoint(cls, meta: Mapping[str, Any]) -> LineStatistics:
        """Read the statistics of a `seq2seq` entry, which anybody may have written; the defaults where it has none."""
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
        """Return True for a line of so many sentences and pieces if 99% of the training lines do not have fewer."""
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
                "%s of the %s lines of data.%s have more sentences or pieces than 99%% of the training lines (%d and "
                "%d), and are translated as they are: seq2seq.score --sentences auto translates them in parts",
                f"{beyond:,}",
                f"{data.size(split):,}",
                split,
                known.most_sentences,
                known.most_pieces,
            )


def _sets(data: PreparedData, split: str) -> list[tuple[Part, PairDataset]]:
    """List the corpora of a split, with their encoded pairs."""
    whole = data.split(split)
    parts = [part for part in data.plan.parts if split in part.corpus.splits]
    return list(zip(parts, whole.parts if isinstance(whole, MixedPairs) else [whole], strict=True))


def _quantile(values: Sequence[int] | np.ndarray, q: float) -> int:
    """Return the least value that a share of `q` of the values does not exceed, at least 1."""
    return max(1, int(np.quantile(np.asarray(values), q, method="inverted_cdf")))
