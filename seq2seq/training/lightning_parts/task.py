"""The LightningModule: losses, the update of a window, validations and the test, and the state in a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from seq2seq import checkpoint
from seq2seq.data.batching import Batch
from seq2seq.data.ragged import Ragged
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.inference.translator import Translator
from seq2seq.metadata import KEY, search_settings
from seq2seq.network.build import hidden_matrices
from seq2seq.network.low_rank import merged
from seq2seq.network.model import Seq2Seq
from seq2seq.search.graphs import CudaRecorder
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.bounds.divergence import (
    SkippedUpdates,
    remedies,
    require_finite_loss,
    require_finite_weights,
)
from seq2seq.training.lightning_parts.replay import Replay
from seq2seq.training.lightning_parts.split_evaluation import decoding_graphs, make_evaluator, warn_of_split
from seq2seq.training.machine.fsdp import is_sharded, make_parts, make_whole, shard
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.guided_alignment import guided_losses
from seq2seq.training.objective.loss import LossSums
from seq2seq.training.objective.optim import Schedule, build_optimizer, scale_and_clip

# Name of this range in a profile, which callbacks/profiler.py reads.
FORWARD = "forward pass"


class TranslationTask(L.LightningModule):
    """Train, validate and test a Seq2Seq.

    Token losses are summed, and divided by the tokens of the accumulation window: the micro-batches of one update on
    all ranks. Accumulation and the number of ranks therefore change rounding alone. Dropout is a function of (seed,
    update, micro-batch of the window).

    Args:
        description: The model, languages and search that a checkpoint keeps for translation.
        search: The search of validations; the test replaces it.
        sentences: Numbers of "valid" and "test" sentences that are evaluated (default: all).
        graphs: Capture and replay the passes, which needs a GPU; see `resolve_graphs`.
        teacher: A fixed model with the same vocabulary, for `optim.teacher`.
        links: Links of the training pairs' pieces, for `optim.guided_alignment`.
    """

    teacher: Seq2Seq | None

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        description: dict[str, Any],
        optim: OptimSettings,
        search: SearchSettings,
        seed: int,
        sentences: Mapping[str, int | None] | None = None,
        max_skipped: int = 10,
        budget: Budget | None = None,
        graphs: bool = False,
        teacher: Seq2Seq | None = None,
        links: Ragged | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.description = description
        self.optim = optim
        self.search = search
        self.sentences = sentences or {}
        # Set past torch's registration: neither a checkpoint nor the optimizer has the teacher's weights
        vars(self)["teacher"] = teacher
        self.links = links
        self.evaluation: Evaluation | None = None  # the last one
        self._evaluator: Any = None
        self._split = "valid"
        self._reported: set[str] = set()  # splits that have been looked at
        self.seed = seed
        self.budget = budget  # an annealed learning rate follows its used share
        self.graphs = graphs
        self.replay: Replay | None = None
        # Not buffers, because they are not weights. Sums over ranks: loss, nll, tokens, sentences.
        self.train_sums = torch.zeros(4, dtype=torch.float64)
        self.grad_norm = torch.zeros(())
        self._window_sums = torch.zeros(4, dtype=torch.float64)
        self.skipped = SkippedUpdates(max_skipped, remedies=remedies(optim))
        self.batch_shape: tuple[int, ...] | None = None  # of the last batch: sentences, source and target width

    def configure_model(self) -> None:
        """Shard the model if the strategy shards; Lightning calls this before training and before the test."""
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    def sum_losses(self, batch: Batch) -> LossSums:
        """Sum the losses of a batch; training uses R-Drop, the teacher or links, if there are any."""
        teacher = self.teacher
        if teacher is not None and teacher.output.weight.device != batch.src.device:
            teacher.to(batch.src.device)
        if self.training and self.links is not None:
            return guided_losses(self.model, batch, self.optim, self.links, teacher=teacher)
        return sum_losses(self.model, batch, self.optim, teacher=teacher)

    def translator(self, search: SearchSettings | None = None) -> Translator:
        """Return a translator that shares the model, which is put into evaluation mode.

        Args:
            search: Default: the search that checkpoints keep, by which the test set is translated.
        """
        search = search or dataclasses.replace(search_settings(self.description), max_len=self.search.max_len)
        return Translator(
            model=self.model.eval(),
            tokenizer=self.tokenizer,
            meta=self.description,
            settings=search,
            device=self.device,
            max_len=min(LONGEST_SOURCE, search.max_len or LONGEST_SOURCE),
            graphs=decoding_graphs(self),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with the current weights, see `seq2seq.checkpoint.save`."""
        checkpoint.save(path, checkpoint.Stored(self.description, merged(self.model.state_dict())))

    # Training

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the summed loss of a micro-batch, times the window's length, by which Lightning will divide it."""
        window = self.trainer.accumulate_grad_batches
        # Numbered over all ranks: R ranks with windows of A draw the same dropout as one rank with R * A.
        micro_batch = batch_idx % window * self.trainer.world_size + self.trainer.global_rank
        number = micro_batch_seed(self.seed, self.trainer.global_step, micro_batch)
        seed = partial(seed_generator, number, batch.src.device)
        self.batch_shape = (*batch.src.shape, batch.tgt_in.shape[1])  # for `as_fault`
        self.skipped.note(batch.index)  # to name its sentences if the gradient is not finite
        if self.replay is None:
            seed()
            sums = self._forward(batch)
        else:
            if batch_idx % window == 0:
                self.replay.clear()
            sums = self.replay(batch, window, seed=seed)
        # Sums stay on the device: reading them would wait for it at every micro-batch.
        loss = sums.loss.detach().double()
        sentences = (batch.index >= 0).sum().double()  # an idle micro-batch has index -1
        counts = torch.stack([loss, sums.nll.double(), sums.tokens.double(), sentences])  # (4,)
        self._window_sums = self._window_sums.to(loss.device) + counts
        return sums.loss * window

    def _forward(self, batch: Batch) -> LossSums:
        with record_function(FORWARD):
            return self.sum_losses(batch)

    def _passes(self, batch: Batch, window: int) -> LossSums:
        """Compute the losses of a micro-batch and add its gradients, with the same operations as Lightning's loop."""
        sums = self._forward(batch)
        loss = sums.loss * window / window
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()
        return LossSums(*(each.detach() for each in sums))

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass, unless `training_step` has run it."""
        if self.replay is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Drop the gradients, unless `training_step` has just computed them: Lightning calls this after it."""
        if self.replay is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def on_train_epoch_start(self) -> None:
        """Set the epoch of the data; Lightning sets the epoch of samplers, but not of batch samplers."""
        self.trainer.datamodule.set_epoch(self.trainer.current_epoch)  # type: ignore[attr-defined]

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients, summed over the window and all ranks, by the tokens of the window, then clip.

        An update that is not finite is skipped, and changes neither the weights nor the sums.
        """
        sums, ranks = self._window_sums, self.trainer.world_size
        if ranks > 1:
            dist.all_reduce(sums)  # one message: the tokens to divide by, and the sums to report
        # `training_step` undoes Lightning's division by the window; this undoes FSDP's mean over ranks.
        scale = (1 if self.device_mesh is None else ranks) / sums[2].clamp(min=1).float()
        self.grad_norm = scale_and_clip(self.parameters(), scale, clip_norm=self.optim.clip_norm)
        skipped = self.skipped.count
        bad = self.skipped.judge(self.grad_norm, optimizer, self.trainer.global_step)
        # Sharded weights are not checked, as a rank has only a shard; the limit of skipped updates ends such a run.
        if self.skipped.count > skipped and self.device_mesh is None:
            require_finite_weights(self.model, self.optim, step=self.trainer.global_step)
        self.train_sums = self.train_sums.to(sums.device) + torch.where(bad, torch.zeros_like(sums), sums)
        self._window_sums = torch.zeros_like(sums)

    def configure_optimizers(self) -> Any:
        """Build the optimizer and its schedule, which Lightning steps once an update."""
        optimizer = build_optimizer(self.parameters(), self.optim, hidden_matrices(self.model))
        schedule = {"scheduler": Schedule(optimizer, self.optim), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_train_start(self) -> None:
        """Prepare to replay passes, and set the rate of the first update, since a resumed run may have a new budget."""
        if self.graphs:
            self.replay = Replay(self._passes, self.model, make=partial(CudaRecorder, self.device))
        # A stream without a limit has the number -1
        bounded = self.budget or 0 < self.trainer.estimated_stepping_batches < math.inf
        if self.optim.schedule == "anneal" and not bounded:
            raise ValueError(
                "optim.schedule=anneal needs the number of updates: give the Trainer max_steps or max_epochs, or set "
                "optim.schedule=inverse_sqrt"
            )
        if self.budget and self.trainer.global_step:
            self.budget.agree()
            self.lr_schedulers().follow(self.budget.schedule_share(self.trainer))  # type: ignore[union-attr]

    def on_train_end(self) -> None:
        """Free the memory of recordings before the test."""
        if self.replay is not None:
            self.replay.release()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step the schedules of rate and window after an update, by the used share of the budget."""
        if self.budget:
            self.budget.end_update()
            scheduler.share = self.budget.schedule_share(self.trainer)
            window = self.trainer.accumulate_grad_batches
            grow_window(self.trainer, self.budget.settings, scheduler.share)
            if self.replay is not None and self.trainer.accumulate_grad_batches != window:
                # No pass of the smaller window comes again
                self.replay.release()
        else:
            # A Trainer of the user's own
            scheduler.share = min(1.0, self.trainer.global_step / self.trainer.estimated_stepping_batches)
        scheduler.step()

    # Validation and test

    def on_validation_epoch_start(self) -> None:
        """Start a validation."""
        self._start("valid")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Decode a batch and sum its losses."""

        def finite_losses(batch: Batch) -> LossSums:
            sums = self.sum_losses(batch)
            require_finite_loss(sums.loss, self.optim, step=self.trainer.global_step, split=self._split)
            return sums

        self._evaluator.add(batch, finite_losses)

    def on_validation_epoch_end(self) -> None:
        """Score the validation set and log it."""
        self._finish("val")

    def on_test_epoch_start(self) -> None:
        """Start the test."""
        self._start("test")

    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        """Score the test set and log it."""
        self._finish("test")

    def _start(self, split: str) -> None:
        """Start to evaluate a split; refuse weights that are not finite."""
        # Ranks decode different numbers of steps, so sharded weights are gathered first.
        make_whole(self.model)
        require_finite_weights(self.model, self.optim, step=self.trainer.global_step)
        self._split = split
        self._evaluator = make_evaluator(self, self.trainer.datamodule, split)  # type: ignore[attr-defined]

    def _finish(self, name: str) -> None:
        """Score the split, and log its scores under a name; all ranks must call this together."""
        evaluator, self._evaluator = self._evaluator, None  # the evaluator's texts are freed with it
        if self.trainer.world_size > 1:
            # Every rank decoded other sentences: gather their texts and losses.
            parts: list[Any] = [None] * self.trainer.world_size
            dist.all_gather_object(parts, evaluator.partial())
            evaluator.merge(parts)
        evaluation: Evaluation = evaluator.result()
        self.evaluation = evaluation
        # After the merge all ranks know all lengths.
        if self._split not in self._reported and self.trainer.is_global_zero:
            warn_of_split(evaluator, evaluation, self._split)
        self._reported.add(self._split)
        # Every rank has the same values: they come from gathered texts and summed losses.
        values = {f"{name}/{key}": value for key, value in evaluation.numbers().items()}
        self.log_dict(values, logger=False, batch_size=1, rank_zero_only=True)
        make_parts(self.model)

    # Checkpoint

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the data that translation and resuming need besides the weights."""
        checkpoint[KEY] = self.description
        checkpoint["train_sums"] = self.train_sums.tolist()
        # A GPU's results are read late, and the count in the file must include them.
        self.skipped.settle()
        checkpoint["skipped"] = self.skipped.count
        checkpoint |= window_state(self.trainer, self.budget)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the sums, and continue the data after the last batch of the checkpoint."""
        self.train_sums = torch.tensor(checkpoint["train_sums"], dtype=torch.float64)
        self.skipped.count = checkpoint["skipped"]
        restore_window(self.trainer, checkpoint, self.budget)
        seek_data(checkpoint, self.trainer, self.trainer.datamodule)  # type: ignore[attr-defined]


def grow_window(trainer: L.Trainer, settings: TrainerSettings, share: float) -> None:
    """Give updates `trainer.accumulate` micro-batches once `trainer.accumulate_share` of the schedule is used.

    Small batches learn more from the first tokens. Larger batches lower the noise of the gradient, as a lower learning
    rate does.

    Reference:
        Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size.
    """
    full = settings.accumulate
    # A window of the larger size may begin at a multiple of its size in the epoch.
    begins = trainer.is_last_batch or (trainer.fit_loop.epoch_loop.batch_idx + 1) % full == 0
    if settings.accumulate_start and begins and share >= settings.accumulate_share:
        trainer.accumulate_grad_batches = full


def window_state(trainer: L.Trainer, budget: Budget | None) -> dict[str, Any]:
    """Return, for a checkpoint, the number of ranks, the micro-batches of an update, and whether they have grown."""
    window = trainer.accumulate_grad_batches
    grown = budget is not None and bool(budget.settings.accumulate_start) and window > budget.settings.first_window
    return {"processes": trainer.world_size, "accumulated": window, "grown": grown}


def restore_window(trainer: L.Trainer, checkpoint: Mapping[str, Any], budget: Budget | None) -> None:
    """Restore a grown window, if the settings of this run grow it too."""
    if budget and budget.settings.accumulate_start and checkpoint["grown"]:
        trainer.accumulate_grad_batches = budget.settings.accumulate


def seek_data(checkpoint: dict[str, Any], trainer: L.Trainer, data: Any) -> None:
    """Continue the data after the last batch of a checkpoint, and fit Lightning's counts to this run, in place."""
    loops = checkpoint["loops"]["fit_loop"]
    # `processed`, not `completed`, which lags by one in the hook that saves.
    epoch = loops["epoch_progress"]["current"]["processed"]
    progress = loops["epoch_loop.batch_progress"]
    window, ranks, before = trainer.accumulate_grad_batches, trainer.world_size, checkpoint["processes"]
    if before != ranks and data.streaming:
        raise ValueError(f"data.streaming=true: resume this run with as many processes as before: {before}")
    if data.cut:
        rescale(progress, (window, checkpoint["accumulated"]), window)
    elif before != ranks:
        rescale(progress, (before, ranks), window)
    batches = progress["current"]
    # Lightning starts the next epoch by itself if the checkpoint was saved in the hook of the last batch. If it was
    # saved later, Lightning asks for one more batch, and must find the epoch at its end.
    done = batches["processed"] == data.batches_per_epoch
    if not (done and batches["completed"] < batches["processed"]):
        data.seek(epoch=epoch, step=batches["processed"])


def rescale(progress: dict[str, Any], ratio: tuple[int, int], window: int) -> None:
    """Rescale a rank's counts of batches to another number of ranks or micro-batches, in whole windows, in place."""
    times, divisor = ratio
    for counts in (progress["current"], progress["total"]):
        # Rounded down to a whole window: an update is never resumed in its middle.
        processed = counts["processed"] * times // divisor // window * window
        # The lag of `completed` tells in which hook the checkpoint was saved; `seek_data` reads it.
        lag = counts["processed"] - counts["completed"]
        counts |= {"ready": processed, "started": processed, "processed": processed, "completed": processed - lag}


def micro_batch_seed(seed: int, step: int, micro_batch: int) -> int:
    """Derive a 63-bit seed that differs for every (seed, update, micro-batch of the window on all ranks)."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, micro_batch), digest_size=8).digest()
    # A seed is a signed 64-bit number.
    return int.from_bytes(digest, "little") >> 1


def seed_generator(seed: int, device: torch.device) -> None:
    """Seed the generators of training on `device`."""
    # torch.manual_seed also queues a call, with a traceback, for every unused type of device.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
