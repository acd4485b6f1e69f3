"""`data.max_tokens=auto`: the largest micro-batch, in tokens, that fits the memory of a GPU."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from seq2seq.data.batching import Batch, aligned, longest_width, padded_width
from seq2seq.network.build import hidden_matrices
from seq2seq.system.errors import is_out_of_memory
from seq2seq.training.bounds.faults import TrainingFault
from seq2seq.training.objective.optim import build_optimizer, scale_and_clip

if TYPE_CHECKING:
    from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# Multiples of GRAIN are tried, up to MOST: no recipe wants more, and 2^19 pieces of 4,096 channels are the 2^31 numbers
# up to which a kernel may count in 32 bits.
GRAIN, MOST = 256, 1 << 19
# Of the memory that is free, the part that is used: the rest is for what torch does not allocate (work space of
# libraries, communication) and for holes between blocks, which come with time.
_SHARE = 0.9
# Messages for a launch grid with too many rows.
_TOO_MANY = ("invalid configuration argument", "triton error [cuda]: invalid argument")


def largest_that_fits(
    fits: Callable[[int], bool], *, start: int = GRAIN, most: int = MOST, grain: int = GRAIN, tolerance: float = 0.05
) -> int:
    """Search for the largest number up to `most` that fits, to within `tolerance` of it; 0 if `start` does not.

    Tries `most` first, then doubles from `start` while it fits, then bisects; every number is `start` plus a multiple
    of `grain`, or `most`. The answer has itself been tried, also where `fits` is not monotone.
    """
    if fits(most):
        return most
    if not fits(start):
        return 0
    # Double: the bounds of the bisection.
    fitting, failing = start, most
    while 2 * fitting < most:
        if not fits(2 * fitting):
            failing = 2 * fitting
            break
        fitting *= 2
    # Bisect, on the grid of `grain`; max(1, ...) keeps the step from being 0.
    while failing - fitting > max(grain, tolerance * fitting):
        middle = fitting + max(1, (failing - fitting) // 2 // grain) * grain
        fitting, failing = (middle, failing) if fits(middle) else (fitting, middle)
    return fitting


def worst_shapes(max_tokens: int, longest: tuple[int, int], *, src_multiple: int = 1) -> list[tuple[int, int, int]]:
    """List (rows, source width, target width) of the full batches with the most pairs of positions, cells, and rows.

    No batch of `token_batches` that `collate` pads has more of any of the three.

    Args:
        max_tokens: Rows times the longer side's padded width, at most.
        longest: Pieces of the longest source and target.
        src_multiple: The source is padded to a multiple of this.
    """
    # Every padded width that a batch of so many tokens can have, and the rows that it leaves room for.
    limit = min(int(padded_width(max(longest))), longest_width(max_tokens))
    widths = np.unique(padded_width(np.arange(1, limit + 1)))
    widths = widths[widths <= limit]
    rows = max_tokens // widths
    # A side is never wider than its own longest sentence.
    src, tgt = (np.minimum(widths, padded_width(side)) for side in longest)
    src = aligned(src, src_multiple)
    # Attention's memory grows with pairs of positions, activations with cells, launch grids with rows.
    counts = (rows * (src * src + src * tgt + tgt * tgt), rows * (src + tgt), rows)
    worst = dict.fromkeys(int(np.argmax(count)) for count in counts)  # one batch may be the worst in several ways
    return [(int(rows[i]), int(src[i]), int(tgt[i])) for i in worst]


class Rehearsal:
    """Trial updates of a temporary `task` on synthetic batches without padding, to measure memory or time.

    Gradients are kept between updates, as between the micro-batches of an accumulation window.

    Args:
        task: Its weights and the state of its optimizer are changed; discard it afterwards.
        longest: Pieces of the longest source and target.
        precision: Lightning's name of it.
        copies: Further copies of the weights to allocate, as an average or the message of several processes would.
        src_multiple: The source is padded to a multiple of this.
    """

    def __init__(
        self,
        task: TranslationTask,
        *,
        longest: tuple[int, int],
        device: torch.device,
        precision: str,
        copies: int,
        src_multiple: int = 1,
    ) -> None:
        self.task, self.longest, self.device, self.precision = task, longest, device, precision
        self.src_multiple = src_multiple
        self.tried = 0
        task.to(device, dtype=torch.bfloat16 if precision == "bf16-true" else None).train()
        self._optimizer = build_optimizer(task.parameters(), task.optim, hidden_matrices(task.model))
        self._copies = [torch.empty_like(weight) for weight in task.parameters() for _ in range(copies)]
        self.update(1, 2, 2)  # makes gradients and the optimizer's state

    def fits(self, max_tokens: int) -> bool:
        """Return True if updates of `max_tokens` pieces fit the memory."""
        self.tried += 1
        try:
            for shape in worst_shapes(max_tokens, self.longest, src_multiple=self.src_multiple):
                self.update(*shape)
            fitting = True
        except (RuntimeError, MemoryError) as error:
            if not (is_out_of_memory(error) or any(words in str(error).lower() for words in _TOO_MANY)):
                raise
            fitting = False
        # Only after the handler: its traceback keeps the tensors of a failed update.
        _free(self.device)
        return fitting

    def update(self, rows: int, src: int, tgt: int) -> None:
        """Run forward and backward pass, clipping, and the optimizer's step."""
        batch = self._batch(rows, src, tgt)
        with _as_trained(self.precision, self.device):
            loss = self.task.sum_losses(batch).loss
        loss.backward()
        # The target is without padding, so it has rows * tgt tokens.
        scale = torch.full((), 1 / (rows * tgt), device=self.device)
        scale_and_clip(self.task.parameters(), scale, clip_norm=self.task.optim.clip_norm)
        self._optimizer.step()

    def _batch(self, rows: int, src: int, tgt: int) -> Batch:
        source = torch.randint(self.task.tokenizer.src_vocab_size, (rows, src), device=self.device)  # (B, S)
        target = torch.randint(self.task.tokenizer.tgt_vocab_size, (rows, tgt), device=self.device)  # (B, T)
        masks = [torch.ones_like(ids, dtype=torch.bool) for ids in (source, target)]
        return Batch(source, masks[0], target, target.clone(), masks[1], torch.arange(rows, device=self.device))


def find_max_tokens(
    make_task: Callable[[], TranslationTask],
    *,
    longest: tuple[int, int],
    device: torch.device,
    precision: str,
    copies: int = 0,
    src_multiple: int = 1,
    most: int = MOST,
    replayed: bool = False,
) -> int:
    """Find the most tokens that a task of `make_task` can be trained with on `device`; leave no trace of the search.

    Args:
        make_task: Builds a task that is thrown away after the search.
        longest: Pieces of the longest source and target.
        precision: Lightning's name of it.
        copies: Further copies of the weights that the run will keep.
        src_multiple: The source is padded to a multiple of this.
        most: More is not needed.
        replayed: Passes are captured, in memory of their own beside that of plain ones.

    Raises:
        TrainingFault: Not even the fewest fit.
    """
    began = time.monotonic()
    # Random state and memory limit are restored: the run's results do not depend on the search.
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        limited(device, 2 if replayed else 1),
    ):
        given = {"longest": longest, "device": device, "precision": precision, "copies": copies}
        found, tried = _search(make_task, min(most, MOST), **given, src_multiple=src_multiple)
    _forget(device)
    if not found:
        raise TrainingFault(
            f"data.max_tokens=auto: not even {GRAIN} pieces fit the memory of {device}; free it of other programs, "
            "choose a smaller model or data.clean.max_length, or set trainer.checkpoint_activations=true"
        )
    log.info(
        "data.max_tokens=auto: %s pieces a micro-batch (%d sizes tried in %.1f s; %.0f%% of free memory used)",
        f"{found:,}", tried, time.monotonic() - began, 100 * _SHARE,
    )  # fmt: skip
    return found


def _search(make_task: Callable[[], TranslationTask], most: int, **given: Any) -> tuple[int, int]:
    """Return the most tokens that fit, or 0, and how many sizes were tried; the task ends with this function."""
    try:
        rehearsal = Rehearsal(make_task(), **given)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Weights and optimizer state alone are too large.
        return 0, 0
    return largest_that_fits(rehearsal.fits, start=min(GRAIN, most), most=most), rehearsal.tried


@contextlib.contextmanager
def limited(device: torch.device, parts: int = 1) -> Iterator[None]:
    """Limit torch, in this block, to a part of _SHARE of the memory of `device` that is free at its beginning."""
    if device.type != "cuda":
        yield
        return
    _free(device)
    (free, total), before = torch.cuda.mem_get_info(device), torch.cuda.get_per_process_memory_fraction(device)
    # The limit counts what torch has reserved already, which the driver does not report as free.
    share = min(before, (free + torch.cuda.memory_reserved(device)) / total)
    torch.cuda.set_per_process_memory_fraction(_SHARE * share / parts, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


@contextlib.contextmanager
def _as_trained(precision: str, device: torch.device) -> Iterator[None]:
    """Compute in the types that Lightning computes a loss in, as its precision plugins set them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16-true" else before)
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16-mixed"):
            yield
    finally:
        torch.set_default_dtype(before)


def _free(device: torch.device) -> None:
    # Tensors in reference cycles (autograd contexts, tracebacks) keep their memory until collected.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _forget(device: torch.device) -> None:
    """Give memory back, and let the run's peak of memory and its compiled graphs be its own."""
    _free(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Only where something was compiled: `reset` imports dynamo, which is slow.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
