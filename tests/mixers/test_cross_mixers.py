"""Cross mixers against the formulas of their papers, one sentence and position at a time."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from composed import config, lengths_mask
from conftest import jiggle
from exact import close, wide
from torch import Tensor, nn

from seq2seq.mixers.cross_convolution import CrossConvolution
from seq2seq.mixers.fixed_context import FixedContext
from seq2seq.mixers.fixed_gaussian import FixedGaussian
from seq2seq.mixers.gru import GatedUnit
from seq2seq.mixers.luong import SCOPES, SCORES, Luong, LuongAttention, LuongRead
from seq2seq.network.build import bounds

LENGTHS = [5, 1, 3]
MASK = lengths_mask(LENGTHS)


def cell(unit: GatedUnit, *further: Tensor) -> nn.GRUCell:
    """torch's cell with a unit's weights, and `further` columns of W after the columns for x."""
    weight = torch.cat([unit.input.weight, *further], 1)
    theirs = nn.GRUCell(weight.shape[1], unit.hidden_dim).double()
    state = {"weight_ih": weight, "bias_ih": unit.input.bias}
    theirs.load_state_dict({**state, "weight_hh": unit.recurrent.weight, "bias_hh": unit.recurrent.bias})
    return theirs


# ---- the encoder-decoder without attention


@pytest.mark.parametrize("summary", ["ends", "mean"])
@pytest.mark.parametrize("every_step", [True, False])
def test_fixed_context_by_hand(summary, every_step):
    """s_0 = tanh(W c), s_i = GRU([x_i; c], s_{i-1}), y_i = W_s s_i + W_c c."""
    sizes = {"dim": 3, "memory_dim": 6, "out_dim": 5, "hidden_dim": 4}
    mixer = jiggle(FixedContext(**sizes, summary=summary, every_step=every_step).double())
    x, memory = wide(3, 4, 3), wide(3, 5, 6)
    y, gru = mixer(x, mixer.project(memory, MASK)), cell(mixer.unit)
    for row, length in enumerate(LENGTHS):
        h = memory[row, :length]
        c = h.mean(0) if summary == "mean" else torch.cat([h[-1, :3], h[0, 3:]])
        s = torch.tanh(mixer.start(c))
        for i in range(4):
            s = gru(torch.cat([x[row, i], c]) if every_step else x[row, i], s)
            expected = mixer.out_hidden(s) + (mixer.out_context(c) if every_step else 0.0)
            # 1 / length is rounded to float32 in means
            close(y[row, i], expected, 1e-7)


def test_fixed_context_has_no_loop(monkeypatch):
    """All positions run in torch's fused recurrence; the published reset, which it does not have, loops."""
    x, memory = torch.randn(3, 4, 4), torch.randn(3, 5, 4)
    monkeypatch.setattr(GatedUnit, "loop", None)
    fast, slow = (FixedContext(dim=4, memory_dim=4, reset=reset) for reset in ("after", "before"))
    assert fast(x, fast.project(memory, MASK)).shape == x.shape
    with pytest.raises(TypeError):
        slow(x, slow.project(memory, MASK))


def test_fixed_context_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="summary is 'last'"):
        FixedContext(dim=4, memory_dim=4, summary="last")
    with pytest.raises(ValueError, match="summary=mean"):
        FixedContext(dim=4, memory_dim=5)
    FixedContext(dim=4, memory_dim=5, summary="mean")


# ---- Luong


def luong_weights(read: LuongRead, s: Tensor, h: Tensor, i: int, covered: Tensor | None = None) -> Tensor:
    """Return the weights of s (Q,) over a sentence's source h (S, M) at position i, a sum for each pair."""
    length = len(h)
    energy = []
    for j in range(length):
        if read.score == "dot":
            energy.append(s @ h[j])
        elif read.score == "general":
            energy.append(s @ read.key.weight @ h[j])
        elif read.score == "location":
            energy.append(read.location.weight[j] @ s)
        else:
            hidden = read.additive.query(s) + read.key(h[j])
            if covered is not None:
                hidden = hidden + read.additive.coverage.weight[:, 0] * covered[j]
            energy.append(read.additive.score.weight[0] @ torch.tanh(hidden))
    weights = torch.stack(energy).exp()
    if read.scope == "global":
        return weights / weights.sum()
    p = min(i, length - 1)
    if read.scope == "local_p":
        p = length * torch.sigmoid(read.place_score.weight[0] @ torch.tanh(read.place.weight @ s)).item()
    inside = torch.tensor([abs(j - p) <= read.half_window for j in range(length)])
    weights = weights * inside / (weights * inside).sum()
    if read.scope == "local_p":
        sigma = read.half_window / 2
        bell = [math.exp(-((j - p) ** 2) / (2 * sigma**2)) for j in range(length)]
        weights = weights * torch.tensor(bell, dtype=torch.float64)
    return weights


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("scope", SCOPES)
def test_luong_attention_by_hand(score, scope):
    """y_i = tanh(W_c [sum_j w_ij h_j; x_i]); targets are longer than sources."""
    sizes = {"dim": 4, "memory_dim": 4 if score == "dot" else 6, "max_len": 7 if score == "location" else None}
    mixer = jiggle(LuongAttention(**sizes, score=score, scope=scope, half_window=1).double())
    x, memory = wide(3, 8, 4), wide(3, 5, sizes["memory_dim"])
    context = mixer.project(memory, MASK)
    y, weights = mixer(x, context), mixer.read_weights(x, context)
    for row, length in enumerate(LENGTHS):
        h = memory[row, :length]
        for i in range(8):
            expected = luong_weights(mixer.read, x[row, i], h, i)
            close(weights[row, 0, i, :length], expected)
            assert not weights[row, 0, i, length:].any()
            close(y[row, i], torch.tanh(mixer.read.out.weight @ torch.cat([expected @ h, x[row, i]])))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("coverage", [True, False])
def test_luong_by_hand(scope, input_feeding, coverage):
    """s_i = GRU([x_i; y_{i-1}], s_{i-1}); coverage is the sum of the weights before."""
    score = "concat" if coverage else "general"
    options = {"score": score, "scope": scope, "input_feeding": input_feeding, "coverage": coverage}
    mixer = jiggle(Luong(dim=4, memory_dim=6, half_window=2, **options).double())
    x, memory = wide(3, 6, 4), wide(3, 5, 6)
    context = mixer.project(memory, MASK)
    y, weights = mixer(x, context), mixer.read_weights(x, context)
    gru = cell(mixer.unit, *([mixer.feed.weight] if input_feeding else []))
    for row, length in enumerate(LENGTHS):
        h = memory[row, :length]
        s, out, covered = torch.tanh(mixer.start.weight @ h.mean(0)), torch.zeros(4).double(), torch.zeros(length)
        for i in range(6):
            s = gru(torch.cat([x[row, i], out]) if input_feeding else x[row, i], s)
            read = luong_weights(mixer.read, s, h, i, covered.double() if coverage else None)
            out, covered = torch.tanh(mixer.read.out.weight @ torch.cat([read @ h, s])), covered + read
            close(weights[row, 0, i, :length], read, 1e-6)
            close(y[row, i], out, 1e-6)


def test_luong_without_feeding_has_no_loop(monkeypatch):
    x, memory = torch.randn(3, 4, 4), torch.randn(3, 5, 4)
    monkeypatch.setattr(GatedUnit, "update", None)
    fast, slow = (Luong(dim=4, memory_dim=4, input_feeding=feeding) for feeding in (False, True))
    assert fast(x, fast.project(memory, MASK)).shape == x.shape
    with pytest.raises(TypeError):
        slow(x, slow.project(memory, MASK))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "cosine"}, "score is 'cosine'"),
        ({"scope": "local"}, "scope is 'local'"),
        ({"scope": "local_p", "half_window": 0}, "half_window is 0"),
        ({"score": "dot"}, "equal widths, not 4 and 6"),
        ({"score": "location"}, r"set max_len, for example to \$\{model.max_len\}"),
        ({"score": "general", "max_len": 9}, "set max_len=null"),
        ({"score": "dot", "coverage": True}, "score=concat"),
    ],
)
def test_luong_refuses_what_it_does_not_know(settings, message):
    memory_dim = 4 if "coverage" in settings else 6
    with pytest.raises(ValueError, match=message):
        Luong(dim=4, memory_dim=memory_dim, **settings)


def test_location_bounds_the_source():
    mixer = LuongAttention(dim=4, memory_dim=4, score="location", max_len=4)
    with pytest.raises(ValueError, match="5 positions exceeds the 4"):
        mixer.project(torch.randn(3, 5, 4), MASK)
    location = config("mixer=luong", "mixer.cross.score=location", "mixer.cross.max_len=${model.max_len}")
    assert bounds(location) == {"mixer.cross.max_len": location["model"]["max_len"]}
    assert bounds(config("mixer=luong")) == {}


# ---- without content


@pytest.mark.parametrize("start", [1.0, 0.5])
def test_fixed_gaussian_by_hand(start):
    """M_ts = softmax_s(-a (s - r t - o)^2) per head; the target's content does not matter."""
    mixer = jiggle(FixedGaussian(dim=6, memory_dim=4, num_heads=3, rate=start).double())
    x, memory = wide(3, 7, 6), wide(3, 5, 4)
    context = mixer.project(memory, MASK)
    y, weights = mixer(x, context), mixer.read_weights(x, context)
    assert torch.equal(y, mixer(wide(3, 7, 6), context))
    for row, length in enumerate(LENGTHS):
        z = memory[row, :length] @ mixer.value.weight.T
        for t in range(7):
            heads = []
            for head in range(3):
                rate, center = start + mixer.rate_offsets[head], mixer.centers[head]
                energy = [-mixer.log_sharpness[head].exp() * (s - rate * t - center) ** 2 for s in range(length)]
                own = torch.stack(energy).softmax(0)
                close(weights[row, head, t, :length], own)
                heads.append(own @ z[:, 2 * head : 2 * head + 2])
            close(y[row, t], mixer.out.weight @ torch.cat(heads))


def test_rates_that_go_nowhere_are_refused():
    for cls, more in ((FixedGaussian, {}), (CrossConvolution, {"kernel_size": 3})):
        with pytest.raises(ValueError, match="rate is 0; choose a number above 0"):
            cls(dim=4, memory_dim=4, num_heads=2, rate=0, **more)


def test_fixed_gaussian_in_bfloat16_reads_where_it_did():
    """The reading is right also late in a sentence: rounding errors of weights are not multiplied by the position."""
    mixer = FixedGaussian(dim=6, memory_dim=4, num_heads=3)
    torch.nn.init.uniform_(mixer.rate_offsets, -0.004, 0.004)
    context = mixer.project(torch.randn(1, 300, 4), torch.ones(1, 300).bool())
    exact = mixer.read_weights(torch.empty(1, 290, 6), context)
    rounded = mixer.bfloat16().read_weights(torch.empty(1, 290, 6), context)
    assert (rounded - exact).abs().sum(-1).max() < 0.02


@pytest.mark.parametrize("cls", [FixedGaussian, partial(CrossConvolution, kernel_size=3)])
def test_reading_by_position_does_not_move_with_the_default_type(cls):
    """The default type changes as with trainer.precision=bf16-true."""
    mixer = cls(dim=4, memory_dim=4, num_heads=2, rate=0.7)
    context, x = mixer.project(torch.randn(1, 300, 4), torch.ones(1, 300).bool()), torch.randn(1, 280, 4)
    wanted = mixer.read_weights(x, context)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(mixer.read_weights(x, context), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("predicted", [True, False])
@pytest.mark.parametrize(("kernel_size", "rate"), [(3, 1.0), (4, 0.6), (9, 2.0)])
def test_cross_convolution_by_hand(predicted, kernel_size, rate):
    """One sum over taps per position and head; the taps outside the source keep their share of the softmax."""
    sizes = {"dim": 6, "memory_dim": 4, "num_heads": 2, "kernel_size": kernel_size}
    mixer = jiggle(CrossConvolution(**sizes, rate=rate, predicted=predicted).double()).eval()
    x, memory = wide(3, 7, 6), wide(3, 5, 4)
    context = mixer.project(memory, MASK)
    y, weights = mixer(x, context), mixer.read_weights(x, context)
    for row, length in enumerate(LENGTHS):
        z = memory[row, :length] @ mixer.value.weight.T
        for t in range(7):
            logits = (mixer.kernel.weight @ x[row, t]).view(2, kernel_size) if predicted else mixer.weight
            taps, heads = logits.softmax(1), torch.zeros(2, 3, dtype=torch.float64)
            first = min(round(rate * (t + 0.5) - 0.5), length - 1) - kernel_size // 2
            for k in range(kernel_size):
                if 0 <= first + k < length:
                    heads = heads + taps[:, k, None] * z[first + k].view(2, 3)
                    close(weights[row, :, t, first + k], taps[:, k])
            close(y[row, t], mixer.out.weight @ heads.flatten())


def test_cross_convolution_refuses_impossible_sizes():
    for wrong in ({"kernel_size": 0}, {"rate": 0.0}, {"num_heads": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CrossConvolution(**{"dim": 4, "memory_dim": 4, "num_heads": 2, "kernel_size": 3, **wrong})
