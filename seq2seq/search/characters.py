"""Characters that are written as byte pieces: an automaton of UTF-8, so that a search writes whole ones alone.

State 0 is between characters; the others say which bytes the character that has begun still needs.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from seq2seq.search.hypothesis import NEVER

# The bytes that may follow in each state, from first to last, and the state after them (RFC 3629, section 4): states 1
# to 3 need so many further bytes; after E0, ED, F0 and F4 the next byte has a range of its own.
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
# Bytes that are still needed where nothing completes a character.
ENDLESS = LONGEST + 1


def follow(state: int, byte: int) -> int | None:
    """Return the state after a byte; None if it may not follow."""
    return next((after for first, last, after in _FOLLOWING[state] if first <= byte <= last), None)


def needed(available: Collection[int]) -> list[int]:
    """Return for each state the least number of bytes that complete the character; ENDLESS if these bytes cannot."""
    least = [0, *[ENDLESS] * (STATES - 1)]
    # A character is completed within so many rounds
    for _ in range(LONGEST):
        for state in range(1, STATES):
            after = [follow(state, byte) for byte in available]
            least[state] = min((1 + least[each] for each in after if each is not None), default=ENDLESS)
    return [min(count, ENDLESS) for count in least]


class Characters:
    """The automaton over the pieces of a vocabulary, for all hypotheses at a time; nothing waits for the device.

    In the middle of a character only bytes follow that UTF-8 allows there, and a character begins only where there is
    room to complete it. Any other piece and the end need it complete.

    Args:
        byte_of: The bytes of pieces such as <0x41>, by the pieces' ids.
        suppress: Pieces that will not be written.
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
        """Set log p (N, V) of what would leave a character incomplete to -inf, in place.

        Args:
            state: Of each hypothesis, (B, beam).
            left: Tokens that each sentence may still have, the next one and the end counted, (B,).
        """
        price = self._price[state, left.clamp(0, LONGEST + 1)[:, None]].flatten(0, 1)  # (N, n)
        pieces = log_probs.index_select(1, self._pieces) + price
        partial = (state > 0).view(-1, 1)  # (N, 1)
        # A pass over all tokens; only a CPU knows, without a wait, that there is no need
        if log_probs.is_cuda or partial.any():
            log_probs.masked_fill_(partial, NEVER)
        log_probs.index_copy_(1, self._pieces, pieces)

    def missing(self, state: int, token: int) -> int:
        """Return how many bytes complete the character that a token leaves incomplete."""
        return self.needed[self._next(state, token)]

    def _next(self, state: int, token: int) -> int:
        """Return the state after a token; one that may not follow, as a prefix can have it, begins anew."""
        if token not in self.byte_of:
            return 0
        byte = self.byte_of[token]
        after = follow(state, byte)
        after = follow(0, byte) if after is None else after
        return 0 if after is None or self.needed[after] == ENDLESS else after

    def _transitions(self) -> Tensor:
        # The last column is that of all ids beyond the last byte piece
        after = torch.zeros(STATES, max(self.byte_of) + 2, dtype=torch.int64)
        for piece in self.byte_of:
            after[:, piece] = torch.tensor([self._next(state, piece) for state in range(STATES)])
        return after

    def _prices(self) -> Tensor:
        """Return what is added to log p of byte pieces, by state and by the tokens that are left: 0 or -inf."""
        prices = torch.full((STATES, LONGEST + 2, len(self.byte_of)), NEVER)
        for state in range(STATES):
            for column, byte in enumerate(self.byte_of.values()):
                after = follow(state, byte)
                if after is None or self.needed[after] == ENDLESS:
                    continue
                # This token, those that it needs, and the end; what has begun goes on in any case
                prices[state, 0 if state else self.needed[after] + 2 :, column] = 0.0
        return prices


def characters_of(byte_of: Mapping[int, int], suppress: Sequence[int], device: torch.device) -> Characters | None:
    """Return the automaton of a vocabulary; None where it has no byte pieces."""
    return _made(tuple(byte_of.items()), tuple(suppress), device) if byte_of else None


@functools.lru_cache(maxsize=8)
def _made(byte_of: tuple[tuple[int, int], ...], suppress: tuple[int, ...], device: torch.device) -> Characters:
    # 25 ms, which each batch of a validation would cost
    return Characters(dict(byte_of), suppress, device)
