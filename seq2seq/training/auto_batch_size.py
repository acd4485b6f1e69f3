"""Find the largest micro-batch, in tokens, that fits the memory of a GPU: `data.max_tokens=auto`."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from lightning.pytorch.plugins import HalfPrecision, MixedPrecision, Precision

from seq2seq.data.batching import Batch, aligned, longest_width, padded_width
from seq2seq.network.build import hidden_matrices
from seq2seq.system.errors import is_out_of_memory
from seq2seq.training.bounds.faults import TrainingFault
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.objective.optim import build_optimizer, scale_and_clip

log = logging.getLogger(__name__)

# The search tries multiples of GRAIN up to MOST. No recipe needs more, and 2^19 pieces of 4,096 channels are 2^31
# numbers, as many as a kernel can count in 32 bits.
GRAIN, MOST = 256, 1 << 19
# The search ends when its bounds are this close, relative to the lower one.
_TOLERANCE = 0.05
# Share of the free memory to use. The rest is for memory that torch does not allocate (workspaces of libraries,
# communication) and for fragmentation, which grows with time.
_SHARE = 0.9
# Parts of the error messages for a launch grid with too many rows.
_TOO_MANY = ("invalid configuration argument", "triton error [cuda]: invalid argument")


def largest_that_fits(fits: Callable[[int], bool], *, most: int = MOST) -> int:
    """Search for the largest number up to `most` that fits, to within 5%; 0 if GRAIN does not.

    Tries `most` first, then doubles from GRAIN while it fits, then bisects; every number is a multiple of GRAIN, or
    `most`. The result itself has been tried, even if `fits` is not monotone.
    """
    if fits(most):
        return most
    fitting = min(GRAIN, most)
    if not fits(fitting):
        return 0
    while 2 * fitting < most and fits(2 * fitting):
        fitting *= 2
    failing = min(2 * fitting, most)
    while failing - fitting > max(GRAIN, _TOLERANCE * fitting):
        middle = fitting + max(1, (failing - fitting) // 2 // GRAIN) * GRAIN
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return fitting


def worst_shapes(max_tokens: int, longest: tuple[int, int], *, src_multiple: int = 1) -> list[tuple[int, int, int]]:
    """List (rows, source width, target width) of the full batches with the most pairs of positions, cells, and rows.

    No batch that `token_batches` and `collate` make has more of any of the three.

    Args:
        max_tokens: Limit of rows times the longer side's padded width.
        longest: Pieces of the longest source and target.
        src_multiple: The source is padded to a multiple of this.
    """
    # Every padded width that a batch of `max_tokens` can have, and the number of rows that fit with it.
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
        precision: Lightning's name of the precision.
        copies: Further copies of the weights to allocate, for an average or for the gradients that processes exchange.
        src_multiple: The source is padded to a multiple of this.
    """

    def __init__(
        self,
        task: TranslationTask,
        *,
        longest: tuple[int, int],
        device: torch.device,
        precision: str,
        copies: int = 0,
        src_multiple: int = 1,
    ) -> None:
        self.task = task
        self.longest = longest
        self.device = device
        self.src_multiple = src_multiple
        self._precision = Precision()
        if precision == "bf16-true":
            self._precision = HalfPrecision(precision)
        elif precision == "bf16-mixed":
            self._precision = MixedPrecision(precision, device.type)
        self._precision.convert_module(task.to(device).train())
        self._optimizer = build_optimizer(task.parameters(), task.optim, hidden_matrices(task.model))
        self._copies = [torch.empty_like(weight) for weight in task.parameters() for _ in range(copies)]
        self.update(1, 2, 2)  # makes gradients and the optimizer's state

    def fits(self, max_tokens: int) -> bool:
        """Return True if updates of `max_tokens` pieces fit the memory."""
        try:
            for shape in worst_shapes(max_tokens, self.longest, src_multiple=self.src_multiple):
                self.update(*shape)
            fitting = True
        except (RuntimeError, MemoryError) as error:
            if not (is_out_of_memory(error) or any(words in str(error).lower() for words in _TOO_MANY)):
                raise
            fitting = False
        # Not inside the handler, where the traceback still keeps the tensors of a failed update.
        _free(self.device)
        return fitting

    def update(self, rows: int, src: int, tgt: int) -> None:
        """Run forward and backward pass, clipping, and the optimizer's step."""
        device = self.device
        source = torch.randint(self.task.tokenizer.src_vocab_size, (rows, src), device=device)  # (B, S)
        target = torch.randint(self.task.tokenizer.tgt_vocab_size, (rows, tgt), device=device)  # (B, T)
        masks = [torch.ones_like(ids, dtype=torch.bool) for ids in (source, target)]
        # No rows of the corpus, whose alignments would not fit
        index = torch.full((rows,), -1, device=device)
        batch = Batch(source, masks[0], target, target.clone(), masks[1], index)
        with self._precision.forward_context():
            loss = self.task.sum_losses(batch).loss
        loss.backward()
        # The target has no padding, so it has rows * tgt tokens.
        scale = torch.full((), 1 / (rows * tgt), device=device)
        scale_and_clip(self.task.parameters(), scale, clip_norm=self.task.optim.clip_norm)
        self._optimizer.step()


def find_max_tokens(
    rehearse: Callable[[], Rehearsal], *, device: torch.device, most: int = MOST, replayed: bool = False
) -> int:
    """Find the most tokens of a micro-batch that fit `device`; the search does not affect the run.

    Args:
        rehearse: Makes the rehearsal, on `device`.
        most: Largest number to try.
        replayed: Passes are captured, which needs as much memory again.

    Raises:
        TrainingFault: Not even the smallest micro-batch fits.
    """
    began = time.monotonic()
    found = 0
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        limited(device, 2 if replayed else 1),
    ):
        try:
            rehearsal = rehearse()
            found = largest_that_fits(rehearsal.fits, most=min(most, MOST))
            del rehearsal
        except (RuntimeError, MemoryError) as error:
            # Weights and optimizer state alone may be too large.
            if not is_out_of_memory(error):
                raise
    # Free memory, and reset its peak, so that the run reports its own.
    _free(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if not found:
        raise TrainingFault(
            f"data.max_tokens=auto: not even {GRAIN} pieces fit the memory of {device}; free it of other programs, "
            "choose a smaller model or data.clean.max_length, or set trainer.checkpoint_activations=true"
        )
    log.info(
        "data.max_tokens=auto: %s pieces a micro-batch (measured in %.1f s; %.0f%% of free memory used)",
        f"{found:,}", time.monotonic() - began, 100 * _SHARE,
    )  # fmt: skip
    return found


@contextlib.contextmanager
def limited(device: torch.device, parts: int = 1) -> Iterator[None]:
    """Limit torch, in this block, to _SHARE / `parts` of the memory of `device` that is free at its beginning."""
    if device.type != "cuda":
        yield
        return
    _free(device)
    free, total = torch.cuda.mem_get_info(device)
    before = torch.cuda.get_per_process_memory_fraction(device)
    # The limit counts what torch has reserved already, which the driver does not report as free.
    share = min(before, (free + torch.cuda.memory_reserved(device)) / total)
    torch.cuda.set_per_process_memory_fraction(_SHARE * share / parts, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def _free(device: torch.device) -> None:
    # Tensors in reference cycles (autograd contexts, tracebacks) keep their memory until collected.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
