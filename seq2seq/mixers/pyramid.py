"""Attention to keys and values at a lower resolution (Wang et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.dropout import dropout
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.projections import attention_inputs, initialize, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_probability
from seq2seq.network.state import Cache, Device, DType


class Pyramid(SelfMixer):
    """Attention to keys and values at a lower resolution.

    M = softmax(Q (P K)' / sqrt(D / H)) P, P_bj = 1 / |b| for j in block b of r positions.

    A block's key and value are means over its real positions; r = 1 is attention. If not causal, M has rank T / r at
    most. Causal: position t sees the complete blocks before its own and, as one more key, the mean of its own block up
    to t. M is dense, dynamic, shared by the D / H channels of a head.

    With `learned`, P is a strided convolution with a norm, as published: keys and values are projections of
    LN(sum_j S_j x_{rb+j} + s), j = 0 .. r - 1, S_j of D x D. Positions after the end of a block, or after t in its own
    block, count as zero.

    Args:
        reduction: r positions a block.
        learned: Reduce by a learned map, not by means.
        dropout: Probability of dropping the weight of a block.

    Cost:
        4 D^2 parameters, and r D^2 + 3 D if learned; O(T^2 D / r + T D^2) time, O(T D / r) state. Learned, a causal
        step takes r D^2 more.

    Reference:
        Wang et al. 2021, 'Pyramid Vision Transformer' (spatial-reduction attention).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        reduction: int = 2,
        learned: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        if reduction < 1:
            raise ValueError(f"reduction is {reduction}; choose 1 (attention) or more")
        self.num_heads = num_heads
        self.reduction = reduction
        self.dropout = require_probability(dropout, "attention dropout")
        self.query = attention_inputs(dim, dim)
        self.out = projection(dim, dim)
        self.key_value = attention_inputs(dim, dim, dim)
        # A learned map mixes channels, and the norm of its result is not linear
        self.properties = MixingProperties(shares_channels=not learned, dynamic=True, linear=not learned)
        self.reduce = nn.Linear(reduction * dim, dim) if learned else None  # S and s
        self.norm = nn.LayerNorm(dim) if learned else None
        initialize(self.reduce)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to blocks; a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        q = split(mark_mixing(self.query(x)), self.num_heads)  # (B, H, T, d)
        drop = self.dropout if self.training else 0.0
        if self.causal:
            return self.out(merge(self._read_past(q, self._running(x), drop)))
        x = self._blocks(x.masked_fill(~mask[:, :, None], 0.0))  # (B, blocks, r, D), padding zero
        real = self._blocks(mask[:, :, None])  # (B, blocks, r, 1)
        count = real.sum(2)  # (B, blocks, 1)
        # The projections are linear, so they may follow the mean, at 1 / r of the cost
        reduced = x.sum(2) / count.clamp(min=1) if self.reduce is None else self._normed(self.reduce(x.flatten(2)))
        key, value = self.key_value(reduced).chunk(2, -1)
        k = split(mark_mixing(key), self.num_heads)  # (B, H, blocks, d)
        v = split(value, self.num_heads)
        return self.out(merge(attention(q, k, v, mask=(count > 0)[:, None, None, :, 0], dropout=drop)))

    class State(NamedTuple):
        """Key and value of each block, 2 D numbers per slot, and the running means of the incomplete block.

        With `learned`, the sum of S_j x_j over the incomplete block.
        """

        past: Cache
        running: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return an empty cache with a slot for each block, and an empty block."""
        # In float32 at least: in bf16 the mean of a long block would stop moving
        width = 2 * self.dim if self.reduce is None else self.dim
        running = torch.zeros(batch_size, width, device=device, dtype=at_least_float32(dtype))
        blocks = -(-max_len // self.reduction)
        past = Cache.empty(batch_size, blocks, 2 * self.dim, stride=self.reduction, device=device, dtype=dtype)
        return self.State(past, running)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Update the mean of this position's block, overwrite the block's slot, then attend to all blocks so far."""
        place = position % self.reduction
        if self.reduce is None:
            # A running mean: the n-th position of a block moves it by 1 / n of the difference
            share = (place + 1).to(state.running).reciprocal()
            running = torch.lerp(state.running, self.key_value(x).to(state.running), share[:, None])
            key_value = running
        else:
            # Multiply by all S_j; each row then selects the product of its own place
            weight = self.reduce.weight.unflatten(1, (self.reduction, -1)).permute(1, 0, 2)  # (r, D, D)
            every = F.linear(x, weight.flatten(0, 1)).unflatten(-1, (self.reduction, -1))  # (N, r, D)
            own = every.gather(1, place[:, None, None].expand(-1, 1, self.dim)).squeeze(1)  # (N, D)
            running = torch.where(place[:, None] == 0, 0.0, state.running) + own.to(state.running)
            key_value = self.key_value(self._normed((running + self.reduce.bias).to(x.dtype)))
        # Each block has one slot
        state.past.append(key_value, position)
        slots, visible = state.past.read(position)  # (B, slots, 2 D), (B, beam, slots)
        query = self.query(x)
        k, v = (split(part, self.num_heads) for part in slots.to(query.dtype).chunk(2, -1))
        q = split(query.view(slots.shape[0], -1, self.dim), self.num_heads)  # a sentence's hypotheses are queries
        y = attention(q, k, v, mask=visible[:, None])  # (B, H, beam, d)
        return self.out(merge(y)).view(x.shape[0], -1), self.State(state.past, running)

    def _blocks(self, x: Tensor) -> Tensor:
        """Cut (B, T, C) into blocks (B, blocks, r, C), zeros after the end."""
        return F.pad(x, (0, 0, 0, -x.shape[1] % self.reduction)).unflatten(1, (-1, self.reduction))

    def _running(self, x: Tensor) -> Tensor:
        """Reduce each block of x (B, T, D) up to each of its places, to keys and values (B, blocks, r, 2 D)."""
        size = self.reduction  # r
        if self.reduce is None:
            key_value = self.key_value(x)
            ones = torch.ones(size, size, device=x.device, dtype=key_value.dtype).tril()
            return (ones / ones.sum(1, keepdim=True)) @ self._blocks(key_value)
        # Place j has its own S_j
        weight = self.reduce.weight.unflatten(1, (size, -1))  # (D, r, D)
        products = torch.einsum("bnrd,erd->bnre", self._blocks(x), weight.to(x.dtype))
        sums = products.to(at_least_float32(products.dtype)).cumsum(2) + self.reduce.bias
        return self.key_value(self._normed(sums.to(products.dtype)))

    def _normed(self, x: Tensor) -> Tensor:
        """Apply the norm of a learned reduction, in the type of x."""
        assert self.norm is not None
        return self.norm(x).to(x.dtype)

    def _read_past(self, q: Tensor, running: Tensor, drop: float) -> Tensor:
        """Attend from each t to the complete blocks before its own block, and to its own block up to t."""
        size = self.reduction  # r
        length = q.shape[2]
        complete = running[:, : length // size, -1]  # (B, blocks, 2 D)
        key, value = complete.chunk(2, -1)
        own_key, own_value = (split(part[:, :length], self.num_heads) for part in running.flatten(1, 2).chunk(2, -1))
        k = split(mark_mixing(key), self.num_heads)  # (B, H, blocks, d)
        v = split(value, self.num_heads)
        # One softmax over complete blocks and, in the last column, the own block up to t: (B, H, T, blocks + 1)
        scores = torch.cat([q @ k.transpose(-1, -2), (q * mark_mixing(own_key)).sum(-1, keepdim=True)], -1)
        time = torch.arange(length, device=q.device)
        # The own and later blocks are masked; the last column, the mean of the own block, is visible
        later = torch.arange(length // size + 1, device=q.device) >= (time // size)[:, None]
        later[:, -1] = False
        weights = (scores * q.shape[-1] ** -0.5).masked_fill(later, float("-inf")).softmax(-1)
        weights = dropout(weights.to(v.dtype), drop)
        return weights[..., :-1] @ v + weights[..., -1:] * own_value  # (B, H, T, d)
