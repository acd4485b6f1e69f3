"""Rules that forbid next tokens, and the columns of the tokens that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.search.characters import Characters
from seq2seq.search.choice import OpenHypotheses, Rule
from seq2seq.search.hypothesis import NEVER, Specials
from seq2seq.settings.search import SearchSettings


@dataclasses.dataclass(frozen=True)
class Forbid(Rule):
    """Some tokens are never generated."""

    tokens: Tensor  # on the device

    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Forbid these tokens."""
        log_probs.index_fill_(1, self.tokens, NEVER)


@dataclasses.dataclass(frozen=True)
class MinLength(Rule):
    """A translation has at least `least` tokens after its start."""

    least: int
    eos: int

    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Forbid eos in shorter translations."""
        early = (rows.position - rows.start < self.least)[:, None]  # (B, 1)
        log_probs[:, self.eos].view(rows.last.shape).masked_fill_(early, NEVER)


@dataclasses.dataclass(frozen=True)
class NoRepeat(Rule):
    """No sequence of `size` tokens occurs twice in a hypothesis."""

    size: int
    pad: int
    reads_tokens = True

    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Forbid the tokens that followed earlier occurrences of the last size - 1 tokens."""
        tokens = rows.tokens.flatten(0, 1)  # (N, L)
        if tokens.shape[1] < self.size:
            return
        position = rows.position.repeat_interleave(rows.last.shape[1])[:, None]  # (N, 1)
        # Entry i has tokens i .. i + size - 1; its last token followed the others
        windows = tokens.unfold(1, self.size, 1)  # (N, L - size + 1, size)
        start = torch.arange(windows.shape[1], device=tokens.device)
        again = start <= position - self.size  # (N, L - size + 1): the whole window has been written
        if self.size > 1:
            recent = position + torch.arange(1 - self.size, 0, device=tokens.device)  # (N, size - 1)
            last = tokens.gather(1, recent.clamp(min=0))
            again = again & (windows[:, :, :-1] == last[:, None]).all(-1)
        # Padding, which is forbidden anyway, stands for no token
        log_probs.scatter_(1, torch.where(again, windows[:, :, -1], self.pad), NEVER)


@dataclasses.dataclass(frozen=True)
class WholeCharacters(Rule):
    """Byte pieces make valid UTF-8, and the last character is complete."""

    characters: Characters

    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Forbid tokens that would leave a character incomplete."""
        self.characters.forbid(log_probs, rows.partial, rows.limits - rows.position)


class RuleTokens(NamedTuple):
    """The tokens that rules name, and their columns.

    Attributes:
        ids: The tokens, in the order of their columns.
        special: The special tokens, by their columns.
        suppress: The columns of tokens that are never generated.
    """

    ids: list[int]
    special: Specials
    suppress: list[int]

    @classmethod
    def of(cls, special: Specials, suppress: Sequence[int]) -> RuleTokens:
        """Give the special tokens, byte pieces and suppressed tokens the first columns."""
        ids = list(dict.fromkeys([special.pad, special.bos, special.eos, *special.byte_of, *suppress]))
        place = {token: column for column, token in enumerate(ids)}
        byte_of = {place[token]: byte for token, byte in special.byte_of.items()}
        own = Specials(place[special.bos], place[special.eos], place[special.pad], byte_of)
        return cls(ids, own, [place[token] for token in suppress])


def rules_of(
    settings: SearchSettings,
    special: Specials,
    suppress: Sequence[int],
    device: torch.device,
    characters: Characters | None = None,
) -> tuple[Rule, ...]:
    """Return the rules of the settings; `Specials.never` are always forbidden."""
    forbidden = torch.tensor([*special.never, *suppress])
    rules: list[Rule] = [Forbid(forbidden.to(device))]
    if settings.no_repeat_ngram:
        rules.append(NoRepeat(settings.no_repeat_ngram, special.pad))
    if settings.min_len:
        rules.append(MinLength(settings.min_len, special.eos))
    if characters:
        rules.append(WholeCharacters(characters))
    return tuple(rules)
