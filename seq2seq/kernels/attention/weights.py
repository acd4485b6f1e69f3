"""Weights of attention from its scores: masks, softmax, and the functions that may replace it."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from seq2seq.kernels.dropconnect import drop_weights, keep_probability
from seq2seq.kernels.dropout import dropout as dropout_
from seq2seq.kernels.precision import at_least_float32
from seq2seq.system.packages import require_installed

WEIGHTS = ("softmax", "relu", "plain_relu", "sparsemax", "entmax15")
# Functions that an optional package computes.
_OF_PACKAGE = ("sparsemax", "entmax15")


def require_weights(weights: str) -> str:
    """Return the name of a function from scores to weights if it is known and its package is installed.

    Raises:
        ValueError: The name is unknown, or the package that computes it is not installed.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights is {weights!r}; choose one of {', '.join(WEIGHTS)}")
    if weights in _OF_PACKAGE:
        require_installed("entmax", f"weights={weights}", extra="entmax")
    return weights


def normalize(scores: Tensor, weights: str) -> Tensor:
    """Compute weights (..., T, S) from scores, which are -inf where a weight is 0; ReLUs have no fixed sum.

    Reference:
        Zhang et al. 2021, 'Sparse Attention with Linear Units'; Martins & Astudillo 2016 (sparsemax); Peters et al.
        2019 (1.5-entmax).
    """
    if weights == "softmax":
        return scores.softmax(-1)
    if weights in ("relu", "plain_relu"):
        return scores.relu()
    function = getattr(importlib.import_module("entmax"), weights)
    # Thresholds of sorted sums need more precision than bfloat16's 8 bits
    return function(scores.to(at_least_float32(scores.dtype)), dim=-1)


def weigh(
    scores: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    weights: str = "softmax",
    keep: Tensor | None = None,
) -> Tensor:
    """Compute softmax(scores where allowed) v for any scores (..., T, S) and v (..., S, d), broadcast.

    `weights` names the function that replaces the softmax (see `normalize`), and `keep` is a given dropout mask in the
    words of `kernels.dropconnect`.
    """
    # The softmax has the scores' type, which may be wider than v's
    shares = normalize(allow(scores, mask, causal), weights).to(v.dtype)
    if keep is not None:
        return drop_weights(shares, keep, keep_probability(dropout)) @ v
    return dropout_(shares, dropout) @ v


def allow(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Set scores (..., T, S) to minus infinity where attention is not allowed."""
    if causal:
        # (T, S), True for s > t
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores
