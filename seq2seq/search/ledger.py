"""What the host knows of a running search: who sits in which row, what has ended, and when a sentence is done."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seq2seq.config.search import SearchSettings
from seq2seq.search.hypothesis import Hypothesis, NotFiniteError, length_divisor

# Log p, parent and token of each column of a beam.
Arrays = tuple[np.ndarray, ...]


class Sentence:
    """A sentence that is being searched: the history of its beam, and its hypotheses that have ended.

    Args:
        key: How the caller knows it.
        limit: Its longest target, the end included.
        groups: Parts of its beam, each of which has its own endings.
    """

    def __init__(self, key: Any, limit: int, groups: int = 1) -> None:
        self.key = key
        self.limit = limit
        self.steps = 0  # that the device has been asked for
        self.done = False
        self._parents: list[np.ndarray] = []  # of each step whose results have arrived, (beam,)
        self._tokens: list[np.ndarray] = []
        # score, log p, step and parent row
        self._ended: list[list[tuple[float, float, int, int]]] = [[] for _ in range(groups)]

    def update(
        self, first: tuple[np.ndarray, ...], kept: tuple[np.ndarray, ...], eos: int, how: SearchSettings
    ) -> None:
        """Take the next step's results: log p, parent and token of what may have ended and of what goes on, (beam,).

        Raises:
            NotFiniteError: A candidate's score is NaN: one logit that is NaN or infinite makes all candidates of its
                hypothesis NaN, which rank first.
        """
        log_prob, parent, token = first
        if np.isnan(log_prob).any() or np.isnan(kept[0]).any():
            raise NotFiniteError
        size = len(log_prob) // len(self._ended)
        step = len(self._parents)
        divisor = length_divisor(step + 1, how)
        # -inf: a row without a hypothesis
        for column in np.flatnonzero((token == eos) & np.isfinite(log_prob)).tolist():
            group = self._ended[column // size]
            if len(group) < size:
                value = float(log_prob[column])
                group.append((value / divisor, value, step, int(parent[column])))
        self._parents.append(kept[1])
        self._tokens.append(kept[2])
        self.done = self._is_done(float(kept[0].max()), size, how)

    def _is_done(self, best_open: float, size: int, how: SearchSettings) -> bool:
        """Return True if nothing that is open can change the n best."""
        length = len(self._parents)
        # nothing is open, or every group is full
        if best_open == -math.inf or length >= self.limit or all(len(group) >= size for group in self._ended):
            return True
        scores = sorted((entry[0] for group in self._ended for entry in group), reverse=True)
        if len(scores) < how.n_best:
            return False
        # the best case of an open hypothesis: a longer one is divided by more, so its negative sum shrinks; log p only
        # falls as a hypothesis grows
        best_length = self.limit if how.length_penalty > 0 else length + 1
        return best_open / length_divisor(best_length, how) <= scores[how.n_best - 1]

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best hypotheses that have ended, best first; of equal ones those that ended first."""
        entries = [entry for group in self._ended for entry in group]
        entries.sort(key=lambda entry: (-entry[0], entry[2]))
        return [Hypothesis(self._trace(step, row), score, log_prob) for score, log_prob, step, row in entries[:count]]

    def _trace(self, step: int, row: int) -> list[int]:
        """Follow the parents of a hypothesis that ended at `step` as row `row`, back to the beginning."""
        ids = []
        for at in range(step - 1, -1, -1):
            ids.append(int(self._tokens[at][row]))
            row = int(self._parents[at][row])
        return ids[::-1]
