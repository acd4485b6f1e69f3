"""Attention whose weights or scores are convolved along the keys, so that order matters without positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.shortconv import shortconv_step
from seq2seq.mixers.past import WindowedPast, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class PostconvAttention(SelfMixer[WindowedPast]):
    """Attention whose weights are convolved along the keys, after the softmax or before it.

    M_ij = sum_k w_{h,k} A_{i,j-k+left}, A = softmax(Q K' / sqrt(D/H)); with of=scores, M = softmax(S), S_ij = sum_k
    w_{h,k} q_i . k_{j+k-left} / sqrt(D/H).

    Each head has one kernel of K taps. left = K // 2, or K - 1 when causal: then weight moves to earlier keys only, so
    that M is lower-triangular as A is. M is dense, dynamic, and not normalized again: its rows have the sum of w, less
    the weight that leaves the sentence. M V = A (C V) with C_{sj} = w_{h,j-s+left}, so the values are convolved and A
    is never stored. Likewise scores are linear in the keys, so the keys are convolved in place of the scores; keys
    outside the sentence count as zero, where Han et al. close their window to a circle. Kernels start as the identity
    with a little noise, and so M as attention. Multi-Token Attention was published with convolutions along queries and
    heads too, by default before the softmax.

    Args:
        kernel_size: K taps.
        of: "weights", after the softmax, or "scores", before it.
        dropout: Probability of dropping an entry of A.

    Cost:
        4 D^2 + H K parameters, O(T^2 D + T K D + T D^2) time, O(T D) state: keys and values, one of them
        convolved, and the last K - 1 of what is convolved.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise Convolution', appendix C (of
        scores, in windows); Golovneva et al. 2025, 'Multi-Token Attention'.
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        kernel_size: int = 3,
        of: str = "weights",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        if of not in ("weights", "scores"):
            raise ValueError(f"of is {of!r}; choose weights or scores")
        self.of = of
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        # The identity kernel has a one at the tap of the position itself
        self.weight = nn.Parameter(0.02 * torch.randn(num_heads, kernel_size))
        with torch.no_grad():
            self.weight[:, kernel_size - 1 if causal else kernel_size // 2] += 1.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        query, key, value = self.qkv(x).chunk(3, -1)
        end = None if self.causal else mask.sum(1)
        if self.of == "scores":
            # Convolving keys once equals convolving every row of scores: Q (C K)'
            key = lightconv(key, self.weight, causal=self.causal, end=end)
        else:
            # Convolving values once equals convolving every row of weights: M V = A (C V)
            value = lightconv(value, self.weight, causal=self.causal, end=end)
        q, k, v = (split(part, self.num_heads) for part in (mark_mixing(query), mark_mixing(key), value))
        allowed = None if self.causal else mask[:, None, None, :]  # (B, 1, 1, T)
        dropout = self.dropout if self.training else 0.0
        return self.out(merge(attention(q, k, v, mask=allowed, causal=self.causal, dropout=dropout)))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> WindowedPast:
        """Return an empty cache of keys and values, and zeros for the inputs of the convolution before the first."""
        past = Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype)
        return WindowedPast.empty(past, self.kernel_size, self.dim)

    def step(self, x: Tensor, state: WindowedPast, position: Tensor) -> tuple[Tensor, WindowedPast]:
        """Convolve this position's value or key, append both, then attend to the hypothesis's own past."""
        query, key, value = self.qkv(x).chunk(3, -1)
        # (N, D), (N, K - 1, D)
        convolved, recent = shortconv_step(key if self.of == "scores" else value, state.recent, self.weight)
        key, value = (convolved, value) if self.of == "scores" else (key, convolved)
        inner = torch.cat([query, key, value], -1)  # (N, 3 D)
        (q, k), v, visible = attend_to_past(state.past, inner, position, self.num_heads)
        y = attention(q, k, v, mask=visible[:, None])  # (B, H, beam, d)
        return self.out(merge(y)).view(x.shape[0], -1), WindowedPast(state.past, recent)
