"""Gated delta networks: linear attention with a learned decay and the delta rule (Yang et al. 2024)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.gated_delta import gated_delta, gated_delta_step
from seq2seq.kernels.precision import at_least_float32
from seq2seq.kernels.shortconv import shortconv, shortconv_step
from seq2seq.mixers.gru import reverse_index
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive
from seq2seq.network.state import Device, DType

# Added under the root of the norm; also avoids a division by zero for a key of zeros
EPSILON = 1e-5


class GatedDelta(SelfMixer):
    """Gated delta rule: linear attention whose state decays, and replaces the value stored for a key.

    S_t = a_t (I - b_t k_t k_t') S_{t-1} + b_t k_t v_t', y_t = W_o (swish(W_g x_t) * norm(S_t' q_t)).

    Each of H heads has a state S. It decays by a_t, and v_t replaces at the rate b_t the value stored for the key k_t.
    q, k, v are projections of x followed by a causal depthwise convolution of K taps and swish; q and k have length 1;
    b = sigmoid(W_b x) and a = exp(-exp(A) softplus(W_a x + c)), with one number A and one c for each head; norm is the
    root mean square norm with a weight. Keys and values have D / H channels a head. Bidirectional, which is ours: the
    sum of this and of a second pass that reads each sentence from its end, with the same weights, before the norm.
    Published values are twice as wide as keys, and exp(A) was published with a start from U(0, 16), here U(1, 16).

    M_tj = b_j q_t' (prod_{j < i <= t} a_i (I - b_i k_i k_i')) k_j is dense, dynamic, shared by the
    channels of a head but for the convolution; values are not linear in x (swish).

    Args:
        kernel_size: K taps of the convolution of q, k and v.
        gate: Gate the output by swish(W_g x).

    Cost:
        5 D^2 + 3 D K + 2 D H + 2 H + D / H parameters, D^2 fewer without gate; O(T (c + D / H) D +
        T D^2) time by chunks of c = 64, twice the former when bidirectional; D^2 / H + 3 D (K - 1)
        numbers of state.

    Reference:
        Yang et al. 2024, 'Gated Delta Networks: Improving Mamba2 with Delta Rule'.
    """

    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, num_heads: int, kernel_size: int = 4, gate: bool = True) -> None:
        super().__init__(dim=dim, causal=causal)
        self.head_dim = require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.properties = MixingProperties(shares_channels=kernel_size == 1, dynamic=True)
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        self.gate = projection(dim, dim) if gate else None
        self.rates = projection(dim, num_heads, num_heads)  # W_b, W_a
        # Uniform between -1 / sqrt(K) and 1 / sqrt(K), as in torch's depthwise convolutions
        self.weight = nn.Parameter(torch.empty(3 * dim, kernel_size).uniform_(-1.0, 1.0) * kernel_size**-0.5)
        self.log_speed = nn.Parameter(torch.empty(num_heads).uniform_(1.0, 16.0).log())  # A
        # softplus(c) between 0.001 and 0.1, evenly on a logarithmic scale
        start = torch.empty(num_heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        # c is the inverse of softplus at `start`: c = start + log(1 - exp(-start))
        self.rate_bias = nn.Parameter(start + torch.log(-torch.expm1(-start)))
        self.norm = nn.Parameter(torch.ones(self.head_dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, T, D) once, or in both directions; padding comes last in each direction."""
        mask = real_positions(x, mask)
        parts = self.qkv(x), *self._rates(x)  # (B, T, 3 D), (B, T, H), (B, T, H)
        y = self._recall(*parts)  # (B, T, D)
        if not self.causal:
            index = reverse_index(mask)
            # Read each sentence reversed, from its last token, and reverse the results
            y = y + _turned(self._recall(*(_turned(part, index) for part in parts)), index)
        return self._finish(y, x)

    class State(NamedTuple):
        """The memory (N, H, d, d), and the last K - 1 inputs of the convolution (N, K - 1, 3 D), oldest first."""

        memory: Tensor
        recent: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return an empty memory, in float32 at least, and zeros before the first position."""
        recent = torch.zeros(batch_size, self.kernel_size - 1, 3 * self.dim, device=device, dtype=dtype)
        shape = (batch_size, self.num_heads, self.head_dim, self.head_dim)
        wide = at_least_float32(recent.dtype)
        return self.State(torch.zeros(shape, device=device, dtype=wide), recent)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Convolve this position, update the memory with it, then read."""
        mixed, recent = shortconv_step(self.qkv(x), state.recent, self.weight)  # (N, 3 D), (N, K - 1, 3 D)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in F.silu(mixed).chunk(3, -1))
        y, memory = gated_delta_step(_unit(q), _unit(k), v, *self._rates(x), state.memory)
        return self._finish(y.flatten(-2), x), self.State(memory, recent)

    def _recall(self, qkv: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
        """Read the memory, filled from the left, at each position: (B, T, 3 D) -> (B, T, D)."""
        mixed = F.silu(shortconv(qkv, self.weight, causal=True))
        q, k, v = (split(part, self.num_heads) for part in mixed.chunk(3, -1))  # (B, H, T, d)
        rates = (mark_mixing(part).transpose(1, 2) for part in (log_decay, rate))  # (B, H, T)
        return merge(gated_delta(mark_mixing(_unit(q)), mark_mixing(_unit(k)), v, *rates))

    def _rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log a and b of x (..., D), each (..., H), in float32 at least."""
        rates = self.rates(x)
        rate, speed = rates.to(at_least_float32(rates.dtype)).chunk(2, -1)
        return -self.log_speed.exp() * F.softplus(speed + self.rate_bias), rate.sigmoid()

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        """Apply the norm of each head, the gate and the output projection to y (..., D), in x's type."""
        y = y.unflatten(-1, (self.num_heads, -1))  # (..., H, d)
        y = y * mark_mixing((y.square().mean(-1, keepdim=True) + EPSILON).rsqrt()) * self.norm
        y = y.flatten(-2).to(x.dtype)
        return self.out(y if self.gate is None else F.silu(self.gate(x)) * y)


def _unit(x: Tensor) -> Tensor:
    """Scale x (..., d) to length 1, in float32 at least."""
    return F.normalize(x.to(at_least_float32(x.dtype)), dim=-1, eps=EPSILON)


def _turned(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand_as(x))  # index (B, T) for every channel
