"""The data of a step: open hypotheses, their scores, rules that forbid tokens, and selections among extensions.

Shapes: B rows, each a sentence; N = B * beam hypotheses, L the longest target, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from seq2seq.search.characters import Characters


class OpenHypotheses(NamedTuple):
    """The open hypotheses of each row; all tensors have rows first.

    Attributes:
        last: The last token, which the next step reads, (B, beam).
        log_prob: log p so far, (B, beam); -inf for an empty place in the beam.
        position: The position of the last token, (B,).
        limits: The length of the longest target, the end included, (B,).
        forced: The token that each position must have, (B, L), or -1: the start, the prefix, and the end at the limit.
        tokens: Tokens so far, (B, beam, L), if a rule or the selection reads them; else (B, beam, 0).
        draws: A uniform number for each sample and position, (B, beam, L), for sampling; else (B, beam, 0).
        phrases: Phrases that the translation must have, as `constraints.flatten` writes them, (B, tokens).
        partial: State of the character that byte pieces write, (B, beam); (B, 0) without byte pieces.
        allowed: Mask of the shortlist, (B, V); (B, 0) without one.
        start: Number of first tokens whose log p is 0, (B,).
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
    start: Tensor


class Scores(NamedTuple):
    """Scores of a step.

    Attributes:
        log_probs: log p, (N, V), in nats; -inf for forbidden tokens. A forced token forbids all others; its log p is
            the model's, or 0 at the start. A NaN or +inf logit makes its row NaN.
        characters: The automaton of byte pieces; None without byte pieces.
        ids: The token of each column, (V,); None if all tokens are scored.
    """

    log_probs: Tensor
    characters: Characters | None = None
    ids: Tensor | None = None


class Extensions(NamedTuple):
    """Extensions of a row's hypotheses by one token: log p, the row of the parent within the beam, and the token."""

    log_prob: Tensor
    parent: Tensor
    token: Tensor


class Choice(NamedTuple):
    """Choice of a step: extensions that may have ended, and extensions to continue, (B, beam) each."""

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
