"""Lexically constrained search: dynamic beam allocation for phrases that a translation must contain.

A candidate's bank is the number of phrase tokens that it has generated. The beam is divided among the banks, so that a
hypothesis that generates an improbable phrase early is not crowded out by others that postpone it. If there are more
banks than places in the beam, the fullest banks get one place each. A candidate that can no longer generate all phrases
within the limit of length is discarded, and eos is allowed only after all phrases. A phrase does not count if the next
token continues its last word.

Reference:
    Post and Vilar 2018, 'Fast Lexically Constrained Decoding with Dynamic Beam Allocation'.
    Hu et al. 2019, 'Improved Lexically Constrained Decoding for Translation and Monolingual Rewriting'.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.search.characters import Characters
from seq2seq.search.choice import Choice, Extensions, OpenHypotheses, Scores, Selection
from seq2seq.search.hypothesis import NEVER
from seq2seq.search.selection import top
from seq2seq.search.words import Words

# Ends each phrase in `OpenHypotheses.phrases`, and pads its rows.
STOP = -1


class Phrase(NamedTuple):
    """A phrase: its tokens, the tokens that would continue its last word, and those after which it begins in a word."""

    tokens: Sequence[int]
    barred: frozenset[int] = frozenset()
    inside: frozenset[int] = frozenset()


class Progress(NamedTuple):
    """Progress of a hypothesis: the indices of phrases `done`, and the number of tokens `reached` in phrase `current`.

    A phrase with barred tokens is met only once its last token is followed by a token that is not barred.
    """

    done: frozenset[int] = frozenset()
    current: int = -1
    reached: int = 0

    def after(self, token: int, phrases: Sequence[Phrase], previous: int | None = None) -> Progress:
        """Return the progress after one more token, which may break off a phrase and continue another.

        Args:
            previous: The token before this one; None at the beginning.
        """
        expected = self._next(phrases)
        if token == expected:
            return self._at(self.current, self.reached + 1, phrases)
        if self.current < 0:
            return self._begin([token], phrases, previous)
        current = phrases[self.current]
        if expected is None and token not in current.barred:
            return Progress(self.done | {self.current})._begin([token], phrases, current.tokens[-1])
        # Another phrase with the first token of the one that breaks off may begin where that one did
        return Progress(self.done)._begin([*current.tokens[: self.reached], token], phrases, None)

    def _begin(self, tokens: list[int], phrases: Sequence[Phrase], previous: int | None) -> Progress:
        """Return the progress after tokens that belong to no phrase yet: the leftmost phrase counts, then the longest.

        A broken-off phrase may contain other phrases, or their beginning: 5 5 5 ends in a beginning of 5 5 6.
        """
        unmet = [index for index in range(len(phrases)) if index not in self.done]
        first = {phrases[index].tokens[0] for index in unmet}
        # Of most tokens; a glossary may have a hundred terms to sort
        if first.isdisjoint(tokens):
            return self
        unmet.sort(key=lambda index: -len(phrases[index].tokens))
        for start in range(len(tokens)):
            if tokens[start] not in first:
                continue
            rest, before = tokens[start:], tokens[start - 1] if start else previous
            whole = [index for index in unmet if before not in phrases[index].inside]
            for index in whole:
                if list(phrases[index].tokens[: len(rest)]) == rest:
                    return self._at(index, len(rest), phrases)
            for index in whole:
                size = len(phrases[index].tokens)
                if rest[:size] == list(phrases[index].tokens) and rest[size] not in phrases[index].barred:
                    return Progress(self.done | {index})._begin(rest[size:], phrases, rest[size - 1])
        return self

    def _at(self, index: int, reached: int, phrases: Sequence[Phrase]) -> Progress:
        phrase = phrases[index]
        whole = reached == len(phrase.tokens) and not phrase.barred
        return Progress(self.done | {index}) if whole else Progress(self.done, index, reached)

    def _next(self, phrases: Sequence[Phrase]) -> int | None:
        """Return the next token of the current phrase; None without one, or at its end."""
        tokens = phrases[self.current].tokens if self.current >= 0 else ()
        return tokens[self.reached] if self.reached < len(tokens) else None

    def wanted(self, phrases: Sequence[Phrase]) -> set[int]:
        """Return the tokens that continue or begin a phrase."""
        if self._next(phrases) is not None:
            begun = phrases[self.current].tokens[: self.reached]
            unmet = (phrase.tokens for index, phrase in enumerate(phrases) if index not in self.done)
            same = (tokens for tokens in unmet if list(tokens[: self.reached]) == list(begun))
            return {tokens[self.reached] for tokens in same if len(tokens) > self.reached}
        taken = self.done | {self.current}
        return {phrase.tokens[0] for index, phrase in enumerate(phrases) if index not in taken}

    def barred(self, phrases: Sequence[Phrase]) -> frozenset[int]:
        """Return the tokens that would undo the current phrase, if its end has been reached; else an empty set."""
        at_end = self.current >= 0 and self._next(phrases) is None
        return phrases[self.current].barred if at_end else frozenset()

    def met(self, phrases: Sequence[Phrase]) -> int:
        """Return the number of phrase tokens that have been met."""
        return sum(len(phrases[index].tokens) for index in self.done) + self.reached


class Followed:
    """The progress of a search's hypotheses, each computed from the progress one token earlier.

    Attributes:
        last: The last token of each sentence's hypotheses; None at the beginning.
    """

    def __init__(self) -> None:
        self.last: list[list[int | None]] = []
        self._words: Words | None = None
        # Progress after the last step, by phrases and tokens
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Progress] = {}

    def all(self, rows: OpenHypotheses, phrases: Sequence[Sequence[Phrase]], words: Words) -> list[list[Progress]]:
        """Return the progress of each sentence's hypotheses through its phrases, which are guarded by `words`."""
        # If `words` has changed, the columns of the scores stand for other tokens
        before = self._known if words == self._words else {}
        self._words = words
        self._known = {}
        self.last = []
        tokens = rows.tokens.tolist()
        lengths = rows.position.tolist()
        found = []
        for row, flat in enumerate(rows.phrases.tolist()):
            beam = []
            for ids in tokens[row]:
                written = tuple(ids[: lengths[row]])
                old = before.get((tuple(flat), written[:-1]))
                if old is None or not written:
                    new = follow(written, phrases[row])
                else:
                    new = old.after(written[-1], phrases[row], written[-2] if len(written) > 1 else None)
                self._known[tuple(flat), written] = new
                beam.append(new)
            found.append(beam)
            self.last.append([ids[lengths[row] - 1] if lengths[row] else None for ids in tokens[row]])
        return found


class Candidate(NamedTuple):
    """An extension of a hypothesis by a token, and the number of phrase tokens that it has met."""

    log_prob: float
    parent: int
    token: int
    bank: int


@dataclasses.dataclass(frozen=True)
class Constrained(Selection):
    """Beam search with phrases; the host chooses, so it waits for the device at every step.

    Args:
        words: Tokens that continue a word, and tokens whose word may be continued (default: none).
    """

    reads_tokens = True
    waits = True

    eos: int
    words: Words = dataclasses.field(default_factory=Words)
    _followed: Followed = dataclasses.field(default_factory=Followed, init=False, repr=False, compare=False)

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose for each sentence in turn."""
        sentences, size = rows.log_prob.shape
        width = min(2 * size, scores.log_probs.shape[1])
        value, _, token = top(scores.log_probs[:, None], width)  # (N, width)
        total = value.view(sentences, size, width) + rows.log_prob[:, :, None]
        words = self.words if scores.ids is None else self.words.in_columns(scores.ids.tolist())
        phrases = [guarded(unflatten(flat), words) for flat in rows.phrases.tolist()]
        progress = self._followed.all(rows, phrases, words)
        wanted = self._wanted(scores, rows, progress, phrases)
        best_tokens = token.view(sentences, size, width).tolist()
        best_totals = total.tolist()
        partial = rows.partial.tolist()
        # Tokens after this one, including the end
        left = (rows.limits - rows.position - 1).tolist()
        may_end = []
        kept = []
        for row in range(sentences):
            candidates = []
            for parent, log_probs in enumerate(wanted[row]):
                log_probs.update(zip(best_tokens[row][parent], best_totals[row][parent], strict=True))
                state = progress[row][parent]
                character = partial[row][parent] if scores.characters else 0
                given = (phrases[row], self._followed.last[row][parent], left[row], scores.characters, character)
                candidates += self._extensions(parent, log_probs, state, *given)
            # NaN ranks first, so that the host finds it
            candidates.sort(key=lambda each: (not math.isnan(each.log_prob), -each.log_prob))
            ended, open_ones = self._allocate(candidates, _length(phrases[row]), size)
            may_end.append(ended)
            kept.append(open_ones)
        return Choice(_tensors(may_end, rows.log_prob), _tensors(kept, rows.log_prob))

    def _wanted(
        self, scores: Scores, rows: OpenHypotheses, progress: list[list[Progress]], phrases: list[list[Phrase]]
    ) -> list[list[dict[int, float]]]:
        """Return log p of each hypothesis with each token that continues or begins a phrase, however improbable.

        At the end of a phrase whose last word may be continued, add the best token that does not continue it.
        """
        size = rows.log_prob.shape[1]
        asked = []
        for row, states in enumerate(progress):
            for parent, state in enumerate(states):
                hypothesis = row * size + parent
                asked += [(hypothesis, token) for token in sorted(state.wanted(phrases[row]))]
                if barred := state.barred(phrases[row]):
                    others = scores.log_probs[hypothesis].clone()  # (V,)
                    others[list(barred)] = NEVER
                    asked.append((hypothesis, int(others.argmax())))
        found: list[list[dict[int, float]]] = [[{} for _ in states] for states in progress]
        if asked:
            index, tokens = torch.tensor(asked).to(rows.last.device).unbind(1)
            log_prob = scores.log_probs[index, tokens] + rows.log_prob.flatten()[index]
            for (hypothesis, token), value in zip(asked, log_prob.tolist(), strict=True):
                found[hypothesis // size][hypothesis % size][token] = value
        return found

    def _extensions(
        self,
        parent: int,
        log_probs: dict[int, float],
        progress: Progress,
        phrases: list[Phrase],
        previous: int | None,
        left: int,
        characters: Characters | None,
        character: int,
    ) -> list[Candidate]:
        """List the extensions of one hypothesis that can still meet all phrases.

        Args:
            log_probs: log p of the hypothesis with each next token.
            previous: Its last token.
            left: Number of tokens after the next one, including the end.
            character: State of the character that byte pieces have begun.
        """
        found = []
        every = _length(phrases)
        for token, log_prob in log_probs.items():
            if log_prob == NEVER:
                continue
            after = progress.after(token, phrases, previous)
            met = after.met(phrases)
            if token == self.eos:
                possible = len(after.done) == len(phrases)
            else:
                rest = every - met
                # A phrase that has begun completes its characters itself
                if characters is not None and after.current < 0:
                    rest += characters.missing(character, token)
                # The end takes one of the tokens that are left
                possible = rest <= left - 1
            if possible:
                found.append(Candidate(log_prob, parent, token, met))
        return found

    def _allocate(self, candidates: list[Candidate], every: int, size: int) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates that end, and `size` to keep.

        Those kept are the best of each bank, fullest bank first, then the second best of each, and so on.
        """
        last = [each for each in candidates if each.bank == every][:size]
        ended = [each for each in last if each.token == self.eos]
        open_ones = [each for each in candidates if each.token != self.eos]
        before: Counter[int] = Counter()  # candidates of each bank so far
        ranks = []
        for each in open_ones:
            ranks.append((-1 if math.isnan(each.log_prob) else before[each.bank], -each.bank))
            before[each.bank] += 1
        order = sorted(range(len(open_ones)), key=ranks.__getitem__)
        return ended, [open_ones[i] for i in order[:size]]


def guarded(phrases: Sequence[Sequence[int]], words: Words) -> list[Phrase]:
    """Return phrases with the tokens that would continue their last words, or be continued by their first words."""
    return [
        Phrase(
            tokens,
            words.going_on if tokens[-1] in words.unended else frozenset(),
            words.unended if tokens[0] in words.going_on else frozenset(),
        )
        for tokens in phrases
    ]


def _length(phrases: Sequence[Phrase]) -> int:
    return sum(len(phrase.tokens) for phrase in phrases)


def follow(ids: Sequence[int], phrases: Sequence[Phrase]) -> Progress:
    """Return the progress after these tokens."""
    progress, previous = Progress(), None
    for token in ids:
        progress, previous = progress.after(token, phrases, previous), token
    return progress


def flatten(phrases: Sequence[Sequence[int]]) -> list[int]:
    """Concatenate phrases, each with a STOP at its end."""
    return [token for phrase in phrases for token in (*phrase, STOP)]


def unflatten(flat: list[int]) -> list[list[int]]:
    """Invert `flatten`."""
    phrases: list[list[int]] = [[]]
    for token in flat:
        if token != STOP:
            phrases[-1].append(token)
        elif phrases[-1]:
            phrases.append([])
    return phrases[:-1]


def _tensors(rows: list[list[Candidate]], like: Tensor) -> Extensions:
    """Return candidates as tensors (B, beam), padded with -inf."""
    size = like.shape[1]
    empty = Candidate(NEVER, 0, 0, 0)
    full = [[*row, *[empty] * (size - len(row))] for row in rows]
    log_prob = torch.tensor([[each.log_prob for each in row] for row in full], dtype=like.dtype)
    parent = torch.tensor([[each.parent for each in row] for row in full])
    token = torch.tensor([[each.token for each in row] for row in full])
    return Extensions(log_prob.to(like.device), parent.to(like.device), token.to(like.device))
