"""Options of attention: rotary positions, shared keys and values, and a bias on the scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from composed import lengths_mask
from exact import array, wide
from test_conformance import close
from torch import nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.reference import attention_reference
from seq2seq.mixers.attention import Attention, CrossAttention, rotate

# ---- rotary


def test_rotation_by_hand():
    """Pairs as complex numbers, times e^(i p w); position 0 turns nothing, and lengths stay."""
    x, position = wide(7, 2 * 6), torch.arange(7)
    pairs = array(x).reshape(7, 2, 2, 3)
    rates = np.array([10000 ** (-2 * i / 6) for i in range(3)])
    turned = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * np.exp(1j * np.arange(7)[:, None] * rates)[:, None]
    expected = np.stack([turned.real, turned.imag], 2).reshape(7, 12)
    np.testing.assert_allclose(array(rotate(x, position, 6)), expected, atol=1e-12)
    assert torch.equal(rotate(x, torch.zeros(7), 6), x)


@pytest.mark.parametrize("causal", [True, False])
def test_rotary_attention_by_hand(causal):
    """softmax of Re(q e^(-i (m - n) w) conj k) over positions, one head and query at a time."""
    mixer, x = Attention(dim=8, causal=causal, num_heads=2, rotary=True).double(), wide(1, 6, 8)
    queries, keys, values = np.split(array(x[0]) @ array(mixer.qkv.weight).T, 3, axis=1)
    rates, mixed = np.array([1.0, 0.01]), np.zeros((6, 8))
    for h in range(2):
        own = slice(4 * h, 4 * h + 4)
        q, k = ((part[:, own][:, :2] + 1j * part[:, own][:, 2:]) for part in (queries, keys))
        for m in range(6):
            seen = range(m + 1 if causal else 6)
            energy = np.exp([(q[m] * np.conj(k[n]) * np.exp(1j * (m - n) * rates)).sum().real / 2 for n in seen])
            mixed[m, own] = energy / energy.sum() @ values[: len(seen), own]
    np.testing.assert_allclose(array(mixer(x, lengths_mask([6]))[0]), mixed @ array(mixer.out.weight).T, atol=1e-12)


def test_a_mask_of_numbers_is_refused():
    """Attention would add it to the scores."""
    x, mask = torch.randn(2, 5, 8), lengths_mask([5, 3]).float()
    with pytest.raises(ValueError, match=r"mask is torch\.float32; give torch\.bool"):
        Attention(dim=8, causal=False, num_heads=2)(x, mask)
    with pytest.raises(ValueError, match=r"mask is torch\.float32; give torch\.bool"):
        CrossAttention(dim=8, memory_dim=8, num_heads=2).project(x, mask)


# ---- grouped queries


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_queries_are_attention_with_repeated_heads(groups, causal):
    """G key and value heads = H heads of which H / G are the same; G = H is attention to the bit."""
    mixer = Attention(dim=16, causal=causal, num_heads=4, num_kv_heads=groups).double()
    plain = Attention(dim=16, causal=causal, num_heads=4).double()
    q, k, v = mixer.qkv.weight.detach().split([16, 4 * groups, 4 * groups])
    rows = torch.arange(4) // (4 // groups)  # which key and value head serves each query head
    repeated = [part.unflatten(0, (groups, 4))[rows].flatten(0, 1) for part in (k, v)]
    plain.load_state_dict({"qkv.weight": torch.cat([q, *repeated]), "out.weight": mixer.out.weight})
    x, mask = wide(3, 7, 16), lengths_mask([7, 2, 5])
    found, expected = mixer(x, mask)[mask], plain(x, mask)[mask]
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-12)
    if groups == 4:
        assert torch.equal(found, expected)
    # The cache is only as wide as the shared keys
    assert not causal or all(part.values.shape[1] == groups for part in mixer.empty_state(3, 7))


def test_defaults_are_what_they_were():
    """Xavier's numbers from the same seed, smaller by sqrt(2) for queries, keys and values, under known names."""
    torch.manual_seed(5)
    mixer = Attention(dim=8, causal=True, num_heads=2)
    torch.manual_seed(5)
    qkv = nn.Linear(8, 24, bias=False)
    for block in qkv.weight.chunk(3):
        nn.init.xavier_uniform_(block, gain=0.5**0.5)
    out = nn.Linear(8, 8, bias=False)
    nn.init.xavier_uniform_(out.weight)
    state = mixer.state_dict()
    assert list(state) == ["qkv.weight", "out.weight"]
    assert torch.equal(state["qkv.weight"], qkv.weight)
    assert torch.equal(state["out.weight"], out.weight)
    x = torch.randn(2, 6, 8)
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
    y = out(attention(q, k, v, causal=True).transpose(1, 2).flatten(2))
    assert torch.equal(mixer(x, lengths_mask([6, 6])), y)


def test_refusals():
    for groups in (0, 3, 8):
        with pytest.raises(ValueError, match=f"num_kv_heads is {groups}"):
            Attention(dim=8, causal=False, num_heads=4, num_kv_heads=groups)
    with pytest.raises(ValueError, match="not 3"):
        Attention(dim=6, causal=False, num_heads=2, rotary=True)


# ---- a bias on the scores


@pytest.mark.parametrize("shape", [(7, 6), (3, 7, 6), (2, 1, 7, 6), (2, 3, 7, 6)], ids=str)
def test_bias_is_added_to_the_scores(shape):
    """Values and gradients agree under a padding mask, for the fast implementation and for the reference."""
    q, k, v, bias = (x.requires_grad_() for x in (wide(2, 3, 7, 4), wide(2, 3, 6, 4), wide(2, 3, 6, 4), wide(*shape)))
    mask = lengths_mask([6, 4])[:, None, None, :]
    expected = (q @ k.mT / 2 + bias).masked_fill(~mask, -math.inf).softmax(-1) @ v
    weight = wide(2, 3, 7, 4)
    wanted = torch.autograd.grad((weight * expected).sum(), (q, k, v, bias))
    for op in (attention, attention_reference):
        found = op(q, k, v, bias=bias, mask=mask)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
        for mine, theirs in zip(torch.autograd.grad((weight * found).sum(), (q, k, v, bias)), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-11, rtol=1e-11)


def test_bias_under_a_causal_mask_and_in_bfloat16():
    q, k, v, bias = torch.randn(2, 3, 8, 4), torch.randn(2, 3, 8, 4), torch.randn(2, 3, 8, 4), torch.randn(3, 8, 8)
    future = torch.ones(8, 8).triu(1).bool()
    expected = (q @ k.mT / 2 + bias).masked_fill(future, -math.inf).softmax(-1) @ v
    for op in (attention, attention_reference):
        close(op(q, k, v, bias=bias, causal=True), expected, 1e-5)
        half = op(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias=bias, causal=True)
        close(half, expected, 5e-2)
        assert half.dtype == torch.bfloat16
