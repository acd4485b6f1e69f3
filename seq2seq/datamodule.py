"""The Lightning data module: from the `data` and `tokenizer` sections to batches, with everything cached on disk."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from seq2seq import corpus as corpora
from seq2seq.batching import Batch, Ragged, TokenBatchSampler, collate, longest_width, padding_share
from seq2seq.cleaning import Dropped, Pairs, cleaning_table, length_rules, shorten
from seq2seq.corpus import SPLITS, CorpusSettings, atomic_folder
from seq2seq.direction import refuse_swapped
from seq2seq.tokenizer import Tokenizer, TokenizerSettings, load_tokenizer, train_tokenizer

log = logging.getLogger(__name__)

# Counts as part of the id cache's fingerprint: raise it when the same text and tokenizer give another file.
CODE_VERSION = 1
_ROWS = 16_384


class PairDataset(Dataset):
    """A split as ids; indexed by a whole batch of positions, it returns the padded Batch."""

    def __init__(self, *, src: Ragged, tgt: Ragged, text: Any, tokenizer: Tokenizer, sample_seed: int | None) -> None:
        self.src, self.tgt, self.text, self.tokenizer = src, tgt, text, tokenizer
        self.sample_seed = sample_seed  # None: no subword regularisation
        self.sampler: TokenBatchSampler | None = None  # its epoch varies the drawn segmentations

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.src.lengths)

    def __getitems__(self, rows: np.ndarray) -> Batch:
        """The Batch of the pairs at `rows`."""
        rows = np.asarray(rows)
        src, tgt = self.src.select(rows), self.tgt.select(rows)
        if self.sample_seed is not None:
            src, tgt = self._resegment(rows, src, tgt)
        return collate(src, tgt, rows, pad_id=self.tokenizer.pad_id, bos_id=self.tokenizer.bos_id)

    def _resegment(self, rows: np.ndarray, src: Ragged, tgt: Ragged) -> tuple[Ragged, Ragged]:
        """Draw new segmentations; a row that would outgrow the batch keeps its best one, so the budget still holds."""
        width = int(max(src.lengths.max(), tgt.lengths.max()))
        text = self.text[rows.tolist()]
        epoch = self.sampler.epoch if self.sampler else 0
        seed = int(np.random.SeedSequence([self.sample_seed or 0, epoch, int(rows[0])]).generate_state(1)[0])
        drawn = []
        for best, ids in (
            (src, self.tokenizer.encode_src(text["src"], sample=True, seed=seed)),
            (tgt, self.tokenizer.encode_tgt(text["tgt"], sample=True, seed=seed + 1)),
        ):
            drawn.append(Ragged.from_rows([r if len(r) <= width else best.row(i).tolist() for i, r in enumerate(ids)]))
        return drawn[0], drawn[1]


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
        self.settings = CorpusSettings.from_mapping(data)
        if not isinstance(tokenizer, TokenizerSettings):
            tokenizer = TokenizerSettings.from_mapping(tokenizer)
        self.tokenizer_settings = tokenizer
        max_tokens = data.get("max_tokens")
        if not isinstance(max_tokens, int) or max_tokens < 8:
            raise ValueError(f"data.max_tokens={max_tokens!r}: a whole number of at least 8 is needed")
        self.max_tokens = max_tokens
        self.src_lang, self.tgt_lang = self.settings.src, self.settings.tgt
        self.epoch, self._valid, self.fingerprint = 0, False, ""  # of the corpus, after `prepare`
        self._tokenizer: Tokenizer | None = None
        self._datasets: dict[str, PairDataset] = {}
        self._train_sampler: TokenBatchSampler | None = None

    # ---- preparation

    def validate_settings(self) -> None:
        """Check names, files, columns and direction before any work; ValueError with the remedy."""
        if self._valid:
            return
        corpora.validate_corpus(self.settings, cache_dir=self.cache_dir)
        if self.tokenizer_settings.ready_models and not self._is_remote():
            self._check_vocabularies(corpora.sample_pairs(self.settings, cache_dir=self.cache_dir))
        self._valid = True

    def prepare(self) -> None:
        """Load, clean, train or load the tokenizer, and encode, or read all of it from the cache; idempotent."""
        if self._datasets:
            return
        self.validate_settings()
        corpus = corpora.load_corpus(self.settings, cache_dir=self.cache_dir)
        self.fingerprint = corpus.fingerprint
        head = corpus.splits["train"][:1000]
        refuse_swapped((head["src"], head["tgt"]), src=self.src_lang, tgt=self.tgt_lang)
        self._tokenizer = self._load_or_train(corpus)
        for split in SPLITS:
            self._datasets[split] = self._encoded(split, corpus)
        log.info(
            "%s: %d / %d / %d pairs (train / valid / test), vocabulary %d -> %d",
            f"{self.src_lang}-{self.tgt_lang}", *(self.size(split) for split in SPLITS),
            self.tokenizer.src_vocab_size, self.tokenizer.tgt_vocab_size,
        )  # fmt: skip
        log.info("padding %.1f%% of all cells, %d batches an epoch", 100 * self.padding_share, self.batches_per_epoch)

    def prepare_data(self) -> None:
        """Lightning's hook of one process a machine."""
        self.prepare()

    def setup(self, stage: str) -> None:
        """Lightning's hook of every process."""
        self.prepare()

    def _is_remote(self) -> bool:
        return bool(self.settings.path) and not corpora.resolve(str(self.settings.path)).is_dir()

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

    def _load_or_train(self, corpus: corpora.Corpus) -> Tokenizer:
        settings = self.tokenizer_settings
        if settings.ready_models:
            return load_tokenizer(settings)
        names = [name for name in asdict(settings) if name not in ("model", "src_model", "tgt_model", "sampling_alpha")]
        key = repr([corpora.CODE_VERSION, corpus.fingerprint, [(name, getattr(settings, name)) for name in names]])
        folder = self.cache_dir / f"tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            trained = train_tokenizer(
                src_lines=_lines(corpus.splits["train"], "src"),
                tgt_lines=_lines(corpus.splits["train"], "tgt"),
                settings=settings,
            )
            with atomic_folder(folder) as building:
                state = trained.to_state()
                for name in ("src_model", "tgt_model"):
                    if name in state:
                        (building / f"{name}.model").write_bytes(state[name])
        models = [path.read_bytes() for path in sorted(folder.glob("*.model"))]
        return Tokenizer(
            src_model=models[0],
            tgt_model=models[1] if len(models) == 2 else None,
            sampling_alpha=settings.sampling_alpha,
        )

    def _encoded(self, split: str, corpus: corpora.Corpus) -> PairDataset:
        text = corpus.splits[split]
        key = f"{CODE_VERSION} {corpus.fingerprint} {self.tokenizer.fingerprint} {split}"
        folder = self.cache_dir / f"ids-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            with atomic_folder(folder) as building:
                _write_ids(building, text, self.tokenizer)
        src, tgt = _read_ids(folder)
        if split == "train":
            kept = self._keep_by_length(src, tgt, text, corpus)
            if len(kept) < len(src.lengths):
                src, tgt, text = src.select(kept), tgt.select(kept), text.select(kept)
        sampling = split == "train" and self.tokenizer_settings.sampling_alpha > 0
        return PairDataset(
            src=src, tgt=tgt, text=text, tokenizer=self.tokenizer, sample_seed=self.seed if sampling else None
        )

    def _keep_by_length(self, src: Ragged, tgt: Ragged, text: Any, corpus: corpora.Corpus) -> np.ndarray:
        masks = length_rules(
            src.lengths, tgt.lengths, settings=self.settings.clean, max_tokens=longest_width(self.max_tokens)
        )
        dropped = list(corpus.dropped)
        for rule, mask in masks.items():
            pair = text[int(mask.argmax())] if mask.any() else None
            example = f"{shorten(pair['src'])} | {shorten(pair['tgt'])}" if pair else ""
            dropped.append(Dropped(rule, int(mask.sum()), example))
        log.info("%s", cleaning_table(dropped, read=corpus.read))
        kept = np.flatnonzero(~np.logical_or.reduce(list(masks.values())))
        if kept.size == 0:
            raise ValueError(
                f"no training pair is left: data.max_tokens={self.max_tokens}, data.clean.max_length="
                f"{self.settings.clean.max_length} and length_ratio={self.settings.clean.length_ratio} drop them all"
            )
        return kept

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
        """Raw source text of a split."""
        return list(self._split(split).text[:]["src"])

    def references(self, split: str) -> list[str]:
        """Raw target text of a split: what scores are computed against."""
        return list(self._split(split).text[:]["tgt"])

    @property
    def padding_share(self) -> float:
        """Padding cells over all cells of an epoch of training, source and target together."""
        data = self._split("train")
        return padding_share(data.src.lengths, data.tgt.lengths, self._training_sampler().batches())

    @property
    def batches_per_epoch(self) -> int:
        """Training steps of this rank in an epoch; the same in every epoch."""
        return len(self._training_sampler())

    def _split(self, split: str) -> PairDataset:
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        assert self._datasets, "call prepare() first"
        return self._datasets[split]

    # ---- loaders

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order (and subword sampling) the next iteration of the training loader has."""
        self.epoch = int(epoch)
        self._training_sampler().set_epoch(self.epoch)

    def train_dataloader(self) -> DataLoader:
        """Training batches, shuffled by (seed, epoch)."""
        if self.trainer is not None:
            self.epoch = self.trainer.current_epoch
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
        return TokenBatchSampler(
            src_lengths=data.src.lengths,
            tgt_lengths=data.tgt.lengths,
            max_tokens=self.max_tokens,
            seed=self.seed,
            shuffle=split == "train",
            rank=rank,
            world_size=world_size,
            window=window if split == "train" else 1,
        )

    def _world(self) -> tuple[int, int, int]:
        """This process's rank, their number, and the micro-batches of an update on each."""
        t = self.trainer
        return (0, 1, 1) if t is None else (t.global_rank, t.world_size, t.accumulate_grad_batches)

    def _loader(self, split: str, sampler: TokenBatchSampler) -> DataLoader:
        return DataLoader(
            self._split(split),
            batch_sampler=sampler,  # type: ignore[arg-type]
            collate_fn=_unchanged,  # type: ignore[arg-type]
            num_workers=self.num_workers,
        )


def _unchanged(batch: Batch) -> Batch:
    return batch


def _lines(dataset: Any, column: str) -> Iterator[str]:
    for block in dataset.iter(batch_size=_ROWS):
        yield from block[column]


def _write_ids(folder: Path, text: Any, tokenizer: Tokenizer) -> None:
    """Encode a split block by block into flat arrays on disk, one file of ids and one of lengths a side."""
    meta = {}
    for side, encode, vocab_size in (
        ("src", tokenizer.encode_src, tokenizer.src_vocab_size),
        ("tgt", tokenizer.encode_tgt, tokenizer.tgt_vocab_size),
    ):
        dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
        lengths: list[np.ndarray] = []
        with (folder / f"{side}.ids").open("wb") as file:
            for block in text.iter(batch_size=_ROWS):
                rows = Ragged.from_rows(encode(block[side]))
                rows.ids.astype(dtype).tofile(file)
                lengths.append(rows.lengths)
        np.save(folder / f"{side}.lengths.npy", np.concatenate(lengths))
        meta[side] = dtype.name
    (folder / "meta.json").write_text(json.dumps(meta))


def _read_ids(folder: Path) -> tuple[Ragged, Ragged]:
    meta = json.loads((folder / "meta.json").read_text())
    sides = []
    for side in ("src", "tgt"):
        lengths = np.load(folder / f"{side}.lengths.npy")
        ids = np.memmap(folder / f"{side}.ids", dtype=meta[side], mode="r")
        sides.append(Ragged(ids, np.cumsum(lengths, dtype=np.int64) - lengths, lengths))
    return sides[0], sides[1]
