"""The full convolution: every output channel reads every input channel of the window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.mixers.past import Window
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive
from seq2seq.network.state import Device, DType


class Conv(SelfMixer[Window]):
    """Full convolution: every output channel reads every input channel of the window.

    y_t = sum_k W_k x_{t+k-left} + b, each W_k of D x D; left = K - 1 (causal) or K // 2.

    As a matrix over positions it is Toeplitz, with a D x D matrix for each offset. It mixes positions and channels at
    once, so it has no projections.

    Args:
        kernel_size: K taps.

    Cost:
        K D^2 + D parameters, O(T K D^2) time, the last K - 1 inputs as state.

    Reference:
        Gehring et al. 2017, 'Convolutional Sequence to Sequence Learning', here without their gate.
    """

    state_growth = "constant"
    properties = MixingProperties(sparse=True, shares_positions=True, linear=True)

    def __init__(self, *, dim: int, causal: bool, kernel_size: int) -> None:
        super().__init__(dim=dim, causal=causal)
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.weight = nn.Parameter(torch.empty(dim, dim, kernel_size))  # (out, in, K), as conv1d has it
        self.bias = nn.Parameter(torch.zeros(dim))
        # Each output sums D K products: variance 1 for inputs of variance 1
        nn.init.normal_(self.weight, std=(dim * kernel_size) ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero."""
        mask = real_positions(x, mask)
        left = left_padding(self.kernel_size, self.causal)
        values = x.masked_fill(~mask[:, :, None], 0.0).transpose(1, 2)  # (B, D, T)
        values = F.pad(values, (left, self.kernel_size - 1 - left))  # (B, D, T + K - 1)
        return F.conv1d(values, self.weight, self.bias).transpose(1, 2)  # (B, T, D)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        return Window.empty(batch_size, self.kernel_size, self.dim, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Convolve the last K inputs up to x (N, D)."""
        inputs, state = state.appended(x)  # (N, K, D)
        # Taps before channels in both: (N, K D) by (D, K D)
        return F.linear(inputs.flatten(1), self.weight.transpose(1, 2).flatten(1), self.bias), state
