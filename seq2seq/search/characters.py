"""An automaton of UTF-8 over byte pieces, so that a search writes whole characters.

State 0 is between characters; every other state says which bytes must still follow in a character that has begun.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from seq2seq.search.hypothesis import NEVER

# For each state the ranges of bytes that may follow, each with the state after it (RFC 3629, section 4): states 1 to 3
# need that many further bytes; states 4 to 7 come after E0, ED, F0 and F4, which restrict the next byte.
_FOLLOWING = (
    (
        *((0x00, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xE0, 4), (0xE1, 0xEC, 2), (0xED, 0xED, 5), (0xEE, 0xEF, 2)),
        *((0xF0, 0xF0, 6), (0xF1, 0xF3, 3), (0xF4, 0xF4, 7)),
    ),
    ((0x80, 0xBF, 0),),
    ((0x80, 0xBF, 1),),
    ((0x80, 0xBF, 2),),
    ((0xA0, 0xBF, 1),),
    ((0x80, 0x9F, 1),),
    ((0x90, 0xBF, 2),),
    ((0x80, 0x8F, 2),),
)
STATES = len(_FOLLOWING)
LONGEST = 4  # bytes of a character
# The number of missing bytes if no bytes complete a character.
ENDLESS = LONGEST + 1


def follow(state: int, byte: int) -> int | None:
    """Return the state after a byte; None if it may not follow."""
    return next((after for first, last, after in _FOLLOWING[state] if first <= byte <= last), None)


def needed(available: Collection[int]) -> list[int]:
    """Return, for each state, the minimum number of available bytes that complete the character; ENDLESS if none do."""
    least = [0, *[ENDLESS] * (STATES - 1)]
    # Each round finds the states that one byte more completes
    for _ in range(LONGEST):
        for state in range(1, STATES):
            after = [follow(state, byte) for byte in available]
            least[state] = min((1 + least[each] for each in after if each is not None), default=ENDLESS)
    return [min(count, ENDLESS) for count in least]


class Characters:
    """The automaton over the pieces of a vocabulary, for all hypotheses at once, without waiting for the device.

    Within a character only the bytes that UTF-8 allows may follow. A character begins only if there is room to complete
    it, and must be complete before any other piece or the end.

    Args:
        byte_of: The bytes of pieces such as <0x41>, by the pieces' ids.
        suppress: Pieces that are never generated.
    """

    def __init__(self, byte_of: Mapping[int, int], suppress: Sequence[int], device: torch.device) -> None:
        self.byte_of = byte_of
        self.needed = needed({byte for piece, byte in byte_of.items() if piece not in suppress})
        self._pieces = torch.tensor(list(byte_of)).to(device)  # (n,)
        self._after = self._transitions().to(device)  # (STATES, largest id + 2)
        self._price = self._prices().to(device)  # (STATES, LONGEST + 2, n)

    def after(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after tokens; both of any shape."""
        return self._after[state, token.clamp(max=self._after.shape[1] - 1)]

    def forbid(self, log_probs: Tensor, state: Tensor, left: Tensor) -> None:
        """Set log p (N, V) of tokens that would leave a character incomplete to -inf, in place.

        Args:
            state: State of each hypothesis, (B, beam).
            left: How many tokens each sentence may still get, the next one and the end included, (B,).
        """
        price = self._price[state, left.clamp(0, LONGEST + 1)[:, None]].flatten(0, 1)  # (N, n)
        pieces = log_probs.index_select(1, self._pieces) + price
        partial = (state > 0).view(-1, 1)  # (N, 1)
        # On a CPU the check may save a pass over all tokens; on a GPU it would wait for the device
        if log_probs.is_cuda or partial.any():
            log_probs.masked_fill_(partial, NEVER)
        log_probs.index_copy_(1, self._pieces, pieces)

    def missing(self, state: int, token: int) -> int:
        """Return the minimum number of bytes that complete the character that a token leaves incomplete."""
        return self.needed[self._next(state, token)]

    def _next(self, state: int, token: int) -> int:
        """Return the state after a token; a byte that may not follow, as in a prefix, begins a new character."""
        if token not in self.byte_of:
            return 0
        byte = self.byte_of[token]
        after = follow(state, byte)
        after = follow(0, byte) if after is None else after
        return 0 if after is None or self.needed[after] == ENDLESS else after

    def _transitions(self) -> Tensor:
        # All ids after the last byte piece share the last column
        after = torch.zeros(STATES, max(self.byte_of) + 2, dtype=torch.int64)
        for piece in self.byte_of:
            after[:, piece] = torch.tensor([self._next(state, piece) for state in range(STATES)])
        return after

    def _prices(self) -> Tensor:
        """Return the terms, 0 or -inf, to add to log p of byte pieces, by state and number of tokens left."""
        prices = torch.full((STATES, LONGEST + 2, len(self.byte_of)), NEVER)
        for state in range(STATES):
            for column, byte in enumerate(self.byte_of.values()):
                after = follow(state, byte)
                if after is None or self.needed[after] == ENDLESS:
                    continue
                # A new character needs room for this byte, the bytes after it and the end; a character that has begun
                # may always continue
                prices[state, 0 if state else self.needed[after] + 2 :, column] = 0.0
        return prices


def characters_of(byte_of: Mapping[int, int], suppress: Sequence[int], device: torch.device) -> Characters | None:
    """Return the automaton of a vocabulary; None if it has no byte pieces."""
    return _made(tuple(byte_of.items()), tuple(suppress), device) if byte_of else None


@functools.lru_cache(maxsize=8)
def _made(byte_of: tuple[tuple[int, int], ...], suppress: tuple[int, ...], device: torch.device) -> Characters:
    # Cached, since it takes 25 ms and every batch of a validation needs it
    return Characters(dict(byte_of), suppress, device)
