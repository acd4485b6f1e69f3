"""The rows of a running search on the device: sentences with their context, state and open hypotheses.

Shapes: B rows, each a sentence; N = B * beam hypotheses, L the longest target, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from seq2seq.network.state import Nested, first, move, refill, reorder, set_length
from seq2seq.search.characters import Characters
from seq2seq.search.columns import Columns
from seq2seq.search.hypothesis import Specials

# What a model keeps of the source, of its hypotheses, and as a narrow output layer; a search looks into none of them.
ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT")


class Model(Protocol[ContextT, StateT, OutputT]):
    """Model as a search knows it: `seq2seq.network.model.Seq2Seq` is one, and so is an ensemble."""

    def context(self, src: Tensor, src_mask: Tensor) -> ContextT:
        """Compute what is read of the source, once per sentence."""
        ...

    def init_state(self, context: ContextT, *, beam_size: int, max_len: int) -> StateT:
        """Return the state before the first position."""
        ...

    def narrow(self, ids: Tensor, allowed: Tensor) -> OutputT:
        """Return an output layer for `step`, of the tokens ids (U,), -inf where allowed (B, U) says so."""
        ...

    def step(
        self, token: Tensor, context: ContextT, state: StateT, position: Tensor, output: OutputT | None = None
    ) -> tuple[Tensor, StateT]:
        """Return logits (N, V) of the token after `token` (N,) at position (N,), and the next state.

        A model whose logits are log p already says so by an attribute `normalized`.

        Args:
            output: An output layer that `narrow` has made, whose logits (N, U) are returned instead.
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
    """Take a model's step, and return log p (N, V), or (N, U) of a narrow output, in float32 with the next state."""
    given = () if output is None else (output,)
    logits, state = model.step(token, context, state, position, *given)
    logits = logits.float()
    return (logits if getattr(model, "normalized", False) else logits.log_softmax(-1)), state


class OpenHypotheses(NamedTuple):
    """The open hypotheses of each row, all tensors with rows first.

    Attributes:
        last: The token that the next step reads, (B, beam).
        log_prob: log p so far, (B, beam); -inf where there is no hypothesis.
        position: The position of that token, (B,).
        limits: The longest target, its end included, (B,).
        forced: Tokens that must come first, (B, L), -1 after them.
        tokens: Tokens so far, (B, beam, L), where a rule reads them; else (B, beam, 0).
        draws: A uniform number for each sample and position, (B, beam, L), for sampling; else (B, beam, 0).
        phrases: What the translation must have, as `constraints.flatten` writes it, (B, tokens).
        partial: State of the character that byte pieces write, (B, beam), where there are such; else (B, 0).
        allowed: The tokens that the translation may have, (B, V), where not all; else (B, 0).
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
    """Scores of a step: log p of the tokens that are allowed, -inf elsewhere.

    Attributes:
        log_probs: (N, V), in nats; all of a row are NaN where a logit is not finite.
        only: The one token that may follow, (N,), -1 where there are several.
        only_log_prob: Its log p, (N,), whatever the rules say.
        characters: What knows how many byte pieces an extension still needs; None where there are none.
        ids: The token of each column, (V,), where not all tokens are scored.
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
    """Choice of a step, (B, beam) each: `may_end` has those whose token may be the end, `kept` those that go on."""

    may_end: Extensions
    kept: Extensions


class Rule(Protocol):
    """A restriction of what may follow: it sets log p (N, V) of what it forbids to -inf, in place."""

    @property
    def reads_tokens(self) -> bool:
        """True if it reads `OpenHypotheses.tokens`."""
        ...

    def __call__(self, log_probs: Tensor, rows: OpenHypotheses) -> None:
        """Forbid tokens."""
        ...


class Selection(Protocol):
    """Way to choose among the extensions of a step."""

    @property
    def reorders(self) -> bool:
        """False if every hypothesis continues itself."""
        ...

    @property
    def reads_tokens(self) -> bool:
        """True if it reads `OpenHypotheses.tokens`."""
        ...

    @property
    def groups(self) -> int:
        """Equal parts of the beam, each of which has its own endings."""
        ...

    @property
    def waits(self) -> bool:
        """True if it reads on the host what the device has computed."""
        ...

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose."""
        ...


class Rows:
    """The rows of a running search; sentences leave and enter, everything is written in place.

    Args:
        model: In evaluation mode.
        context: Of the first sentences, one for each row.
        rows: Their open hypotheses.
        max_len: Slots of the caches.
        rules: What is forbidden, applied in order.
        selection: How extensions are chosen.
        characters: The state of byte pieces, where there are any.
        rule_tokens: Where rows have lists of tokens: those that rules, selection and characters know by their columns,
            which are the first ones, (n,).
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
        # Where the rows of hypotheses begin, (B, 1)
        self._base = torch.arange(len(rows.last), device=rows.last.device)[:, None] * self.beam
        self._rule_tokens = rule_tokens
        self._columns: Columns | None = None
        self._output: object = None
        self._narrow()

    @property
    def narrowed(self) -> bool:
        """True if the tokens of the rows' lists alone are scored."""
        return self._rule_tokens is not None

    def advance(self) -> Tensor:
        """Extend every open hypothesis by one token, and return what the host needs to know, (B, 6 beam) int32.

        Nothing here waits for the device.
        """
        columns = self._columns
        # What is remembered are tokens, what is scored are columns
        rows = self.open if columns is None else columns.of_rows(self.open)
        choice = self.selection(self._scores(rows), rows)
        if self.characters:
            partial = rows.partial.gather(1, choice.kept.parent)
            rows.partial.copy_(self.characters.after(partial, choice.kept.token))
        if columns is not None:
            choice = columns.tokens_of(choice)
        self._follow(choice.kept)
        parts = [part for extensions in choice for part in extensions]
        # One tensor, so that it is one copy; floats as their bits
        return torch.cat([part.view(torch.int32) if part.is_floating_point() else part.int() for part in parts], 1)

    def _scores(self, rows: OpenHypotheses) -> Scores:
        position = rows.position.repeat_interleave(self.beam)  # (N,)
        # Of all tokens, before some are ruled out: log_prob is the model's own
        log_probs, self.state = step_log_probs(
            self.model, rows.last.flatten(), self.context, self.state, position, self._output
        )
        only = rows.forced.gather(1, rows.position[:, None])  # (B, 1)
        # At its limit a hypothesis can only end, so that none is lost
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
        """Let hypothesis i continue row parent[i] of its sentence by its token."""
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
        # A row that has ended stays where it is until it is taken: there are no further slots or positions
        torch.minimum(rows.position + 1, rows.limits - 1, out=rows.position)

    def admit(self, places: Tensor, src: Tensor, src_mask: Tensor, rows: OpenHypotheses, longest: int) -> None:
        """Let sentences src (B', S) take the rows `places` (B',); S is that of the context.

        Args:
            longest: Positions that the other rows have written, at most.
        """
        context = self.model.context(src, src_mask)
        # One slot: caches are not copied, a new hypothesis sees only what it has written itself
        fresh = self.model.init_state(context, beam_size=self.beam, max_len=1)
        refill(self.context, places, context)
        refill(self.state, places, fresh, self.beam)
        refill(self.open, places, rows)
        set_length(self.state, longest)
        self._narrow()

    def shrink(self, sources: Tensor, targets: Tensor, count: int, longest: int) -> None:
        """Move the rows `sources` to `targets`, and keep the first `count` rows only."""
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
        """Score the tokens of the rows' lists alone from here on, where they have lists."""
        allowed = self.open.allowed
        if self._rule_tokens is not None:
            self._columns = Columns.of(allowed, self._rule_tokens)
            self._output = self.model.narrow(self._columns.ids, allowed[:, self._columns.ids])
