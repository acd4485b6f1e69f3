"""Phrases that a translation must have, against enumeration and by what every translation shows."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from composed import EOS, lengths_mask, random_tokens
from test_search import SMALL, SPECIAL, assert_same, score, sharp, sources

from seq2seq.config.search import SearchSettings
from seq2seq.search import Constrained, Hypothesis, Source, search_stream
from seq2seq.search.constraints import Progress, flatten, follow, unflatten

ONE_LAYER = ("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1")


def constrained(model, given, settings, rows=2):
    how = {"special": SPECIAL, "settings": settings, "selection": Constrained(EOS)}
    found = dict(search_stream(model, given, rows=rows, device=torch.device("cpu"), **how))
    return [found[number] for number in range(len(given))]


def has(ids: list[int], phrase: list[int]) -> bool:
    return any(ids[i : i + len(phrase)] == phrase for i in range(len(ids)))


@pytest.mark.parametrize("phrases", [[[4]], [[5, 4]], [[1], [5]], [[4, 4]]], ids=str)
def test_a_wide_beam_finds_the_best_with_the_phrases(phrases):
    """Of all 40 targets of up to 3 tokens, the best five that have them."""
    model = sharp(*ONE_LAYER, src_vocab_size=SMALL, tgt_vocab_size=SMALL)
    src = random_tokens(lengths_mask([3]), SMALL)
    settings = SearchSettings(beam_size=60, n_best=5, max_len_ratio=0, max_len_extra=4)
    (found,) = constrained(model, [Source(src[0].tolist(), phrases=phrases)], settings)
    every = [list(ids) for size in range(4) for ids in itertools.product([1, 4, 5], repeat=size)]
    targets = [ids for ids in every if all(has(ids, phrase) for phrase in phrases)]
    log_probs = score(model, src, targets)
    best = [Hypothesis(ids, p / (len(ids) + 1), p) for ids, p in zip(targets, log_probs, strict=True)]
    assert_same(found, sorted(best, key=lambda h: -h.score)[:5])


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_every_translation_has_its_phrases(beam_size):
    """Whatever the beam; scores are those of forward, and a sentence without phrases has a translation, too."""
    model, lengths = sharp(*ONE_LAYER), [4, 6, 3, 5]
    src, _ = sources(*lengths)
    phrases = [[[7, 8], [9]], [], [[random.randrange(4, 20)] for _ in range(6)], [[11, 11, 12]]]
    given = [Source(src[i, : lengths[i]].tolist(), phrases=phrases[i]) for i in range(4)]
    settings = SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_ratio=1.0, max_len_extra=3)
    for row, found in enumerate(constrained(model, given, settings)):
        assert found
        again = score(model, src[row : row + 1, : lengths[row]], [h.ids for h in found])
        for hypothesis, log_prob in zip(found, again, strict=True):
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4)
            # each phrase has tokens of its own
            assert follow(hypothesis.ids, phrases[row]).met(phrases[row]) == sum(map(len, phrases[row]))
            assert all(has(hypothesis.ids, phrase) for phrase in phrases[row])


def test_progress_by_hand():
    """A phrase that breaks off begins again; a token counts for one phrase only."""
    phrases = [[4, 5], [4, 4], [6]]
    assert follow([4], phrases) == Progress(frozenset(), 0, 1)
    assert follow([4, 6], phrases) == Progress(frozenset({2}))
    assert follow([4, 5, 4], phrases) == Progress(frozenset({0}), 1, 1)
    assert follow([4, 5, 4, 4, 6], phrases) == Progress(frozenset({0, 1, 2}))
    assert follow([4, 5, 4, 4, 6], phrases).met(phrases) == 5
    assert follow([4], phrases).wanted(phrases) == {5}
    assert follow([], phrases).wanted(phrases) == {4, 6}
    assert unflatten([*flatten(phrases), -1, -1]) == phrases
    assert unflatten([-1, -1]) == []
