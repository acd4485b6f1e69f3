"""Several training corpora in one run: their settings, their scores, and the sampling of an epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq.data.languages import Tags, language_tag, tags_between
from seq2seq.settings.data import SPLITS, CleanSettings, CorpusSettings, DataSettings
from seq2seq.settings.declare import keys, plain, read_section
from seq2seq.settings.values import is_number

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer

# Settings of an entry that locate its text. An entry with `train` inherits none of them.
_PLACE = ("train", "valid", "test", "path", "config", "data_dir", "revision", "languages", "columns", "format")
_KEYS = (*_PLACE, "src", "tgt", "clean", "limit", "weight", "tag")
# A setting of the section, in a message, that an entry has too; not a file such as data.train.de.
_SETTING = re.compile(rf"(?<![\w./=-])data\.({'|'.join(_KEYS)})\b(?!\.\w\w\b)")


@dataclasses.dataclass(frozen=True)
class NamedCorpus:
    """Corpus of a mixture.

    Args:
        name: Its name in `data.corpora`, or "train".
        corpus: Its settings: the section's, changed by its entry.
        weight: Its share of an epoch relative to other weights; None without weights.
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

    def tag_ids(self, tokenizer: Tokenizer) -> Tags:
        """Return the tags of its sources and targets as ids.

        Raises:
            ValueError: The tokenizer lacks one.
        """
        own = language_tag(self.corpus.tgt)
        if not (tokenizer.tags_targets and own in self.tags):
            return Tags(tokenizer.tag_ids(self.tags), [])
        languages = tags_between(tokenizer, self.corpus.src, self.corpus.tgt)
        others = tokenizer.tag_ids(tag for tag in self.tags if tag != own)
        return languages._replace(source=[*languages.source, *others])


def section_of(name: str) -> str:
    """Return the section of settings of a named corpus; `train` and `data` stand for `data` itself."""
    return "data" if name in ("train", "data") else f"data.corpora.{name}"


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Name an entry of `data.corpora` and its settings in the message of a ValueError raised in this block."""
    try:
        yield
    except ValueError as error:
        entry = section_of(name)
        if entry == "data":
            raise
        message = _SETTING.sub(lambda setting: f"{entry}.{setting[1]}", str(error))
        raise ValueError(message if f"{entry}." in message else f"{entry}: {message}") from error


def parts_of(data: DataSettings) -> list[NamedCorpus]:
    """List the corpora of the `data` section: `data.train`, named "train", if it is set, then all of `data.corpora`.

    An entry inherits the settings of the section except its files; "train" may have an entry too, for its weight.

    Raises:
        ValueError: An entry is wrong, or the corpora cannot be mixed.
    """
    entries = dict(data.corpora or {})
    if data.train is not None or not entries:
        # "train" comes first, wherever its entry is
        entries = {"train": entries.pop("train", {})} | entries
    parts = [_part(name, entry or {}, data) for name, entry in entries.items()]
    # The section's own validation and test sets, if all training text is in `corpora`
    wanted = tuple(split for split in SPLITS[1:] if data.place(split) is not None)
    if "train" not in entries and wanted:
        if "data" in entries:
            raise ValueError(
                "data.corpora.data: results reserve the name 'data' for the sets of data.valid and data.test; choose "
                "another name for this corpus"
            )
        base = CorpusSettings(**{name: getattr(data, name) for name in keys(CorpusSettings)})
        parts.append(NamedCorpus("data", only_splits(base, wanted), tags=_tags(base, None, data)))
    _check(parts, data)
    return parts


def _part(name: str, entry: Any, data: DataSettings) -> NamedCorpus:
    """Read an entry of `data.corpora`, which inherits other settings from the section."""
    _check_entry(name, entry)
    tag = entry.get("tag")
    # Weight and tag belong to the mixture, not to the corpus
    own = {key: value for key, value in entry.items() if key not in ("weight", "tag")}
    if "train" in own:
        # The entry has its own files and none of the section's; "train" keeps the section's validation and test sets
        kept = {split: data.place(split) for split in SPLITS[1:]} if name == "train" else {}
        own = dict.fromkeys(_PLACE) | kept | own
    elif name != "train":
        raise ValueError(
            f"data.corpora.{name} has no train; give a file, a prefix or a list (see conf/data/files.yaml)"
        )
    with naming(name):
        if isinstance(rules := own.get("clean"), Mapping):
            # An entry may change a single rule
            own["clean"] = read_section(CleanSettings, {**plain(data.clean), **rules}, "data.clean")
        inherited = {key: getattr(data, key) for key in keys(CorpusSettings)}
        corpus = read_section(CorpusSettings, inherited | own, "data")
    if name != "train":
        # Any other corpus has only the splits that it names: nothing is held out of it
        corpus = only_splits(corpus, tuple(split for split in SPLITS if corpus.place(split) is not None))
    scored = any(corpus.place(split) is not None for split in SPLITS[1:])
    if tag is not None and (name == "train" or scored):
        raise ValueError(
            f"data.corpora.{name}.tag={tag}: its validation and test sources would have the tag, but later "
            "input would not; leave the tag out, and tag only corpora without these sets"
        )
    return NamedCorpus(name, corpus, weight=entry.get("weight"), tags=_tags(corpus, tag, data))


def _check_entry(name: str, entry: Any) -> None:
    """Raise ValueError for an entry that is not a mapping of known settings, and for a wrong tag or weight."""
    known = f"a corpus is a mapping with some of {', '.join(_KEYS)}"
    if not isinstance(entry, Mapping):
        raise ValueError(f"data.corpora.{name}={entry!r}; {known}")
    if unknown := sorted(set(entry) - set(_KEYS)):
        raise ValueError(f"unknown setting data.corpora.{name}.{unknown[0]}; {known}")
    tag = entry.get("tag")
    # Angle brackets distinguish a tag from text; a space would split it
    if tag is not None and not (isinstance(tag, str) and re.fullmatch(r"<\S+>", tag)):
        raise ValueError(f"data.corpora.{name}.tag={tag!r}: write it in angle brackets, without spaces, as in <bt>")
    weight = entry.get("weight")
    if weight is not None and not (is_number(weight) and weight > 0):
        raise ValueError(f"data.corpora.{name}.weight={weight!r}: a finite number above 0 is needed")


def _tags(corpus: CorpusSettings, tag: str | None, data: DataSettings) -> tuple[str, ...]:
    """List the pieces before every source of a corpus: the target language, then the corpus's own tag."""
    target = (language_tag(corpus.tgt),) if data.tag_target else ()
    return (*target, *((tag,) if tag else ()))


def only_splits(corpus: CorpusSettings, splits: tuple[str, ...]) -> CorpusSettings:
    """Return the settings of the corpus with only the given splits."""
    others = {split: None for split in SPLITS if split not in splits}
    return dataclasses.replace(corpus, **others, splits=splits)


def _check(parts: Sequence[NamedCorpus], data: DataSettings) -> None:
    """Raise ValueError for corpora that cannot be mixed, and for a split that no corpus has."""
    training = [part for part in parts if "train" in part.corpus.splits]
    targets = sorted({part.corpus.tgt for part in training})
    if len(targets) > 1 and not data.tag_target:
        raise ValueError(
            f"the corpora have several target languages ({', '.join(targets)}), and the model cannot know which one to "
            "write: set data.tag_target=true"
        )
    # The shares of all corpora are by weight, or all are by size
    without = [part.name for part in training if part.weight is None]
    if without and len(without) < len(training):
        raise ValueError(
            f"data.corpora.{without[0]} has no weight, but others have one; give all corpora a weight, or none "
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
        rows: Positions in the split.
    """

    name: str
    tokenize: str
    rows: range


def directions(parts: Sequence[NamedCorpus], sizes: Sequence[int], tokenize: Callable[[str], str]) -> list[Direction]:
    """List the parts of a split that are scored separately; none if there is one part."""
    if len(parts) == 1:
        return []
    counts = Counter(part.direction for part in parts)
    result = []
    # In the order of the rows of `PairDataset`
    for part, size, end in zip(parts, sizes, itertools.accumulate(sizes), strict=True):
        # Corpora of the same direction are distinguished by their names
        name = part.direction if counts[part.direction] == 1 else f"{part.direction}.{part.name}"
        result.append(Direction(name, tokenize(part.corpus.tgt), range(end - size, end)))
    return result


class Mixture:
    """Sampler of epochs from several corpora, as a function of (seed, epoch).

    An epoch is as long as all corpora together. Corpus i has the share p_i = w_i / sum w, or n_i^(1/T) / sum n_j^(1/T).
    Each round over a corpus has a new order, and an epoch begins where the last one ended: no pair is repeated before
    all other pairs of its corpus have been drawn.

    Args:
        sizes: n_i, the pairs of each corpus.
        weights: w_i; none for shares by size.
        temperature: T.
    """

    def __init__(self, sizes: Sequence[int], *, weights: Sequence[float] | None, temperature: float, seed: int) -> None:
        self.sizes = list(sizes)
        self.seed = seed
        # A larger T draws more from small corpora (Arivazhagan et al. 2019)
        shares = np.array(weights if weights else np.asarray(sizes, dtype=np.float64) ** (1 / temperature))
        # At least one pair, so that no corpus vanishes
        self.counts = np.maximum(1, np.rint(sum(sizes) * shares / shares.sum())).astype(np.int64).tolist()

    def rows(self, epoch: int) -> np.ndarray:
        """Draw the rows of an epoch: counts[i] of corpus i, some repeated if it has fewer."""
        drawn = []
        first = 0  # row at which the corpus begins
        for i, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            # An epoch is the window [start, end) of an endless sequence of permutations of the corpus
            start = epoch * count
            end = start + count
            for number in range(start // size, (end - 1) // size + 1):
                # Seeded by the permutation's number, so that an epoch can be computed without earlier ones
                order = np.random.default_rng([self.seed, i, number]).permutation(size)
                drawn.append(first + order[max(0, start - number * size) : end - number * size])
            first += size
        return np.concatenate(drawn)
