"""Linear attention: a product of feature maps instead of a softmax (Katharopoulos et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32, without_autocast
from seq2seq.kernels.retention import retention, retention_step
from seq2seq.mixers.past import Sums
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible
from seq2seq.network.state import Device, DType

# Avoids a division by zero where all features vanish
EPSILON = 1e-6


class LinearAttention(SelfMixer[Sums]):
    """Linear attention: a product of feature maps instead of a softmax.

    M_ij = phi(q_i) . phi(k_j) / sum_j' phi(q_i) . phi(k_j'), phi(x) = elu(x) + 1, in H heads.

    Causal sums are over j' <= i. M is dense, dynamic, shared by the channels of a head; if not causal, it has rank
    D / H in each head. Projections start as in attention; sums are taken in float32 at least. M is as
    published; causal sums by chunks, not position by position, are ours.

    Cost:
        4 D^2 parameters; O(T D^2 / H + T D^2) time, causal by chunks of c = 64 O(T c D) more; H (D
        / H) (D / H + 1) numbers of state.

    Reference:
        Katharopoulos et al. 2020, 'Transformers are RNNs'.
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)
    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, num_heads: int) -> None:
        super().__init__(dim=dim, causal=causal)
        self.head_dim = require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, T, D) from each position; a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        query, key, value = self.qkv(x).chunk(3, -1)
        q, k = (split(mark_mixing(_features(part)), self.num_heads) for part in (query, key))  # (B, H, T, d)
        v = _with_ones(split(value, self.num_heads))  # (B, H, T, d + 1)
        # Causal linear attention is retention without decay
        if self.causal:
            return self._merge(retention(q, k, v), x)
        with without_autocast(x):
            # Masked after the feature map, which is 1 at zero, so that padding has weight 0
            k = k.masked_fill(~mask[:, None, :, None], 0.0)
            y = q @ (k.transpose(-1, -2) @ v)  # via (B, H, d, d + 1)
        return self._merge(y, x)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Sums:
        """Return an empty sum of phi(k) [v, 1]', (N, H, d, d + 1)."""
        return Sums.empty(batch_size, self.num_heads, self.head_dim, self.head_dim + 1, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
        """Add this position's key and value to the sums, then read them."""
        # (N, H, d) each
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, -1))
        with without_autocast(x):
            y, total = retention_step(_features(query), _features(key), _with_ones(value), state.total)
        # `_merge` expects a time axis, here of one position
        return self._merge(y.unsqueeze(2), x).squeeze(1), Sums(total)

    def _merge(self, y: Tensor, x: Tensor) -> Tensor:
        """Divide weighted values by the sum of their weights, both in y (B, H, T, d + 1), and project in x's type."""
        total = y[..., :-1]  # (B, H, T, d)
        weights = mark_mixing(y[..., -1:])  # (B, H, T, 1)
        return self.out(merge(total / (weights + EPSILON)).to(x.dtype))


def _features(x: Tensor) -> Tensor:
    return F.elu(x.to(at_least_float32(x.dtype))) + 1.0


def _with_ones(value: Tensor) -> Tensor:
    """Append ones to (..., d), whose weighted sum is the sum of the weights."""
    value = value.to(at_least_float32(value.dtype))
    return torch.cat([value, torch.ones_like(value[..., :1])], -1)
