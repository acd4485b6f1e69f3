"""Several training corpora in one run: their settings, and the sampling of an epoch from them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seq2seq.data.languages import language_tag
from seq2seq.settings.data import SPLITS, CleanSettings, CorpusSettings, DataSettings
from seq2seq.settings.declare import keys, plain, read_section
from seq2seq.settings.values import is_number

# The settings of an entry that locate its text: one that has `train` inherits none of them.
_PLACE = ("train", "valid", "test", "path", "config", "data_dir", "revision", "languages", "columns", "format")
_KEYS = (*_PLACE, "src", "tgt", "clean", "limit", "weight", "tag")


@dataclasses.dataclass(frozen=True)
class NamedCorpus:
    """Corpus of a mixture.

    Args:
        name: Its name in `data.corpora`, or "train".
        corpus: Its settings: the section's, with those of its entry.
        weight: Its share of an epoch, relative to the others'; None without weights.
        tags: Pieces before each of its sources.
    """

    name: str
    corpus: CorpusSettings
    weight: float | None = None
    tags: tuple[str, ...] = ()

    @property
    def direction(self) -> str:
        """Both languages, as in de-en."""
        return f"{self.corpus.src}-{self.corpus.tgt}"


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the name of an entry of `data.corpora` before the message of a ValueError raised in this block."""
    try:
        yield
    except ValueError as error:
        # These two are of the section itself
        if name in ("train", "data"):
            raise
        raise ValueError(f"data.corpora.{name}: {error}") from error


def parts_of(data: DataSettings) -> list[NamedCorpus]:
    """List the corpora of the `data` section: `data.train`, called "train", if it is set, and those of `data.corpora`.

    An entry inherits the settings of the section but for its files; "train" may have an entry too, for its weight.

    Raises:
        ValueError: An entry is wrong, or the corpora cannot be mixed.
    """
    # A copy: the entry "train" is moved below
    entries = dict(data.corpora or {})
    if data.train is not None or not entries:
        # "train" first, wherever its entry is, so that the order of parts does not depend on it
        entries = {"train": entries.pop("train", {})} | entries
    parts = [_part(name, entry or {}, data) for name, entry in entries.items()]
    if "train" not in entries:  # nothing but validation and test
        # Validation and test of the section itself, if its training text is all in `corpora`
        wanted = tuple(split for split in SPLITS[1:] if data.place(split) is not None)
        if wanted and "data" in entries:
            raise ValueError(
                "data.corpora.data: results reserve the name 'data' for the sets of data.valid and data.test; choose "
                "another name for this corpus"
            )
        if wanted:
            base = CorpusSettings(**_inherited(data))
            parts.append(NamedCorpus("data", only_splits(base, wanted), tags=_tags(base, None, data)))
    _check(parts, data)
    return parts


def _inherited(data: DataSettings) -> dict[str, Any]:
    """Return the settings of the section that every corpus has."""
    return {name: getattr(data, name) for name in keys(CorpusSettings)}


def _part(name: str, entry: Mapping[str, Any], data: DataSettings) -> NamedCorpus:
    """Read an entry of `data.corpora`, which inherits what it leaves out from the section."""
    _check_entry(name, entry)
    # The others are settings of the mixture, not of the corpus
    own = {key: value for key, value in entry.items() if key not in ("weight", "tag")}
    if "train" in own:
        # Its own files: none of the section's, and no column names made for them; "train" keeps validation and test
        kept = {split: data.place(split) for split in SPLITS[1:]} if name == "train" else {}
        own = dict.fromkeys(_PLACE) | kept | own
    elif name != "train":
        raise ValueError(
            f"data.corpora.{name} has no train; give a file, a prefix or a list (see conf/data/files.yaml)"
        )
    with naming(name):
        if isinstance(rules := own.get("clean"), Mapping):
            # The rules merge one by one, so that an entry may change a single one
            own["clean"] = read_section(CleanSettings, {**plain(data.clean), **rules}, "data.clean")
        corpus = read_section(CorpusSettings, _inherited(data) | own, "data")
    if name != "train":
        # Nothing is held out of a further corpus: it has the splits that are named
        corpus = only_splits(corpus, tuple(split for split in SPLITS if corpus.place(split) is not None))
    scored = [split for split in SPLITS[1:] if corpus.place(split) is not None]
    if entry.get("tag") is not None and (name == "train" or scored):
        raise ValueError(
            f"data.corpora.{name}.tag={entry['tag']}: the sources of its validation and test sets would have the tag, "
            "and what is translated later would not; leave it out, and tag the corpora that are for training alone"
        )
    return NamedCorpus(name, corpus, weight=entry.get("weight"), tags=_tags(corpus, entry.get("tag"), data))


def _check_entry(name: str, entry: Any) -> None:
    """Raise ValueError for an entry that is not a mapping of known settings, and for a wrong tag or weight."""
    known = f"a corpus is a mapping with some of {', '.join(_KEYS)}"
    if not isinstance(entry, Mapping):
        raise ValueError(f"data.corpora.{name}={entry!r}; {known}")
    if unknown := sorted(set(entry) - set(_KEYS)):
        raise ValueError(f"unknown setting data.corpora.{name}.{unknown[0]}; {known}")
    tag = entry.get("tag")
    # Angle brackets keep a tag apart from text; a space would split it
    if tag is not None and not (isinstance(tag, str) and re.fullmatch(r"<\S+>", tag)):
        raise ValueError(f"data.corpora.{name}.tag={tag!r}: write it in angle brackets, without spaces, as in <bt>")
    weight = entry.get("weight")
    if weight is not None and not (is_number(weight) and weight > 0):
        raise ValueError(f"data.corpora.{name}.weight={weight!r}: a finite number above 0 is needed")


def _tags(corpus: CorpusSettings, tag: str | None, data: DataSettings) -> tuple[str, ...]:
    """List the pieces before every source of a corpus."""
    # Language first, then the corpus's own tag: the order that the ids before a source have
    target = (language_tag(corpus.tgt),) if data.tag_target else ()
    return (*target, *((tag,) if tag else ()))


def only_splits(corpus: CorpusSettings, splits: tuple[str, ...]) -> CorpusSettings:
    """Return the settings of the corpus with `splits` alone."""
    # Both the list of splits and their places, so that neither suggests the others
    others = {split: None for split in SPLITS if split not in splits}
    return dataclasses.replace(corpus, **others, splits=splits)


def _check(parts: Sequence[NamedCorpus], data: DataSettings) -> None:
    """Raise ValueError for corpora that cannot be mixed, and for a split that none has."""
    training = [part for part in parts if "train" in part.corpus.splits]
    targets = sorted({part.corpus.tgt for part in training})
    # One target language needs no tag: the model has nothing to choose
    if len(targets) > 1 and not data.tag_target:
        raise ValueError(
            f"the corpora have several target languages ({', '.join(targets)}), and nothing tells the model which one "
            "is wanted: set data.tag_target=true"
        )
    # Shares from weights and from sizes do not mix
    without = [part.name for part in training if part.weight is None]
    if without and len(without) < len(training):
        raise ValueError(
            f"data.corpora.{without[0]} has no weight while others have one; give all of them one, or none "
            "(data.temperature then draws by size; the corpus of data.train is called train)"
        )
    if data.temperature != DataSettings.temperature and training and not without:
        raise ValueError(
            f"data.temperature={data.temperature} draws by size, but the corpora have weights: leave out one of the two"
        )
    for split in SPLITS:
        if not any(split in part.corpus.splits for part in parts):
            raise ValueError(f"data.{split} is not set, and no corpus of data.corpora has {split}")


class Direction(NamedTuple):
    """Sentences of a split that are scored together.

    Args:
        tokenize: sacreBLEU's tokenizer.
        rows: Their positions in the split.
    """

    name: str
    tokenize: str
    rows: range


def directions(parts: Sequence[NamedCorpus], sizes: Sequence[int], tokenize: Callable[[str], str]) -> list[Direction]:
    """List the parts of a split that are scored by themselves; none if there is one part.

    Args:
        parts: The corpora that the split consists of.
        sizes: Their numbers of pairs.
        tokenize: Returns sacreBLEU's tokenizer for a language.
    """
    if len(parts) == 1:
        return []
    all_directions = [part.direction for part in parts]
    result = []
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        # Two corpora of one direction differ by name
        unique = all_directions.count(part.direction) == 1
        name = part.direction if unique else f"{part.direction}.{part.name}"
        # Rows as `MixedPairs` concatenates the parts
        result.append(Direction(name, tokenize(part.corpus.tgt), range(start, start + size)))
        start += size
    return result


class Mixture:
    """Sampler of epochs from several corpora, as a function of (seed, epoch).

    Corpus i has the share p_i = w_i / sum w, or n_i^(1/T) / sum n_j^(1/T), of an epoch, which is as long as all corpora
    together. Each round over a corpus has a new order, and an epoch begins where the last one ended: no pair comes
    again before all others of its corpus have come.

    Args:
        sizes: n_i, the pairs of each corpus.
        weights: w_i; none for shares by size.
        temperature: T.
    """

    def __init__(self, sizes: Sequence[int], *, weights: Sequence[float] | None, temperature: float, seed: int) -> None:
        self.sizes = list(sizes)
        self.seed = seed
        # T = 1 draws by size; a larger T lets small corpora come more often (Arivazhagan et al. 2019)
        shares = np.array(weights if weights else np.asarray(sizes, dtype=np.float64) ** (1 / temperature))
        # Rounded, and at least one pair, so that no corpus vanishes
        self.counts = np.maximum(1, np.rint(sum(sizes) * shares / shares.sum())).astype(np.int64).tolist()

    def rows(self, epoch: int) -> np.ndarray:
        """Draw the rows of an epoch: counts[i] of corpus i, some several times if it has fewer."""
        first = np.cumsum([0, *self.sizes])  # row at which each corpus begins
        return np.concatenate([first[i] + self._rows_of(i, epoch) for i in range(len(self.sizes))])

    def _rows_of(self, i: int, epoch: int) -> np.ndarray:
        """Draw the rows of corpus i, counted within it."""
        size = self.sizes[i]
        # An epoch is the window [start, end) of an endless sequence of permutations of the corpus
        start = epoch * self.counts[i]
        end = start + self.counts[i]
        rows = []
        for number in range(start // size, (end - 1) // size + 1):
            # Each permutation from its own number: any epoch can be computed without those before it
            order = np.random.default_rng([self.seed, i, number]).permutation(size)
            rows.append(order[max(0, start - number * size) : end - number * size])
        return np.concatenate(rows)
