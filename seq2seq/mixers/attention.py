"""Multi-head scaled dot-product attention, within a sequence and from target to source (Vaswani et al. 2017)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention, packed_attention
from seq2seq.kernels.attention.short_rows import divide
from seq2seq.kernels.attention.weights import allow, normalize, require_weights
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.projections import add_bias, attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import (
    CrossMixer,
    SelfMixer,
    real_positions,
    require_bool,
    require_divisible,
    require_probability,
)
from seq2seq.network.state import Cache, Device, DType, NoState


def rotate(x: Tensor, position: Tensor, head_dim: int) -> Tensor:
    """Rotate the pairs (x_i, x_{i + d/2}) of each head by the angle position * 10000^(-2i/d) (RoPE).

    The product of two rotated vectors depends on the difference of their positions only.

    Shape:
        x (..., heads * d), position (...) -> (..., heads * d).

    Reference:
        Su et al. 2021, eq. 15.
    """
    dtype = at_least_float32(x.dtype)
    rate = torch.arange(0, head_dim, 2, device=x.device, dtype=dtype) * (-math.log(10000.0) / head_dim)
    angle = (position[..., None].to(dtype) * rate.exp())[..., None, :]  # (..., 1, d / 2)
    first, second = x.unflatten(-1, (-1, head_dim)).to(dtype).chunk(2, -1)  # (..., heads, d / 2) each
    cos = angle.cos()
    sin = angle.sin()
    # The rotation matrix [cos -sin; sin cos] on each pair
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2).to(x.dtype)


class GatedNorm(nn.Module):
    """Gated root mean square norm after attention by ReLU, whose weights have no fixed sum.

    g x / rms(x) sigmoid(u x), with gains g and gates u per channel.

    Args:
        dim: Width D of x.

    Reference:
        Zhang et al. 2021, 'Sparse Attention with Linear Units', section 3.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-6)  # g
        self.gate = nn.Parameter(torch.zeros(dim))  # u

    def forward(self, x: Tensor) -> Tensor:
        """Normalize and gate x (..., D)."""
        x = x.to(self.gate.dtype)  # under autocast x may be narrower
        return self.norm(x) * torch.sigmoid(self.gate * x)


def _norm_of(weights: str, dim: int, *, packed: bool) -> GatedNorm | None:
    """Check `weights`, and return the norm that they need before the output projection."""
    if packed and require_weights(weights) != "softmax":
        raise ValueError(f"packed supports weights=softmax only, not weights={weights}; set packed=false")
    return GatedNorm(dim=dim) if require_weights(weights) == "relu" else None


def _without_packing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for attention with masks, which any machine can compute."""
    return {**values, "packed": False} if values.get("packed") else dict(values)


class Attention(SelfMixer):
    """Multi-head scaled dot-product attention within a sequence.

    f(Q K' / sqrt(D / H)) V with Q, K, V = x W_q, x W_k, x W_v, and an output projection; f is the softmax or, by
    weights, another function (relu has a gated norm after it); with rotary, each row of Q and K is first turned by its
    position; with G < H heads of K and V, H / G heads of Q share one.

    Args:
        num_kv_heads: G key and value heads, each of which serves H / G query heads (default: H). G
            = 1 is multi-query, others are grouped-query attention.
        rotary: Rotate queries and keys by their positions (RoPE).
        packed: Train without padding, through torch's kernel for rows of many lengths: for a GPU, half precision and
            layers that are not causal.
        weights: "softmax" or, on a slower path, "relu", followed by a gated norm of the heads side by side,
            "plain_relu", without that norm, or "sparsemax" or "entmax15", whose weights are often zero and which need
            the package entmax.
        bias: Add biases to queries, values and the output, as torch, fairseq and Marian do; published without. A bias
            of the keys would add the same number to all scores of a query.

    Cost:
        2 D^2 (1 + G / H) parameters, 2 D more for relu, D (2 + G / H) more for biases, O(T^2 D + T D^2) time,
        O(T D G / H) state.

    Reference:
        Vaswani et al. 2017, 'Attention Is All You Need', eq. 1; Su et al. 2021 (rotary); Shazeer
        2019 (G = 1); Ainslie et al. 2023 (grouped queries); Zhang et al. 2021 (relu); Martins &
        Astudillo 2016 (sparsemax); Peters et al. 2019 (entmax).
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        num_kv_heads: int | None = None,
        rotary: bool = False,
        dropout: float = 0.0,
        packed: bool = False,
        weights: str = "softmax",
        bias: bool = False,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        self.head_dim = require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.rotary = rotary
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads is {num_kv_heads}; choose a divisor of num_heads {num_heads}, or null")
        if packed and causal:
            raise ValueError("packed is for padded rows, and a causal mixer needs no mask: leave packed at false there")
        self.packed = packed
        if rotary and self.head_dim % 2:
            raise ValueError(f"rotary turns pairs, so heads need an even width, not {self.head_dim}; change num_heads")
        self.dropout = require_probability(dropout, "attention dropout")
        self.kv_dim = self.num_kv_heads * self.head_dim
        self.weights = weights
        self.norm = _norm_of(weights, dim, packed=packed)
        # The norm divides by the size of the values
        if self.norm is not None and self.properties:
            self.properties = dataclasses.replace(self.properties, linear=False)
        self.qkv = attention_inputs(dim, dim, self.kv_dim, self.kv_dim)
        self.out = projection(dim, dim, bias=bias)
        self.query_bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.value_bias = nn.Parameter(torch.zeros(self.kv_dim)) if bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        query, key, value = self._project(x, torch.arange(x.shape[1], device=x.device))
        q = mark_mixing(split(query, self.num_heads))  # (B, H, T, d)
        k, v = mark_mixing(split(key, self.num_kv_heads)), split(value, self.num_kv_heads)  # (B, G, T, d)
        dropout = self.dropout if self.training else 0.0
        if self.packed and self.training:
            return self.out(merge(packed_attention(q, k, v, mask, dropout=dropout)))
        allowed = None if self.causal else mask[:, None, None, :]  # (B, 1, 1, T)
        # (B, H, T, d)
        y = attention(q, k, v, mask=allowed, causal=self.causal, dropout=dropout, weights=self.weights)
        return self._output(merge(y))

    portable_values = staticmethod(_without_packing)

    class State(NamedTuple):
        """Keys, already rotated, and values of the past, D G / H numbers per slot each."""

        keys: Cache
        values: Cache

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return an empty cache of keys, and one of values."""
        sizes = batch_size, max_len, self.kv_dim
        heads = self.num_kv_heads
        keys, values = (Cache.empty(*sizes, heads=heads, device=device, dtype=dtype) for _ in range(2))
        return self.State(keys, values)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Append this position's key and value, then attend to the hypothesis's own past."""
        query, key, value = self._project(x, position)
        # Append before reading: a position attends to itself
        state.keys.append(key, position)
        state.values.append(value, position)
        # A sentence's hypotheses are queries of one attention
        q = split(query.view(state.keys.values.shape[0], -1, self.dim), self.num_heads)  # (B, H, beam, d)
        y = state.keys.attend(q, state.values, position, weights=self.weights)
        return self._output(merge(y).view(x.shape[0], -1)), state

    def _output(self, y: Tensor) -> Tensor:
        """Project the heads side by side, (..., D)."""
        return self.out(y if self.norm is None else self.norm(y))

    def _project(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (..., D) at positions (...): queries (..., D), keys and values (..., G d)."""
        query, key, value = divide(self.qkv(x), self.dim, self.kv_dim, self.kv_dim)
        query, value = add_bias(query, self.query_bias), add_bias(value, self.value_bias)
        # Keys are rotated once, when they enter the cache; values are not
        if self.rotary:
            query, key = (rotate(part, position, self.head_dim) for part in (query, key))
        return query, key, value


class CrossAttention(CrossMixer):
    """Multi-head attention with queries from the target and keys and values from the source.

    Keys and values of a source sentence are computed once and shared by its hypotheses.

    Args:
        packed: As in `Attention`.
        weights: As in `Attention`.
        bias: As in `Attention`.

    Cost:
        2 D^2 + 2 D M parameters, 2 D more for relu, 3 D more for biases, O(T S D) time, no state.

    Reference:
        Vaswani et al. 2017, 'Attention Is All You Need', section 3.2.3.
    """

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        packed: bool = False,
        weights: str = "softmax",
        bias: bool = False,
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.dropout = require_probability(dropout, "attention dropout")
        self.packed = packed
        self.weights = weights
        self.norm = _norm_of(weights, dim, packed=packed)
        self.query = attention_inputs(dim, dim, bias=bias)
        self.out = projection(dim, dim, bias=bias)
        self.key_value = attention_inputs(memory_dim, dim, dim)
        self.value_bias = nn.Parameter(torch.zeros(dim)) if bias else None

    class Context(NamedTuple):
        """Keys and values in heads, (B, H, S, D / H), and the source's mask (B, 1, 1, S)."""

        key: Tensor
        value: Tensor
        mask: Tensor

    def project(self, memory: Tensor, memory_mask: Tensor) -> CrossAttention.Context:
        """Compute keys and values of memory (B, S, M)."""
        k, v = (split(part, self.num_heads) for part in self._project_memory(memory))  # (B, H, S, d)
        return self.Context(k, v, require_bool(memory_mask)[:, None, None, :])

    def forward(self, x: Tensor, context: CrossAttention.Context) -> Tensor:
        """Read the source from each position of x (B, T, D)."""
        return self._output(self._read(x, context))

    def _read(self, x: Tensor, context: CrossAttention.Context) -> Tensor:
        """Read the source from x (B, T, D): the heads side by side, (B, T, D)."""
        q = split(self._project_query(x), self.num_heads)  # (B, H, T, d)
        q, k, v = mark_mixing(q), mark_mixing(context.key), context.value
        dropout = self.dropout if self.training else 0.0
        if self.packed and self.training:
            return merge(packed_attention(q, k, v, context.mask[:, 0, 0], dropout=dropout))
        return merge(attention(q, k, v, mask=context.mask, dropout=dropout, weights=self.weights))

    def _output(self, y: Tensor) -> Tensor:
        """Project the heads side by side, (..., D)."""
        return self.out(y if self.norm is None else self.norm(y))

    def read_weights(self, x: Tensor, context: CrossAttention.Context) -> Tensor:
        """Return the attention weights of x (B, T, D), (B, H, T, S); ReLU weights have no fixed sum."""
        q = split(self._project_query(x), self.num_heads)  # (B, H, T, d)
        scores = q @ context.key.transpose(-1, -2) * q.shape[-1] ** -0.5
        return normalize(allow(scores.to(at_least_float32(scores.dtype)), context.mask, False), self.weights)

    portable_values = staticmethod(_without_packing)

    def step(
        self, x: Tensor, context: CrossAttention.Context, state: NoState, position: Tensor
    ) -> tuple[Tensor, NoState]:
        """Read the source at one position; a sentence's hypotheses are its queries."""
        folded = x.view(context.key.shape[0], -1, self.dim)  # (B, beam, D)
        return self._output(self._read(folded, context).view(x.shape[0], -1)), NoState()

    def _project_query(self, x: Tensor) -> Tensor:
        """Project x (..., D): queries (..., D)."""
        return self.query(x)

    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project memory (B, S, M): keys and values, (B, S, D) each."""
        key, value = divide(self.key_value(memory), self.dim, self.dim)
        return key, add_bias(value, self.value_bias)
