"""Lexically constrained search: phrases that every translation must have, by dynamic beam allocation.

A candidate's bank is the number of phrase tokens that it has generated. The beam is divided among the banks, so that
hypotheses that generate an improbable phrase early are not crowded out by those that postpone it; if there are more
banks than places in the beam, the fullest banks get one place each. A candidate that can no longer generate all phrases
within the limit of length is discarded, and eos is allowed only after all of them. A phrase does not count if the next
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

from seq2seq.search.hypothesis import NEVER
from seq2seq.search.rows import Choice, Extensions, OpenHypotheses, Scores
from seq2seq.search.top import top
from seq2seq.search.words import Words

# Ends a phrase in `OpenHypotheses.phrases`, and fills the rest.
STOP = -1


class Phrase(NamedTuple):
    """A phrase: its tokens, and those that may not follow it, since its last word would go on."""

    tokens: Sequence[int]
    barred: frozenset[int] = frozenset()


class Progress(NamedTuple):
    """Progress of a hypothesis: the phrases met whole, by index, and the first `reached` tokens of phrase `current`.

    A phrase that is reached to its end is met by the next token, if that is not barred.
    """

    done: frozenset[int] = frozenset()
    current: int = -1
    reached: int = 0

    def after(self, token: int, phrases: Sequence[Phrase]) -> Progress:
        """Return the progress after one more token, which may break off one phrase and go on with another."""
        expected = self._next(phrases)
        if token == expected:
            return self._at(self.current, self.reached + 1, phrases)
        if self.current < 0:
            return self._begin([token], phrases)
        current = phrases[self.current]
        if expected is None and token not in current.barred:
            return Progress(self.done | {self.current})._begin([token], phrases)
        return Progress(self.done)._begin([*current.tokens[: self.reached], token], phrases)

    def _begin(self, tokens: list[int], phrases: Sequence[Phrase]) -> Progress:
        """Return the progress after tokens that belong to no phrase yet: the leftmost phrase counts, then the longest.

        What has broken off may hold other phrases, or their beginning, as 5 5 5 does of 5 5 6.
        """
        unmet = [index for index in range(len(phrases)) if index not in self.done]
        unmet.sort(key=lambda index: -len(phrases[index].tokens))
        first = {phrases[index].tokens[0] for index in unmet}
        for start in range(len(tokens)):
            if tokens[start] not in first:
                continue
            rest = tokens[start:]
            for index in unmet:
                if list(phrases[index].tokens[: len(rest)]) == rest:
                    return self._at(index, len(rest), phrases)
            for index in unmet:
                size = len(phrases[index].tokens)
                if rest[:size] == list(phrases[index].tokens) and rest[size] not in phrases[index].barred:
                    return Progress(self.done | {index})._begin(rest[size:], phrases)
        return self

    def _at(self, index: int, reached: int, phrases: Sequence[Phrase]) -> Progress:
        tokens, barred = phrases[index]
        whole = reached == len(tokens) and not barred
        return Progress(self.done | {index}) if whole else Progress(self.done, index, reached)

    def _next(self, phrases: Sequence[Phrase]) -> int | None:
        """Return the token with which the current phrase goes on; None where it is reached to its end."""
        tokens = phrases[self.current].tokens if self.current >= 0 else ()
        return tokens[self.reached] if self.reached < len(tokens) else None

    def wanted(self, phrases: Sequence[Phrase]) -> set[int]:
        """Return the tokens that meet more of the phrases."""
        if self._next(phrases) is not None:
            begun = phrases[self.current].tokens[: self.reached]
            unmet = (phrase.tokens for index, phrase in enumerate(phrases) if index not in self.done)
            same = (tokens for tokens in unmet if list(tokens[: self.reached]) == list(begun))
            return {tokens[self.reached] for tokens in same if len(tokens) > self.reached}
        taken = self.done | {self.current}
        return {phrase.tokens[0] for index, phrase in enumerate(phrases) if index not in taken}

    def barred(self, phrases: Sequence[Phrase]) -> frozenset[int]:
        """Return the tokens that would break the current phrase after its end; none where it has not been reached."""
        at_end = self.current >= 0 and self._next(phrases) is None
        return phrases[self.current].barred if at_end else frozenset()

    def met(self, phrases: Sequence[Phrase]) -> int:
        """Return how many tokens of phrases are met."""
        return sum(len(phrases[index].tokens) for index in self.done) + self.reached


class Followed:
    """Progress of the hypotheses of a search, each one token after that of the step before."""

    def __init__(self) -> None:
        self._words: Words | None = None
        # Of the last step, by phrases and tokens
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Progress] = {}

    def all(self, rows: OpenHypotheses, phrases: Sequence[Sequence[Phrase]], words: Words) -> list[list[Progress]]:
        """Return the progress of each hypothesis of each sentence with its phrases, guarded by `words`."""
        # Columns of the scores may stand for other tokens than before
        before = self._known if words == self._words else {}
        self._words, self._known = words, {}
        every = zip(rows.phrases.tolist(), rows.tokens.tolist(), rows.position.tolist(), phrases, strict=True)
        found = []
        for flat, beam, length, wanted in every:
            keys = [(tuple(flat), tuple(ids[:length])) for ids in beam]
            found.append([_after(before.get((key[0], key[1][:-1])), key[1], wanted) for key in keys])
            self._known.update(zip(keys, found[-1], strict=True))
        return found


def _after(before: Progress | None, ids: Sequence[int], phrases: Sequence[Phrase]) -> Progress:
    """Return the progress after ids, from that before the last of them where it is known."""
    return follow(ids, phrases) if before is None or not ids else before.after(ids[-1], phrases)


class Candidate(NamedTuple):
    """An extension of a hypothesis by a token, and the number of phrase tokens that it has met."""

    log_prob: float
    parent: int
    token: int
    bank: int


@dataclasses.dataclass(frozen=True)
class Constrained:
    """Beam search with phrases; the host chooses, so that it waits for the device at every step.

    Args:
        words: Tells where the last word of a phrase goes on (default: nowhere).
    """

    reorders = True
    reads_tokens = True
    groups = 1
    waits = True

    eos: int
    words: Words = dataclasses.field(default_factory=Words)
    _followed: Followed = dataclasses.field(default_factory=Followed, init=False, repr=False, compare=False)

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose for one sentence after another."""
        sentences, size = rows.log_prob.shape
        width = min(2 * size, scores.log_probs.shape[1])
        value, token = top(scores.log_probs, width)  # (N, width)
        total = value.view(sentences, size, width) + rows.log_prob[:, :, None]
        alone = scores.only_log_prob.view(sentences, size) + rows.log_prob
        words = self.words if scores.ids is None else self.words.in_columns(scores.ids.tolist())
        phrases = [guarded(unflatten(flat), words) for flat in rows.phrases.tolist()]
        position = rows.position.tolist()
        progress = self._followed.all(rows, phrases, words)
        wanted = self._wanted(scores, rows, progress, phrases)
        only = scores.only.view(sentences, size)[:, 0].tolist()
        given = [
            [{only[row]: log_prob} for log_prob in forced] if only[row] >= 0 else more
            for row, (forced, more) in enumerate(zip(alone.tolist(), wanted, strict=True))
        ]
        for row, (tokens, totals) in enumerate(
            zip(token.view(sentences, size, width).tolist(), total.tolist(), strict=True)
        ):
            if only[row] < 0:
                for best, *pair in zip(given[row], tokens, totals, strict=True):
                    best.update(zip(*pair, strict=True))
        missing = self._missing(scores, rows, given)
        chosen = []
        for row, limit in enumerate(rows.limits.tolist()):
            # Tokens after this one, the end counted
            left = limit - position[row] - 1
            candidates = self._candidates(given[row], progress[row], phrases[row], left, missing[row])
            chosen.append(self._allocate(candidates, _length(phrases[row]), size))
        return Choice(*(_tensors(side, rows.log_prob) for side in zip(*chosen, strict=True)))

    def _wanted(
        self, scores: Scores, rows: OpenHypotheses, progress: list[list[Progress]], phrases: list[list[Phrase]]
    ) -> list[list[dict[int, float]]]:
        """Return log p of each hypothesis with each token that its phrases want, which need not be among the best.

        At the end of a phrase whose last word could go on, that is also the best token with which it does not.
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

    def _missing(
        self, scores: Scores, rows: OpenHypotheses, given: list[list[dict[int, float]]]
    ) -> list[list[dict[int, int]]]:
        """Return how many byte pieces complete the character after each token, where that is not 0."""
        characters = scores.characters
        if characters is None:
            return [[{} for _ in beam] for beam in given]
        return [
            [{token: characters.missing(state, token) for token in tokens} for tokens, state in zip(*pair, strict=True)]
            for pair in zip(given, rows.partial.tolist(), strict=True)
        ]

    def _candidates(
        self,
        given: list[dict[int, float]],
        progress: list[Progress],
        phrases: list[Phrase],
        left: int,
        missing: list[dict[int, int]],
    ) -> list[Candidate]:
        """List the extensions that can still meet all phrases, best first.

        Args:
            given: log p of each hypothesis with each token.
            left: Tokens after this one, the end counted.
            missing: Byte pieces after each token that complete a character.
        """
        every = _length(phrases)
        candidates = []
        for parent, (tokens, state, bytes_after) in enumerate(zip(given, progress, missing, strict=True)):
            for token, log_prob in tokens.items():
                # NaN stays, so that the host finds it
                if log_prob == NEVER:
                    continue
                after = state.after(token, phrases)
                met = after.met(phrases)
                if token == self.eos:
                    possible = len(after.done) == len(phrases)
                else:
                    # A phrase completes its characters itself; the end takes one of the tokens that are left
                    rest = every - met + (bytes_after.get(token, 0) if after.current < 0 else 0)
                    possible = rest <= left - 1
                if possible:
                    candidates.append(Candidate(log_prob, parent, token, met))
        # NaN ranks first
        return sorted(candidates, key=lambda each: (not math.isnan(each.log_prob), -each.log_prob))

    def _allocate(self, candidates: list[Candidate], every: int, size: int) -> tuple[list[Candidate], list[Candidate]]:
        """Return what may end, and the `size` that go on: each bank's best, the fullest first, then each one's next."""
        last = [each for each in candidates if each.bank == every][:size]
        ended = [each for each in last if each.token == self.eos]
        open_ones = [each for each in candidates if each.token != self.eos]
        before: Counter[int] = Counter()  # of each bank
        ranks = []
        for each in open_ones:
            ranks.append((-1 if math.isnan(each.log_prob) else before[each.bank], -each.bank))
            before[each.bank] += 1
        order = sorted(range(len(open_ones)), key=ranks.__getitem__)
        return ended, [open_ones[i] for i in order[:size]]


def guarded(phrases: Sequence[Sequence[int]], words: Words) -> list[Phrase]:
    """Return phrases with what may not follow each."""
    return [Phrase(tokens, words.going_on if tokens[-1] in words.unended else frozenset()) for tokens in phrases]


def _length(phrases: Sequence[Phrase]) -> int:
    return sum(len(phrase.tokens) for phrase in phrases)


def follow(ids: Sequence[int], phrases: Sequence[Phrase]) -> Progress:
    """Return what these tokens have met."""
    progress = Progress()
    for token in ids:
        progress = progress.after(token, phrases)
    return progress


def flatten(phrases: Sequence[Sequence[int]]) -> list[int]:
    """Write phrases one after another, each with its end."""
    return [token for phrase in phrases for token in (*phrase, STOP)]


def unflatten(flat: list[int]) -> list[list[int]]:
    """Read what `flatten` wrote."""
    phrases: list[list[int]] = [[]]
    for token in flat:
        if token != STOP:
            phrases[-1].append(token)
        elif phrases[-1]:
            phrases.append([])
    return phrases[:-1]


def _tensors(rows: tuple[list[Candidate], ...], like: Tensor) -> Extensions:
    """Return candidates as tensors (B, beam), -inf where there are none."""
    size = like.shape[1]
    empty = Candidate(NEVER, 0, 0, 0)
    full = [[*row, *[empty] * (size - len(row))] for row in rows]
    log_prob = torch.tensor([[each.log_prob for each in row] for row in full], dtype=like.dtype)
    parent = torch.tensor([[each.parent for each in row] for row in full])
    token = torch.tensor([[each.token for each in row] for row in full])
    return Extensions(log_prob.to(like.device), parent.to(like.device), token.to(like.device))
