"""Columns of a step's scores, where each sentence has a shortlist of the tokens that its translation may have.

A step scores the union of its sentences' shortlists. A token outside a sentence's own list has probability 0, so that
results do not depend on the other sentences of the batch. Rules and selections see columns, hypotheses store tokens.
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
        ids: The token of each column, (U,): first the tokens that rules name, whose columns never change, then the
            others in order.
        place: The column of each token, (V,); 0 for tokens without one.
    """

    ids: Tensor
    place: Tensor

    @classmethod
    def of(cls, allowed: Tensor, rule_tokens: Tensor) -> Columns:
        """Return the columns of the shortlists allowed (B, V), `rule_tokens` first."""
        others = allowed.any(0)  # (V,)
        others[rule_tokens] = False
        ids = torch.cat([rule_tokens, others.nonzero().squeeze(1)])
        place = torch.zeros_like(others, dtype=torch.int64)
        place[ids] = torch.arange(len(ids), device=ids.device)
        return cls(ids, place)

    def of_rows(self, rows: OpenHypotheses) -> OpenHypotheses:
        """Replace the tokens that rules and selections read by their columns."""
        # Negative numbers are no tokens
        phrases = torch.where(rows.phrases < 0, rows.phrases, self.place[rows.phrases.clamp(min=0)])
        return rows._replace(tokens=self.place[rows.tokens], phrases=phrases)

    def tokens_of(self, choice: Choice) -> Choice:
        """Replace columns by their tokens."""
        may_end = choice.may_end._replace(token=self.ids[choice.may_end.token])
        kept = choice.kept._replace(token=self.ids[choice.kept.token])
        return choice._replace(may_end=may_end, kept=kept)


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
