"""Phrases that a translation must have, against enumeration and in every translation."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from composed import EOS, VOCAB, lengths_mask, random_tokens
from test_search import SMALL, SPECIAL, Fixed, assert_same, score, sharp, sources

from seq2seq.search import Constrained, Hypothesis, Source, Words, constraints, search_stream
from seq2seq.search.constraints import Followed, Phrase, Progress, flatten, follow, guarded, unflatten
from seq2seq.settings.search import SearchSettings

ONE_LAYER = ("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1")
# Token 4 ends a word that token 5 may continue
WORDS = Words(going_on=frozenset({5}), unended=frozenset({4}))


def constrained(model, given, settings, rows=2, words=WORDS, shortlist=None):
    how = {"special": SPECIAL, "settings": settings, "selection": Constrained(EOS, words), "shortlist": shortlist}
    found = dict(
        itertools.chain.from_iterable(search_stream(model, given, rows=rows, device=torch.device("cpu"), **how))
    )
    return [found[number] for number in range(len(given))]


def has(ids: list[int], phrase: list[int], words: Words = WORDS) -> bool:
    """Return True if the phrase is in ids as whole words, neither begun nor continued by the tokens around it."""
    around = [EOS, *ids, EOS]
    pairs = [(around[i], around[i + len(phrase) + 1]) for i in range(len(ids)) if ids[i : i + len(phrase)] == phrase]
    inside = words.unended if phrase[0] in words.going_on else ()
    barred = words.going_on if phrase[-1] in words.unended else ()
    return any(before not in inside and after not in barred for before, after in pairs)


@pytest.mark.parametrize("phrases", [[[4]], [[5, 4]], [[1], [5]], [[4, 4]], [[4], [5]]], ids=str)
def test_a_wide_beam_finds_the_best_with_the_phrases(phrases):
    """The search finds the best five of all 40 targets of up to 3 tokens that have the phrases."""
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
    """This holds for every beam size; scores agree with forward, also for a sentence without phrases."""
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
            # Each phrase has tokens of its own
            own = guarded(phrases[row], WORDS)
            assert follow([*hypothesis.ids, EOS], own).done == set(range(len(own)))
            assert all(has(hypothesis.ids, phrase) for phrase in phrases[row])


@pytest.mark.parametrize("listed", [False, True])
def test_progress_from_step_to_step_is_that_from_the_start(listed, monkeypatch):
    """Progress by steps is right for all hypotheses at all steps; only a sentence's first step begins at the start."""
    plain, afresh = Followed.all, []

    def checked(self, rows, phrases, words):
        found = plain(self, rows, phrases, words)
        for beam, length, wanted, mine in zip(rows.tokens.tolist(), rows.position, phrases, found, strict=True):
            assert mine == [follow(ids[:length], wanted) for ids in beam]
        return found

    monkeypatch.setattr(Followed, "all", checked)
    monkeypatch.setattr(constraints, "follow", lambda ids, phrases: afresh.append(len(ids)) or follow(ids, phrases))
    model, lengths = sharp(*ONE_LAYER), [4, 6, 3, 5]
    src, _ = sources(*lengths)
    given = [Source(src[i, : lengths[i]].tolist(), phrases=[[7, 8, 4], [9, 4 + i, 4]]) for i in range(4)]
    settings = SearchSettings(beam_size=4, n_best=4, max_len_ratio=1.0, max_len_extra=9)
    shortlist = (lambda ids: torch.ones(VOCAB, dtype=torch.bool)) if listed else None
    assert all(constrained(model, given, settings, shortlist=shortlist))
    assert set(afresh) == {0}


def test_progress_by_hand():
    """A phrase that breaks off begins again; a token counts for one phrase only."""
    phrases = [Phrase([4, 5]), Phrase([4, 4]), Phrase([6])]
    assert follow([4], phrases) == Progress(frozenset(), 0, 1)
    assert follow([4, 6], phrases) == Progress(frozenset({2}))
    assert follow([4, 5, 4], phrases) == Progress(frozenset({0}), 1, 1)
    assert follow([4, 5, 4, 4, 6], phrases) == Progress(frozenset({0, 1, 2}))
    assert follow([4, 5, 4, 4, 6], phrases).met(phrases) == 5
    assert follow([4], phrases).wanted(phrases) == {5, 4}
    assert follow([], phrases).wanted(phrases) == {4, 6}
    assert unflatten([*flatten([[4, 5], [6]]), -1, -1]) == [[4, 5], [6]]
    assert unflatten([-1, -1]) == []


def test_progress_where_phrases_overlap_themselves_and_each_other():
    """A phrase that breaks off may contain another phrase, or its beginning."""
    assert follow([5, 5, 5, 6], [Phrase([5, 5, 6])]).done == {0}
    assert follow([5, 6, 8], [Phrase([5, 6, 7]), Phrase([6, 8])]) == Progress(frozenset({1}))
    assert follow([5, 6, 8, 5, 6, 7], [Phrase([5, 6, 7]), Phrase([6, 8])]).done == {0, 1}
    assert follow([5, 6, 9], [Phrase([5, 6, 7]), Phrase([6])]).done == {1}
    assert follow([6, 9], [Phrase([6, 8]), Phrase([6, 9])]).done == {1}
    assert follow([6, 6, 8], [Phrase([6]), Phrase([6, 8])]).done == {0, 1}
    # A token counts for one phrase only
    assert follow([6, 8], [Phrase([6]), Phrase([6, 8])]).done == {1}
    # The next token continues the word of the inner phrase, which is not met
    assert follow([5, 6, 9], [Phrase([5, 6, 7]), Phrase([6], barred=frozenset({9}))]).done == set()


def test_one_phrase_is_met_where_it_stands():
    """A phrase is found in every list of up to seven tokens, however it overlaps itself."""
    for ids in itertools.chain.from_iterable(itertools.product([4, 5], repeat=size) for size in range(8)):
        for phrase in ([5], [4, 4], [5, 5, 4], [4, 5, 4], [5, 5, 4, 5]):
            found = follow([*ids, EOS], [Phrase(phrase)]).done
            assert bool(found) == has([*ids], phrase, Words()), (ids, phrase)


def test_phrases_that_are_met_have_places_of_their_own():
    """Enumerated: no token is counted twice, and progress grows by a token at most."""
    phrases = [Phrase([4, 5]), Phrase([5, 4]), Phrase([4, 4, 5]), Phrase([5])]
    for ids in itertools.product([4, 5], repeat=8):
        met = [follow(ids[:end], phrases).met(phrases) for end in range(9)]
        assert all(after - before <= 1 for before, after in itertools.pairwise(met))
        done = [list(phrases[index].tokens) for index in follow([*ids, EOS], phrases).done]
        places = [[i for i in range(8) if list(ids[i : i + len(tokens)]) == tokens] for tokens in done]
        spans = (
            [range(start, start + len(tokens)) for start, tokens in zip(starts, done, strict=True)]
            for starts in itertools.product(*places)
        )
        assert any(len(set().union(*span)) == sum(map(len, span)) for span in spans)


class Scripted(Fixed):
    """A model that strongly prefers these tokens, one at each position."""

    def step(self, token, context, state, position):
        return self.logits[position.clamp(max=len(self.logits) - 1)], state


@pytest.mark.parametrize(
    ("ids", "phrases"), [([5, 5, 5, 6], [[5, 5, 6]]), ([5, 6, 8, 5, 6, 7], [[5, 6, 7], [6, 8]])], ids=str
)
def test_a_translation_that_has_its_phrases_is_left_as_it_is(ids, phrases):
    """This holds even if a phrase, or another one, begins within a phrase that breaks off."""
    probabilities = torch.full((len(ids) + 1, 10), 1e-4)
    probabilities[range(len(ids) + 1), [*ids, EOS]] = 0.999
    settings = SearchSettings(beam_size=5, max_len_ratio=0, max_len_extra=10)
    ((best, *_),) = constrained(Scripted(probabilities), [Source([4], phrases=phrases)], settings, words=Words())
    assert best.ids == ids


def test_progress_waits_for_the_end_of_a_word():
    """A phrase whose word is continued must come again; any other token completes it, and may begin another."""
    phrases = [Phrase([7, 4], barred=frozenset({5, 6})), Phrase([6])]
    assert follow([7, 4], phrases) == Progress(frozenset(), 0, 2)
    assert follow([7, 4], phrases).met(phrases) == 2
    assert follow([7, 4], phrases).wanted(phrases) == {6}
    assert follow([7, 4, 5], phrases) == Progress()
    assert follow([7, 4, 6], phrases) == Progress(frozenset({1}))
    assert follow([7, 4, 8, 6], phrases) == Progress(frozenset({0, 1}))
    assert follow([7, 4, 7], phrases) == follow([7, 4, EOS], phrases) == Progress(frozenset({0}))


def test_a_phrase_does_not_begin_inside_a_word():
    """Pieces of Moses and BPE mark the end of a word: `hund▁` (5) after `Schäfer` (4) is a part of Schäferhund."""
    words = Words.of(["<s>", "</s>", "<unk>", "</w>", "Schäfer", "hund▁", "der▁"])
    assert guarded([[5], [6, 5]], words) == [Phrase([5], inside=frozenset({4})), Phrase([6, 5], inside=frozenset({4}))]
    phrases = guarded([[5]], words)
    assert follow([4, 5], phrases).done == set()
    assert follow([5], phrases).done == follow([6, 5], phrases).done == follow([4, 5, 5], phrases).done == {0}
    both = guarded([[5, 5], [6, 5]], words)
    assert follow([5, 4, 5, 5], both).done == set()
    assert follow([4, 5, 6, 5, 5, 5], both).done == {0, 1}


def test_words_of_pieces():
    """Letters, digits and marks continue a word, but not in scripts without spaces."""
    pieces = ["▁Hund", "e", "▁", ".", "'s", "3", "", "狗", "ไก่", "는", "́e", "<unk>", "a▁", "ー"]
    going_on, unended = Words.of(pieces)
    assert [pieces[i] for i in sorted(going_on)] == ["e", "3", "는", "́e", "a▁"]
    assert [pieces[i] for i in sorted(unended)] == ["▁Hund", "e", "'s", "3", "는", "́e"]
    assert Words.of(pieces).in_columns([3, 1, 0]) == Words(frozenset({1}), frozenset({1, 2}))


@pytest.mark.parametrize("beam_size", [1, 2, 3])
@pytest.mark.parametrize("phrases", [[[7, 8, 9]], [[7], [8], [9, 7]]], ids=str)
def test_a_narrow_beam_begins_phrases_that_are_improbable(phrases, beam_size):
    """If phrases have at least as many tokens as the beam, each bank has a place, and nothing else is written."""
    model: Any = Fixed(torch.tensor([1e-30, 1e-30, 1e-30, 0.5, 0.3, 0.1999, 1e-30, 4e-5, 3e-5, 3e-5]))
    settings = SearchSettings(beam_size=beam_size, max_len_ratio=0, max_len_extra=20, length_penalty=0)
    ((best, *_),) = constrained(model, [Source([4], phrases=phrases)], settings)
    assert sorted(best.ids) == sorted(token for phrase in phrases for token in phrase)


def test_a_list_of_tokens_changes_no_words():
    """With a list, columns of the scores stand for other tokens; words are recognized by these tokens."""
    model, lengths = sharp(*ONE_LAYER), [5, 3]
    src, _ = sources(*lengths)
    given = [Source(src[i, : lengths[i]].tolist(), phrases=[[4], [9, 4]]) for i in range(2)]
    words = Words(frozenset(range(5, 14)), frozenset({4}))
    settings = SearchSettings(beam_size=4, n_best=4, max_len_ratio=1.0, max_len_extra=5)
    plain = constrained(model, given, settings, words=words)
    listed = constrained(model, given, settings, words=words, shortlist=lambda ids: torch.ones(VOCAB, dtype=torch.bool))
    for mine, theirs in zip(listed, plain, strict=True):
        assert_same(mine, theirs)
        assert all(has(hypothesis.ids, phrase, words) for hypothesis in mine for phrase in ([4], [9, 4]))


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_narrow_beam_ends_the_word_of_a_phrase(beam_size):
    """The word ends even if tokens that continue it are far more probable than all others."""
    words = Words(going_on=frozenset({5, 6, 8, 9}), unended=frozenset({4}))
    model: Any = Fixed(torch.tensor([1e-30, 1e-30, 1e-30, 1e-4, 1e-5, 0.4, 0.3, 1e-3, 0.2, 0.0989]))
    settings = SearchSettings(beam_size=beam_size, max_len_ratio=0, max_len_extra=6)
    ((best, *_),) = constrained(model, [Source([4], phrases=[[4]])], settings, words=words)
    assert best.ids.count(4) == 1
    assert has(best.ids, [4], words)
