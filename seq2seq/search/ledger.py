"""The host's part of a running search: the results of a step, and each sentence's history and finished hypotheses."""

from __future__ import annotations

import math

import numpy as np

from seq2seq.search.hypothesis import Hypothesis, NotFiniteScoresError, length_divisor
from seq2seq.settings.search import SearchSettings


class Results:
    """Results of a step for all rows: log p, parent and token of each column of a beam, (3, B, beam).

    Args:
        parts: Results of the extensions that may have ended, then of the extensions that continue, (6, B, beam).
        rows: The rows of unfinished sentences.

    Raises:
        NotFiniteScoresError: A log p is NaN, as in all extensions of a hypothesis that has a NaN or +inf logit.
    """

    def __init__(self, parts: np.ndarray, eos: int, rows: list[int]) -> None:
        self.may_end, self.kept = parts[:3], parts[3:]
        log_prob, _, token = self.may_end
        self.best_open: list[float] = self.kept[0].max(1).tolist()
        if np.isnan(parts).any() and np.isnan(parts[:, rows]).any():
            raise NotFiniteScoresError
        # The columns that have ended in each row; -inf is an empty place
        self.ended: dict[int, list[int]] = {}
        ended = token == eos
        if ended.any():
            for row, column in np.argwhere(ended & np.isfinite(log_prob)).tolist():
                self.ended.setdefault(row, []).append(column)


class Sentence:
    """A sentence in a search: the history of its beam, and its finished hypotheses.

    Args:
        key: The caller's identifier of the sentence.
        limit: Length of its longest target, the end included.
        groups: Number of parts of its beam. Each part has its own finished hypotheses; no two parts share one.
        start: Number of first tokens that are not a part of the translation.
    """

    def __init__(self, key: int, limit: int, groups: int = 1, *, start: int = 0) -> None:
        self.key = key
        self.limit = limit
        self.start = start
        self.steps = 0  # steps queued on the device so far
        self.done = False
        self._parents: list[np.ndarray] = []  # (beam,) for each step that the host has read
        self._tokens: list[np.ndarray] = []
        # Score, log p, step and parent row of each group's finished hypotheses
        self._ended: list[list[tuple[float, float, int, int]]] = [[] for _ in range(groups)]
        self._known: set[tuple[int, ...]] = set()  # finished hypotheses, if there are several groups

    def update(self, step: Results, row: int, settings: SearchSettings) -> None:
        """Add the results of the next step, in which the sentence has row `row`."""
        parent, token = step.kept[1][row], step.kept[2][row]
        size = len(parent) // len(self._ended)
        number = len(self._parents)
        for column in step.ended.get(row, ()):
            group = self._ended[column // size]
            before = int(step.may_end[1][row, column])
            if len(group) < size and self._is_new(number, before):
                value = float(step.may_end[0][row, column])
                score = value / length_divisor(number + 1, settings)
                group.append((score, value, number, before))
        self._parents.append(parent)
        self._tokens.append(token)
        self.done = self._is_done(step.best_open[row], size, settings)

    def _is_new(self, step: int, row: int) -> bool:
        """Return False if another group has finished the same hypothesis; a single group is not checked."""
        if len(self._ended) == 1:
            return True
        ids = tuple(self._trace(step, row))
        new = ids not in self._known
        self._known.add(ids)
        return new

    def _is_done(self, best_open: float, size: int, settings: SearchSettings) -> bool:
        """Return True if no open hypothesis can change the n best."""
        length = len(self._parents)
        # No hypothesis is open, or every group is full
        if best_open == -math.inf or length >= self.limit or all(len(group) >= size for group in self._ended):
            return True
        scores = sorted((entry[0] for group in self._ended for entry in group), reverse=True)
        if len(scores) < settings.n_best:
            return False
        # The best case of an open hypothesis: log p stays, and the largest divisor brings the score closest to 0
        best_length = self.limit if settings.length_penalty > 0 else length + 1
        return best_open / length_divisor(best_length, settings) <= scores[settings.n_best - 1]

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best finished hypotheses, best first; among equal scores, in the order in which they ended."""
        entries = [entry for group in self._ended for entry in group]
        entries.sort(key=lambda entry: (-entry[0], entry[2]))
        return [
            Hypothesis(self._trace(step, row)[self.start :], score, log_prob, row)
            for score, log_prob, step, row in entries[:count]
        ]

    def _trace(self, step: int, row: int) -> list[int]:
        """Return the tokens of the hypothesis in row `row` before `step`, found by following its parents back."""
        ids = []
        for at in range(step - 1, -1, -1):
            ids.append(int(self._tokens[at][row]))
            row = int(self._parents[at][row])
        return ids[::-1]
