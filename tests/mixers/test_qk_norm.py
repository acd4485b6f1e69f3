"""Attention with normalized queries and keys against its formula, written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seq2seq.mixers.qk_norm import NormalizedAttention, NormalizedCrossAttention


def normed(x: Tensor, gain: Tensor) -> Tensor:
    """Return x (..., d) with a root mean square of 1, times the gains."""
    return gain * x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt()


def expected(q: Tensor, k: Tensor, v: Tensor, mixer: torch.nn.Module, allowed: Tensor, heads: int) -> Tensor:
    """Attend head by head: q (T, D), k and v (S, D), allowed (T, S)."""
    outputs = []
    for query, key, value in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True):
        query, key = normed(query, mixer.query_norm.weight), normed(key, mixer.key_norm.weight)
        scores = (query @ key.T / math.sqrt(query.shape[-1])).masked_fill(~allowed, -math.inf)
        outputs.append(scores.softmax(-1) @ value)
    return torch.cat(outputs, -1) @ mixer.out.weight.T


def jiggled(mixer):
    for norm in (mixer.query_norm, mixer.key_norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 2)
    return mixer.double().eval()


@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_by_hand(causal):
    mixer, x = jiggled(NormalizedAttention(dim=12, causal=causal, num_heads=3)), torch.randn(1, 5, 12).double()
    mask = torch.tensor([[True] * 4 + [causal]])
    q, k, v = (x[0] @ part.T for part in mixer.qkv.weight.chunk(3))
    allowed = torch.ones(5, 5).tril().bool() if causal else mask.expand(5, 5)
    torch.testing.assert_close(mixer(x, mask)[0], expected(q, k, v, mixer, allowed, 3))


def test_cross_attention_by_hand():
    mixer = jiggled(NormalizedCrossAttention(dim=12, memory_dim=8, num_heads=3))
    x, memory = torch.randn(1, 4, 12).double(), torch.randn(1, 5, 8).double()
    mask = torch.tensor([[True] * 4 + [False]])
    k, v = (memory[0] @ part.T for part in mixer.key_value.weight.chunk(2))
    found = mixer(x, mixer.project(memory, mask))[0]
    torch.testing.assert_close(found, expected(x[0] @ mixer.query.weight.T, k, v, mixer, mask.expand(4, 5), 3))
    weights = mixer.read_weights(x, mixer.project(memory, mask))  # (1, H, T, S)
    read = weights.double() @ v.unflatten(-1, (3, -1)).transpose(0, 1)
    torch.testing.assert_close(mixer.out(read.transpose(1, 2).flatten(-2))[0], found, rtol=1e-5, atol=1e-6)
