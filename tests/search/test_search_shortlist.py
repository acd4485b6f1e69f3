"""Search among lists of tokens, one for each sentence, against full logits with -inf outside the list."""

from __future__ import annotations

import random

import pytest
import torch
from composed import BOS, EOS, PAD, VOCAB
from test_search import MODELS, OPTIONS, SPECIAL, assert_same, every_model, sharp, sources, stream, unpadded
from test_search_characters import BYTE_OF, SPELLING
from textbook_search import beam_search
from torch import Tensor

from seq2seq.search import Constrained, Drawn, Ensemble, Source, search
from seq2seq.search.rows import Columns
from seq2seq.search.rules import RuleTokens
from seq2seq.settings.search import SearchSettings

ONE_LAYER = ("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1")
LENGTHS = [6, 6, 5, 3, 4, 2, 5, 1]
REPRESENTATIVE = {
    "test_lists_are_the_textbooks": {"dynamicconv", "bahdanau"},
    "test_the_batch_changes_nothing": {"dynamicconv"},
    "test_options_are_the_textbooks": {"False-groups", "True-suppress", "True-all"},
}


def half(ids) -> Tensor:
    """A list of twelve tokens, chosen by the source's tokens, and the end."""
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[random.Random(repr(list(ids))).sample(range(EOS + 1, VOCAB), 12)] = True
    allowed[EOS] = True
    return allowed


def every_token(ids) -> Tensor:
    return torch.ones(VOCAB, dtype=torch.bool)


def twin_list(ids, prefix=()) -> Tensor:
    allowed = half(ids)
    allowed[list(prefix)] = True
    return allowed


@every_model
def test_lists_are_the_textbooks(overrides):
    """Texts, order and scores of the n best, for a padded batch and for a stream through three rows."""
    model = sharp(*overrides)
    src, mask = sources(*LENGTHS)
    settings = SearchSettings(beam_size=4, n_best=4, max_len_ratio=1.0, max_len_extra=3)
    rows = [row[:length] for row, length in zip(src.tolist(), LENGTHS, strict=True)]
    together = search(model, src, mask, settings=settings, special=SPECIAL, shortlist=half)
    streamed = stream(model, unpadded(src, LENGTHS), settings, shortlist=half)
    for row, batched, one in zip(rows, together, streamed, strict=True):
        expected = beam_search(model, torch.tensor([row]), settings, shortlist=half(row))
        assert_same(batched, expected)
        assert_same(one, expected)
        assert all(half(row)[token] for found in one for token in found.ids)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("with_prefix", [False, True])
def test_options_are_the_textbooks(options, with_prefix):
    model, lengths = sharp(*ONE_LAYER), [5, 2, 6]
    src, _ = sources(*lengths)
    given = {"beam_size": 4, "n_best": 4, "max_len_ratio": 1.0, "max_len_extra": 3, **options}
    suppress = given.pop("suppress", ())
    settings = SearchSettings(**given)
    prefixes = [[7, 4, 4], [], [9] * 11] if with_prefix else [[], [], []]
    found = stream(model, unpadded(src, lengths, prefixes), settings, suppress=suppress, shortlist=half)
    for row, length in enumerate(lengths):
        ids = src[row, :length].tolist()
        twin = twin_list(ids, prefixes[row])
        expected = beam_search(model, torch.tensor([ids]), settings, prefixes[row], suppress, shortlist=twin)
        assert_same(found[row], expected)


def test_byte_pieces_are_the_textbooks():
    """Whole characters of the bytes that are in a sentence's list."""
    model, lengths = sharp(*ONE_LAYER), [5, 2, 6]
    src, mask = sources(*lengths)
    with torch.no_grad():
        model.output.bias[10:] += 2.0

    def with_bytes(ids) -> Tensor:
        allowed = half(ids)
        allowed[list(BYTE_OF)] = True
        return allowed

    settings = SearchSettings(beam_size=4, n_best=4, max_len_ratio=1.0, max_len_extra=3)
    found = search(model, src, mask, settings=settings, special=SPELLING, shortlist=with_bytes)
    for row, length in enumerate(lengths):
        ids = src[row, :length].tolist()
        twin = beam_search(model, torch.tensor([ids]), settings, byte_of=BYTE_OF, shortlist=with_bytes(ids))
        assert_same(found[row], twin)


@pytest.mark.parametrize("beam_size", [1, 3, 30])
def test_a_list_of_all_tokens_changes_nothing(beam_size):
    model, (src, mask) = sharp(*ONE_LAYER), sources(5, 3, 1)
    how = {
        "settings": SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_ratio=1.0, max_len_extra=3),
        "special": SPECIAL,
    }
    for mine, plain in zip(
        search(model, src, mask, **how, shortlist=every_token), search(model, src, mask, **how), strict=True
    ):
        assert_same(mine, plain)


@pytest.mark.parametrize("preset", ["transformer", "dynamicconv", "gru"])
def test_the_batch_changes_nothing(preset):
    """A sentence has the same result alone and among others with other lists: beams, samples and phrases."""
    model = sharp(*MODELS[preset])
    src, _ = sources(*LENGTHS)
    rows = [row[:length] for row, length in zip(src.tolist(), LENGTHS, strict=True)]
    settings = SearchSettings(beam_size=3, n_best=3, max_len_ratio=1.0, max_len_extra=6)
    ways = {
        "beam": ([Source(row) for row in rows], None),
        "samples": ([Source(row, seed=i) for i, row in enumerate(rows)], Drawn(EOS, top_k=5)),
        "phrases": ([Source(row, prefix=[21], phrases=[[22, 20]]) for row in rows], Constrained(EOS)),
    }
    for given, selection in ways.values():
        how = {"selection": selection, "shortlist": half}
        together = stream(model, given, settings, **how)
        for number, source in enumerate(given):
            (alone,) = stream(model, [source], settings, **how)
            assert_same(together[number], alone)
    for (found, *_), source in zip(together, given, strict=True):
        assert found.ids[0] == 21
        assert any(found.ids[i : i + 2] == [22, 20] for i in range(len(found.ids)))
        assert all(twin_list(source.ids, [20, 21, 22])[token] for token in found.ids)


def test_samples_are_drawn_from_the_list():
    """The same draws pick the same tokens of a list as of full logits with -inf outside it."""
    model = sharp(*ONE_LAYER)
    src, _ = sources(5)
    settings = SearchSettings(beam_size=20, n_best=20, max_len_ratio=1.0, max_len_extra=3)
    (found,) = stream(model, [Source(src[0].tolist(), seed=3)], settings, selection=Drawn(EOS), shortlist=half)
    with torch.no_grad():
        model.output.bias[~half(src[0].tolist())] = -torch.inf
    (twin,) = stream(model, [Source(src[0].tolist(), seed=3)], settings, selection=Drawn(EOS))
    assert_same(found, twin)


def test_an_ensemble_takes_lists():
    models = [sharp(*MODELS[preset]) for preset in ("transformer", "dynamicconv")]
    src, mask = sources(5, 3)
    how = {"settings": SearchSettings(beam_size=3, n_best=3, max_len_ratio=1.0, max_len_extra=3), "special": SPECIAL}
    found = search(Ensemble(models), src, mask, **how, shortlist=half)
    for row, length in enumerate([5, 3]):
        one = src[row : row + 1, :length]
        narrowed = [model.output.bias.clone() for model in models]
        with torch.no_grad():
            for model in models:
                model.output.bias[~half(one[0].tolist())] = -torch.inf
        (twin,) = search(Ensemble(models), one, torch.ones_like(one).bool(), **how)
        assert_same(found[row], twin)
        with torch.no_grad():
            for model, bias in zip(models, narrowed, strict=True):
                model.output.bias.copy_(bias)


def test_columns_by_hand():
    """Tokens that rules name first, then the others of any row, in order."""
    allowed = torch.zeros(2, 12, dtype=torch.bool)
    allowed[0, [3, 7, 9]] = True
    allowed[1, [3, 5, 11, 1]] = True
    named = RuleTokens.of(SPECIAL._replace(byte_of={9: 0x41}), [11, 10])
    assert named.ids == [PAD, BOS, EOS, 9, 11, 10]
    assert (named.special.bos, named.special.eos, dict(named.special.byte_of)) == (1, 2, {3: 0x41})
    assert named.suppress == [4, 5]
    columns = Columns.of(allowed, torch.tensor(named.ids))
    assert columns.ids.tolist() == [0, 2, 3, 9, 11, 10, 1, 5, 7]
    assert columns.place.tolist() == [0, 6, 1, 2, 0, 7, 0, 8, 0, 3, 5, 4]
