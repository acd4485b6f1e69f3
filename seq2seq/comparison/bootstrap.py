"""Bootstrap over seeds and sentences together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from seq2seq.comparison.estimates import LEVEL
from seq2seq.metrics.scorers import bleu_of_counts, bootstrap_p, resampling

# Number of resamples whose drawn sentences are in memory at once.
_CHUNK = 500


class Resampled(NamedTuple):
    """Difference between two groups of runs over resampled seeds and sentences: 95% interval and two-sided p value."""

    interval: tuple[float, float]
    p_value: float


class SeedScores(NamedTuple):
    """BLEU of a group's runs in resampled test sets.

    Attributes:
        seeds: The seeds of the columns.
        scores: BLEU of each resampled test set and seed, (samples, seeds).
        whole: BLEU on the test set itself, (seeds,).
    """

    seeds: Sequence[int]
    scores: np.ndarray
    whole: np.ndarray


def resample_sentences(runs: Mapping[str, Mapping[int, Sequence[np.ndarray]]], samples: int) -> dict[str, SeedScores]:
    """Score all runs on the same resampled test sets.

    Args:
        runs: The `bleu_counts` (N, 10) of each run, by group and seed. Several runs of one seed are averaged.
        samples: Number of resampled test sets.
    """
    tables = [table for seeds in runs.values() for each in seeds.values() for table in each]
    sentences = len(tables[0])
    joined = np.concatenate(tables, axis=1)  # (N, runs * 10)
    # As in `paired_bootstrap`, so that both draw the same resamples
    _, generator = resampling()
    scores = [bleu_of_counts(joined.sum(0).reshape(1, len(tables), -1))]
    for start in range(0, samples, _CHUNK):
        lines = generator.choice(sentences, size=(min(_CHUNK, samples - start), sentences), replace=True)
        # How often each sentence is in each resample
        times = np.stack([np.bincount(row, minlength=sentences) for row in lines]).astype(float)
        scores.append(bleu_of_counts((times @ joined).reshape(len(lines), len(tables), -1)))
    columns = iter(np.concatenate(scores).T)
    found = {}
    for group, seeds in runs.items():
        means = np.stack([np.mean([next(columns) for _ in each], axis=0) for each in seeds.values()], axis=1)
        found[group] = SeedScores(list(seeds), means[1:], means[0])
    return found


def resample_seeds(ours: SeedScores, theirs: SeedScores) -> Resampled:
    """Resample the seeds of two groups in each resampled test set, and compare their means.

    Equal seeds are resampled as pairs. For a group with one seed, the variance over seeds counts as 0.

    Reference: Davison and Hinkley 1997, Bootstrap methods and their application, section 3.8.
    """
    _, generator = resampling()
    if ours.seeds == theirs.seeds:
        means = _means(ours.scores - theirs.scores, generator)
    else:
        means = _means(ours.scores, generator) - _means(theirs.scores, generator)
    difference = ours.whole.mean() - theirs.whole.mean()
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return Resampled((float(low), float(high)), bootstrap_p(difference, means))


def _means(scores: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Resample the columns of scores (samples, seeds) in each row, and return the mean of each row: (samples,)."""
    seeds = scores.shape[1]
    drawn = np.take_along_axis(scores, generator.integers(seeds, size=scores.shape), axis=1).mean(1)
    mean = scores.mean(1)
    # A resampled mean of n seeds has only (n - 1) / n of the variance of a sample mean: scale its deviation up
    return mean + (drawn - mean) * (seeds / (seeds - 1)) ** 0.5 if seeds > 1 else mean
