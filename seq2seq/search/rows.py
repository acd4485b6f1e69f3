"""The rows of a running search on the device: sentences with their context, state and open hypotheses.

Shapes: B rows, each a sentence; N = B * beam hypotheses, L the longest target, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.network.state import Nested, first, move, refill, reorder, set_length
from seq2seq.search.characters import Characters
from seq2seq.search.choice import Choice, Extensions, OpenHypotheses, Rule, Scores, Selection
from seq2seq.search.hypothesis import NEVER
from seq2seq.search.models import AnyModel, step_log_probs


class Columns(NamedTuple):
    """Columns of a step's scores when each sentence has a shortlist of the tokens that its translation may have.

    A step scores the union of its sentences' shortlists. A token outside a sentence's own list has probability 0, so
    that results do not depend on the other sentences of the batch. Rules and selections work on columns, but
    hypotheses store tokens.

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
        # Negative numbers are not tokens
        phrases = torch.where(rows.phrases < 0, rows.phrases, self.place[rows.phrases.clamp(min=0)])
        return rows._replace(tokens=self.place[rows.tokens], phrases=phrases)

    def tokens_of(self, choice: Choice) -> Choice:
        """Replace columns by their tokens."""
        may_end = choice.may_end._replace(token=self.ids[choice.may_end.token])
        kept = choice.kept._replace(token=self.ids[choice.kept.token])
        return choice._replace(may_end=may_end, kept=kept)


class Forced(NamedTuple):
    """Tokens that hypotheses must have next, (N, 1) each: which hypotheses, the tokens, and their log p."""

    which: Tensor
    token: Tensor
    log_prob: Tensor

    def apply(self, log_probs: Tensor) -> None:
        """Forbid all other tokens of log_probs (N, V), in place; a row with a NaN becomes NaN."""
        kept = torch.where(self.which, self.log_prob, log_probs.gather(1, self.token))
        torch.where(self.which, self.log_prob.clamp(max=NEVER), log_probs, out=log_probs)
        log_probs.scatter_(1, self.token, kept)


class Rows:
    """The rows of a running search, written in place as sentences leave and enter.

    Args:
        model: In evaluation mode.
        context: The context of the first sentences, one for each row.
        rows: Their open hypotheses.
        max_len: Slots of the caches.
        rules: Restrictions of the next token, applied in order.
        selection: Chooses among extensions.
        characters: The automaton of byte pieces, if there are any.
        rule_tokens: With shortlists, the tokens (n,) that rules, selection and characters refer to by column; they have
            the first n columns.
    """

    def __init__(
        self,
        model: AnyModel,
        context: Nested,
        rows: OpenHypotheses,
        *,
        max_len: int,
        rules: tuple[Rule, ...],
        selection: Selection,
        characters: Characters | None = None,
        rule_tokens: Tensor | None = None,
    ) -> None:
        self.model = model
        self.context = context
        self.open = rows
        self.beam = rows.last.shape[1]
        self.state: Nested = model.init_state(context, beam_size=self.beam, max_len=max_len)
        self.rules = rules
        self.selection = selection
        self.characters = characters
        # The first hypothesis of each row, (B, 1)
        self._base = torch.arange(len(rows.last), device=rows.last.device)[:, None] * self.beam
        self._rule_tokens = rule_tokens
        self._columns: Columns | None = None
        self._output: object = None
        self._narrow()

    @property
    def narrowed(self) -> bool:
        """True if only the tokens of the rows' shortlists are scored."""
        return self._rule_tokens is not None

    def advance(self) -> Tensor:
        """Extend every open hypothesis by one token without waiting for the device.

        Returns:
            log p, parent and token of the extensions that may end, then of those kept, (B, 6 beam) in float64.
        """
        columns = self._columns
        rows = self.open if columns is None else columns.of_rows(self.open)
        choice = self.selection(self._scores(rows), rows)
        if self.characters:
            partial = rows.partial.gather(1, choice.kept.parent)
            rows.partial.copy_(self.characters.after(partial, choice.kept.token))
        if columns is not None:
            choice = columns.tokens_of(choice)
        self._follow(choice.kept)
        # One tensor, and so one copy to the host; float64 holds every token exactly
        return torch.cat([part for log_prob, *rest in choice for part in (log_prob.double(), *rest)], 1)

    def _scores(self, rows: OpenHypotheses) -> Scores:
        position = rows.position[:, None].expand(-1, self.beam).reshape(-1)  # (N,)
        # Before rules apply: a hypothesis keeps the model's own log p
        log_probs, self.state = step_log_probs(
            self.model, rows.last.flatten(), self.context, self.state, position, self._output
        )
        only = rows.forced.gather(1, rows.position[:, None])  # (B, 1)
        # On a CPU the check saves passes over all tokens; on a GPU it would wait for the device
        forced = self._forced(only, log_probs, rows) if only.is_cuda or (only >= 0).any() else None
        for rule in self.rules:
            rule(log_probs, rows)
        if forced is not None:
            forced.apply(log_probs)
        return Scores(log_probs, self.characters, None if self._columns is None else self._columns.ids)

    def _forced(self, only: Tensor, log_probs: Tensor, rows: OpenHypotheses) -> Forced:
        """Return the forced tokens `only` (B, 1), -1 for none, of all hypotheses, with their log p before rules."""
        only = only.expand(-1, self.beam).reshape(-1, 1)  # (N, 1)
        token = only.clamp(min=0)
        if self._columns is not None:
            token = self._columns.place[token]
        log_prob = log_probs.gather(1, token)
        # 0 for tokens of the start, but NaN stays, since it tells that the model is damaged
        counts = (rows.position >= rows.start)[:, None].expand(-1, self.beam).reshape(-1, 1)
        return Forced(only >= 0, token, log_prob * counts)

    def _follow(self, kept: Extensions) -> None:
        """Let hypothesis i continue hypothesis parent[i] of its sentence by its token."""
        rows = self.open
        if self.beam > 1 and self.selection.reorders:
            self.state = reorder(self.state, (self._base + kept.parent).flatten())
        if rows.tokens.shape[2]:
            index = kept.parent[:, :, None].expand(-1, -1, rows.tokens.shape[2])
            rows.tokens.copy_(rows.tokens.gather(1, index))
            at = rows.position[:, None, None].expand(-1, self.beam, 1)
            rows.tokens.scatter_(2, at, kept.token[:, :, None])
        rows.last.copy_(kept.token)
        rows.log_prob.copy_(kept.log_prob)
        # The position of a row that has ended does not grow: caches have no further slots
        torch.minimum(rows.position + 1, rows.limits - 1, out=rows.position)

    def admit(self, places: Tensor, src: Tensor, src_mask: Tensor, rows: OpenHypotheses, longest: int) -> None:
        """Give the rows `places` (B',) to sentences src (B', S), padded to the S of the context.

        Args:
            longest: Maximum number of positions that any other row has written.
        """
        context = self.model.context(src, src_mask)
        # One slot: caches are not copied, since a new hypothesis sees only the slots that it writes
        fresh = self.model.init_state(context, beam_size=self.beam, max_len=1)
        refill(self.context, places, context)
        refill(self.state, places, fresh, self.beam)
        refill(self.open, places, rows)
        set_length(self.state, longest)
        self._narrow()

    def shrink(self, sources: Tensor, targets: Tensor, count: int, longest: int) -> None:
        """Move the rows `sources` to `targets`, and keep the first `count` rows."""
        set_length(self.state, longest)
        if sources.numel():
            move(self.context, sources, targets)
            move(self.state, sources, targets, self.beam)
            move(self.open, sources, targets)
        self.context = first(self.context, count)
        self.state = first(self.state, count, self.beam)
        self.open = first(self.open, count)
        self._base = self._base[:count]
        self._narrow()

    def _narrow(self) -> None:
        """Update the columns and the narrow output layer from the rows' shortlists, if they have any."""
        allowed = self.open.allowed
        if self._rule_tokens is not None:
            self._columns = Columns.of(allowed, self._rule_tokens)
            self._output = self.model.narrow(self._columns.ids, allowed[:, self._columns.ids])
