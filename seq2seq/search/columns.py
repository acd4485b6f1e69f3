"""Columns of the scores of a step, where each sentence has a list of the tokens that its translation may have.

A step computes the scores of the union of its sentences' lists; what is not in a sentence's own list has probability 0,
so that its result does not depend on the sentences beside it. Rules and selections work on columns, and what is
remembered of hypotheses are tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from seq2seq.search.hypothesis import Specials

if TYPE_CHECKING:
    from seq2seq.search.rows import Choice, OpenHypotheses


class Columns(NamedTuple):
    """Columns of the scores.

    Attributes:
        ids: The token of each, (U,): first those that rules name, which always have the same columns, then the others
            in order.
        place: The column of each token, (V,); 0 for tokens without one.
    """

    ids: Tensor
    place: Tensor

    @classmethod
    def of(cls, allowed: Tensor, rule_tokens: Tensor) -> Columns:
        """Return the columns of the lists allowed (B, V), the tokens `rule_tokens` first."""
        others = allowed.any(0)  # (V,)
        others[rule_tokens] = False
        ids = torch.cat([rule_tokens, others.nonzero().squeeze(1)])
        place = torch.zeros_like(others, dtype=torch.int64)
        place[ids] = torch.arange(len(ids), device=ids.device)
        return cls(ids, place)

    def of_rows(self, rows: OpenHypotheses) -> OpenHypotheses:
        """Replace the tokens that rules and selections read by their columns."""
        # What is negative stands for no token
        phrases = torch.where(rows.phrases < 0, rows.phrases, self.place[rows.phrases.clamp(min=0)])
        return rows._replace(tokens=self.place[rows.tokens], phrases=phrases)

    def tokens_of(self, choice: Choice) -> Choice:
        """Replace columns by their tokens."""
        return choice._make(extensions._replace(token=self.ids[extensions.token]) for extensions in choice)


class RuleTokens(NamedTuple):
    """Tokens that rules name, and the rules' constants by their columns.

    Attributes:
        ids: The tokens; each one's place is its column.
        special: With columns for ids.
        suppress: The columns of tokens that no translation has.
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
