"""Retention: linear attention with an exponential decay, fixed for each head (Sun et al. 2023)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32
from seq2seq.kernels.retention import retention, retention_parallel, retention_step
from seq2seq.mixers.past import Sums
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible
from seq2seq.network.state import Device, DType

# Added under the root of the norm
EPSILON = 1e-5


class Retention(SelfMixer[Sums]):
    """Linear attention with an exponential decay, fixed for each head.

    M_ij = gamma_h^(i-j) (R_i q_i) . (R_j k_j) / sqrt(D / H) for j <= i, gamma_h = 1 - 2^(-5-h), R_i
    rotary.

    y = W_o (swish(W_g x) * norm(M W_v x)), where norm divides each head by its root mean square, as in the authors'
    code; the divisor is a factor of rows of M. Bidirectional, which is ours: gamma^|i-j| over the real positions.
    Values and gate are D wide (in the published models 2 D). M is dense, dynamic, shared by the D / H channels of a
    head.

    Args:
        num_heads: H; must divide dim into heads of even width.
        norm: Divide each head by its root mean square.
        gate: Gate the output; with norm=False and gate=False, y = W_o M W_v x.

    Cost:
        5 D^2 parameters (4 D^2 without gate); O(T (c + D / H) D + T D^2) time causal by chunks of c
        = 64, O(T^2 D + T D^2) bidirectional; D^2 / H numbers of state.

    Reference:
        Sun et al. 2023, 'Retentive Network: A Successor to Transformer for Large Language Models',
        eq. 5 to 8.
    """

    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, num_heads: int, norm: bool = True, gate: bool = True) -> None:
        super().__init__(dim=dim, causal=causal)
        self.head_dim = require_divisible(dim, num_heads)
        if self.head_dim % 2:
            raise ValueError(f"{dim} channels in num_heads {num_heads} heads do not pair up; choose an even head width")
        self.num_heads = num_heads
        self.norm = norm
        self.properties = MixingProperties(shares_channels=True, dynamic=True, linear=not gate)
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        self.gate = projection(dim, dim) if gate else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, T, D) from each position; a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        time = torch.arange(x.shape[1], device=x.device)
        query, key, value = (split(part, self.num_heads) for part in self.qkv(x).chunk(3, -1))  # (B, H, T, d)
        q = mark_mixing(self._rotate(query, time))
        k = mark_mixing(self._rotate(key, time))
        if self.causal:
            return self._finish(retention(q, k, value, decay=self.decay(q)), x)
        # There is no softmax to mask: a key of zeros has weight 0
        k = k.masked_fill(~mask[:, None, :, None], 0.0)
        return self._finish(retention_parallel(q, k, value, decay=self.decay(q)), x)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Sums:
        """Return an empty decayed sum of k v', (N, H, d, d)."""
        return Sums.empty(batch_size, self.num_heads, self.head_dim, self.head_dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
        """Decay the state, add this position's key and value, then read it."""
        # (N, H, d)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, -1))
        q = self._rotate(query, position[:, None])
        k = self._rotate(key, position[:, None])
        y, total = retention_step(q, k, value, state.total, decay=self.decay(q))
        # `_finish` expects a time axis, here of one position
        return self._finish(y.unsqueeze(2), x[:, None]).squeeze(1), Sums(total)

    def decay(self, like: Tensor) -> Tensor:
        """Return gamma (H,) in the type and on the device of `like`."""
        return 1.0 - 2.0 ** (-5.0 - torch.arange(self.num_heads, device=like.device, dtype=like.dtype))

    def _rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotate pairs of channels of x (..., d) at position (...) by 10000^(-2c/d) a position (Su et al. 2021).

        Queries and keys are scaled by (D / H)^(-1/4) each, and so their product by (D / H)^(-1/2).
        """
        wide = at_least_float32(x.dtype)
        channel = torch.arange(0, self.head_dim, 2, device=x.device, dtype=wide)
        # (..., d / 2)
        angle = position[..., None].to(wide) * (channel * (-math.log(1e4) / self.head_dim)).exp()
        even, odd = (x.to(wide) * self.head_dim**-0.25).unflatten(-1, (-1, 2)).unbind(-1)  # (..., d / 2) each
        cos = angle.cos()
        sin = angle.sin()
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        """Apply norm, gate and output projection to y (B, H, T, d), in x's type."""
        if self.norm:
            y = y * mark_mixing((y.square().mean(-1, keepdim=True) + EPSILON).rsqrt())
        y = merge(y).to(x.dtype)  # (B, T, D)
        return self.out(y if self.gate is None else F.silu(self.gate(x)) * y)
