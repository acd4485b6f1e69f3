"""Each mixer against torch's own module with the same weights, or against its equations written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from composed import lengths_mask, of_rows
from conftest import jiggle
from exact import array, close, wide
from torch import nn

from seq2seq.mixers.additive import AdditiveAttention
from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.mixers.bahdanau import Bahdanau
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.gru import BiGRU, GatedUnit, HiddenState
from seq2seq.mixers.lightconv import LightConv
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.state import Cache, expand, reorder

LENGTHS = [6, 2, 4, 1]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# ---- attention


def torch_attention(mixer: Attention | CrossAttention, memory_dim: int) -> nn.MultiheadAttention:
    """torch's module with the mixer's weights."""
    dim = mixer.dim
    other = nn.MultiheadAttention(
        dim, mixer.num_heads, bias=False, kdim=memory_dim, vdim=memory_dim, batch_first=True, dtype=torch.float64
    )
    if isinstance(mixer, Attention):
        q, k, v = mixer.qkv.weight.chunk(3)
    else:
        q, (k, v) = mixer.query.weight, mixer.key_value.weight.chunk(2)
    with torch.no_grad():
        if other.in_proj_weight is not None:
            other.in_proj_weight.copy_(torch.cat([q, k, v]))
        else:
            for mine, theirs in ((q, other.q_proj_weight), (k, other.k_proj_weight), (v, other.v_proj_weight)):
                theirs.copy_(mine)
        other.out_proj.weight.copy_(mixer.out.weight)
    return other.eval()


def test_self_attention_is_torchs():
    mask = lengths_mask(LENGTHS)
    mixer, x = Attention(dim=12, causal=False, num_heads=3).double(), wide(4, 6, 12)
    theirs, _ = torch_attention(mixer, 12)(x, x, x, key_padding_mask=~mask, need_weights=False)
    close(mixer(x, mask)[mask], theirs[mask])


def test_causal_attention_is_torchs():
    mask = lengths_mask(LENGTHS)
    mixer, x = Attention(dim=12, causal=True, num_heads=4).double(), wide(4, 6, 12)
    future = torch.ones(6, 6).triu(1).bool()
    theirs, _ = torch_attention(mixer, 12)(x, x, x, attn_mask=future, key_padding_mask=~mask)
    close(mixer(x, mask)[mask], theirs[mask])


@pytest.mark.parametrize("memory_dim", [12, 10])
def test_cross_attention_is_torchs(memory_dim):
    mask = lengths_mask(LENGTHS)
    mixer = CrossAttention(dim=12, memory_dim=memory_dim, num_heads=2).double()
    x, memory = wide(4, 3, 12), wide(4, 6, memory_dim)
    theirs, _ = torch_attention(mixer, memory_dim)(x, memory, memory, key_padding_mask=~mask)
    close(mixer(x, mixer.project(memory, mask)), theirs)


def test_additive_attention_by_hand():
    """c_i = sum_j softmax_j(v' tanh(W x_i + b + U h_j)) h_j, one position and sentence at a time."""
    mixer = jiggle(AdditiveAttention(dim=5, memory_dim=4, score_dim=3).double())
    x, memory, mask = wide(2, 3, 5), wide(2, 4, 4), lengths_mask([4, 2])
    y = mixer(x, mixer.project(memory, mask))
    w, b, v = (array(p) for p in (mixer.attend.query.weight, mixer.attend.query.bias, mixer.attend.score.weight[0]))
    u, out = array(mixer.key.weight), array(mixer.out.weight)
    for row, source in ((0, 4), (1, 2)):
        h = array(memory[row, :source])
        for i in range(3):
            energy = np.array([v @ np.tanh(w @ array(x[row, i]) + b + u @ h[j]) for j in range(source)])
            weights = np.exp(energy) / np.exp(energy).sum()
            np.testing.assert_allclose(array(y[row, i]), out @ (weights @ h), atol=1e-10)


# ---- recurrences


def test_gated_unit_is_torchs():
    """The same state dict in torch.nn.GRU computes the same, by the fused loop and step by step."""
    unit, theirs = jiggle(GatedUnit(input_dim=5, hidden_dim=4).double()), nn.GRU(5, 4, batch_first=True).double()
    names = {"input.weight": "weight_ih_l0", "input.bias": "bias_ih_l0"}
    names |= {"recurrent.weight": "weight_hh_l0", "recurrent.bias": "bias_hh_l0"}
    theirs.load_state_dict({names[key]: value for key, value in unit.state_dict().items()})
    x = wide(3, 7, 5)
    close(unit(x), theirs(x)[0])
    close(unit.loop(x), theirs(x)[0])


def paper_gru(x: np.ndarray, s: np.ndarray, w: np.ndarray, b: np.ndarray, u: np.ndarray) -> np.ndarray:
    """One update of Bahdanau et al. 2015, A.1.1: reset before the product; gates r, z, n."""
    wr, wz, wn = np.split(w @ x + b, 3)
    ur, uz, un = np.split(u, 3)
    r, z = sigmoid(wr + ur @ s), sigmoid(wz + uz @ s)
    return (1 - z) * s + z * np.tanh(wn + un @ (r * s))


def test_papers_gated_unit_by_hand():
    unit, x = jiggle(GatedUnit(input_dim=3, hidden_dim=4, reset="before").double()), wide(2, 5, 3)
    assert unit.recurrent.bias is None
    y, weights = unit(x), [array(p) for p in (unit.input.weight, unit.input.bias, unit.recurrent.weight)]
    for row in range(2):
        s = np.zeros(4)
        for t in range(5):
            s = paper_gru(array(x[row, t]), s, *weights)
            np.testing.assert_allclose(array(y[row, t]), s, atol=1e-12)


def torch_gru(x: np.ndarray, s: np.ndarray, w: np.ndarray, b: np.ndarray, u: np.ndarray, c: np.ndarray) -> np.ndarray:
    """One update of torch.nn.GRU: the reset gate comes after the product."""
    (wr, wz, wn), (ur, uz, un) = np.split(w @ x + b, 3), np.split(u @ s + c, 3)
    r, z = sigmoid(wr + ur), sigmoid(wz + uz)
    return (1 - z) * np.tanh(wn + r * un) + z * s


def bahdanau_by_hand(mixer: Bahdanau, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """A sentence x (T, D) over its source h (S, M), by the equations of appendix A.1.2 and A.2.2."""
    p = {key: array(value) for key, value in mixer.state_dict().items()}
    start = h[0, h.shape[1] // 2 :] if mixer.initial == "backward" else h.mean(0)
    s, rows = np.tanh(p["start.weight"] @ start + p["start.bias"]), []
    w = np.concatenate([p["unit.input.weight"], p["read.weight"]], 1)  # the recurrence reads [x_i; c_i]
    for xi in x:
        query = p["attend.query.weight"] @ s + p["attend.query.bias"]
        energy = np.array([p["attend.score.weight"][0] @ np.tanh(query + p["key.weight"] @ hj) for hj in h])
        c = (np.exp(energy) / np.exp(energy).sum()) @ h
        before, joined = s, np.concatenate([xi, c])
        if mixer.unit.reset == "before":
            s = paper_gru(joined, s, w, p["unit.input.bias"], p["unit.recurrent.weight"])
        else:
            s = torch_gru(joined, s, w, p["unit.input.bias"], p["unit.recurrent.weight"], p["unit.recurrent.bias"])
        if mixer.readout == "linear":
            rows.append(p["out_hidden.weight"] @ s + p["out_hidden.bias"] + p["out_context.weight"] @ c)
        else:
            t = p["out_hidden.weight"] @ before + p["out_hidden.bias"] + p["out_context.weight"] @ c
            t = t + p["out_input.weight"] @ xi
            rows.append(np.maximum(t[0::2], t[1::2]))
    return np.stack(rows)


@pytest.mark.parametrize("readout", ["linear", "maxout"])
@pytest.mark.parametrize("initial", ["mean", "backward"])
@pytest.mark.parametrize("reset", ["before", "after"])
def test_bahdanau_by_hand(readout, initial, reset):
    sizes = {"dim": 3, "memory_dim": 6, "out_dim": 5, "hidden_dim": 4, "score_dim": 7}
    mixer = jiggle(Bahdanau(**sizes, readout=readout, initial=initial, reset=reset).double())
    x, memory, lengths = wide(3, 4, 3), wide(3, 5, 6), [5, 1, 3]
    y = mixer(x, mixer.project(memory, lengths_mask(lengths)))
    for row, length in enumerate(lengths):
        by_hand = bahdanau_by_hand(mixer, array(x[row]), array(memory[row, :length]))
        np.testing.assert_allclose(array(y[row]), by_hand, atol=1e-7)  # 1 / length is rounded to float32


def test_bahdanau_refuses_what_it_does_not_know():
    for wrong in ({"readout": "relu"}, {"initial": "zero"}, {"reset": "never"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            Bahdanau(dim=4, memory_dim=4, **wrong)
    with pytest.raises(ValueError, match="5"):
        Bahdanau(dim=4, memory_dim=5, initial="backward")
    with pytest.raises(ValueError, match="7"):
        BiGRU(dim=7, causal=False)


# ---- convolutions


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("kind", [LightConv, DynamicConv])
def test_convolution_by_hand(kind, softmax, glu, causal):
    """One sum per position and channel; the taps outside the sentence keep their share of the softmax."""
    mixer = jiggle(kind(dim=6, causal=causal, num_heads=3, kernel_size=4, glu=glu, softmax=softmax).double()).eval()
    x, lengths = wide(2, 5, 6), [5, 3]
    y = mixer(x, lengths_mask(lengths))
    left = 3 if causal else 2
    for row, length in enumerate(lengths):
        inner = array(x[row, :length]) @ array(mixer.inner.weight).T + array(mixer.inner.bias)
        z = inner[:, :6] * sigmoid(inner[:, 6:]) if glu else inner
        mixed = np.zeros((length, 6))
        for t in range(length):
            logits = array(mixer.weight) if kind is LightConv else (array(mixer.kernel.weight) @ z[t]).reshape(3, 4)
            weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) if softmax else logits
            for c in range(6):
                taps = [k for k in range(4) if 0 <= t + k - left < length]
                mixed[t, c] = sum(weights[c // 2, k] * z[t + k - left, c] for k in taps)
        by_hand = mixed @ array(mixer.out.weight).T + array(mixer.out.bias)
        np.testing.assert_allclose(array(y[row, :length]), by_hand, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LightConv, DynamicConv])
def test_dropconnect_is_unbiased_and_only_in_training(kind):
    """The mean over many masks is what eval computes, since the output is linear in the weights."""
    mixer = jiggle(kind(dim=4, causal=True, num_heads=2, kernel_size=3, weight_dropout=0.3).double())
    x, mask, draws = wide(1, 6, 4), lengths_mask([6]), 3000
    found = torch.stack([mixer(x, mask) for _ in range(draws)])
    expected = mixer.eval()(x, mask)
    error = (found.mean(0) - expected).abs()
    assert found.std(0).max() > 0
    # 9 standard deviations of a mean of 3,000 bounded numbers: P below 1e-15, for 24 of them
    assert (error <= 9 * found.std(0) / math.sqrt(draws) + 1e-12).all()
    assert torch.equal(expected, mixer(x, mask))


# ---- caches and states


@pytest.mark.parametrize(("slots", "longer"), [(9, []), (4, []), (4, [9]), (4, [6])])
def test_cache_follows_descent(slots, longer):
    """After any reorderings a hypothesis reads exactly the values of its own ancestors; a ring buffer has the last.

    Longer caches of the state, which share its ancestry, change nothing.
    """
    sentences, beam, length = 3, 4, 9
    (cache, *_) = expand([Cache.empty(sentences, each, 2) for each in (slots, *longer)], beam)
    history = torch.empty(sentences * beam, 0, 2)
    for t in range(length):
        position, value = torch.full((len(history),), t), torch.randn(len(history), 2)
        cache.append(value, position)
        history = torch.cat([history, value[:, None]], 1)
        values, visible = cache.read(position)
        last = sorted(range(max(t + 1 - slots, 0), t + 1), key=lambda each: each % slots)
        for n in range(len(history)):
            mine = values[n // beam][visible[n // beam, n % beam]]
            assert torch.equal(mine, history[n][last])
        index = torch.arange(sentences)[:, None] * beam + torch.randint(beam, (sentences, beam))
        (cache,), history = reorder([cache], index.flatten()), history[index.flatten()]
        if t == 4:
            rows = torch.tensor([2, 1])
            (cache,), sentences = of_rows([cache], rows, beam), 2
            history = history.unflatten(0, (-1, beam))[rows].flatten(0, 1)


def test_reorder_copies_no_values():
    (cache,) = expand([Cache.empty(2, 5, 3)], 2)
    (moved,) = reorder([cache], torch.tensor([1, 1, 2, 2]))
    assert moved.values is cache.values


def test_states_of_any_shape():
    """expand, reorder, move and first go through lists and tuples, tensors and caches, and leave None alone."""
    hidden = torch.arange(2.0)[:, None]
    state = [None, HiddenState(hidden), Attention.State(*(Cache.empty(2, 4, 1, heads=1) for _ in range(2)))]
    none, recurrent, attention = expand(state, 3)
    assert none is None
    assert recurrent.hidden.flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert attention.keys.values.shape == attention.values.values.shape == (2, 1, 4, 3, 1)
    assert attention.keys.ancestry is attention.values.ancestry
    moved = reorder(recurrent._replace(hidden=torch.arange(6.0)[:, None]), torch.tensor([2, 0, 0, 5, 4, 3]))
    assert moved.hidden.flatten().tolist() == [2, 0, 0, 5, 4, 3]
    assert of_rows(moved, torch.tensor([1]), 3).hidden.flatten().tolist() == [5, 4, 3]


def test_a_contract_cannot_be_built():
    for contract in (SelfMixer, CrossMixer):
        with pytest.raises(TypeError):
            contract()


def test_a_mixer_is_imported_by_its_name():
    from seq2seq.mixers import DynamicConv  # type: ignore[attr-defined]

    assert DynamicConv.__module__ == "seq2seq.mixers.dynamicconv"
    with pytest.raises(ImportError, match="NoSuchMixer"):
        from seq2seq.mixers import NoSuchMixer  # type: ignore[attr-defined] # noqa: F401
