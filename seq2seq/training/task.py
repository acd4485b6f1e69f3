"""The LightningModule: the loss of a micro-batch, the update of a window, and validation by real decoding."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from seq2seq.config.optim import OptimSettings
from seq2seq.config.search import SearchSettings
from seq2seq.data.batching import Batch
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation import metrics
from seq2seq.model import Seq2Seq
from seq2seq.search import search
from seq2seq.training.fsdp import is_sharded, make_parts, make_whole, shard
from seq2seq.training.loss import LossSums, projected_cross_entropy
from seq2seq.training.optim import Schedule, build_optimizer, scale_and_clip
from seq2seq.training.skipped_updates import SkippedUpdates

# Pieces of a source, beyond which it is cut: `translate`'s default.
LONGEST_SOURCE = 1024
# What a profile calls it.
FORWARD = "forward pass"


class Evaluation(NamedTuple):
    """A split translated and scored: BLEU, chrF, loss and nll per target token (nats), and the texts in file order."""

    bleu: metrics.Score
    chrf: metrics.Score
    loss: float
    nll: float
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    directions: tuple[tuple[str, metrics.Score], ...] = ()  # BLEU of each, where a split has several

    @property
    def perplexity(self) -> float:
        """exp(nll), infinite where that overflows."""
        return math.exp(self.nll) if self.nll < 700 else math.inf

    def numbers(self) -> dict[str, float]:
        """The scores by name."""
        scores = {"bleu": self.bleu.value, "chrf": self.chrf.value, "loss": self.loss, "nll": self.nll}
        scores |= {f"bleu_{name}": score.value for name, score in self.directions}
        return scores | {"perplexity": self.perplexity}

    def report(self) -> dict[str, Any]:
        """The scores by name, and sacreBLEU's signatures: what results.json says."""
        signatures = [self.bleu.signature, self.chrf.signature, *(score.signature for _, score in self.directions)]
        return self.numbers() | {"signatures": signatures}


class TranslationTask(L.LightningModule):
    """Trains a Seq2Seq: sums of token losses, divided by the tokens of the whole window before the update.

    The window is the micro-batches of one update over all ranks, so that accumulation and ranks change nothing but
    rounding. Dropout is a function of (seed, update, micro-batch of the window).
    """

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        description: dict[str, Any],
        optim: OptimSettings,
        search: SearchSettings,
        seed: int,
        val_sentences: int | None = None,
        max_skipped: int = 10,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer, self.description = tokenizer, description
        self.optim, self.search, self.seed, self.val_sentences = optim, search, seed, val_sentences
        self.evaluation: Evaluation | None = None
        self.share_done: Callable[[], float] = float  # the used part of the run's budget, 0 to 1; `train` sets it
        # Plain attributes, not buffers: they are no part of the weights. Sums over ranks: loss, nll, tokens, sentences.
        self.train_sums = torch.zeros(4, dtype=torch.float64)
        self.grad_norm = torch.zeros(())
        self._window_sums = torch.zeros(4, dtype=torch.float64)
        self.skipped = SkippedUpdates(max_skipped)
        self.batch_shape = (0, 0, 0)  # of the last one: sentences, source and target width
        self._eval_sums = torch.zeros(3, dtype=torch.float64)
        self._hypotheses: dict[int, str] = {}
        self._kept: np.ndarray | None = None
        self._blank: frozenset[int] = frozenset()

    def configure_model(self) -> None:
        """Where the strategy shards the model, do so; Lightning calls this before training and before the test."""
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    # Training

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The summed loss of a micro-batch, times the window's length because Lightning will divide by it."""
        window = self.trainer.accumulate_grad_batches
        micro_batch = batch_idx % window * self.trainer.world_size + self.trainer.global_rank
        seed_generator(micro_batch_seed(self.seed, self.trainer.global_step, micro_batch), batch.src.device)
        self.batch_shape = (*batch.src.shape, batch.tgt_in.shape[1])
        self.skipped.note(batch.index)
        with record_function(FORWARD):
            sums = self.sum_losses(batch)
        loss = sums.loss.detach().double()
        counts = torch.stack([loss, sums.nll.double(), sums.tokens.double(), loss.new_tensor(batch.src.shape[0])])
        self._window_sums = self._window_sums.to(loss.device) + counts
        return sums.loss * window

    def on_train_epoch_start(self) -> None:
        """Lightning sets the epoch of samplers alone."""
        self._data.set_epoch(self.trainer.current_epoch)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the summed gradients by the tokens of the window over all ranks (DDP has averaged them), then clip.

        An update that is not finite is skipped, and counts neither in the weights nor in the sums.
        """
        sums, ranks = self._window_sums, self.trainer.world_size
        if ranks > 1:
            dist.all_reduce(sums)
        scale = ranks / sums[2].clamp(min=1).float()
        self.grad_norm = scale_and_clip(self.parameters(), scale, clip_norm=self.optim.clip_norm)
        bad = self.skipped.judge(self.grad_norm, optimizer, self.trainer.global_step)
        self.train_sums = self.train_sums.to(sums.device) + torch.where(bad, torch.zeros_like(sums), sums)
        self._window_sums = torch.zeros_like(sums)

    def configure_optimizers(self) -> Any:
        """The optimiser and its schedule, stepped once per update."""
        optimizer = build_optimizer(self.parameters(), self.optim)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": Schedule(optimizer, self.optim), "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Our schedule takes no metric, but the used part of the budget."""
        scheduler.share = self.share_done()
        scheduler.step()

    def sum_losses(self, batch: Batch) -> LossSums:
        """The summed losses of a batch."""
        features = self.model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask)  # (B, T, R)
        # All positions, padding too: their number takes few values, while that of real tokens is new in every batch,
        # and oneDNN compiles its kernels anew for every size.
        return projected_cross_entropy(
            features, self.model.output, batch.tgt_out, batch.tgt_mask, smoothing=self.optim.label_smoothing
        )

    # Validation and test

    def on_validation_epoch_start(self) -> None:
        """Forget the last validation; processes decode differently many steps, so that each needs all weights."""
        make_whole(self.model)
        self._start_evaluation("valid", self.val_sentences)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and translations of a batch."""
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        """Score the validation set and log it."""
        self._log(self._finish_evaluation("valid"), "val")
        make_parts(self.model)

    def on_test_epoch_start(self) -> None:
        """Forget the last evaluation; all weights, as for a validation."""
        make_whole(self.model)
        self._start_evaluation("test", None)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and translations of a batch."""
        self._evaluate(batch)

    def on_test_epoch_end(self) -> None:
        """Score the test set and log it."""
        self._log(self._finish_evaluation("test"), "test")
        make_parts(self.model)

    def _log(self, result: Evaluation, name: str) -> None:
        # Every rank has the same values already: they come from gathered texts and summed losses.
        values = {f"{name}/{key}": value for key, value in result.numbers().items()}
        self.log_dict(values, logger=False, batch_size=1, rank_zero_only=True)

    def _start_evaluation(self, split: str, limit: int | None) -> None:
        self._hypotheses, self._eval_sums = {}, torch.zeros(3, dtype=torch.float64)
        size = self._data.size(split)
        # Spread over the file, whatever its order.
        self._kept = None if limit is None or limit >= size else np.linspace(0, size - 1, limit).round().astype(int)
        self._blank = frozenset(i for i, line in enumerate(self._data.sources(split)) if not line.strip())

    def _evaluate(self, batch: Batch) -> None:
        if self._kept is not None:
            batch = select_rows(batch, np.isin(batch.index.cpu().numpy(), self._kept))
        if batch.src.shape[0] == 0:
            return
        longest = min(LONGEST_SOURCE, self.search.max_len or LONGEST_SOURCE)
        if self.tokenizer.patches:  # half a picture is none
            longest = self.tokenizer.patches.length
        batch = crop(batch, longest, self.search.max_len, eos_id=self.tokenizer.eos_id)
        sums = self.sum_losses(batch)
        counts = torch.stack([sums.loss, sums.nll, sums.tokens.to(sums.loss.dtype)])
        self._eval_sums = self._eval_sums.to(counts.device) + counts
        self._hypotheses.update(self._translate(batch))

    def _translate(self, batch: Batch) -> dict[int, str]:
        """The translation of each sentence by its number, as `translate` makes it: a blank source's is empty."""
        numbers, pieces = batch.index.tolist(), batch.src_mask.sum(1).tolist()
        wanted = np.array([i not in self._blank and n > 1 for i, n in zip(numbers, pieces, strict=True)])
        batch = select_rows(batch, wanted)
        # Float32, as `translate` decodes: the score is that of the text a user will get.
        with torch.autocast(batch.src.device.type, enabled=False):
            found = search(
                self.model,
                batch.src,
                batch.src_mask,
                settings=self.search,
                bos_id=self.tokenizer.bos_id,
                eos_id=self.tokenizer.eos_id,
                pad_id=self.tokenizer.pad_id,
            )
        lines = self.tokenizer.decode([best[0].ids for best in found])
        return dict.fromkeys(numbers, "") | dict(zip(batch.index.tolist(), lines, strict=True))

    def _finish_evaluation(self, split: str) -> Evaluation:
        sums, hypotheses = self._eval_sums, self._hypotheses
        if self.trainer.world_size > 1:
            # Merged by sentence number, a sentence that two ranks translated counts once.
            parts: list[Any] = [None] * self.trainer.world_size
            dist.all_gather_object(parts, (sums.cpu(), hypotheses))
            sums = torch.stack([part[0] for part in parts]).sum(0)
            hypotheses = {index: line for part in parts for index, line in part[1].items()}
        order = sorted(hypotheses)
        sources, references = self._data.sources(split), self._data.references(split)
        texts = [[lines[i] for i in order] for lines in (sources, references, hypotheses)]
        loss, nll, tokens = sums.tolist()
        bleu = metrics.bleu(texts[2], texts[1], tokenize=self.description["tokenize"])
        chrf = metrics.chrf(texts[2], texts[1])
        self._hypotheses = {}
        directions = self._score_directions(split, order, texts[1], texts[2])
        self.evaluation = Evaluation(
            bleu, chrf, loss / max(tokens, 1), nll / max(tokens, 1), *texts, directions=directions
        )
        return self.evaluation

    def _score_directions(
        self, split: str, order: list[int], references: list[str], hypotheses: list[str]
    ) -> tuple[tuple[str, metrics.Score], ...]:
        """BLEU of every direction of a split that has several; `order` are the sentences' numbers."""
        find = getattr(self._data, "directions", None)
        found = []
        for name, tokenize, rows in find(split) if find else ():
            chosen = [i for i, number in enumerate(order) if number in rows]
            texts = [[lines[i] for i in chosen] for lines in (hypotheses, references)]
            if chosen:
                found.append((name, metrics.bleu(*texts, tokenize=tokenize)))
        return tuple(found)

    @property
    def _data(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    # Checkpoint

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what translation needs beside the weights."""
        checkpoint["seq2seq"] = self.description
        checkpoint["train_sums"] = self.train_sums.tolist()
        self.skipped.settle()
        checkpoint["skipped"] = self.skipped.count
        checkpoint["processes"] = self.trainer.world_size

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the sums, and let the data continue after the last batch of the checkpoint."""
        self.train_sums = torch.tensor(checkpoint["train_sums"], dtype=torch.float64)
        self.skipped.count = checkpoint["skipped"]
        loops = checkpoint["loops"]["fit_loop"]
        epoch = loops["epoch_progress"]["current"]["processed"]
        progress = loops["epoch_loop.batch_progress"]
        if checkpoint["processes"] != self.trainer.world_size:
            self._data.refuse_rescaling(checkpoint["processes"])
            rescale(progress, checkpoint["processes"] / self.trainer.world_size, self.trainer.accumulate_grad_batches)
        batches = progress["current"]
        # Lightning begins the next epoch by itself if the checkpoint was made in the last batch's hook; if it was made
        # after that, it asks for one batch more, and must find the epoch at its end.
        done = batches["processed"] == self._data.batches_per_epoch
        if not (done and batches["completed"] < batches["processed"]):
            self._data.seek(epoch=epoch, step=batches["processed"])


def rescale(progress: dict[str, Any], factor: float, window: int) -> None:
    """Turn a rank's counts of batches into those of as many batches over other ranks, in whole windows; in place."""
    for counts in (progress["current"], progress["total"]):
        processed = int(counts["processed"] * factor) // window * window
        lag = counts["processed"] - counts["completed"]
        counts |= {"ready": processed, "started": processed, "processed": processed, "completed": processed - lag}


def micro_batch_seed(seed: int, step: int, micro_batch: int) -> int:
    """A 63-bit seed that differs for every (seed, update, micro-batch of the window over all ranks)."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, micro_batch), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generator(seed: int, device: torch.device) -> None:
    """Seed the generators that training on `device` draws from."""
    # torch.manual_seed also queues a call, with a traceback, for every kind of device that was never used.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def crop(batch: Batch, src_len: int, tgt_len: int | None, *, eos_id: int) -> Batch:
    """The batch with at most `src_len` source pieces, the last one eos, and `tgt_len` target pieces (None: all)."""
    cut = batch.src_mask.sum(1) > src_len
    src = batch.src[:, :src_len].clone()
    src[cut, -1] = eos_id
    target = {name: getattr(batch, name)[:, :tgt_len] for name in ("tgt_in", "tgt_out", "tgt_mask")}
    return batch._replace(src=src, src_mask=batch.src_mask[:, :src_len], **target)


def select_rows(batch: Batch, keep: np.ndarray) -> Batch:
    """The rows of a batch where `keep` (B,) is True, still padded to the width of the whole batch."""
    rows = torch.from_numpy(keep).to(batch.src.device)
    return Batch(*(tensor[rows] for tensor in batch))
