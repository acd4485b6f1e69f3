"""Attention with a learned bias, or a factor, per offset and head: dynamic and static weights in one softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.short_rows import divide
from seq2seq.kernels.attention.weights import weigh
from seq2seq.kernels.relative_positions import offsets, slot_offsets
from seq2seq.mixers.past import Past, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class RelativeBias(SelfMixer[Past]):
    """Attention with a learned bias per offset and head.

    M_qk = softmax_k(x_q' W_q' W_k x_k / sqrt(D / H) + b_{h,k-q}).

    y = M x W_v W_o; b starts at zero. M is dense, dynamic, shared by the D / H channels of a head.

    With `multiplied` the numbers are factors, softmax_k(a_{h,k-q} x_q' W_q' W_k x_k / sqrt(D / H)), which start at one.
    For all keys of a query that is a diagonal matrix before the scores, where b is a vector added to them.

    Published as vectors added to keys and values (Shaw et al. 2018), or as numbers for logarithmic buckets of offsets
    that all layers share, with unscaled scores (Raffel et al. 2020); here a number for each offset up to max_offset, in
    each layer, with scaled scores. Published without positions in the embeddings, which `model.positions` adds here.

    Args:
        max_offset: Farther offsets share the bias of this offset.
        multiplied: Multiply scores by the learned numbers instead of adding them.

    Cost:
        4 D^2 + H (2 max_offset + 1) parameters, H (max_offset + 1) when causal; O(T^2 D + T D^2)
        time, O(T D) state.

    Reference:
        Shaw et al. 2018, 'Self-Attention with Relative Position Representations' (clipped offsets);
        Raffel et al. 2020 (a number per head); Han et al. 2022, appendix C (static and dynamic
        weights; the product version).
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        max_offset: int = 64,
        multiplied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.max_offset = require_positive(max_offset, "max_offset")
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        self.multiplied = multiplied
        # (offsets, H); at first the layer is plain attention
        rows = max_offset + 1 if causal else 2 * max_offset + 1
        self.bias = nn.Parameter(torch.full((rows, num_heads), float(multiplied)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        q, k, v = (split(part, self.num_heads) for part in divide(self.qkv(x), *3 * [self.dim]))  # (B, H, T, d)
        position = torch.arange(x.shape[1], device=x.device)
        bias = self._bias(offsets(position, position)[0])  # (H, T, T)
        allowed = None if self.causal else mask[:, None, None, :]  # (B, 1, 1, T)
        dropout = self.dropout if self.training else 0.0
        y = self._attend(mark_mixing(q), mark_mixing(k), v, mark_mixing(bias), allowed, self.causal, dropout)
        return self.out(merge(y))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of keys and values."""
        return Past(Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's key and value, then attend to the hypothesis's own past."""
        (q, k), v, visible = attend_to_past(state.past, self.qkv(x), position, self.num_heads)
        _, beam, slots = visible.shape
        bias = self._bias(slot_offsets(position, slots, beam)[0])  # (B, H, beam, slots)
        y = self._attend(q, k, v, bias, visible[:, None])
        return self.out(merge(y)).view(x.shape[0], -1), state

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        mask: Tensor | None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend with numbers `bias` (..., H, T, S) added to scores, or multiplied with them."""
        if not self.multiplied:
            return attention(q, k, v, bias=bias, mask=mask, causal=causal, dropout=dropout)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, H, T, S)
        return weigh(scores * bias, v, mask=mask, causal=causal, dropout=dropout)

    def _bias(self, offset: Tensor) -> Tensor:
        """Look up b of offset (..., T, S): (..., H, T, S)."""
        highest = 0 if self.causal else self.max_offset  # the future has no row; it is masked
        return F.embedding(offset.clamp(-self.max_offset, highest) + self.max_offset, self.bias).movedim(-1, -3)
