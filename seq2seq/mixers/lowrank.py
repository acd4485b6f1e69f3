"""Attention to keys and values projected from the sequence's length to a fixed number of slots (Wang et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.dropout import dropout
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import (
    SelfMixer,
    real_positions,
    require_divisible,
    require_length,
    require_positive,
    require_probability,
)
from seq2seq.network.state import Device, DType


class LowRank(SelfMixer):
    """Attention to a fixed number of learned slots instead of positions.

    M = softmax(Q (E K)' / sqrt(D / H)) F, with learned E and F (r, max_len).

    If not causal, M has rank r. Causal: position t reads r slots of its past, E_t K = sum_{j <= t} E_{:,j} k_j, and
    F_t V in the same way. Slots without a weight in E for the visible positions are masked, so that E = F = identity,
    r = max_len, is attention. M is dense, dynamic, shared by the D / H channels of a head. Heads share E and F, layers
    do not ('headwise sharing').

    At position j = 0, 1, ... E starts from N(0, 1 / (r + j)) and F from N(0, 1 / (1 + j)), so that the output hardly
    grows with the length. Positions beyond the longest training sentence keep these weights. The causal form and the
    start of E and F are ours; Linformer was published for encoders.

    Args:
        max_len: Longest sequence.
        rank: r slots, 2 or more.
        dropout: Probability of dropping the weight of a slot.

    Cost:
        4 D^2 + 2 r max_len parameters; O(T r D + T D^2) time bidirectional, O(T^2 (D + r H) + T
        D^2) causal, without storing the slots of each position; 2 r D numbers of state.

    Reference:
        Wang et al. 2020, 'Linformer: Self-Attention with Linear Complexity', eq. 7.
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)
    length_arguments = ("max_len",)
    state_growth = "constant"

    def __init__(
        self, *, dim: int, causal: bool, num_heads: int, max_len: int, rank: int = 16, dropout: float = 0.0
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        if rank < 2:
            raise ValueError(f"rank is {rank}; choose 2 or more (one slot would always have all the weight)")
        self.num_heads = num_heads
        self.rank = rank
        self.max_len = require_positive(max_len, "max_len")
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        # Smaller at later positions, so that sums hardly grow with the length
        position = torch.arange(max_len)
        self.key_slots = nn.Parameter(torch.randn(rank, max_len) * (rank + position) ** -0.5)  # E
        self.value_slots = nn.Parameter(torch.randn(rank, max_len) * (1 + position) ** -0.5)  # F

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to r slots; a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        length = x.shape[1]
        require_length(length, self.max_len)
        query, key, value = self.qkv(x).chunk(3, -1)
        key_slots = self.key_slots[:, :length]  # (r, T)
        value_slots = self.value_slots[:, :length]
        drop = self.dropout if self.training else 0.0
        if self.causal:
            # (B, H, T, d)
            q, k, v = (split(part, self.num_heads) for part in (mark_mixing(query), mark_mixing(key), value))
            return self.out(merge(_read_past(q, k, v, key_slots, value_slots, drop)))
        # Masked before positions mix, so that padding fills no slot
        key, value = (part.masked_fill(~mask[:, :, None], 0.0) for part in (mark_mixing(key), value))
        # k, v (B, H, r, d)
        q, k, v = (split(part, self.num_heads) for part in (mark_mixing(query), key_slots @ key, value_slots @ value))
        seen = ((key_slots != 0) & mask[:, None, :]).any(-1)  # (B, r)
        return self.out(merge(attention(q, k, v, mask=seen[:, None, None, :], dropout=drop)))

    class State(NamedTuple):
        """The slots' keys and values (N, r, D), and a mask of the slots that are filled (N, r)."""

        key: Tensor
        value: Tensor
        seen: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return empty slots, in float32 at least, since they sum many small parts."""
        require_length(max_len, self.max_len)
        wide = at_least_float32(dtype)
        empty = torch.zeros(batch_size, self.rank, self.dim, device=device, dtype=wide)
        return self.State(empty, empty.clone(), torch.zeros(batch_size, self.rank, device=device, dtype=torch.bool))

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Add this position's key and value to the slots, then attend to them."""
        query, key, value = self.qkv(x).chunk(3, -1)
        key_slots, value_slots = self.key_slots.t()[position], self.value_slots.t()[position]  # (N, r)
        keys = state.key + (key_slots[:, :, None] * key[:, None]).to(state.key)  # (N, r, D)
        values = state.value + (value_slots[:, :, None] * value[:, None]).to(state.value)
        seen = state.seen | (key_slots != 0)  # (N, r)
        parts = query[:, None], keys.to(query.dtype), values.to(query.dtype)
        q, k, v = (split(part, self.num_heads) for part in parts)  # (N, H, 1 or r, d)
        y = attention(q, k, v, mask=seen[:, None, None, :])
        return self.out(merge(y)).squeeze(1), self.State(keys, values, seen)


def _read_past(q: Tensor, k: Tensor, v: Tensor, key_slots: Tensor, value_slots: Tensor, drop: float) -> Tensor:
    """Attend to the past without storing slots of each position: q_t . sum_j E_sj k_j = sum_j E_sj (q_t . k_j)."""
    # `tril` keeps j <= t before the sum over j, so slots (B, H, T, r, d) are never stored
    scores = (q @ k.transpose(-1, -2)).tril() @ key_slots.t()  # (B, H, T, r)
    # Slot s is visible from the first position with a weight in E
    unseen = (key_slots != 0).cumsum(1).t() == 0  # (T, r)
    weights = (scores * q.shape[-1] ** -0.5).masked_fill(unseen, float("-inf")).softmax(-1)
    return (dropout(weights.to(v.dtype), drop) @ value_slots).tril() @ v  # the same order for F: (B, H, T, T) @ v
