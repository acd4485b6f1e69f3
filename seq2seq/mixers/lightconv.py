"""LightConv: depthwise convolution with normalized, shared kernels (Wu et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.dispatch import require_backend
from seq2seq.kernels.dropconnect import keep_probability, keep_words_or_none
from seq2seq.kernels.lightconv import lightconv
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class LightConv(SelfMixer[Past]):
    """Depthwise convolution with normalized kernels, shared by the channels of a head.

    y = W_o LightConv(z), z = GLU(W_i x).

    LightConv(z)_{t,c} = sum_k softmax(w_h)_k z_{t+k-left,c}, h = c // (D / H), left = K - 1
    (causal) or K // 2. W_i is D x 2D with GLU and D x D without.

    Args:
        num_heads: H groups of channels that share a kernel; must divide dim.
        kernel_size: K taps.
        glu: Gate the input.
        softmax: Normalize the kernels; without it they are the parameters w_h themselves.
        weight_dropout: DropConnect on the normalized kernels, [H, K] once per forward.

    Cost:
        3 D^2 + 3 D + H K parameters (2 D^2 + 2 D + H K without GLU), O(T K D + T D^2) time, the last
        K inputs of the convolution as state, which stay where they are when beams are reordered.

    Reference:
        Wu et al. 2019, 'Pay Less Attention with Lightweight and Dynamic Convolutions', section 3.
    """

    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        kernel_size: int,
        glu: bool = True,
        softmax: bool = True,
        weight_dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.glu = glu
        self.softmax = softmax
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.weight_dropout = require_probability(weight_dropout, "weight_dropout")
        self.backend = require_backend(backend)
        self.properties = MixingProperties(sparse=True, shares_positions=True, shares_channels=True, linear=not glu)
        self.inner = glu_input(dim, glu=glu)
        self.out = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.empty(num_heads, kernel_size))  # the kernels, or their logits
        if softmax:
            nn.init.xavier_uniform_(self.weight)
        else:
            # As Depthwise: each output sums K products, variance 1 for inputs of variance 1
            nn.init.normal_(self.weight, std=kernel_size**-0.5)
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        # DropConnect: one mask for the H kernels, drawn here so that all backends drop the same taps
        drop = self.weight_dropout if self.training else 0.0
        keep = keep_words_or_none(self.weight.shape[:1], self.kernel_size, drop, device=x.device, backend=self.backend)
        y = lightconv(
            self.inner(x),
            self._kernels(),
            causal=self.causal,
            glu=self.glu,
            keep=keep,
            keep_prob=keep_probability(self.weight_dropout),
            end=mask.sum(1),  # the convolution zeroes padding itself
            backend=self.backend,
        )
        return self.out(y)

    def introspect(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the kernels (H, K)."""
        return {"kernels": self._kernels()}

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of gated inputs."""
        past = Cache.empty(batch_size, self.kernel_size, self.dim, heads=self.num_heads, device=device, dtype=dtype)
        return Past(past)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's input, then convolve the last K."""
        state.past.append(gated(self.inner(x), self.glu), position)
        weights = self._kernels()[None]  # (1, H, K)
        return self.out(state.past.convolve(weights, position, softmax=False, backend=self.backend)), state

    def _kernels(self) -> Tensor:
        return self.weight.softmax(-1) if self.softmax else self.weight  # (H, K); normalized, each sums to 1
