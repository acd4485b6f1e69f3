"""Greedy, beam and sampling against enumeration, an independent beam search, re-scoring and known distributions."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
from composed import BOS, EOS, PAD, PRESETS, lengths_mask, random_tokens, tiny
from torch import Tensor

import seq2seq.search
from seq2seq.config.search import SearchSettings
from seq2seq.model import Seq2Seq
from seq2seq.search import Hypothesis, NotFiniteError, Specials, sample, search
from seq2seq.state import NoState

SPECIAL = Specials(BOS, EOS, PAD)
SMALL = 6  # pad, unk, bos, eos and two words: three tokens that go on
MODELS = {preset: (f"mixer={preset}",) for preset in PRESETS} | {
    "attention-dynamicconv": ("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv"),
    "dynamicconv-bahdanau": ("mixer=dynamicconv", "mixer/cross=bahdanau"),
}
# `make test-all` has every preset, as conformance has of every mixer by itself.
_CORE = {"transformer", "lightconv", "dynamicconv", "bahdanau", "retention", "attention-dynamicconv"}
REPRESENTATIVE = {
    "test_beam_of_one_is_greedy": _CORE,
    "test_the_batch_changes_nothing": _CORE,
    "test_scores_are_those_of_forward": _CORE,
    "test_sampled_scores_are_those_of_forward": _CORE,
    "test_weights_that_are_not_finite_end_the_search": _CORE,
    "test_a_wide_beam_is_exhaustive": {"1-0.0", "5--0.7", "5-0.6", "5-2.0", "40-1.0", "40-0.0"},
}
every_model = pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS.keys())


def sharp(*overrides: str, **extra: Any) -> Seq2Seq:
    """A random model that has preferences, so that rankings do not hang on rounding, and ends now and then."""
    model = tiny(*overrides, "model.tie=none", **extra)
    with torch.no_grad():
        model.output.weight.mul_(random.uniform(2, 5))
        model.output.bias[EOS] += random.uniform(0, 3)
    return model


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    mask = lengths_mask(lengths)
    return random_tokens(mask), mask


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


@torch.no_grad()
def next_log_prob(model: Seq2Seq, src: Tensor, prefixes: list[list[int]]) -> Tensor:
    """log p of the next token after each prefix, by whole-sequence forward."""
    given, many = torch.tensor([[BOS, *ids] for ids in prefixes]), src.expand(len(prefixes), -1)
    return model(many, torch.ones_like(many).bool(), given)[:, -1].log_softmax(-1)


def plain_beam(model: Seq2Seq, src: Tensor, settings: SearchSettings) -> list[Hypothesis]:
    """Beam search over whole prefixes, without batches, states or early stopping but for the full set of endings."""
    size, limit = settings.beam_size, int(settings.max_len_ratio * src.shape[1]) + settings.max_len_extra
    beam: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[Hypothesis] = []
    for length in range(1, limit + 1):
        log_prob = next_log_prob(model, src, [ids for _, ids in beam]).double()
        log_prob[:, [PAD, BOS]] = -torch.inf
        if length == limit:
            log_prob[:, :EOS] = log_prob[:, EOS + 1 :] = -torch.inf
        rows = [
            (total + float(value), [*ids, token])
            for (total, ids), values in zip(beam, log_prob, strict=True)
            for token, value in enumerate(values)
            if value.isfinite()
        ]
        rows = sorted(rows, key=lambda row: -row[0])[: 2 * size]
        for total, ids in rows[:size]:
            if ids[-1] == EOS and len(found) < size:
                found.append(Hypothesis(ids[:-1], total / length**settings.length_penalty, total))
        beam = [row for row in rows if row[1][-1] != EOS][:size]
        if not beam or len(found) >= size:
            break
    return sorted(found, key=lambda h: -h.score)[: settings.n_best]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4) -> None:
    """Equal texts in equal order, but for scores so close that rounding decides."""
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
            log_prob = next_log_prob(model, src[row : row + 1, :length], [ids])[0]
            log_prob[[PAD, BOS]] = -torch.inf
            best = int(log_prob.argmax())
            if best == EOS:
                break
            ids.append(best)
        assert found[row][0].ids == ids
    assert len(found) == 3


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


@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_is_a_plain_beam(beam_size, length_penalty):
    """The batched search with early stopping finds what a plain one finds."""
    model, (src, mask) = sharp(f"mixer={random.choice(PRESETS)}"), sources(5, 2, 4)
    settings = SearchSettings(
        beam_size=beam_size, max_len_ratio=1.0, max_len_extra=3, length_penalty=length_penalty, n_best=1
    )
    found = search(model, src, mask, settings=settings, special=SPECIAL)
    for row, length in enumerate([5, 2, 4]):
        assert_same(found[row], plain_beam(model, src[row : row + 1, :length], settings))


@every_model
def test_the_batch_changes_nothing(overrides):
    """A sentence alone, in a padded batch of mixed lengths, and in another order: one and the same translation."""
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
    # in float64: retention's norm divides by numbers that may be near 0, which makes float32's rounding large
    model, lengths = sharp(*overrides).double(), [6, 3, 8]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=4, max_len_ratio=1.0, max_len_extra=3, length_penalty=0.7, n_best=4)
    for row, found in enumerate(search(model, src, mask, settings=settings, special=SPECIAL)):
        again = score(model, src[row : row + 1, : lengths[row]], [h.ids for h in found])
        for hypothesis, log_prob in zip(found, again, strict=True):
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4)
            assert hypothesis.score == pytest.approx(log_prob / (len(hypothesis.ids) + 1) ** 0.7, abs=1e-4)


def test_n_best_is_sorted_and_distinct():
    model, (src, mask) = sharp("mixer=transformer"), sources(6, 3, 8)
    settings = SearchSettings(beam_size=6, n_best=6, max_len_ratio=1.0, max_len_extra=3)
    for found in search(model, src, mask, settings=settings, special=SPECIAL):
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({tuple(h.ids) for h in found}) == len(found) == 6
        assert not {PAD, BOS, EOS} & {token for h in found for token in h.ids}


def test_limits_are_per_sentence():
    """At most int(ratio * S) + extra tokens with the end, even of a model that would never end."""
    model, lengths = sharp("mixer=transformer"), [9, 1, 4]
    src, mask = sources(*lengths)
    with torch.no_grad():
        model.output.bias[EOS] -= 100.0
    for ratio, extra, beam in ((1.5, 2, 3), (0.0, 1, 2), (2.0, 1, 1)):
        settings = SearchSettings(beam_size=beam, max_len_ratio=ratio, max_len_extra=extra)
        for length, found in zip(lengths, search(model, src, mask, settings=settings, special=SPECIAL), strict=True):
            assert len(found[0].ids) == int(ratio * length) + extra - 1
        for length, one in zip(lengths, sample(model, src, mask, special=SPECIAL, settings=settings), strict=True):
            assert len(one.ids) == int(ratio * length) + extra - 1


def test_finished_sentences_leave_the_batch(monkeypatch):
    """They leave one by one, the model is stepped with fewer rows, and nothing changes for the others."""
    model, lengths = sharp("mixer=lightconv"), [2, 14, 5, 9]
    src, mask = sources(*lengths)
    with torch.no_grad():
        model.output.bias[EOS] -= 100.0  # every sentence ends at its own limit
    settings = SearchSettings(beam_size=2, max_len_ratio=1.0, max_len_extra=1)
    rows, step = [], model.step
    monkeypatch.setattr(model, "step", lambda token, *rest: (rows.append(len(token)), step(token, *rest))[1])
    found = search(model, src, mask, settings=settings, special=SPECIAL)
    assert rows == [8] * 3 + [6] * 3 + [4] * 4 + [2] * 5
    monkeypatch.setattr(seq2seq.search._Beam, "_drop_done", keep_all)
    for mine, theirs in zip(found, search(model, src, mask, settings=settings, special=SPECIAL), strict=True):
        assert_same(mine, theirs)


def keep_all(beam: Any) -> None:
    """Instead of dropping finished sentences one by one, drop all when none is open."""
    if (beam.log_prob == -torch.inf).all():
        beam.sentences = beam.sentences[:0]


def test_empty_batch():
    model = sharp("mixer=transformer")
    src, mask = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.bool)
    assert search(model, src, mask, settings=SearchSettings(), special=SPECIAL) == []
    assert sample(model, src, mask, special=SPECIAL) == []


@pytest.mark.parametrize("beam_size", [1, 7, 100])
def test_a_beam_wider_than_the_vocabulary(beam_size):
    model = sharp("mixer=transformer", src_vocab_size=SMALL, tgt_vocab_size=SMALL)
    mask = lengths_mask([3, 1])
    settings = SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_ratio=0, max_len_extra=3)
    for found in search(model, random_tokens(mask, SMALL), mask, settings=settings, special=SPECIAL):
        assert len(found) == min(beam_size, 13)


@every_model
def test_weights_that_are_not_finite_end_the_search(overrides):
    """At the first step, whether the state grows, as a cache does, or has a constant size."""
    model, (src, mask) = sharp(*overrides), sources(5, 3)
    for value in (math.nan, math.inf):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        for beam_size in (1, 3):
            with pytest.raises(NotFiniteError, match="scores are not finite: its training has diverged"):
                search(model, src, mask, settings=SearchSettings(beam_size=beam_size), special=SPECIAL)
        with pytest.raises(NotFiniteError):
            sample(model, src, mask, special=SPECIAL)


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
    """One of two sentences meets them, at the first step, in the middle or at its limit of 10."""
    model: Any = Spoiled(torch.tensor(logits), place)
    src = torch.tensor([[4], [5]])
    settings = SearchSettings(beam_size=beam_size, max_len_ratio=0.0, max_len_extra=10)
    with pytest.raises(NotFiniteError):
        search(model, src, src > 0, settings=settings, special=SPECIAL)
    with pytest.raises(NotFiniteError):
        sample(model, src, src > 0, settings=settings, special=SPECIAL)


def test_a_token_may_be_forbidden():
    """A logit of -inf beside finite ones is a probability of 0, not a fault; only the end must be possible."""
    src = torch.tensor([[4], [5]])
    settings = SearchSettings(beam_size=3, n_best=3, max_len_ratio=0.0, max_len_extra=4)
    forbidden: Any = Fixed(torch.tensor([0.1, 0.0, 0.1, 0.2, 0.3, 0.3]))
    for found in (
        *search(forbidden, src, src > 0, settings=settings, special=SPECIAL),
        sample(forbidden, src, src > 0, settings=settings, special=SPECIAL),
    ):
        assert found
        assert not any(1 in h.ids for h in found)
        assert all(math.isfinite(h.score) for h in found)
    # never an end; and nothing but padding and begin
    for impossible in ([0.1, 0.1, 0.1, 0.0, 0.3, 0.4], [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]):
        endless: Any = Fixed(torch.tensor(impossible))
        with pytest.raises(NotFiniteError):
            search(endless, src, src > 0, settings=settings, special=SPECIAL)
        with pytest.raises(NotFiniteError):
            sample(endless, src, src > 0, settings=settings, special=SPECIAL)


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
    """A model whose next token has one distribution whatever came before."""

    def __init__(self, probabilities: Tensor) -> None:
        self.logits = probabilities.log()

    def context(self, src: Tensor, src_mask: Tensor) -> list[Any]:
        return []

    def init_state(self, context: list[Any], *, beam_size: int, max_len: int) -> list[Any]:
        return [NoState()]

    def step(self, token: Tensor, context: list[Any], state: list[Any], position: Tensor) -> tuple[Tensor, list[Any]]:
        return self.logits.repeat(len(token), 1), state


def frequencies(probabilities: list[float], draws: int = 20_000, **given: Any) -> tuple[list[float], list[Hypothesis]]:
    """How often each token came first; eos counts as the empty output."""
    model: Any = Fixed(torch.tensor(probabilities))
    src = torch.full((draws, 1), EOS)
    settings = SearchSettings(beam_size=1, max_len_ratio=0.0, max_len_extra=2)
    found = sample(model, src, src == EOS, special=SPECIAL, settings=settings, **given)
    counts = Counter(h.ids[0] if h.ids else EOS for h in found)
    return [counts[token] / draws for token in range(len(probabilities))], found


def agree(found: list[float], expected: list[float], draws: int = 20_000) -> None:
    """Within 7 standard deviations: P below 1e-11 for the 6 tokens."""
    for f, e in zip(found, expected, strict=True):
        assert abs(f - e) <= 7 * (e * (1 - e) / draws) ** 0.5


def test_samples_follow_the_model():
    """Frequencies of a known distribution, see `agree`; log_prob is the model's own."""
    given = [1e-30, 0.1, 1e-30, 0.2, 0.3, 0.4]
    found, hypotheses = frequencies(given)
    agree(found, [0.0, 0.1, 0.0, 0.2, 0.3, 0.4])
    for h in hypotheses[:50]:
        log_prob = sum(torch.tensor([given[token] for token in [*h.ids, EOS]]).log()).item()
        assert h.log_prob == pytest.approx(log_prob, abs=1e-4)


class Sentence(NamedTuple):
    """State of `Spoiled`: the source token of each hypothesis."""

    token: Tensor


class Spoiled(Fixed):
    """Ends hardly ever, and gives sentences that begin with token 5 other logits at one position."""

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
    """Ends at once with probability 0.9; otherwise 40 certain tokens follow, and a certain end."""

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
    """Their probability goes to the other tokens in proportion."""
    agree(frequencies([0.3, 0.1, 0.2, 0.1, 0.1, 0.2])[0], [0.0, 0.2, 0.0, 0.2, 0.2, 0.4])


def test_temperature_and_top_k():
    given = [1e-30, 0.1, 1e-30, 0.2, 0.3, 0.4]
    squares = [0.01, 0.04, 0.09, 0.16]
    agree(frequencies(given, temperature=0.5)[0], [p / 0.3 for p in (0, squares[0], 0, *squares[1:])])
    agree(frequencies(given, top_k=2)[0], [0, 0, 0, 0, 3 / 7, 4 / 7])
    agree(frequencies(given, top_k=1)[0], [0, 0, 0, 0, 0, 1])
    for temperature in (0, -1.0, 1e-300, 1e300, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature is"):
            frequencies(given, temperature=temperature)
    with pytest.raises(ValueError, match="top_k is -1"):
        frequencies(given, top_k=-1)


def test_a_generator_repeats_samples():
    model, (src, mask) = sharp("mixer=transformer"), sources(6, 3)
    with torch.no_grad():
        model.output.weight.mul_(0.1)
        model.output.bias[EOS] -= 100.0
    drawn = [
        sample(model, src, mask, special=SPECIAL, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@every_model
def test_sampled_scores_are_those_of_forward(overrides):
    model, lengths = sharp(*overrides), [6, 3]
    src, mask = sources(*lengths)
    settings = SearchSettings(beam_size=1, max_len_ratio=1.0, max_len_extra=2)
    for row, h in enumerate(sample(model, src, mask, special=SPECIAL, settings=settings)):
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
