"""The functions that may replace the softmax of attention, against their definitions."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from composed import config, lengths_mask
from conftest import jiggle
from torch import Tensor

from seq2seq.inference.export.plain_transformer import _wrong_mixers
from seq2seq.kernels.attention.weights import WEIGHTS, normalize, require_weights
from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.network.build import build_model

INSTALLED = importlib.util.find_spec("entmax") is not None
needs_entmax = pytest.mark.skipif(not INSTALLED, reason="needs the package entmax")
every_kind = pytest.mark.parametrize(
    "weights",
    [name if name in ("softmax", "relu", "plain_relu") else pytest.param(name, marks=needs_entmax) for name in WEIGHTS],
)
LENGTHS = [5, 1, 3]
MASK = lengths_mask(LENGTHS)


def slow(scores: Tensor, weights: str) -> Tensor:
    """Return the weights of one query's scores (S,); thresholds by bisection."""
    if weights == "softmax":
        return scores.exp() / scores.exp().sum()
    if weights in ("relu", "plain_relu"):
        return scores.clamp(min=0.0)
    # Sparsemax: max(z - tau, 0); 1.5-entmax: max(z / 2 - tau, 0)^2; tau such that they sum to 1
    scores, power = (scores, 1) if weights == "sparsemax" else (scores / 2, 2)
    low, high = scores.max() - 1.0, scores.max()
    for _ in range(60):
        tau = (low + high) / 2
        low, high = (tau, high) if (scores - tau).clamp(min=0.0).pow(power).sum() > 1 else (low, tau)
    return (scores - low).clamp(min=0.0).pow(power)


@every_kind
def test_weights_are_as_defined(weights):
    scores = 2.0 * torch.randn(50, 7, dtype=torch.float64)
    found = normalize(scores, weights)
    torch.testing.assert_close(found, torch.stack([slow(row, weights) for row in scores]), atol=1e-10, rtol=1e-10)
    assert (found == 0).any() == (weights != "softmax")


@every_kind
def test_attention_by_hand(weights):
    """One sum for each query and head; by ReLU, the heads side by side are normed and gated."""
    mixer = jiggle(CrossAttention(dim=6, memory_dim=4, num_heads=2, weights=weights).double())
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    memory = torch.randn(3, 5, 4, dtype=torch.float64)
    context = mixer.project(memory, MASK)
    y, read = mixer(x, context), mixer.read_weights(x, context)
    for row, length in enumerate(LENGTHS):
        key, value = mixer.key_value(memory[row, :length]).split(6, -1)
        for t in range(4):
            query = mixer.query(x[row, t])
            heads = []
            for head in (slice(0, 3), slice(3, 6)):
                own = slow(key[:, head] @ query[head] / 3**0.5, weights)
                heads.append(own @ value[:, head])
                torch.testing.assert_close(read[row, head.start // 3, t, :length], own, atol=1e-10, rtol=1e-10)
            joined = torch.cat(heads)
            if weights == "relu":
                scale = mixer.norm.norm.weight / (joined.square().mean() + 1e-6).sqrt()
                joined = scale * joined * torch.sigmoid(mixer.norm.gate * joined)
            torch.testing.assert_close(y[row, t], mixer.out(joined), atol=1e-10, rtol=1e-10)


def test_plain_relu_has_no_norm():
    """It is a sum over positions, linear in values, and has the parameters of a softmax."""
    plain = Attention(dim=4, causal=True, num_heads=2, weights="plain_relu")
    assert plain.properties.linear
    assert plain.state_dict().keys() == Attention(dim=4, causal=True, num_heads=2).state_dict().keys()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"weights=sparsemax needs the package entmax: pip install .*\[entmax\]"):
        require_weights("sparsemax")
    require_weights("relu")
    with pytest.raises(ValueError, match=r"mixer\.cross: weights=entmax15 needs the package entmax"):
        build_model(config("mixer=transformer", "model=tiny", "+mixer.cross.weights=entmax15"))


def test_wrong_weights_are_refused():
    with pytest.raises(ValueError, match="weights is 'hardmax'"):
        Attention(dim=4, causal=True, num_heads=2, weights="hardmax")
    with pytest.raises(ValueError, match="packed supports weights=softmax only"):
        CrossAttention(dim=4, memory_dim=4, num_heads=2, packed=True, weights="relu")


def test_other_weights_are_no_plain_transformer():
    """Formats that support only the softmax refuse other weights."""
    assert not _wrong_mixers(config("mixer=transformer"))
    (reason,) = _wrong_mixers(config("mixer=transformer", "+mixer.decoder.weights=relu"))
    assert reason == "mixer.decoder.weights is relu"
