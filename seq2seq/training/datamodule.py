"""The Lightning data module: from the `data` and `tokenizer` sections to batches, with everything cached on disk."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from seq2seq.config.data import SPLITS, CorpusSettings, corpus_settings
from seq2seq.config.settings import read_section
from seq2seq.config.tokenizer import PatchGrid, TokenizerSettings
from seq2seq.data import corpus as corpora
from seq2seq.data.batching import Ragged, TokenBatchSampler, longest_width, padding_share
from seq2seq.data.cleaning import Dropped, Pairs, cleaning_table, length_rules, shorten
from seq2seq.data.corpus import Corpus
from seq2seq.data.dataset import BatchLoader, MixedPairs, PairDataset
from seq2seq.data.images import PictureError, encode_pictures
from seq2seq.data.multi_corpus import Direction, Mixture, Part, directions, only_splits, parts_of
from seq2seq.data.streaming import PairStream, StreamLoader, StreamSettings, refuse_epochs
from seq2seq.data.swapped_sides import refuse_swapped
from seq2seq.data.token_cache import Encoder, read_ids, write_ids
from seq2seq.data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer, train_tokenizer
from seq2seq.distributed import Agreement
from seq2seq.evaluation.metrics import tokenize_for
from seq2seq.files import Pace, build_once

if TYPE_CHECKING:
    from seq2seq.config.trainer import TrainerSettings

log = logging.getLogger(__name__)

# Counts as part of the id cache's fingerprint: raise it when the same text and tokenizer give another file.
CODE_VERSION = 2
_INT32 = (1 << 31) - 1
# Budget of a batch that is translated, at most: beams need memory of their own (`translate` takes as many on a GPU).
_DECODED_TOKENS = 8192


class TranslationDataModule(LightningDataModule):
    """Raw parallel text in, batches out; `data` is the plain dict of conf/data, and `cache_dir` keeps every result."""

    def __init__(
        self,
        *,
        data: Mapping[str, Any],
        tokenizer: TokenizerSettings | Mapping[str, Any],
        seed: int,
        cache_dir: Path,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.data, self.seed, self.num_workers = dict(data), int(seed), int(num_workers)
        self.cache_dir = Path(cache_dir)
        self.settings, self.parts = corpus_settings(data), parts_of(data)
        if not isinstance(tokenizer, TokenizerSettings):
            tokenizer = read_section(TokenizerSettings, tokenizer, "tokenizer")
        self.stream = self._streamed() if data.get("streaming") else None
        tags = dict.fromkeys(tag for part in self.parts for tag in part.tags)
        self.tokenizer_settings = replace(tokenizer, symbols=tuple(dict.fromkeys([*tokenizer.symbols, *tags])))
        self.auto = data.get("max_tokens") == "auto"
        self._max_tokens = None if self.auto else _whole_number(data.get("max_tokens"), "data.max_tokens", least=8)
        if self.auto and self.stream and not self.settings.clean.max_length:
            raise ValueError(
                "data.max_tokens=auto must know the longest pair, and a stream does not tell: set data.clean.max_length"
            )
        self.num_proc = _whole_number(data.get("num_proc", 1), "data.num_proc")
        self.src_lang, self.tgt_lang = self.settings.src, self.settings.tgt
        self.epoch, self._valid, self.fingerprint = 0, False, ""  # of the corpus, after `prepare`
        self.places: dict[str, Path] = {}  # what was prepared, and the folder that holds it
        self._tokenizer: Tokenizer | None = None
        self._datasets: dict[str, PairDataset | MixedPairs] = {}
        self._train_sampler: TokenBatchSampler | None = None
        self._pairs: PairStream | None = None

    def _streamed(self) -> StreamSettings:
        """What is read while training; the parts that are left to prepare are validation and test."""
        found = StreamSettings.of(self.data, self.parts, cache_dir=self.cache_dir, num_workers=self.num_workers)
        (part,) = self.parts
        self.parts = [replace(part, corpus=only_splits(part.corpus, ("valid", "test")))]
        return found

    # ---- preparation

    def validate_settings(self) -> None:
        """Check names, files, columns and direction before any work; ValueError with the remedy."""
        if self._valid:
            return
        for part in [*self.parts, *([self.stream.part] if self.stream else [])]:
            corpora.validate_corpus(part.corpus, cache_dir=self.cache_dir)
            given = self.tokenizer_settings
            if (given.ready_models or given.patches) and not _is_remote(part.corpus):
                first = part.corpus.splits[0]
                sample = corpora.sample_pairs(part.corpus, cache_dir=self.cache_dir, split=first)
                _check_pictures(given.patches, sample, first) if given.patches else self._check_vocabularies(sample)
        self._valid = True

    def prepare(self) -> None:
        """Load, clean, train or load the tokenizer, and encode, or read all of it from the cache; idempotent."""
        if self._datasets:
            return
        self.validate_settings()
        loaded = [corpora.load_corpus(part.corpus, cache_dir=self.cache_dir) for part in self.parts]
        for part, corpus in zip(self.parts, loaded, strict=True):
            self.places[self._named("text", part)] = corpus.folder
            if "train" in corpus.splits:
                head = corpus.splits["train"][:1000]
                refuse_swapped((head["src"], head["tgt"]), src=part.corpus.src, tgt=part.corpus.tgt)
        self.fingerprint = _fingerprint(self.parts, loaded) + (f"-{self.stream.fingerprint}" if self.stream else "")
        self._tokenizer = self._load_or_train([_training_text(corpus) for corpus in loaded if "train" in corpus.splits])
        for split in SPLITS[1:] if self.stream else SPLITS:
            found = [
                self._encoded(split, part, corpus)
                for part, corpus in zip(self.parts, loaded, strict=True)
                if split in corpus.splits
            ]
            self._datasets[split] = found[0] if len(found) == 1 else MixedPairs(found)
        self._describe()

    def _describe(self) -> None:
        sizes = "stream" if self.stream else self.size("train"), self.size("valid"), self.size("test")
        log.info(
            "%s: %s / %d / %d pairs (train / valid / test), vocabulary %d -> %d",
            ", ".join(dict.fromkeys(part.direction for part in self.parts)), *sizes,
            self.tokenizer.src_vocab_size, self.tokenizer.tgt_vocab_size,
        )  # fmt: skip
        self._describe_batches()

    def _describe_batches(self) -> None:
        if self.undecided:
            return
        if self.stream:
            log.info("padding %.1f%% of all cells of the first pool", 100 * self.padding_share)
        else:
            batches = self.batches_per_epoch
            log.info("padding %.1f%% of all cells, %d batches an epoch", 100 * self.padding_share, batches)

    def prepare_data(self) -> None:
        """Lightning's hook of one process a machine."""
        self.prepare()

    def setup(self, stage: str) -> None:
        """Lightning's hook of every process, once they have met: all take the least that a GPU of theirs holds."""
        self.prepare()
        _, processes, _ = self._world()
        if self.auto and processes > 1:
            (least,) = Agreement(processes).of([-self.max_tokens])
            self.set_budget(-int(least))

    def _check_vocabularies(self, sample: Pairs) -> None:
        """Separate ready models that cut the other side's text into fewer pieces were given for the other direction."""
        tokenizer = load_tokenizer(self.tokenizer_settings)
        if tokenizer.joint:
            return
        src, tgt = sample

        def pieces(source: list[str], target: list[str]) -> int:
            return sum(map(len, tokenizer.encode_src(source))) + sum(map(len, tokenizer.encode_tgt(target)))

        as_given, exchanged = pieces(src, tgt), pieces(tgt, src)
        if as_given > 1.1 * exchanged:
            raise ValueError(
                "source and target look swapped: tokenizer.src_model and tokenizer.tgt_model need "
                f"{as_given} pieces for the first {len(src)} pairs, and {exchanged} with the sides exchanged; "
                "exchange data.src and data.tgt, or the models"
            )

    def _load_or_train(self, texts: list[_Text]) -> Tokenizer:
        settings = self.tokenizer_settings
        if self.stream:
            first, size = self.stream, settings.input_sentence_size
            texts = [_Text(f"{first.fingerprint} {size}", lambda: first.head(size))]
        if settings.ready_models:
            self.places |= {f"tokenizer {i + 1}": Path(path) for i, path in enumerate(settings.ready_models)}
            return load_tokenizer(settings)
        unset = [name for name in ("symbols", "patches") if not getattr(settings, name)]
        free = ("model", "src_model", "tgt_model", "sampling_alpha", *unset)
        text = texts[0].fingerprint if len(texts) == 1 else [each.fingerprint for each in texts]
        values = [(name, getattr(settings, name)) for name in asdict(settings) if name not in free]
        key = repr([corpora.CODE_VERSION, text, values])
        folder = self.cache_dir / f"tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

        def build(building: Path) -> None:
            log.info("training the tokenizer (at most %s lines)", f"{settings.input_sentence_size:,}")
            lines = {"src_lines": _lines(texts, 0), "tgt_lines": _lines(texts, 1)}
            state = train_tokenizer(**lines, settings=settings).to_state()
            for name in ("src_model", "tgt_model"):
                if name in state:
                    (building / f"{name}.model").write_bytes(state[name])

        self.places["tokenizer"] = build_once(folder, "the tokenizer", build)
        return make_tokenizer([path.read_bytes() for path in sorted(folder.glob("*.model"))], settings)

    def _encoded(self, split: str, part: Part, corpus: Corpus) -> PairDataset:
        text = corpus.splits[split]
        tags = self.tokenizer.tag_ids(part.tags)
        key = " ".join([f"{CODE_VERSION} {corpus.fingerprint} {self.tokenizer.fingerprint} {split}", *map(str, tags)])
        folder = self.cache_dir / f"ids-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        what = self._named(f"ids of {split}", part)

        def build(building: Path) -> None:
            encoder = Encoder(tokenizer=self.tokenizer, tags=tags)
            pace = Pace(f"encoding, {what}", total=len(text))
            try:
                write_ids(building, corpus.blocks(split), encoder=encoder, num_proc=self.num_proc, pace=pace)
            except PictureError as error:
                raise ValueError(f"data.{split}, of the pairs that cleaning left: {error}") from None

        self.places[what] = build_once(folder, f"the {what}", build)
        src, tgt = (Ragged(*side) for side in read_ids(folder))
        kept = self._keep_by_length(src, tgt, part, corpus) if split == "train" else None
        sampling = split == "train" and self.tokenizer_settings.sampling_alpha > 0
        return PairDataset(
            src=src,
            tgt=tgt,
            text=text,
            tokenizer=self.tokenizer,
            rows=kept,
            tags=tags,
            sample_seed=self.seed if sampling else None,
        )

    def _named(self, what: str, part: Part) -> str:
        return what if len(self.parts) == 1 else f"{what} of {part.name}"

    def _keep_by_length(self, src: Ragged, tgt: Ragged, part: Part, corpus: Corpus) -> np.ndarray | None:
        """The rows that no rule about length drops, None for all."""
        text, clean = corpus.splits["train"], part.corpus.clean
        most = _INT32 if self.undecided else longest_width(self.max_tokens)
        masks = length_rules(src.lengths, tgt.lengths, settings=clean, max_tokens=most)
        dropped = list(corpus.dropped)
        for rule, mask in masks.items():
            pair = text[int(mask.argmax())] if mask.any() else None
            example = f"{shorten(pair['src'])} | {shorten(pair['tgt'])}" if pair else ""
            dropped.append(Dropped(rule, int(mask.sum()), example))
        log.info("%s%s", self._named("", part) and f"{part.name}: ", cleaning_table(dropped, read=corpus.read))
        drop = np.logical_or.reduce(list(masks.values()))
        if not drop.any():
            return None
        kept = np.flatnonzero(~drop)
        if kept.size == 0:
            raise ValueError(
                f"no training pair{self._named('', part)} is left: data.max_tokens={self._max_tokens or 'auto'}, "
                f"data.clean.max_length={clean.max_length} and length_ratio={clean.length_ratio} drop them all"
            )
        return kept if len(text) > _INT32 else kept.astype(np.int32)

    # ---- the budget of a batch

    @property
    def max_tokens(self) -> int:
        """Pieces of a batch, padding counted; ValueError while `auto` has not been decided."""
        if self._max_tokens is None:
            raise ValueError("data.max_tokens=auto is decided by seq2seq.train alone: set data.max_tokens to a number")
        return self._max_tokens

    @property
    def undecided(self) -> bool:
        """Whether data.max_tokens=auto still is to be decided."""
        return self._max_tokens is None

    @property
    def longest(self) -> tuple[int, int]:
        """Pieces of the longest source and the longest target to train on; of a stream, the most that there may be."""
        if self.stream:
            most = self.settings.clean.max_length or longest_width(self.max_tokens)
            return most, most
        data = self._split("train")
        longest = int(data.src_lengths.max()), int(data.tgt_lengths.max())
        # A sentence that is cut anew may become as long as the other side's longest.
        return (max(longest), max(longest)) if self.tokenizer_settings.sampling_alpha > 0 else longest

    @property
    def longest_allowed(self) -> float:
        """Pieces of the longest sentence that the settings let into training; infinite where they bound none."""
        parts = [*self.parts, *([self.stream.part] if self.stream else [])]
        longest = max(part.corpus.clean.max_length or math.inf for part in parts)
        return longest if self.auto else min(longest, longest_width(self.max_tokens))

    def set_budget(self, max_tokens: int) -> None:
        """Decide data.max_tokens=auto, before `prepare` or after it; what was prepared follows."""
        if max_tokens == self._max_tokens:
            return
        self._max_tokens, self._train_sampler, self._pairs = max_tokens, None, None
        self.__dict__.pop("_first_padding", None)
        if not self._datasets:
            return
        if not self.stream and max(self.longest) > longest_width(max_tokens):
            self._datasets = {}  # all of it is in the cache, but for pairs that are too long now
            self.prepare()
        else:
            self._describe_batches()

    # ---- what others read

    @property
    def tokenizer(self) -> Tokenizer:
        """The trained or loaded tokenizer (after `prepare`)."""
        assert self._tokenizer is not None, "call prepare() first"
        return self._tokenizer

    def size(self, split: str) -> int:
        """Number of pairs of a split after cleaning."""
        return len(self._split(split))

    def sources(self, split: str) -> list[str]:
        """Raw source text of a split, all in memory: meant for validation and test."""
        return self._split(split).lines("src")

    def references(self, split: str) -> list[str]:
        """Raw target text of a split, what scores are computed against; all in memory, as `sources`."""
        return self._split(split).lines("tgt")

    def directions(self, split: str) -> list[Direction]:
        """The parts of a split that are scored by themselves; none if it is one corpus."""
        parts = [part for part in self.parts if split in part.corpus.splits]
        data, chosen = self._split(split), self.data.get("tokenize") or {}
        sizes = [len(part) for part in data.parts] if isinstance(data, MixedPairs) else [len(data)]
        return directions(parts, sizes, lambda language: chosen.get(language) or tokenize_for(language))

    @property
    def target_languages(self) -> list[str]:
        """The languages that a tag before the source asks for; none without data.tag_target."""
        return sorted({part.corpus.tgt for part in self.parts if self.data.get("tag_target")})

    @property
    def padding_share(self) -> float:
        """Padding cells over all cells of an epoch (of a stream: of its first pool), source and target together."""
        if self.stream:
            return self._first_padding
        data = self._split("train")
        return padding_share(data.src_lengths, data.tgt_lengths, self._training_sampler().batches())

    @property
    def batches_per_epoch(self) -> float:
        """Training steps of this rank in an epoch; the same in every epoch, and infinite for a stream."""
        if self.stream:
            return math.inf
        return len(self._training_sampler())

    def _split(self, split: str) -> PairDataset | MixedPairs:
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        assert self._datasets, "call prepare() first"
        if split not in self._datasets:
            raise ValueError(f"split {split!r} is streamed: it has no size, and is nowhere as a whole")
        return self._datasets[split]

    # ---- loaders

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order (and subword sampling) the next iteration of the training loader has."""
        self.epoch = int(epoch)
        if not self.stream:
            self._training_sampler().set_epoch(self.epoch)

    def seek(self, *, epoch: int, step: int) -> None:
        """Let the next iteration over training batches (only) begin at this rank's batch `step` of `epoch`."""
        if self.stream:
            log.info("reading the stream again up to batch %s, where the run goes on", f"{step:,}")
            self._pair_stream().start = step
        else:
            self._training_sampler().seek(epoch=epoch, step=step)

    def refuse_rescaling(self, processes: int) -> None:
        """ValueError if a run of `processes` processes cannot be continued by another number of them."""
        if self.stream:
            raise ValueError(f"a streamed run is continued with as many processes as before: {processes}")

    def require_bounds(self, trainer: TrainerSettings) -> None:
        """ValueError for settings of a trainer that count epochs, where there are none."""
        if self.stream:
            refuse_epochs(trainer)

    def _pair_stream(self) -> PairStream:
        rank, world_size, _ = self._world()
        if self._pairs is None or (self._pairs.rank, self._pairs.world_size) != (rank, world_size):
            assert self.stream, "nothing is streamed"
            self._pairs = PairStream(
                blocks=self.stream.blocks,
                encoder=Encoder(tokenizer=self.tokenizer, tags=self.tokenizer.tag_ids(self.stream.part.tags)),
                clean=self.settings.clean,
                max_tokens=self.max_tokens,
                pool=self.stream.pool,
                seed=self.seed,
                rank=rank,
                world_size=world_size,
            )
        return self._pairs

    @cached_property
    def _first_padding(self) -> float:
        return self._pair_stream().first_padding()

    def train_dataloader(self) -> DataLoader:
        """Training batches, shuffled by (seed, epoch)."""
        if self.trainer is not None:
            self.epoch = self.trainer.current_epoch
        if self.stream:
            return StreamLoader(self._pair_stream(), num_workers=self.num_workers)
        self.set_epoch(self.epoch)
        return self._loader("train", self._training_sampler())

    def val_dataloader(self) -> DataLoader:
        """Validation batches, longest first, every sentence exactly once over all ranks."""
        return self._loader("valid", self._sampler("valid"))

    def test_dataloader(self) -> DataLoader:
        """Test batches, longest first, every sentence exactly once over all ranks."""
        return self._loader("test", self._sampler("test"))

    def _training_sampler(self) -> TokenBatchSampler:
        current = self._train_sampler
        if current is None or (current.rank, current.world_size, current.window) != self._world():
            self._train_sampler = current = self._sampler("train")
            current.set_epoch(self.epoch)
            self._split("train").sampler = current
        return current

    def _sampler(self, split: str) -> TokenBatchSampler:
        data = self._split(split)
        rank, world_size, window = self._world()
        sampler = TokenBatchSampler(
            src_lengths=data.src_lengths,
            tgt_lengths=data.tgt_lengths,
            max_tokens=self.max_tokens if split == "train" else min(self.max_tokens, _DECODED_TOKENS),
            seed=self.seed,
            shuffle=split == "train",
            rank=rank,
            world_size=world_size,
            window=window if split == "train" else 1,
        )
        if split == "train" and (mixture := self._mixture()):
            sampler.draw_from(mixture)
        return sampler

    def _mixture(self) -> Mixture | None:
        """How an epoch is drawn from several corpora; None where it is simply every pair once."""
        weights = [part.weight for part in self.parts if "train" in part.corpus.splits]
        temperature, data = float(self.data.get("temperature", 1.0)), self._split("train")
        if not isinstance(data, MixedPairs) or (weights[0] is None and temperature == 1):
            return None
        given = [weight for weight in weights if weight is not None]
        return Mixture([len(part) for part in data.parts], weights=given, temperature=temperature, seed=self.seed)

    def _world(self) -> tuple[int, int, int]:
        """This process's rank, their number, and the micro-batches of an update on each."""
        t = self.trainer
        return (0, 1, 1) if t is None else (t.global_rank, t.world_size, t.accumulate_grad_batches)

    def _loader(self, split: str, sampler: TokenBatchSampler) -> DataLoader:
        return BatchLoader(self._split(split), batch_sampler=sampler, num_workers=self.num_workers)


def _check_pictures(patches: PatchGrid, sample: Pairs, split: str) -> None:
    try:
        encode_pictures(sample[0], patches)
    except PictureError as error:
        raise ValueError(f"data.{split}: {error}") from None


def _whole_number(value: Any, name: str, *, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value!r}: a whole number of at least {least} is needed")
    return value


class _Text(NamedTuple):
    """Training text that a tokenizer is trained on."""

    fingerprint: str
    blocks: Callable[[], Iterator[Pairs]]


def _training_text(corpus: Corpus) -> _Text:
    return _Text(corpus.fingerprint, lambda: corpus.blocks("train"))


def _lines(texts: list[_Text], side: int) -> Iterator[str]:
    for text in texts:
        for block in text.blocks():
            yield from block[side]


def _is_remote(settings: CorpusSettings) -> bool:
    return bool(settings.path) and not corpora.resolve(str(settings.path)).is_dir()


def _fingerprint(parts: list[Part], loaded: list[Corpus]) -> str:
    """Of all text and tags; with one corpus, its own."""
    if len(parts) == 1 and not parts[0].tags:
        return loaded[0].fingerprint
    text = repr([(corpus.fingerprint, part.tags) for part, corpus in zip(parts, loaded, strict=True)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
