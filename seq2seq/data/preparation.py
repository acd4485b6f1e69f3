"""Prepare corpora: from settings to a tokenizer, encoded splits, and the cache folders that hold them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np

from seq2seq.data.augmentation import Augmentation
from seq2seq.data.batching import longest_width
from seq2seq.data.cache_folder import cached
from seq2seq.data.cleaning import Dropped, Pairs, cleaning_table, length_rules, shorten
from seq2seq.data.context import sentence_lengths, sentence_of
from seq2seq.data.corpus import Corpus, limited, load_corpus
from seq2seq.data.dataset import EncodedCorpus, PairDataset
from seq2seq.data.extension import extend_tokenizer
from seq2seq.data.factors import without_factors
from seq2seq.data.fingerprints import TEXT_VERSION, corpus_fingerprint
from seq2seq.data.line_statistics import LineStatistics, warn_of_other_lines
from seq2seq.data.multi_corpus import Mixture, NamedCorpus, naming
from seq2seq.data.overlap import warn_of_trained_pairs
from seq2seq.data.pace import Pace
from seq2seq.data.plan import DataPlan
from seq2seq.data.ragged import Ragged
from seq2seq.data.streaming import PairStream
from seq2seq.data.terms import learn_lexicon
from seq2seq.data.text_checks import refuse_swapped
from seq2seq.data.token_cache import PairEncoder, read_ids, write_ids
from seq2seq.data.tokenizer import (
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
    require_repeatable_sampling,
    train_tokenizer,
)
from seq2seq.data.updates import UpdateCut, part_tokens
from seq2seq.settings.data import SPLITS
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.errors import LineError

log = logging.getLogger(__name__)

# Part of the fingerprint of encoded text: raise it when the same text and tokenizer give different files.
IDS_VERSION = 2

# Training text of a tokenizer: its fingerprint, and a function that opens it at its beginning.
Text = tuple[str, Callable[[], Iterator[Pairs]]]


@dataclass(frozen=True)
class PreparedData:
    """Result of `prepare_corpora`: encoded splits and their tokenizer.

    Args:
        splits: The encoded splits by name, without `train` if it is streamed.
        fingerprint: Hash of all text and tags, and of a stream's settings.
        whole_fingerprint: The same hash before `data.limit` chose a subset.
        folders: The cache folders (or files of ready models) by their content.
    """

    plan: DataPlan
    tokenizer: Tokenizer
    splits: Mapping[str, PairDataset]
    fingerprint: str
    whole_fingerprint: str
    folders: Mapping[str, Path]
    augment: Augmentation | None

    def split(self, name: str) -> PairDataset:
        """Return an encoded split.

        Raises:
            ValueError: The split is streamed.
        """
        if name not in self.splits:
            raise ValueError(f"split {name!r} is streamed: it has no size, and is never in memory or on disk")
        return self.splits[name]

    def corpora(self, split: str) -> list[tuple[NamedCorpus, EncodedCorpus]]:
        """List the corpora of a split, with their encoded pairs."""
        parts = [part for part in self.plan.parts if split in part.corpus.splits]
        return list(zip(parts, self.split(split).parts, strict=True))

    def size(self, split: str) -> int:
        """Count the pairs of a split after cleaning."""
        return len(self.split(split))

    def sources(self, split: str) -> list[str]:
        """Load the source text of a split into memory: meant for validation and test."""
        return self.split(split).lines("src")

    def references(self, split: str) -> list[str]:
        """Load the target text of a split, the references of its scores, into memory."""
        return self.split(split).lines("tgt")

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Lengths in tokens of the longest training source and target; for a stream, the longest allowed ones."""
        if self.plan.stream:
            return self.plan.longest_allowed, self.plan.longest_allowed
        src, tgt = (int(side.max()) for side in self.split("train").room())
        # A batch has one width for the drawn lengths of both sides
        drawn = self.plan.tokenizer.sampling_alpha > 0 or self.split("train").augmented
        return (max(src, tgt), max(src, tgt)) if drawn else (src, tgt)

    @cached_property
    def statistics(self) -> LineStatistics:
        """Statistics of the training lines."""
        if stream := self.plan.stream:
            return LineStatistics.of_stream(stream, self.tokenizer, self.plan.tokenizer.input_sentence_size)
        return LineStatistics.of_pairs(self.corpora("train"))

    def with_max_tokens(self, max_tokens: int) -> PreparedData:
        """Return the same pairs, cut into micro-batches of another size."""
        return replace(self, plan=replace(self.plan, max_tokens=max_tokens))

    def cut(self, world_size: int = 1) -> UpdateCut | None:
        """Return how updates are cut into micro-batches; None if settings count micro-batches instead of tokens.

        Raises:
            ValueError: The longest pair exceeds a micro-batch.
        """
        plan = self.plan
        if plan.data.batch_tokens is None:
            return None
        batch, longest = plan.data.batch_tokens, max(self.longest)
        # Each rank reads its own pairs of a stream, and makes its share of an update
        if plan.stream:
            batch, world_size = _share(batch, world_size), 1
            longest = min(longest, longest_width(part_tokens(batch)))
        return UpdateCut.of(batch, max_tokens=plan.require_max_tokens(), longest=longest, world_size=world_size)

    def mixture(self) -> Mixture | None:
        """Return the sampling of several training corpora; None if an epoch has every pair once."""
        corpora = self.corpora("train")
        # All corpora have a weight, or no corpus has one: `parts_of` has checked this
        weights = [part.weight for part, _ in corpora if part.weight is not None]
        temperature = self.plan.data.temperature
        if len(corpora) == 1 or (not weights and temperature == 1):
            return None
        sizes = [len(pairs) for _, pairs in corpora]
        return Mixture(sizes, weights=weights, temperature=temperature, seed=self.plan.seed)

    def stream(
        self, *, rank: int = 0, world_size: int = 1, src_multiple: int = 1, cut: UpdateCut | None = None
    ) -> PairStream:
        """Open the streamed training text of one rank."""
        stream, batch = self.plan.stream, self.plan.data.batch_tokens
        assert stream, "nothing is streamed"
        return PairStream(
            text=stream,
            encoder=PairEncoder(tokenizer=self.tokenizer, tags=stream.part.tag_ids(self.tokenizer)),
            max_tokens=part_tokens(_share(batch, world_size)) if batch else self.plan.require_max_tokens(),
            cut=cut,
            seed=self.plan.seed,
            rank=rank,
            world_size=world_size,
            src_multiple=src_multiple,
            augment=self.augment,
        )

    @cached_property
    def first_padding(self) -> float:
        """Share of padding in the first shuffle buffer of the stream."""
        return self.stream().first_padding()


def _share(batch_tokens: int, world_size: int) -> int:
    """Return a rank's share of the tokens of an update; at least 8, the smallest value of `data.batch_tokens`."""
    return max(8, batch_tokens // world_size)


def prepare_corpora(plan: DataPlan) -> PreparedData:
    """Read, clean, tokenize and encode all corpora, or open what an earlier call wrote to the cache.

    Raises:
        ValueError: A corpus cannot be read, looks swapped, or is too small for the vocabulary or the split.
    """
    if plan.tokenizer.sampling_alpha > 0:
        require_repeatable_sampling()
    # Text, then tokenizer, then ids: each needs the one before
    loaded = [_load_part(part, plan) for part in plan.parts]
    folders: dict[str, Path] = {}
    for part, corpus in zip(plan.parts, loaded, strict=True):
        folders[_label("text", part, plan)] = corpus.folder
    warn_of_trained_pairs(plan, loaded)
    texts: list[Text] = [(each.fingerprint, partial(each.blocks, "train")) for each in loaded if "train" in each.splits]
    if plan.stream:
        # Only the first pairs, since a stream may have no end
        size = plan.tokenizer.input_sentence_size
        texts = [(f"{plan.stream.fingerprint} {size}", partial(plan.stream.blocks, size))]
    tokenizer, models = _load_or_train(plan, texts)
    folders |= models
    # Refused if a ready tokenizer lacks a piece
    tokenizer.tag_ids(plan.tokenizer.symbols)
    shares = plan.data.augment
    lexicon = _lexicon(plan, texts) if shares.terms else {}
    augment = Augmentation(shares, plan.seed, lexicon) if any(astuple(shares)) else None
    splits: dict[str, PairDataset] = {}
    # The training split of a stream is never encoded as a whole
    for split in SPLITS[1:] if plan.stream else SPLITS:
        encoded = []
        for part, corpus in zip(plan.parts, loaded, strict=True):
            if split in corpus.splits:
                label = _label(f"ids of {split}", part, plan)
                pairs, folders[label] = _encode(split, part, corpus, tokenizer=tokenizer, plan=plan, label=label)
                encoded.append(replace(pairs, augment=augment) if split == "train" else pairs)
        # `directions` and `Mixture` rely on the order of the parts
        splits[split] = PairDataset(encoded)
    stream = plan.stream
    fingerprint = _fingerprint(plan, [each.fingerprint for each in loaded], stream and stream.fingerprint)
    unlimited = [each.whole_fingerprint or each.fingerprint for each in loaded]
    whole = _fingerprint(plan, unlimited, stream and stream.whole_fingerprint)
    prepared = PreparedData(plan, tokenizer, splits, fingerprint, whole, folders, augment)
    log.info("%s", _summary(prepared))
    if not plan.tokenizer.patches:
        for split in SPLITS[1:]:
            warn_of_other_lines(prepared.statistics, split, prepared.corpora(split))
    return prepared


def text_fingerprint(plan: DataPlan) -> str | None:
    """Return the fingerprint that `prepare_corpora` finds, before it reads the text; None with `data.limit`."""
    if any(part.corpus.limit is not None for part in plan.parts):
        return None
    texts = [corpus_fingerprint(part.corpus) for part in plan.parts]
    return _fingerprint(plan, texts, plan.stream and plan.stream.fingerprint)


def _load_part(part: NamedCorpus, plan: DataPlan) -> Corpus:
    """Load the corpus of a part, with at most `data.limit` training pairs."""
    with naming(part.name):
        corpus = load_corpus(part.corpus, cache_dir=plan.cache_dir)
        if "train" in corpus.splits:
            # Checked again: a remote corpus could not be read before
            head = corpus.splits["train"][:1000]
            refuse_swapped((head["src"], head["tgt"]), src=part.corpus.src, tgt=part.corpus.tgt)
    name = part.name if len(plan.parts) > 1 else "the corpus"
    return limited(corpus, part.corpus.limit, seed=plan.seed, cache_dir=plan.cache_dir, name=name)


def _summary(data: PreparedData) -> str:
    """Format the directions, and the sizes of splits and vocabularies, on one line."""
    directions = ", ".join(dict.fromkeys(part.direction for part in data.plan.parts))
    train = "stream" if data.plan.stream else data.size("train")
    src, tgt = data.tokenizer.src_vocab_size, data.tokenizer.tgt_vocab_size
    vocabulary = f"vocabularies of {src:,} and {tgt:,} pieces (source, target)"
    if data.tokenizer.joint or data.tokenizer.patches:
        # Patches of images are not pieces
        vocabulary = f"{'joint' if data.tokenizer.joint else 'target'} vocabulary of {tgt:,} pieces"
    return (
        f"{directions}: {train} / {data.size('valid')} / {data.size('test')} pairs (train / valid / test), {vocabulary}"
    )


def _label(name: str, part: NamedCorpus, plan: DataPlan) -> str:
    """Name a result of one part in messages and `folders`; the part is named only if there are several."""
    return name if len(plan.parts) == 1 else f"{name} of {part.name}"


def _fingerprint(plan: DataPlan, corpora: Sequence[str], stream: str | None) -> str:
    """Combine all fingerprints and tags, a stream's included; a single corpus without tags keeps its fingerprint."""
    parts = plan.parts
    if len(parts) == 1 and not parts[0].tags:
        fingerprint = corpora[0]
    else:
        # Order counts: it decides the rows of the mixture
        text = repr([(corpus, part.tags) for part, corpus in zip(parts, corpora, strict=True)])
        fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{fingerprint}-{stream}" if stream else fingerprint


def _lexicon(plan: DataPlan, texts: Sequence[Text]) -> dict[str, list[str]]:
    """Learn the translations of words unless the cache has them."""
    seed = plan.tokenizer.seed
    key = repr([1, TEXT_VERSION, seed, [fingerprint for fingerprint, _ in texts]])
    folder = plan.cache_dir / f"lexicon-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def build(building: Path) -> None:
        learned = learn_lexicon(chain.from_iterable(blocks() for _, blocks in texts), seed=seed)
        (building / "words.json").write_text(json.dumps(learned), encoding="utf-8")

    return cached(folder, "the lexicon", build=build, read=lambda whole: json.loads((whole / "words.json").read_text()))


def _load_or_train(plan: DataPlan, texts: Sequence[Text]) -> tuple[Tokenizer, dict[str, Path]]:
    """Load the ready tokenizer, or train one unless the cache has it; also return its folder or files."""
    settings = plan.tokenizer
    ready = load_tokenizer(settings) if settings.ready_models else None
    # A ready tokenizer is used in place, without a copy in the cache
    if ready and settings.extend is None:
        return ready, {f"tokenizer {i + 1}": Path(p) for i, p in enumerate(settings.ready_models)}
    learned_from = [fingerprint for fingerprint, _ in texts] + ([ready.fingerprint] if ready else [])
    folder = plan.cache_dir / f"tokenizer-{_tokenizer_key(settings, learned_from)}"

    def lines(side: int) -> Iterator[str]:
        # Opened anew for each side, so that no corpus is in memory
        return (sentence_of(line) for _, blocks in texts for block in blocks() for line in block[side])

    def build(building: Path) -> None:
        log.info("training the tokenizer (at most %s lines)", f"{settings.input_sentence_size:,}")
        make = partial(extend_tokenizer, ready) if ready else train_tokenizer
        src = (without_factors(line, settings.factors) for line in lines(0))
        state = make(src_lines=src, tgt_lines=lines(1), settings=settings).to_state()
        for name in ("src_model", "tgt_model"):
            if name in state:
                (building / f"{name}.model").write_bytes(state[name])

    def read(folder: Path) -> Tokenizer:
        # In sorted order, the source model comes first, if there is one
        return make_tokenizer([path.read_bytes() for path in sorted(folder.glob("*.model"))], settings)

    return cached(folder, "the tokenizer", build=build, read=read), {"tokenizer": folder}


def _tokenizer_key(settings: TokenizerSettings, texts: Sequence[str]) -> str:
    """Hash the fingerprints of the text, and every setting that decides the trained models."""
    # Settings that are off add nothing to the key, so that folders keep their names
    unset = [name for name in ("symbols", "patches", "extend", "factors") if not getattr(settings, name)]
    # These do not change the trained models
    free = ("model", "src_model", "tgt_model", "sampling_alpha", *unset)
    values = [(name, getattr(settings, name)) for name in asdict(settings) if name not in free]
    key = repr([TEXT_VERSION, texts[0] if len(texts) == 1 else list(texts), values])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _encode(
    split: str, part: NamedCorpus, corpus: Corpus, *, tokenizer: Tokenizer, plan: DataPlan, label: str
) -> tuple[EncodedCorpus, Path]:
    """Encode a split of a corpus unless the cache has it; return the pairs that stay in the split, and their folder."""
    # Tags are among the ids on disk
    tags = part.tag_ids(tokenizer)
    key = " ".join([f"{IDS_VERSION} {corpus.fingerprint} {tokenizer.fingerprint} {split}", *map(str, tags.source)])
    # Tags of targets do not change the names of folders that have none
    key += f" / {tags.target}" if tags.target else ""
    folder = plan.cache_dir / f"ids-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def build(building: Path) -> None:
        encoder = PairEncoder(tokenizer=tokenizer, tags=tags)
        pace = Pace(f"encoding, {label}", total=len(corpus.splits[split]))
        try:
            write_ids(building, corpus.blocks(split), encoder=encoder, num_proc=plan.data.num_proc, pace=pace)
        except LineError as error:
            raise ValueError(f"data.{split}, of the pairs that cleaning left: {error}") from None

    src, tgt = cached(folder, f"the {label}", build=build, read=read_ids)
    sampling = split == "train" and plan.tokenizer.sampling_alpha > 0
    pairs = EncodedCorpus(
        src=src,
        tgt=tgt,
        text=corpus.splits[split],
        tokenizer=tokenizer,
        # Only training has rules on lengths: every sentence of validation and test is scored
        rows=_rows_to_keep(src, tgt, part, corpus, plan, tokenizer) if split == "train" else None,
        tags=tags,
        sample_seed=plan.seed if sampling else None,
        # Without batch_tokens, a sampled segmentation may be as long as any allowed pair, for which the model has
        # positions. With it, micro-batches are sized by the longest pair of the text.
        widest=None if plan.data.batch_tokens else plan.longest_allowed,
    )
    return pairs, folder


def _rows_to_keep(
    src: Ragged, tgt: Ragged, part: NamedCorpus, corpus: Corpus, plan: DataPlan, tokenizer: Tokenizer
) -> np.ndarray | None:
    """Apply the length rules, log the table of all cleaning, and return the remaining rows (None: all)."""
    text = corpus.splits["train"]
    clean = part.corpus.clean
    own = sentence_lengths(src, tokenizer.separator) if plan.data.context else None
    most = longest_width(plan.part_tokens)
    masks = length_rules(src.lengths, tgt.lengths, settings=clean, max_tokens=most, own_lengths=own)
    # One table has the rules on text, applied when the corpus was written, then the rules on lengths
    dropped = list(corpus.dropped)
    for rule, mask in masks.items():
        example = ""
        if mask.any():
            first = text[int(mask.argmax())]
            example = f"{shorten(sentence_of(first['src']))} | {shorten(first['tgt'])}"
        dropped.append(Dropped(rule, int(mask.sum()), example))
    prefix = f"{part.name}: " if len(plan.parts) > 1 else ""
    log.info("%s%s", prefix, cleaning_table(dropped, read=corpus.read))
    drop = np.logical_or.reduce(list(masks.values()))
    # None saves an index of every row
    if not drop.any():
        return None
    kept = np.flatnonzero(~drop)
    if kept.size == 0:
        update = plan.data.batch_tokens
        budget = f"data.batch_tokens={update}" if update else f"data.max_tokens={plan.max_tokens}"
        raise ValueError(
            f"no training pair{_label('', part, plan)} is left: {budget}, "
            f"data.clean.max_length={clean.max_length} and length_ratio={clean.length_ratio} drop them all"
        )
    # 4 bytes a row if they suffice
    return kept if len(text) > np.iinfo(np.int32).max else kept.astype(np.int32)
