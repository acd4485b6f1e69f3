"""Updates of `data.batch_tokens` tokens, cut into micro-batches that fit the machine.

An update consists of parts, each a batch of `token_batches` with sentences of similar length. The parts of an epoch are
sorted by width and divided into strata, so that every update has short, middle and long sentences in the same
proportions. All of that depends only on the text, the seed and the tokens of an update. The machine (the memory of a
device, the number of devices) decides only into how many micro-batches each part is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from seq2seq.data.batching import padded_width

# Tokens of a part, and most parts of an update. Smaller updates have one part; in larger ones than both allow, parts
# grow, so that micro-batches keep a GPU busy.
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

        Args:
            batch_tokens: Budget of an update.
            max_tokens: Budget of a micro-batch: rows * longest side, padding counted.
            longest: Tokens of the longest side of a pair.

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
            parts: Rows of each part, sorted by width; their number divides by `self.parts`.
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
