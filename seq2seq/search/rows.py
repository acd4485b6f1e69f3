"""The rows of a running search on the device: sentences with their context, state and open hypotheses.

Shapes: B rows, each a sentence; N = B * beam hypotheses, L the longest target, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from seq2seq.network.state import Nested, first, move, refill, reorder, set_length
from seq2seq.search.characters import Characters
from seq2seq.search.columns import Columns
from seq2seq.search.hypothesis import Specials

# A model's context, state and narrow output layer, which a search does not look into
ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT")


class Model(Protocol[ContextT, StateT, OutputT]):
    """A model that can be searched, such as `seq2seq.network.model.Seq2Seq` or an ensemble.

    A model whose logits are log-probabilities has an attribute `normalized` that is True.
    """

    def context(self, src: Tensor, src_mask: Tensor) -> ContextT:
        """Compute the context of the source, once per sentence."""
        ...

    def init_state(self, context: ContextT, *, beam_size: int, max_len: int) -> StateT:
        """Return the state before the first position."""
        ...

    def narrow(self, ids: Tensor, allowed: Tensor) -> OutputT:
        """Return an output layer for `step` of the tokens ids (U,): -inf where allowed (B, U) is False."""
        ...

    def step(
        self, token: Tensor, context: ContextT, state: StateT, position: Tensor, output: OutputT | None = None
    ) -> tuple[Tensor, StateT]:
        """Return logits (N, V) of the token after `token` (N,) at position (N,), and the next state.

        Args:
            output: An output layer of `narrow`, to return its logits (N, U) instead.
        """
        ...


# Any model: the types of its context, state and output are its own
AnyModel: TypeAlias = Model[Any, Any, Any]


def step_log_probs(
    model: Model[ContextT, StateT, OutputT],
    token: Tensor,
    context: ContextT,
    state: StateT,
    position: Tensor,
    output: OutputT | None = None,
) -> tuple[Tensor, StateT]:
    """Return log p (N, V) in float32, or (N, U) of a narrow output, and the next state of a model's step."""
    given = () if output is None else (output,)
    logits, state = model.step(token, context, state, position, *given)
    logits = logits.float()
    return (logits if getattr(model, "normalized", False) else logits.log_softmax(-1)), state


class OpenHypotheses(NamedTuple):
    """The open hypotheses of each row; all tensors have rows first.

    Attributes:
        last: The last token, which the next step reads, (B, beam).
        log_prob: log p so far, (B, beam); -inf for an empty place in the beam.
        position: The position of the last token, (B,).
        limits: The length of the longest target, the end included, (B,).
        forced: The prefix, (B, L), -1 after it.
        tokens: Tokens so far, (B, beam, L), if a rule or the selection reads them; else (B, beam, 0).
        draws: A uniform number for each sample and position, (B, beam, L), for sampling; else (B, beam, 0).
        phrases: Phrases that the translation must have, as `constraints.flatten` writes them, (B, tokens).
        partial: State of the character that byte pieces write, (B, beam); (B, 0) without byte pieces.
        allowed: Mask of the shortlist, (B, V); (B, 0) without one.
    """

    last: Tensor
    log_prob: Tensor
    position: Tensor
    limits: Tensor
    forced: Tensor
    tokens: Tensor
    draws: Tensor
    phrases: Tensor
    partial: Tensor
    allowed: Tensor


class Scores(NamedTuple):
    """Scores of a step.

    Attributes:
        log_probs: log p, (N, V), in nats; -inf for forbidden tokens. A logit that is not finite makes a row NaN.
        only: The forced token, (N,); -1 for rows that may choose.
        only_log_prob: log p of the forced token, (N,), before rules.
        characters: The automaton of byte pieces; None without byte pieces.
        ids: The token of each column, (V,); None if all tokens are scored.
    """

    log_probs: Tensor
    only: Tensor
    only_log_prob: Tensor
    characters: Characters | None = None
    ids: Tensor | None = None


class Extensions(NamedTuple):
    """Extensions of a row's hypotheses by one token: log p, the row of the parent within the beam, and the token."""

    log_prob: Tensor
    parent: Tensor
    token: Tensor


class Choice(NamedTuple):
    """Choice of a step, (B, beam) each: extensions of which some may have ended, and extensions to continue."""

    may_end: Extensions
    kept: Extensions


class Rule(ABC):
    """A restriction of the next token.

    Attributes:
        reads_tokens: True if it reads `OpenHypotheses.tokens`.
    """

    reads_tokens = False

    @abstractmethod
    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Set log p (N, V) of forbidden tokens to -inf, in place."""


class Selection(ABC):
    """A way to choose among the extensions of a step.

    Attributes:
        reorders: False if every hypothesis continues itself.
        reads_tokens: True if it reads `OpenHypotheses.tokens`.
        waits: True if it reads results of the device on the host.
        groups: Number of equal parts of the beam, each of which has its own finished hypotheses.
    """

    reorders = True
    reads_tokens = False
    waits = False
    groups = 1

    @abstractmethod
    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose the extensions that may end, and those to keep."""


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
        rule_tokens: With shortlists, the tokens (n,) that rules, selection and characters know by their columns, which
            are the first n.
    """

    def __init__(
        self,
        model: AnyModel,
        context: Nested,
        rows: OpenHypotheses,
        *,
        special: Specials,
        max_len: int,
        rules: tuple[Rule, ...],
        selection: Selection,
        characters: Characters | None = None,
        rule_tokens: Tensor | None = None,
    ) -> None:
        self.model = model
        self.special = special
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
            log p, parent and token of the extensions that may end, then of those kept, (B, 6 beam): int32, with log p
            as the bits of float32.
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
        parts = [part for extensions in choice for part in extensions]
        # One tensor, and so one copy to the host
        return torch.cat([part.view(torch.int32) if part.is_floating_point() else part.int() for part in parts], 1)

    def _scores(self, rows: OpenHypotheses) -> Scores:
        position = rows.position.repeat_interleave(self.beam)  # (N,)
        # Before rules apply: a hypothesis keeps the model's own log p
        log_probs, self.state = step_log_probs(
            self.model, rows.last.flatten(), self.context, self.state, position, self._output
        )
        only = rows.forced.gather(1, rows.position[:, None])  # (B, 1)
        # At its limit a hypothesis must end, so that it is not lost
        only = only.masked_fill((rows.position + 1 >= rows.limits)[:, None], self.special.eos)
        only = only.expand(-1, self.beam).reshape(-1)  # (N,)
        if self._columns is not None:
            only = torch.where(only < 0, only, self._columns.place[only.clamp(min=0)])
        only_log_prob = log_probs.gather(1, only.clamp(min=0)[:, None]).squeeze(1)
        for rule in self.rules:
            rule(log_probs, rows)
        ids = None if self._columns is None else self._columns.ids
        return Scores(log_probs, only, only_log_prob, self.characters, ids)

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
            longest: The most positions that another row has written.
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
