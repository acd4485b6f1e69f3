"""The Lightning data module: loaders over prepared data, and the position from which a run is resumed."""

from __future__ import annotations

import functools
import logging
import math

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from seq2seq.data.batching import batch_shapes, padding_share
from seq2seq.data.dataset import PackedLoader
from seq2seq.data.multi_corpus import Direction, directions
from seq2seq.data.preparation import PreparedData
from seq2seq.data.streaming import PairStream, StreamLoader
from seq2seq.data.updates import TokenBatchSampler, UpdateCut
from seq2seq.inference.limits import evaluation_tokens
from seq2seq.metrics.scorers import tokenize_for
from seq2seq.system.ranks import Agreement
from seq2seq.training.machine.prefetch import StreamCopier, copied_ahead

log = logging.getLogger(__name__)


class TranslationDataModule(LightningDataModule):
    """Batches of prepared data, different on each rank.

    Args:
        src_multiple: The width of a batch's source is a multiple of this.
        window: Micro-batches of the largest update on each rank, unless data.batch_tokens is set.
        processes: The number of ranks of the run.
    """

    def __init__(self, prepared: PreparedData, *, src_multiple: int = 1, window: int = 1, processes: int = 1) -> None:
        super().__init__()
        self.src_multiple = src_multiple
        self._window = window
        self.processes = processes
        self.prepared = prepared
        self.epoch = 0
        self._train_sampler: TokenBatchSampler | None = None
        self._stream: PairStream | None = None

    def setup(self, stage: str) -> None:
        """Agree on the smallest batch size that `data.max_tokens=auto` found on any rank.

        With `data.batch_tokens`, the Trainer gets its number of micro-batches an update here.

        Raises:
            ValueError: A split to score has fewer sentences than there are ranks.
        """
        _, world_size = self._world()
        # Checked here, because the test set is read only after the last update
        for split in ("valid", "test"):
            if (size := self.prepared.size(split)) < world_size:
                raise ValueError(
                    f"data.{split} has {size} sentences, and each of {world_size} processes needs one: use fewer "
                    f"devices, or a larger {split} set"
                )
        if self.prepared.plan.data.max_tokens == "auto" and world_size > 1:
            # Ranks agree on a maximum, so sizes are negated to find the minimum.
            (least,) = Agreement().maxima([-self.max_tokens])
            if -int(least) != self.max_tokens:
                self.prepared = self.prepared.with_max_tokens(-int(least))
                # `describe` built the sampler or stream for another batch size; it is built again on first use.
                self._train_sampler = self._stream = None
                self.describe()
        if self.cut and self.trainer is not None:
            self.trainer.accumulate_grad_batches = self.window

    def describe(self) -> None:
        """Log the share of padding and the number of batches."""
        padding, count = 100 * self.padding_share, self.batches_per_epoch
        if self.streaming:
            log.info("padding %.1f%% of all cells of the first shuffle buffer", padding)
        else:
            told = "padding %.1f%% of all cells, batches an epoch: %d (%d updates)"
            log.info(told, padding, count, self.updates_per_epoch)

    def directions(self, split: str) -> list[Direction]:
        """List the parts of a split that are scored separately; empty for a single corpus."""
        plan = self.prepared.plan
        corpora = self.prepared.corpora(split)
        parts = [part for part, _ in corpora]
        sizes = [len(pairs) for _, pairs in corpora]
        return directions(parts, sizes, lambda language: tokenize_for(language, plan.data.tokenize))

    # Epochs and positions

    @property
    def streaming(self) -> bool:
        """True if training reads its text during the run."""
        return self.prepared.plan.stream is not None

    @property
    def max_tokens(self) -> int:
        """Tokens of a micro-batch, padding included."""
        return self.prepared.plan.require_max_tokens()

    @property
    def cut(self) -> UpdateCut | None:
        """The cut of an update of data.batch_tokens into micro-batches; None if an update is a number of batches."""
        return self.prepared.cut(self.processes)

    @property
    def window(self) -> int:
        """Micro-batches of the largest update on each rank."""
        # Each rank cuts its own share of a stream
        ranks = 1 if self.streaming else self.processes
        return self.cut.micro_batches // ranks if self.cut else self._window

    @property
    def padding_share(self) -> float:
        """Share of padding in all cells of an epoch (for a stream: of its first shuffle buffer), both sides together.

        If segmentations are sampled, this is the share for the best segmentations.
        """
        if self.streaming:
            return self.prepared.first_padding
        data = self.prepared.split("train")
        batches = self._training_sampler().batches()
        return padding_share(*data.lengths, batches, src_multiple=self.src_multiple)

    def shapes(self) -> set[tuple[int, int, int]]:
        """Return rows, source width and target width of this epoch's training batches; empty for a stream."""
        if self.streaming:
            return set()
        src, tgt = self.prepared.split("train").room(self.epoch)
        return batch_shapes(src, tgt, self._training_sampler().batches(), src_multiple=self.src_multiple)

    @property
    def updates_per_epoch(self) -> int:
        """Updates in an epoch; a stream has no epochs."""
        batches_per_update = self.window * self.processes // self._world()[1]
        return math.ceil(self.batches_per_epoch / batches_per_update)

    @property
    def batches_per_epoch(self) -> float:
        """Training batches of this rank in an epoch; the same in every epoch, and infinite for a stream."""
        return math.inf if self.streaming else len(self._training_sampler())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order (and subword sampling) of the next iteration over training batches."""
        self.epoch = int(epoch)
        if not self.streaming:
            self._training_sampler().set_epoch(self.epoch)

    def seek(self, *, epoch: int, step: int) -> None:
        """Start the next iteration over training batches, and only that one, at this rank's batch `step` of `epoch`."""
        if self.streaming:
            log.info("reading the stream again up to batch %s, where the run continues", f"{step:,}")
            self._training_stream().start = step
            return
        sampler = self._training_sampler()
        if step > len(sampler):
            raise ValueError(
                f"the checkpoint was made after batch {step:,} of an epoch, but with the data settings of this command "
                f"an epoch has {len(sampler):,} batches: resume with the settings of the checkpoint's run, or begin a "
                "new run from its weights with init_from=<checkpoint>"
            )
        sampler.seek(epoch=epoch, step=step)

    # Loaders

    def train_dataloader(self) -> DataLoader:
        """Build the loader of training batches, shuffled by (seed, epoch)."""
        # Lightning asks for a loader before the hook of the first epoch sets the epoch.
        if self.trainer is not None:
            self.epoch = self.trainer.current_epoch
        if self.streaming:
            loader = StreamLoader(self._training_stream(), num_workers=self.prepared.plan.data.num_workers)
            return self._copied_ahead(loader)
        self.set_epoch(self.epoch)
        return self._loader("train", self._training_sampler())

    def val_dataloader(self) -> DataLoader:
        """Build the loader of validation batches: longest first, every sentence exactly once over all ranks."""
        return self._loader("valid", self._sampler("valid"))

    def test_dataloader(self) -> DataLoader:
        """Build the loader of test batches: longest first, every sentence exactly once over all ranks."""
        return self._loader("test", self._sampler("test"))

    def _loader(self, split: str, sampler: TokenBatchSampler) -> DataLoader:
        data = self.prepared.split(split).sampled_by(sampler, self.src_multiple)
        loader = PackedLoader(data, batch_sampler=sampler, num_workers=self.prepared.plan.data.num_workers)
        return self._copied_ahead(loader)

    def _copied_ahead(self, loader: PackedLoader) -> PackedLoader:
        """Make a loader copy its batches to a GPU ahead of their use."""
        if self._device.type == "cuda":
            loader.ahead = functools.partial(copied_ahead, start=StreamCopier(self._device))
        return loader

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device

    def _training_sampler(self) -> TokenBatchSampler:
        current = self._train_sampler
        # `describe` may be called without a trainer, and then builds a sampler for one rank.
        if current is None or (current.rank, current.world_size) != self._world():
            current = self._sampler("train")
            current.set_epoch(self.epoch)
            self._train_sampler = current
        return current

    def _training_stream(self) -> PairStream:
        rank, world_size = self._world()
        # A stream skips the pairs of other ranks, so it also depends on the number of ranks.
        if self._stream is None or (self._stream.rank, self._stream.world_size) != (rank, world_size):
            ranks = {"rank": rank, "world_size": world_size}
            self._stream = self.prepared.stream(**ranks, src_multiple=self.src_multiple, cut=self.cut)
        return self._stream

    def _sampler(self, split: str) -> TokenBatchSampler:
        data = self.prepared.split(split)
        training = split == "train"
        rank, world_size = self._world()
        src, tgt = data.room()
        plan, on_gpu = self.prepared.plan, self._device.type == "cuda"
        return TokenBatchSampler(
            src_lengths=src,
            tgt_lengths=tgt,
            max_tokens=plan.part_tokens if training else evaluation_tokens(self.max_tokens, gpu=on_gpu),
            seed=plan.seed,
            shuffle=training,
            rank=rank,
            world_size=world_size,
            # A window of n micro-batches on one rank is the same update as one micro-batch on each of n ranks.
            window=self._window if training else 1,
            cut=self.cut if training else None,
            # Corpora with weights or a temperature are sampled; otherwise every pair occurs once an epoch.
            mixture=self.prepared.mixture() if training else None,
            # Changed lines have other lengths, and each epoch changes others.
            lengths_in=data.room if data.augmented else None,
        )

    def _world(self) -> tuple[int, int]:
        """Return this process's rank and the number of ranks."""
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
