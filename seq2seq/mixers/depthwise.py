"""The depthwise convolution, with a separate kernel for every channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.dispatch import require_backend
from seq2seq.kernels.dropconnect import keep_probability, keep_words_or_none
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.shortconv import shortconv_step
from seq2seq.mixers.past import Window
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive, require_probability
from seq2seq.network.state import Device, DType


class Depthwise(SelfMixer[Window]):
    """Depthwise convolution, each channel with a kernel of its own.

    y = W_o DW(z), z = GLU(W_i x), DW(z)_{t,c} = sum_k w_{c,k} z_{t+k-left,c}.

    left = K - 1 (causal) or K // 2. LightConv (Wu et al. 2019) is the special case in which channels share kernels
    and kernels are normalized. For each channel M is a Toeplitz matrix of width K.

    Args:
        kernel_size: K taps.
        glu: Gate the input.
        weight_dropout: DropConnect on the kernels, [D, K] once per forward.

    Cost:
        3 D^2 + 3 D + D K parameters (2 D^2 + D + D K without GLU), O(T K D + T D^2) time, the last
        K - 1 inputs as state.

    Reference:
        Chollet 2017, 'Xception'; Han et al. 2022, 'On the Connection between Local Attention and
        Dynamic Depth-wise Convolution'.
    """

    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        kernel_size: int,
        glu: bool = True,
        weight_dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        self.glu = glu
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.weight_dropout = require_probability(weight_dropout, "weight_dropout")
        self.backend = require_backend(backend)
        self.properties = MixingProperties(sparse=True, shares_positions=True, linear=not glu)
        # No bias without GLU: weights that do not sum to one would scale it unevenly
        self.inner = glu_input(dim, glu=glu, bias=glu)
        self.out = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.empty(dim, kernel_size))
        # Each output sums K products: variance 1 for inputs of variance 1
        nn.init.normal_(self.weight, std=kernel_size**-0.5)
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        # DropConnect: one mask for the D kernels, drawn here so that all backends drop the same taps
        drop = self.weight_dropout if self.training else 0.0
        keep = keep_words_or_none(self.weight.shape[:1], self.kernel_size, drop, device=x.device, backend=self.backend)
        # LightConv's operation with a head for every channel
        y = lightconv(
            self.inner(x),
            self.weight,
            causal=self.causal,
            glu=self.glu,
            keep=keep,
            keep_prob=keep_probability(self.weight_dropout),
            end=mask.sum(1),  # the convolution zeroes padding itself
            backend=self.backend,
        )
        return self.out(y)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        return Window.empty(batch_size, self.kernel_size, self.dim, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Convolve the last K inputs up to x (N, D)."""
        z = gated(self.inner(x), self.glu)
        y, past = shortconv_step(z, state.past, self.weight)
        return self.out(y), Window(past)
