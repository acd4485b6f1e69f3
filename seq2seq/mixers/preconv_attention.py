"""Attention whose queries and keys are first convolved, so that order matters without positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.short_rows import divide
from seq2seq.kernels.band_matrix import full_convolution
from seq2seq.kernels.shortconv import shortconv, shortconv_step
from seq2seq.mixers.batch_norm import BatchNorm
from seq2seq.mixers.past import WindowedPast, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class PreconvAttention(SelfMixer[WindowedPast]):
    """Attention with convolved queries and keys.

    M = softmax(Q~ K~' / sqrt(D / H)), Q~_{t,c} = sum_k w_{c,k} Q_{t+k-left,c}.

    left = K - 1 if causal, else K // 2. A depthwise convolution of K taps follows the projections of queries and keys,
    each channel with its own kernel. With `before`, the convolution precedes the projections instead, of x itself: Q~ =
    W_q z, K~ = W_k z, z_t = sum_k w_k x_{t+k-left}, with w_k a vector or a matrix of D x D; values are W_v x. M is
    dense and dynamic, shared by the D / H channels of a head; if values are convolved, too, each channel has its own.
    Kernels by channel start as the identity with a little noise, and so M as attention.

    Args:
        kernel_size: K taps.
        values: Convolve the values, too, as in Primer.
        before: Convolve x: "depthwise", by a kernel for each channel, or "full", by a D x D matrix for each tap.
        batch_norm: z = ReLU(BN(convolved x)), as Han et al. have it. Outputs then depend on the batch in training (see
            `seq2seq.mixers.batch_norm`).

    Cost:
        4 D^2 + 2 D K parameters (3 D K with values, D K before, K D^2 in full), O(T^2 D + T K D + T D^2) time, T K D^2
        in full, O(T D) state: convolved keys, values, and the last K - 1 of what is convolved.

    Reference:
        So et al. 2021, 'Primer: Searching for Efficient Transformers for Language Modeling' (K = 3,
        with values); Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise Convolution',
        appendix C (before, in windows).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        kernel_size: int = 3,
        values: bool = False,
        before: str | None = None,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.dropout = require_probability(dropout, "attention dropout")
        if before not in (None, "depthwise", "full"):
            raise ValueError(f"before is {before!r}; choose depthwise, full, or null")
        if before and values:
            raise ValueError(f"before={before} convolves no values; set values to false, or before to null")
        if batch_norm and not before:
            raise ValueError("batch_norm follows a convolution of x; set before to depthwise or full")
        self.before = before
        self.properties = MixingProperties(shares_channels=not values, dynamic=True, linear=True)
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        # Channels of x or, of its 3 D projections, of those that are convolved
        self.convolved = dim if before else (3 if values else 2) * dim
        if before == "full":
            # Each output sums D K products: variance 1 for inputs of variance 1
            self.weight = nn.Parameter(torch.randn(dim, dim, kernel_size) * (dim * kernel_size) ** -0.5)
        else:
            # The identity kernel has a one at the tap of the position itself
            self.weight = nn.Parameter(0.02 * torch.randn(self.convolved, kernel_size))
            with torch.no_grad():
                self.weight[:, kernel_size - 1 if causal else kernel_size // 2] += 1.0
        self.norm = BatchNorm(dim=dim) if batch_norm else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve, then attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        inner = x if self.before else self.qkv(x)  # (B, T, D or 3 D)
        # Kernels reach to the right, where padding must count as zero
        if not self.causal:
            inner = inner.masked_fill(~mask[:, :, None], 0.0)
        mixed, rest = inner.split([self.convolved, inner.shape[-1] - self.convolved], -1)
        mixed = self._convolve(mixed)
        qkv = self._after(x, mixed, mask) if self.before else torch.cat([mixed, rest], -1)  # (B, T, 3 D)
        q, k, v = (split(part, self.num_heads) for part in divide(qkv, *3 * [self.dim]))
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
        inner = x if self.before else self.qkv(x)  # (N, D or 3 D)
        mixed, rest = inner.split([self.convolved, inner.shape[-1] - self.convolved], -1)
        if self.before == "full":
            window = torch.cat([state.recent, mixed.to(state.recent.dtype)[:, None]], 1)  # (N, K, D)
            mixed, recent = torch.einsum("nkc,ock->no", window.to(x.dtype), self.weight.to(x.dtype)), window[:, 1:]
        else:
            mixed, recent = shortconv_step(mixed, state.recent, self.weight)
        real = position >= 0  # (N,)
        inner = self._after(x, mixed, real) if self.before else torch.cat([mixed, rest], -1)  # (N, 3 D)
        (q, k), v, visible = attend_to_past(state.past, inner, position, self.num_heads)
        y = attention(q, k, v, mask=visible[:, None])  # (B, H, beam, d)
        return self.out(merge(y)).view(x.shape[0], -1), WindowedPast(state.past, recent)

    def _convolve(self, inner: Tensor) -> Tensor:
        """Convolve inner (B, T, C)."""
        if self.before != "full":
            return shortconv(inner, self.weight, causal=self.causal)
        return full_convolution(inner, self.weight.to(inner.dtype), causal=self.causal)

    def _after(self, x: Tensor, mixed: Tensor, mask: Tensor) -> Tensor:
        """Compute queries and keys of the convolved inputs, and values of the inputs (..., D): (..., 3 D)."""
        z = mixed if self.norm is None else self.norm(mixed, mask).relu()
        query_key, value = self.qkv.weight.split([2 * self.dim, self.dim])
        return torch.cat([F.linear(z, query_key), F.linear(x, value)], -1)
