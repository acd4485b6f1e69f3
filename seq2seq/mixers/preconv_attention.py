"""Attention whose queries and keys are first convolved, so that order matters without positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.short_rows import divide
from seq2seq.kernels.shortconv import shortconv, shortconv_step
from seq2seq.mixers.past import WindowedPast, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class PreconvAttention(SelfMixer[WindowedPast]):
    """Attention with convolved queries and keys.

    M = softmax(Q~ K~' / sqrt(D / H)), Q~_{t,c} = sum_k w_{c,k} Q_{t+k-left,c}.

    left = K - 1 if causal, else K // 2. A depthwise convolution of K taps follows the projections of queries and keys,
    each channel with its own kernel. M is dense and dynamic, shared by the D / H channels of a head; if values are
    convolved, too, each channel has its own. Kernels start as the identity with a little noise, and so M as attention.

    Args:
        kernel_size: K taps.
        values: Convolve the values, too, as published.

    Cost:
        4 D^2 + 2 D K parameters (3 D K with values), O(T^2 D + T K D + T D^2) time, O(T D) state:
        convolved keys, values, and the last K - 1 of what is convolved.

    Reference:
        So et al. 2021, 'Primer: Searching for Efficient Transformers for Language Modeling' (K = 3,
        with values).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        kernel_size: int = 3,
        values: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.dropout = require_probability(dropout, "attention dropout")
        self.properties = MixingProperties(shares_channels=not values, dynamic=True, linear=True)
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        self.convolved = (3 if values else 2) * dim  # number of the 3 D channels of qkv that are convolved
        # The identity kernel has a one at the tap of the position itself
        self.weight = nn.Parameter(0.02 * torch.randn(self.convolved, kernel_size))
        with torch.no_grad():
            self.weight[:, kernel_size - 1 if causal else kernel_size // 2] += 1.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve, then attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        qkv = self.qkv(x)  # (B, T, 3 D)
        # Kernels reach to the right, where padding must count as zero
        if not self.causal:
            qkv = qkv.masked_fill(~mask[:, :, None], 0.0)
        mixed, rest = qkv.split([self.convolved, 3 * self.dim - self.convolved], -1)
        mixed = shortconv(mixed, self.weight, causal=self.causal)
        q, k, v = (split(part, self.num_heads) for part in divide(torch.cat([mixed, rest], -1), *3 * [self.dim]))
        allowed = None if self.causal else mask[:, None, None, :]  # (B, 1, 1, T)
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, d)
        y = attention(mark_mixing(q), mark_mixing(k), v, mask=allowed, causal=self.causal, dropout=dropout)
        return self.out(merge(y))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> WindowedPast:
        """Return an empty cache of convolved keys and values, and zeros for the inputs before the first position."""
        past = Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype)
        return WindowedPast.empty(past, self.kernel_size, self.convolved)

    def step(self, x: Tensor, state: WindowedPast, position: Tensor) -> tuple[Tensor, WindowedPast]:
        """Convolve this position, append its key and value, then attend to the hypothesis's own past."""
        mixed, rest = self.qkv(x).split([self.convolved, 3 * self.dim - self.convolved], -1)
        mixed, recent = shortconv_step(mixed, state.recent, self.weight)
        inner = torch.cat([mixed, rest], -1)  # (N, 3 D)
        (q, k), v, visible = attend_to_past(state.past, inner, position, self.num_heads)
        y = attention(q, k, v, mask=visible[:, None])  # (B, H, beam, d)
        return self.out(merge(y)).view(x.shape[0], -1), WindowedPast(state.past, recent)
