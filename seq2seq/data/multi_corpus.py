"""Several training corpora in one run: what each is, and how many of its pairs an epoch draws."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seq2seq.config.data import SPLITS, CorpusSettings, corpus_settings
from seq2seq.data.tokenizer import language_tag

# The settings of an entry that say where it lies: one that has `train` inherits none of them.
_PLACE = ("train", "valid", "test", "path", "config", "data_dir", "revision", "languages", "columns", "format")
_KEYS = (*_PLACE, "src", "tgt", "clean", "weight", "tag")


@dataclasses.dataclass(frozen=True)
class Part:
    """A corpus of the mixture; `tags` are the pieces before each of its sources."""

    name: str
    corpus: CorpusSettings
    weight: float | None = None
    tags: tuple[str, ...] = ()

    @property
    def direction(self) -> str:
        """As in de-en."""
        return f"{self.corpus.src}-{self.corpus.tgt}"


def parts_of(data: Mapping[str, Any]) -> list[Part]:
    """The corpora of the `data` section: `data.train`, called "train", if it is set, and those of `data.corpora`.

    An entry has the settings of the section but for its place; "train" may have an entry too, for its weight or tag.
    ValueError for what cannot be mixed.
    """
    entries = dict(data.get("corpora") or {})
    if data.get("train") is not None or not entries:
        entries = {"train": entries.pop("train", {})} | entries
    parts = [_part(name, entry or {}, data) for name, entry in entries.items()]
    if "train" not in entries:  # nothing but validation and test
        base = corpus_settings(data)
        wanted = tuple(split for split in SPLITS[1:] if base.place(split) is not None)
        if wanted:
            parts.append(Part("data", only_splits(base, wanted), tags=_tags(base, None, data)))
    _check(parts, data)
    return parts


def _part(name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> Part:
    if not isinstance(entry, Mapping) or (unknown := sorted(set(entry) - set(_KEYS))):
        what = (
            f"unknown setting data.corpora.{name}.{unknown[0]}"
            if isinstance(entry, Mapping)
            else f"data.corpora.{name}={entry!r}"
        )
        raise ValueError(f"{what}; a corpus is a mapping with some of {', '.join(_KEYS)}")
    own = {key: value for key, value in entry.items() if key not in ("weight", "tag")}
    tag, weight = entry.get("tag"), entry.get("weight")
    if tag is not None and not (isinstance(tag, str) and re.fullmatch(r"<\S+>", tag)):
        raise ValueError(f"data.corpora.{name}.tag={tag!r}: write it in angle brackets, without spaces, as in <bt>")
    if weight is not None and not (isinstance(weight, int | float) and weight > 0):
        raise ValueError(f"data.corpora.{name}.weight={weight!r}: a number above 0 is needed")
    if "train" in own:
        own = dict.fromkeys(_PLACE) | own
    elif name != "train":
        raise ValueError(
            f"data.corpora.{name} has no train; give a file, a prefix or a list (see conf/data/files.yaml)"
        )
    own["clean"] = {**(data.get("clean") or {}), **(own.get("clean") or {})}
    corpus = corpus_settings({**data, **own})
    if name != "train":
        corpus = only_splits(corpus, tuple(split for split in SPLITS if corpus.place(split) is not None))
    return Part(name, corpus, weight=weight, tags=_tags(corpus, tag, data))


def _tags(corpus: CorpusSettings, tag: str | None, data: Mapping[str, Any]) -> tuple[str, ...]:
    target = (language_tag(corpus.tgt),) if data.get("tag_target") else ()
    return (*target, *((tag,) if tag else ()))


def only_splits(corpus: CorpusSettings, splits: tuple[str, ...]) -> CorpusSettings:
    """The settings of a corpus of which only `splits` are read."""
    others = {split: None for split in SPLITS if split not in splits}
    return dataclasses.replace(corpus, **others, splits=splits)


def _check(parts: Sequence[Part], data: Mapping[str, Any]) -> None:
    training = [part for part in parts if "train" in part.corpus.splits]
    targets = sorted({part.corpus.tgt for part in training})
    if len(targets) > 1 and not data.get("tag_target"):
        raise ValueError(
            f"the corpora have several target languages ({', '.join(targets)}), and nothing tells the model which one "
            "is wanted: set data.tag_target=true"
        )
    without = [part.name for part in training if part.weight is None]
    if without and len(without) < len(training):
        raise ValueError(
            f"data.corpora.{without[0]} has no weight while others have one; give all of them one, or none "
            "(data.temperature then draws by size; the corpus of data.train is called train)"
        )
    if not isinstance(temperature := data.get("temperature", 1.0), int | float) or temperature < 1:
        raise ValueError(f"data.temperature={temperature!r}: a number of at least 1 is needed; 1 draws by size")
    for split in SPLITS:
        if not any(split in part.corpus.splits for part in parts):
            raise ValueError(f"data.{split} is not set, and no corpus of data.corpora has {split}")


class Direction(NamedTuple):
    """The sentences of a split that are scored together: their direction, sacreBLEU's tokenizer, and their numbers."""

    name: str
    tokenize: str
    rows: range


def directions(parts: Sequence[Part], sizes: Sequence[int], tokenize: Callable[[str], str]) -> list[Direction]:
    """What of a split, made of `parts` with `sizes` pairs, is scored by itself; nothing if there is one part."""
    ends = np.cumsum(sizes).tolist()
    names = [part.direction for part in parts]
    return [
        Direction(
            part.direction if names.count(part.direction) == 1 else f"{part.direction}.{part.name}",
            tokenize(part.corpus.tgt),
            range(end - size, end),
        )
        for part, size, end in zip(parts, sizes, ends, strict=True)
        if len(parts) > 1
    ]


class Mixture:
    """Which rows of several corpora, one after the other, an epoch consists of: a function of (seed, epoch).

    Corpus i has the share p_i = w_i / sum w, or n_i^(1/T) / sum n_j^(1/T), of an epoch, which is as long as all corpora
    together. It is gone through in an order drawn anew for every round, and the next epoch goes on where this one
    ends: no pair comes again before all others of its corpus have come.
    """

    def __init__(self, sizes: Sequence[int], *, weights: Sequence[float] | None, temperature: float, seed: int) -> None:
        self.sizes, self.seed = list(sizes), seed
        shares = np.array(weights if weights else np.asarray(sizes, dtype=np.float64) ** (1 / temperature))
        self.counts = np.maximum(1, np.rint(sum(sizes) * shares / shares.sum())).astype(np.int64).tolist()

    def rows(self, epoch: int) -> np.ndarray:
        """The rows of `epoch`: of corpus i counts[i], some of them several times where that is more than it has."""
        first = np.cumsum([0, *self.sizes])
        return np.concatenate([first[i] + self._turn(i, epoch) for i in range(len(self.sizes))])

    def _turn(self, i: int, epoch: int) -> np.ndarray:
        size, count = self.sizes[i], self.counts[i]
        start, end = epoch * count, (epoch + 1) * count
        found = []
        for number in range(start // size, (end - 1) // size + 1):
            order = np.random.default_rng([self.seed, i, number]).permutation(size)
            found.append(order[max(0, start - number * size) : end - number * size])
        return np.concatenate(found)
