"""Batches of an epoch on each rank, and updates of `data.batch_tokens` tokens in micro-batches that fit the machine.

An update consists of parts, each a batch of `token_batches` with sentences of similar length. The parts of an epoch are
sorted by width and divided into strata, so that every update has short, middle and long sentences in the same
proportions. All of that depends only on the text, the seed and the tokens of an update. The machine (the memory of a
device, the number of devices) decides only into how many micro-batches each part is cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from torch.utils.data import Sampler

from seq2seq.data.batching import exactly, padded_width, token_batches
from seq2seq.data.multi_corpus import Mixture

# Tokens of a part, and the most parts of an update. An update of fewer tokens has one part; an update of more tokens
# than both allow has larger parts, so that micro-batches keep a GPU busy.
_PART = 1 << 14
_MOST_PARTS = 8
# Rows of a micro-batch that is ignored.
IDLE = np.array([-1])


def part_tokens(batch_tokens: int) -> int:
    """Return the token budget of a part: rows * longest side, padding counted."""
    return batch_tokens // _parts(batch_tokens)


def _parts(batch_tokens: int) -> int:
    return min(_MOST_PARTS, max(1, batch_tokens // _PART))


@dataclasses.dataclass(frozen=True)
class UpdateCut:
    """Number of parts of an update, and of micro-batches that each part is cut into, over all ranks."""

    parts: int
    cuts: int

    @classmethod
    def of(cls, batch_tokens: int, *, max_tokens: int, longest: int, world_size: int = 1) -> UpdateCut:
        """Choose the fewest micro-batches of at most `max_tokens`, equally many for each rank.

        Raises:
            ValueError: The longest pair exceeds `max_tokens`.
        """
        widest = int(padded_width(max(1, longest)))
        if widest > max_tokens:
            raise ValueError(
                f"data.max_tokens={max_tokens} is below the longest training pair, {longest} pieces, padded to "
                f"{widest}: raise data.max_tokens, or lower data.clean.max_length"
            )
        widths = np.unique(padded_width(np.arange(1, longest + 1)))
        # Most rows of a part and of a micro-batch, for each width
        rows = part_tokens(batch_tokens) // widths
        room = max_tokens // widths
        parts = _parts(batch_tokens)
        cuts = max(1, int((-(-rows // room)).max()))
        while parts * cuts % world_size:
            cuts += 1
        return cls(parts, cuts)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of an update over all ranks."""
        return self.parts * self.cuts

    def apply(
        self, parts: Sequence[np.ndarray], src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, seed: int, epoch: int
    ) -> list[np.ndarray]:
        """Group parts, in random order, into updates, and cut these into micro-batches.

        Args:
            parts: Rows of each part; the number of parts is a multiple of `self.parts`.
            src_lengths: (N,) tokens of the sources.
            tgt_lengths: (N,) tokens of the targets.

        Returns:
            The rows of each micro-batch; as many as `micro_batches` make an update. Some may be IDLE.
        """
        if self.parts == 1:
            updates = [[part] for part in parts]
        else:
            # One part of each stratum for every update
            widths = [int(padded_width(max(src_lengths[part].max(), tgt_lengths[part].max()))) for part in parts]
            strata = np.argsort(widths, kind="stable").reshape(self.parts, -1)  # (parts, updates)
            drawn = np.random.default_rng([seed, epoch, 1]).permuted(strata, axis=1)
            updates = [[parts[i] for i in update] for update in drawn.T.tolist()]
        cut: list[np.ndarray] = []
        for update in updates:
            pieces = [piece for part in update for piece in np.array_split(part, min(self.cuts, len(part)))]
            # A part of long sentences may have fewer rows than micro-batches, whose number must stay the same
            cut += [*pieces, *[IDLE] * (self.micro_batches - len(pieces))]
        return cut


@dataclasses.dataclass(kw_only=True, eq=False)
class TokenBatchSampler(Sampler[np.ndarray]):
    """Batch sampler with a token budget, for one rank.

    Each index comes once per epoch over all ranks, ranks have equally many batches, and the order is a function of
    (seed, epoch). Batches are computed on first use, and `len` raises ValueError for impossible settings.

    Args:
        window: Micro-batches of an update on each rank. A window on one rank is the same update as a micro-batch on
            each of `window` ranks: the number of batches is a multiple of window * world_size if there are enough
            sentences, and of world_size in any case.
        cut: Cuts updates, whose parts have `max_tokens`, into micro-batches, which are then the batches. If None, the
            parts are the batches, and an update is a window of them.
        mixture: Draws the rows of each epoch (None: every row once). Every epoch has as many batches as epoch 0: if
            there are fewer, the fullest are halved; if there are more, the last ones in random order are left out (at
            most two of 196 in a mixture of two corpora).
        lengths_in: Returns the lengths of sources and targets in an epoch, if they change (None: they do not). The
            number of batches is then fixed as for a mixture.
    """

    src_lengths: np.ndarray
    tgt_lengths: np.ndarray
    max_tokens: int
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    window: int = 1
    cut: UpdateCut | None = None
    mixture: Mixture | None = None
    lengths_in: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        self.epoch = 0
        self.start = 0  # batches that the next iteration skips
        self._cached: tuple[int, list[np.ndarray]] | None = None  # (epoch, batches)

    @property
    def sampler(self) -> TokenBatchSampler:
        """This sampler itself: Lightning calls `set_epoch` of a batch sampler's `sampler` only."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = int(epoch)

    def seek(self, *, epoch: int, step: int) -> None:
        """Begin the next iteration at this rank's batch `step` of `epoch`."""
        self.epoch = int(epoch)
        self.start = int(step)

    def batches(self) -> list[np.ndarray]:
        """Compute the epoch's batches of all ranks; batch i of rank r is number i * world_size + r."""
        if self._cached is None or self._cached[0] != self.epoch:
            self._cached = None  # frees the last epoch's batches first
            lengths = self._lengths(self.epoch)
            batches = self._batches_of(self.epoch, *lengths)
            if (self.mixture or self.lengths_in) and self.epoch:
                batches = exactly(batches, self._count)
            if self.cut:
                batches = self.cut.apply(batches, *lengths, seed=self.seed, epoch=self.epoch)
            self._cached = (self.epoch, batches)
        return self._cached[1]

    @cached_property
    def _count(self) -> int:
        """Batches of epoch 0 over all ranks, before they are cut."""
        return len(self._batches_of(0, *self._lengths(0)))

    def _lengths(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return self.lengths_in(epoch) if self.lengths_in else (self.src_lengths, self.tgt_lengths)

    def _batches_of(self, epoch: int, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> list[np.ndarray]:
        """Compute the batches of an epoch before their number is fixed."""
        if self.mixture is None:
            return self._token_batches(epoch, src_lengths, tgt_lengths)
        rows = self.mixture.rows(epoch)
        # Positions within `rows`, mapped back to positions in the split
        return [rows[inside] for inside in self._token_batches(epoch, src_lengths[rows], tgt_lengths[rows])]

    def _token_batches(self, epoch: int, *lengths: np.ndarray) -> list[np.ndarray]:
        # Each rank computes the batches of all ranks, so that ranks need not communicate
        options = {"max_tokens": self.max_tokens, "seed": self.seed, "epoch": epoch, "shuffle": self.shuffle}
        if self.cut:
            return token_batches(*lengths, **options, multiple_of=self.cut.parts)
        if self.window > 1:
            # ValueError means too few sentences for whole windows
            with contextlib.suppress(ValueError):
                return token_batches(*lengths, **options, multiple_of=self.window * self.world_size)
        return token_batches(*lengths, **options, multiple_of=self.world_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the index arrays of this rank, from the position of `seek`."""
        start = self.start
        self.start = 0
        # Strided, so that ranks decode batches of similar length at the same time
        yield from self.batches()[self.rank :: self.world_size][start:]

    def __len__(self) -> int:
        """Count the batches of a rank in an epoch: the same for every rank and epoch."""
        return len(self.batches()) // self.world_size
