"""Greedy, beam and sampling against enumeration, an independent beam search, re-scoring and known distributions."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
from composed import BOS, EOS, PAD, PRESETS, SELF, TINY, Case, config, decodes, lengths_mask, random_tokens, tiny
from conftest import jiggle
from textbook_search import beam_search, next_log_probs
from torch import Tensor

import seq2seq.search.running
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.network.state import NoState
from seq2seq.search import Drawn, Hypothesis, NotFiniteScoresError, Source, Specials, search, search_stream
from seq2seq.search.hypothesis import length_divisor, longest_target
from seq2seq.search.selection import top
from seq2seq.settings.search import SearchSettings

SPECIAL = Specials(BOS, EOS, PAD)
SMALL = 6  # pad, unk, bos, eos and two words: three tokens that do not end
MODELS = {preset: (f"mixer={preset}",) for preset in PRESETS} | {
    "attention-dynamicconv": ("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv"),
    "dynamicconv-bahdanau": ("mixer=dynamicconv", "mixer/cross=bahdanau"),
}
# `make test-all` has every preset, as conformance has of every mixer by itself.
_CORE = {"transformer", "dynamicconv", "bahdanau"}
REPRESENTATIVE = {
    "test_beam_of_one_is_greedy": _CORE,
    "test_search_is_the_textbooks": {"transformer", "dynamicconv"},
    "test_results_may_be_read_late": {"1.0-3-1"},
    "test_options_are_the_textbooks": {"False-gnmt", "False-groups", "True-suppress", "True-all"},
    "test_the_batch_changes_nothing": _CORE,
    "test_scores_are_those_of_forward": _CORE,
    "test_sampled_scores_are_those_of_forward": _CORE,
    "test_a_convolution_longer_than_the_translation_stands_beside_any_mixer": {"attention", "relative_bias", "gru"},
    "test_weights_that_are_not_finite_end_the_search": _CORE,
    "test_a_wide_beam_is_exhaustive": {"40-0.0", "5--0.7", "5-0.6", "5-2.0"},
}
EXHAUSTIVE = {"test_temperature_top_k_and_top_p"}
every_model = pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS.keys())


def sharp(*overrides: str, **extra: Any) -> Seq2Seq:
    """A random model with clear preferences, so that rankings do not depend on rounding, which sometimes ends."""
    model = tiny(*overrides, "model.tie=none", **extra)
    with torch.no_grad():
        model.output.weight.mul_(random.uniform(2, 5))
        model.output.bias[EOS] += random.uniform(0, 3)
    return model


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    mask = lengths_mask(lengths)
    return random_tokens(mask), mask


def sample(
    model: Any,
    src: Tensor,
    mask: Tensor,
    *,
    settings: SearchSettings | None = None,
    seeds: list[int] | None = None,
    **drawn: Any,
) -> list[list[Hypothesis]]:
    """Draw samples of each sentence, as many as the beam is wide."""
    seeds = torch.randint(1 << 62, (len(src),)).tolist() if seeds is None else seeds
    settings = settings or SearchSettings(beam_size=1)
    selection = Drawn(EOS, **drawn)
    found = unpadded(src, mask.sum(1).tolist())
    given = [source._replace(seed=seed) for source, seed in zip(found, seeds, strict=True)]
    return stream(model, given, settings, rows=len(given), selection=selection)


@torch.no_grad()
def score(model: Seq2Seq, src: Tensor, targets: list[list[int]]) -> list[float]:
    """log p(target, eos | src) of one source (1, S) by whole-sequence forward."""
    width = max(map(len, targets)) + 1
    out = torch.tensor([[*ids, EOS] + [PAD] * (width - len(ids) - 1) for ids in targets])
    given = torch.cat([torch.full_like(out[:, :1], BOS), out[:, :-1]], 1)
    many = src.expand(len(out), -1)
    log_prob = model(many, torch.ones_like(many).bool(), given).log_softmax(-1).gather(2, out[:, :, None])[:, :, 0]
    real = torch.arange(width) <= torch.tensor([len(ids) for ids in targets])[:, None]
    return (log_prob * real).double().sum(1).tolist()


def assert_same(found: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4) -> None:
    """Equal texts in equal order, unless scores are so close that rounding decides."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=tolerance)
        assert mine.ids == theirs.ids or mine.score == pytest.approx(theirs.score, abs=1e-5)


@every_model
def test_beam_of_one_is_greedy(overrides):
    """The most probable token again and again, by forward on the whole prefix."""
    model, (src, mask) = sharp(*overrides), sources(5, 3, 1)
    settings = SearchSettings(beam_size=1, max_len_ratio=1.0, max_len_extra=4)
    found = search(model, src, mask, settings=settings, special=SPECIAL)
    for row, length in enumerate([5, 3, 1]):
        ids: list[int] = []
        while len(ids) < length + 3:
            (log_probs,) = next_log_probs(model, src[row : row + 1, :length], [ids])
            log_probs[PAD] = log_probs[BOS] = -math.inf
            best = log_probs.index(max(log_probs))
            if best == EOS:
                break
            ids.append(best)
        assert found[row][0].ids == ids
    assert len(found) == 3


def test_scores_do_not_have_the_default_type():
    """The default type is bfloat16 in validations with trainer.precision=bf16-true."""
    model, (src, mask) = sharp("mixer=transformer"), sources(5, 3)
    given = {"settings": SearchSettings(beam_size=3, n_best=3, max_len_ratio=1.0), "special": SPECIAL}
    wanted = search(model, src, mask, **given)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert search(model, src, mask, **given) == wanted
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("length_penalty", [-0.7, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("n_best", [1, 5, 40])
def test_a_wide_beam_is_exhaustive(length_penalty, n_best):
    """With room for every prefix, the search finds the n best of all targets up to the limit."""
    model = sharp(f"mixer={random.choice(PRESETS)}", src_vocab_size=SMALL, tgt_vocab_size=SMALL)
    mask = lengths_mask([3, 2])
    src = random_tokens(mask, SMALL)
    settings = SearchSettings(
        beam_size=40, max_len_ratio=0.0, max_len_extra=4, length_penalty=length_penalty, n_best=n_best
    )
    found = search(model, src, mask, settings=settings, special=SPECIAL)
    targets = [list(ids) for size in range(4) for ids in itertools.product([1, 4, 5], repeat=size)]
    assert len(targets) == 40
    for row, length in enumerate([3, 2]):
        log_probs = score(model, src[row : row + 1, :length], targets)
        every = [Hypothesis(i, p / (len(i) + 1) ** length_penalty, p) for i, p in zip(targets, log_probs, strict=True)]
        every.sort(key=lambda h: -h.score)
        assert_same(found[row], every[:n_best])


@every_model
def test_search_is_the_textbooks(overrides):
    """Texts, order and scores of the n best, for a padded batch and for a stream through two rows."""
    model, lengths = sharp(*overrides), [5, 2, 7, 4, 3]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=4, n_best=4, max_len_ratio=1.0, max_len_extra=3)
    expected = [beam_search(model, src[row : row + 1, :length], settings) for row, length in enumerate(lengths)]
    for found, twin in zip(search(model, src, mask, settings=settings, special=SPECIAL), expected, strict=True):
        assert_same(found, twin)
    for found, twin in zip(stream(model, unpadded(src, lengths), settings, rows=2), expected, strict=True):
        assert_same(found, twin)


def unpadded(src: Tensor, lengths: list[int], prefixes: list[list[int]] | None = None) -> list[Source]:
    rows = zip(src.tolist(), lengths, prefixes or [()] * len(lengths), strict=True)
    return [Source(ids[:length], prefix) for ids, length, prefix in rows]


def stream(model: Any, given: list[Source], settings: SearchSettings, rows: int = 3, **how: Any) -> list[Any]:
    """All hypotheses of a stream of sentences that come and go, by sentence; each comes once."""
    how = {"special": SPECIAL, "settings": settings, "rows": rows, **how}
    found = list(itertools.chain.from_iterable(search_stream(model, given, device=torch.device("cpu"), **how)))
    assert sorted(number for number, _ in found) == list(range(len(given)))
    return [hypotheses for _, hypotheses in sorted(found, key=lambda each: each[0])]


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 1.0])
def test_results_may_be_read_late(beam_size, length_penalty, late, monkeypatch):
    """Results arrive after the next step has begun, as on a GPU, while sentences come and go."""
    monkeypatch.setattr(seq2seq.search.running, "steps_late", lambda device: late)
    preset = random.choice(["transformer", "lightconv", "dynamicconv", "bahdanau", "pyramid", "gru"])
    stages = random.choice([1, 2] if preset != "bahdanau" else [1])
    model, lengths = sharp(f"mixer={preset}", f"model.encoder_stages={stages}"), [6, 5, 6, 3, 4, 2, 5, 1]
    src, _ = sources(*lengths)
    settings = SearchSettings(
        beam_size=beam_size, max_len_ratio=1.0, max_len_extra=3, length_penalty=length_penalty, n_best=1
    )
    given = unpadded(src, lengths)
    for source, found in zip(given, stream(model, given, settings), strict=True):
        assert_same(found, beam_search(model, torch.tensor([source.ids]), settings))


OPTIONS: dict[str, dict[str, Any]] = {
    "gnmt": {"length_norm": "gnmt", "length_penalty": 0.6},
    "min_len": {"min_len": 5},
    "longer than the limit": {"min_len": 15},
    "unigrams": {"no_repeat_ngram": 1},
    "bigrams": {"no_repeat_ngram": 2},
    "suppress": {"suppress": (4, 7, 9, 22)},
    "groups": {"beam_groups": 2, "diversity": 1.3},
    "groups of one": {"beam_groups": 4, "diversity": 0.4},
    "all": {"min_len": 4, "no_repeat_ngram": 2, "suppress": (5,), "beam_groups": 2, "length_norm": "gnmt"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("with_prefix", [False, True])
def test_options_are_the_textbooks(options, with_prefix):
    model, lengths = sharp("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1"), [5, 2, 6]
    src, _ = sources(*lengths)
    given = {"beam_size": 4, "n_best": 4, "max_len_ratio": 1.0, "max_len_extra": 3, **options}
    suppress = given.pop("suppress", ())
    settings = SearchSettings(**given)
    prefixes = [[7, 4, 4], [], [9] * 11] if with_prefix else [[], [], []]
    found = stream(model, unpadded(src, lengths, prefixes), settings, suppress=suppress)
    for row, length in enumerate(lengths):
        assert_same(found[row], beam_search(model, src[row : row + 1, :length], settings, prefixes[row], suppress))


def test_gnmt_penalty_by_hand():
    """((5 + 7) / 6)^0.6 = 2^0.6, and 7^0.6 without it."""
    assert length_divisor(7, SearchSettings(length_penalty=0.6, length_norm="gnmt")) == pytest.approx(1.5157166)
    assert length_divisor(7, SearchSettings(length_penalty=0.6)) == pytest.approx(3.2140958)


@pytest.mark.parametrize("size", [5, 130, 1000, 4097])
def test_top_is_topk(size):
    x, before = torch.randn(3, 2, size), torch.randn(3, 2)
    x[1, :, size // 2 :] = -torch.inf
    x[2, 1, -1] = math.nan
    total = (x + before[:, :, None]).flatten(1)
    for k in (1, 4):
        values, parent, token = top(x, k, before)
        torch.testing.assert_close(values, total.topk(k).values, equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(total.gather(1, parent * size + token), values, equal_nan=True, rtol=0, atol=0)


@every_model
def test_the_batch_changes_nothing(overrides):
    """A sentence has the same translation alone, in a padded batch of mixed lengths, and in another order."""
    model, lengths = sharp(*overrides), [7, 1, 4, 12, 2, 6]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=3, max_len_ratio=1.0, max_len_extra=4, n_best=3)
    together = search(model, src, mask, settings=settings, special=SPECIAL)
    order = torch.randperm(len(lengths))
    shuffled = search(model, src[order], mask[order], settings=settings, special=SPECIAL)
    for row, length in enumerate(lengths):
        alone = search(
            model, src[row : row + 1, :length], mask[row : row + 1, :length], settings=settings, special=SPECIAL
        )
        assert_same(together[row], alone[0])
        assert_same(shuffled[order.tolist().index(row)], alone[0])


@every_model
def test_scores_are_those_of_forward(overrides):
    # In float64: retention's norm divides by numbers that may be near 0, which makes float32's rounding large
    model, lengths = sharp(*overrides).double(), [6, 3, 8]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=4, max_len_ratio=1.0, max_len_extra=3, length_penalty=0.7, n_best=4)
    for row, found in enumerate(search(model, src, mask, settings=settings, special=SPECIAL)):
        again = score(model, src[row : row + 1, : lengths[row]], [h.ids for h in found])
        for hypothesis, log_prob in zip(found, again, strict=True):
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4)
            assert hypothesis.score == pytest.approx(log_prob / (len(hypothesis.ids) + 1) ** 0.7, abs=1e-4)


@pytest.mark.parametrize("name", filter(decodes, SELF))
def test_a_convolution_longer_than_the_translation_stands_beside_any_mixer(name):
    """Both mixers use one table of ancestors; the convolution needs more slots than there are positions."""
    settings = config("mixer=transformer", *TINY, "model.tie=none")
    conv, other = (Case("decoder", each).settings() for each in ("dynamicconv", name))
    conv["per_layer"] = {"kernel_size": [31, 31, 31, 31]}
    settings["mixer"]["decoder"] = {"kinds": {"conv": conv, "other": other}, "pattern": ["conv", "other"]}
    model = jiggle(build_model(settings)).eval().double()
    src, _ = sources(3)
    options = SearchSettings(beam_size=3, max_len_ratio=1.0, max_len_extra=4, n_best=3)
    (found,) = search(model, src, torch.ones_like(src).bool(), settings=options, special=SPECIAL)
    again = score(model, src, [h.ids for h in found])
    assert [h.log_prob for h in found] == pytest.approx(again, abs=1e-4)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize(("beam_groups", "diversity"), [(1, 0.5), (2, 0.5), (3, 0.0)])
def test_n_best_is_sorted_and_distinct(beam_groups, diversity, late, monkeypatch):
    """Results are distinct even if groups without a diversity cost search alike; then there may be fewer than n."""
    monkeypatch.setattr(seq2seq.search.running, "steps_late", lambda device: late)
    model, (src, mask) = sharp("mixer=transformer"), sources(6, 3, 8)
    settings = SearchSettings(
        beam_size=6, n_best=6, max_len_ratio=1.0, max_len_extra=3, beam_groups=beam_groups, diversity=diversity
    )
    for found in search(model, src, mask, settings=settings, special=SPECIAL):
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({tuple(h.ids) for h in found}) == len(found) >= 6 // beam_groups
        assert not {PAD, BOS, EOS} & {token for h in found for token in h.ids}


def test_limits_are_per_sentence():
    """A translation has at most int(ratio * S) + extra tokens with the end, even if the model would never end."""
    model, lengths = sharp("mixer=transformer"), [9, 1, 4]
    src, mask = sources(*lengths)
    with torch.no_grad():
        model.output.bias[EOS] -= 100.0
    for ratio, extra, beam in ((1.5, 2, 3), (0.0, 1, 2), (2.0, 1, 1)):
        settings = SearchSettings(beam_size=beam, max_len_ratio=ratio, max_len_extra=extra)
        for length, found in zip(lengths, search(model, src, mask, settings=settings, special=SPECIAL), strict=True):
            assert len(found[0].ids) == int(ratio * length) + extra - 1
        one_each = dataclasses.replace(settings, beam_size=1)
        for length, (one,) in zip(lengths, sample(model, src, mask, settings=one_each), strict=True):
            assert len(one.ids) == int(ratio * length) + extra - 1


def test_the_length_does_not_count_the_start():
    model, (src, mask) = sharp("mixer=transformer"), sources(4, 4)
    with torch.no_grad():
        model.output.bias[EOS] += 100.0
    settings = SearchSettings(beam_size=2, min_len=2, max_len_ratio=0.0, max_len_extra=1)
    found = search(model, src, mask, settings=settings, special=SPECIAL, starts=[[], [7]])
    assert [len(best.ids) for best, *_ in found] == [2, 2]


def test_limits_are_exact_where_float32_rounds_down():
    """1.3 * 90 is 117, and 116.99999 in float32."""
    for ratio, length, product in ((1.3, 90, 117), (2.1, 30, 63), (0.29, 100, 28)):
        settings = SearchSettings(max_len_ratio=ratio, max_len_extra=10)
        assert longest_target(length, settings) == int(ratio * length) + 10 == product + 10
        assert longest_target(length, dataclasses.replace(settings, max_len=20)) == 20
        assert longest_target(length, dataclasses.replace(settings, min_len=300)) == 301


def test_finished_sentences_leave_the_batch(monkeypatch):
    """Finished sentences leave one by one, the model runs with fewer rows, and nothing changes for the others."""
    model, lengths = sharp("mixer=lightconv"), [2, 14, 5, 9]
    src, mask = sources(*lengths)
    with torch.no_grad():
        model.output.bias[EOS] -= 100.0  # every sentence ends at its own limit
    settings = SearchSettings(beam_size=2, max_len_ratio=1.0, max_len_extra=1)
    rows, step = [], model.step
    monkeypatch.setattr(model, "step", lambda token, *rest: (rows.append(len(token)), step(token, *rest))[1])
    found = search(model, src, mask, settings=settings, special=SPECIAL)
    assert rows == [8] * 3 + [6] * 3 + [4] * 4 + [2] * 5
    monkeypatch.setattr(seq2seq.search.running.Running, "shrink", lambda running: None)
    for mine, theirs in zip(found, search(model, src, mask, settings=settings, special=SPECIAL), strict=True):
        assert_same(mine, theirs)


def test_empty_batch():
    model = sharp("mixer=transformer")
    src, mask = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.bool)
    assert search(model, src, mask, settings=SearchSettings(), special=SPECIAL) == []
    assert sample(model, src, mask) == []


@pytest.mark.parametrize("beam_size", [1, 7, 100])
def test_a_beam_wider_than_the_vocabulary(beam_size):
    model = sharp("mixer=transformer", src_vocab_size=SMALL, tgt_vocab_size=SMALL)
    mask = lengths_mask([3, 1])
    settings = SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_ratio=0, max_len_extra=3)
    for found in search(model, random_tokens(mask, SMALL), mask, settings=settings, special=SPECIAL):
        assert len(found) == min(beam_size, 13)


@every_model
def test_weights_that_are_not_finite_end_the_search(overrides):
    """The search ends at the first step, for a state that grows, such as a cache, and for one of constant size."""
    model, (src, mask) = sharp(*overrides), sources(5, 3)
    for value in (math.nan, math.inf):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        for beam_size in (1, 3):
            with pytest.raises(NotFiniteScoresError, match="scores are not finite: its training has diverged"):
                search(model, src, mask, settings=SearchSettings(beam_size=beam_size), special=SPECIAL)
        with pytest.raises(NotFiniteScoresError):
            sample(model, src, mask)


@pytest.mark.parametrize("beam_size", [1, 2, 7])
@pytest.mark.parametrize("place", [0, 3, 9])
@pytest.mark.parametrize(
    "logits",
    [
        [math.nan] * SMALL,
        [0.0, 0.0, 0.0, 0.0, 0.0, math.nan],
        [0.0, math.inf, 0.0, 0.0, 0.0, 0.0],
        [math.inf, 0.0, 0.0, 0.0, 0.0, 0.0],
        [math.inf] * SMALL,
        [-math.inf] * SMALL,
    ],
)
def test_scores_that_are_not_finite_end_the_search(logits, place, beam_size):
    """One of two sentences has such scores at the first step, in the middle, or at its limit of 10."""
    model: Any = Spoiled(torch.tensor(logits), place)
    src = torch.tensor([[4], [5]])
    settings = SearchSettings(beam_size=beam_size, max_len_ratio=0.0, max_len_extra=10)
    with pytest.raises(NotFiniteScoresError):
        search(model, src, src > 0, settings=settings, special=SPECIAL)
    with pytest.raises(NotFiniteScoresError):
        sample(model, src, src > 0, settings=settings)


def test_a_token_may_be_forbidden():
    """A logit of -inf among finite logits is a probability of 0, not a fault; only the end must be possible."""
    src = torch.tensor([[4], [5]])
    settings = SearchSettings(beam_size=3, n_best=3, max_len_ratio=0.0, max_len_extra=4)
    forbidden: Any = Fixed(torch.tensor([0.1, 0.0, 0.1, 0.2, 0.3, 0.3]))
    for found in (
        *search(forbidden, src, src > 0, settings=settings, special=SPECIAL),
        *sample(forbidden, src, src > 0, settings=settings),
    ):
        assert found
        assert not any(1 in h.ids for h in found)
        assert all(math.isfinite(h.score) for h in found)
    # A distribution without the end, and one with only padding and begin
    for impossible in ([0.1, 0.1, 0.1, 0.0, 0.3, 0.4], [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]):
        endless: Any = Fixed(torch.tensor(impossible))
        with pytest.raises(NotFiniteScoresError):
            search(endless, src, src > 0, settings=settings, special=SPECIAL)
        with pytest.raises(NotFiniteScoresError):
            sample(endless, src, src > 0, settings=settings)


@pytest.mark.slow
def test_autocast_search():
    """Decoding under bfloat16 autocast works for every preset and gives finite scores."""
    for preset in PRESETS:
        model, (src, mask) = sharp(f"mixer={preset}"), sources(4, 2)
        with torch.autocast("cpu", torch.bfloat16):
            found = search(model, src, mask, settings=SearchSettings(beam_size=3, max_len_extra=4), special=SPECIAL)
        assert all(torch.tensor(one[0].score).isfinite() for one in found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam_size": 0},
        {"beam_size": 3, "n_best": 4},
        {"n_best": 0},
        {"max_len_ratio": -1.0},
        {"max_len_extra": 0},
        {"max_len_ratio": math.inf},
        {"length_penalty": math.nan},
        {"length_penalty": -math.inf},
    ],
)
def test_settings_that_cannot_work(wrong):
    key = list(wrong)[-1]
    with pytest.raises(ValueError, match=f"{key}.*{wrong[key]}"):
        SearchSettings(**wrong)


class Fixed:
    """A model whose next token does not depend on the tokens before."""

    def __init__(self, probabilities: Tensor) -> None:
        self.logits = probabilities.log()

    def context(self, src: Tensor, src_mask: Tensor) -> list[Any]:
        return []

    def init_state(self, context: list[Any], *, beam_size: int, max_len: int) -> list[Any]:
        return [NoState()]

    def step(self, token: Tensor, context: list[Any], state: list[Any], position: Tensor) -> tuple[Tensor, list[Any]]:
        return self.logits.repeat(len(token), 1), state


def frequencies(probabilities: list[float], draws: int = 20_000, **given: Any) -> tuple[list[float], list[Hypothesis]]:
    """Shares with which each token came first among samples of 20 sentences; eos counts as the empty output."""
    model: Any = Fixed(torch.tensor(probabilities))
    src = torch.full((20, 1), EOS)
    each = draws // 20
    settings = SearchSettings(beam_size=each, n_best=each, max_len_ratio=0.0, max_len_extra=2)
    drawn = sample(model, src, src == EOS, settings=settings, **given)
    found = [one for of_sentence in drawn for one in of_sentence]
    assert len(found) == draws
    counts = Counter(h.ids[0] if h.ids else EOS for h in found)
    return [counts[token] / draws for token in range(len(probabilities))], found


def agree(found: list[float], expected: list[float], draws: int = 20_000) -> None:
    """Within 7 standard deviations: P below 1e-11 for the 6 tokens."""
    for f, e in zip(found, expected, strict=True):
        assert abs(f - e) <= 7 * (e * (1 - e) / draws) ** 0.5


def test_samples_follow_the_model():
    """Frequencies of a known distribution, see `agree`; log_prob is the model's own."""
    given = [1e-30, 0.1, 1e-30, 0.2, 0.3, 0.4]
    agree(frequencies(given)[0], [0.0, 0.1, 0.0, 0.2, 0.3, 0.4])
    # For every way of drawing
    for how in ({}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.5}):
        for h in frequencies(given, draws=400, **how)[1]:
            log_prob = sum(math.log(given[token]) for token in [*h.ids, EOS])
            assert h.log_prob == pytest.approx(log_prob, abs=1e-4)


class Sentence(NamedTuple):
    """State of `Spoiled`: the source token of each hypothesis."""

    token: Tensor


class Spoiled(Fixed):
    """Model that hardly ever ends, and that gives sentences beginning with token 5 other logits at one position."""

    def __init__(self, logits: Tensor, place: int) -> None:
        super().__init__(torch.tensor([1e-30, 0.1, 1e-30, 1e-30, 0.4, 0.5]))
        self.other = logits
        self.place = place

    def context(self, src: Tensor, src_mask: Tensor) -> list[Any]:
        return [src[:, 0]]

    def init_state(self, context: list[Any], *, beam_size: int, max_len: int) -> list[Any]:
        return [Sentence(context[0].repeat_interleave(beam_size))]

    def step(self, token: Tensor, context: list[Any], state: list[Any], position: Tensor) -> tuple[Tensor, list[Any]]:
        other = (state[0].token == 5) & (position == self.place)
        return torch.where(other[:, None], self.other, self.logits), state


class Late(Fixed):
    """Model that ends at once with probability 0.9; otherwise 40 certain tokens and the end follow."""

    def step(self, token: Tensor, context: list[Any], state: list[Any], position: Tensor) -> tuple[Tensor, list[Any]]:
        if position[0] == 0:
            return super().step(token, context, state, position)
        logits = torch.full((len(token), 6), -60.0)
        logits[:, EOS], logits[:, 5] = (0.0, -120.0) if position[0] == 40 else (-120.0, 0.0)
        return logits, state


@pytest.mark.parametrize(("length_penalty", "length"), [(0.0, 0), (0.5, 0), (1.0, 40), (2.0, 40)])
def test_a_long_hypothesis_may_overtake(length_penalty, length):
    """-2.303 / 41 beats -0.105 / 1: an open hypothesis is given up only if no length allowed could make it win."""
    model: Any = Late(torch.tensor([1e-30, 1e-30, 1e-30, 0.9, 1e-30, 0.1]))
    src = torch.full((1, 1), EOS)
    settings = SearchSettings(beam_size=2, max_len_ratio=0.0, max_len_extra=60, length_penalty=length_penalty)
    (found,) = search(model, src, src == EOS, settings=settings, special=SPECIAL)[0]
    assert found.ids == [5] * length


def test_padding_and_begin_are_never_sampled():
    """The probability of padding and begin goes to the other tokens in proportion."""
    agree(frequencies([0.3, 0.1, 0.2, 0.1, 0.1, 0.2])[0], [0.0, 0.2, 0.0, 0.2, 0.2, 0.4])


def test_a_search_may_begin_with_eos():
    """As fairseq's models do: eos is then not forbidden, unlike a bos of its own."""
    assert SPECIAL.never == [PAD, BOS]
    assert Specials(PAD, EOS, PAD).never == [PAD]
    src, mask = random_tokens(lengths_mask([5])), lengths_mask([5])
    model = tiny("model.tie=none")
    with torch.no_grad():
        model.output.bias[EOS] = 1e3
    settings = SearchSettings(beam_size=2)
    assert search(model, src, mask, special=Specials(EOS, EOS, PAD), settings=settings)[0][0].ids == []


def test_temperature_top_k_and_top_p():
    given = [1e-30, 0.1, 1e-30, 0.2, 0.3, 0.4]
    squares = [0.01, 0.04, 0.09, 0.16]
    agree(frequencies(given, temperature=0.5)[0], [p / 0.3 for p in (0, squares[0], 0, *squares[1:])])
    agree(frequencies(given, top_k=2)[0], [0, 0, 0, 0, 3 / 7, 4 / 7])
    agree(frequencies(given, top_k=1)[0], [0, 0, 0, 0, 0, 1])
    # The first two have 0.7 of the probability, so that 0.71 needs the third, too
    agree(frequencies(given, top_p=0.69)[0], [0, 0, 0, 0, 3 / 7, 4 / 7])
    agree(frequencies(given, top_p=0.71)[0], [0, 0, 0, 2 / 9, 3 / 9, 4 / 9])
    # Of the three that top_k leaves, the first has 4 / 9
    agree(frequencies(given, top_k=3, top_p=0.44)[0], [0, 0, 0, 0, 0, 1])
    for temperature in (0, -1.0, 1e-300, 1e300, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature is"):
            frequencies(given, temperature=temperature)
    for top_p in (0, 1.1, math.nan):
        with pytest.raises(ValueError, match="top_p is"):
            frequencies(given, top_p=top_p)
    with pytest.raises(ValueError, match="top_k is -1"):
        frequencies(given, top_k=-1)


def test_a_seed_repeats_samples():
    model, (src, mask) = sharp("mixer=transformer"), sources(6, 3)
    with torch.no_grad():
        model.output.weight.mul_(0.1)
        model.output.bias[EOS] -= 100.0
    drawn = [sample(model, src, mask, seeds=[seed, seed]) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@every_model
def test_sampled_scores_are_those_of_forward(overrides):
    model, lengths = sharp(*overrides), [6, 3]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=1, max_len_ratio=1.0, max_len_extra=2)
    for row, (h,) in enumerate(sample(model, src, mask, settings=settings)):
        (again,) = score(model, src[row : row + 1, : lengths[row]], [h.ids])
        assert h.log_prob == pytest.approx(again, abs=1e-4)
        assert h.score == pytest.approx(again / (len(h.ids) + 1), abs=1e-4)


def test_learned_positions_end_with_a_clear_error():
    """More positions than the model has learned are refused by name, not by an index error."""
    model, (src, mask) = sharp("mixer=transformer", "model.positions=learned", "model.max_len=6"), sources(4)
    with torch.no_grad():
        model.output.bias[EOS] -= 100.0
    with pytest.raises(ValueError, match=r"6 learned positions"):
        search(model, src, mask, settings=SearchSettings(beam_size=2), special=SPECIAL)
