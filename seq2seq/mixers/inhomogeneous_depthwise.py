"""Dynamic depthwise convolution with a kernel for each position and channel, predicted through a bottleneck."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import left_padding, tap_inputs
from seq2seq.mixers.past import Window
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive
from seq2seq.network.state import Device, DType


class InhomogeneousDepthwise(SelfMixer[Window]):
    """Depthwise convolution with a kernel predicted for each position and channel.

    y_t = W_o sum_k w_{t,k} * z_{t+k-l}, w_t = V gelu(U z_t) + w_0, z = GLU(W_i x).

    Taps begin l = K // 2 positions before t, K - 1 when causal. Each of D channels has its own kernel, while
    `dynamicconv` predicts and normalizes kernels of H heads, and `dynamic_depthwise` predicts the same kernels for all
    positions. The bottleneck of r numbers between U and V saves most of K D^2 weights. M is sparse and dynamic;
    neither positions nor channels share it. Published with groups of channels that share a kernel, and with batch norm
    and ReLU in place of the GELU (Han et al. 2022).

    Args:
        kernel_size: K taps.
        rank: Width r of the bottleneck.
        glu: Gate the input.

    Cost:
        3 D^2 + 3 D + r (D + 1) + (r + 1) K D parameters (without glu 2 D^2 + D in place of 3 D^2 + 3
        D); O(T r K D + T D^2) time with B T K D numbers of memory; the last K - 1 inputs as state.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (I-D-DW-Conv); Wu et al. 2019 (kernels of heads).
    """

    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, kernel_size: int, rank: int = 16, glu: bool = True) -> None:
        super().__init__(dim=dim, causal=causal)
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.rank = require_positive(rank, "rank")
        self.glu = glu
        self.properties = MixingProperties(sparse=True, dynamic=True, linear=not glu)
        # No bias without GLU: weights that do not sum to one would scale it unevenly
        self.inner = glu_input(dim, glu=glu, bias=glu)
        self.out = nn.Linear(dim, dim)
        self.squeeze = nn.Linear(dim, rank)  # U
        self.weight = nn.Linear(rank, kernel_size * dim)  # V, w_0
        initialize(self.inner, self.squeeze, self.out)
        # The predicted part of kernels starts about as large as w_0
        nn.init.normal_(self.weight.weight, std=(rank * kernel_size) ** -0.5)
        nn.init.normal_(self.weight.bias, std=kernel_size**-0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        z = gated(self.inner(x), self.glu).masked_fill(~mask[:, :, None], 0.0)
        weights = mark_mixing(self._weights(z))  # (B, T, K, D)
        inputs = tap_inputs(z, self.kernel_size, left=left_padding(self.kernel_size, self.causal))
        return self.out((weights * inputs).sum(2))  # (B, T, D)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        return Window.empty(batch_size, self.kernel_size, self.dim, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Convolve the last K inputs by the kernels that x (N, D), the newest, predicts."""
        z = gated(self.inner(x), self.glu).to(state.past.dtype)
        inputs, state = state.appended(z)  # (N, K, D)
        return self.out((self._weights(z) * inputs).sum(1)), state

    def _weights(self, z: Tensor) -> Tensor:
        """Predict kernels (..., K, D) from z (..., D)."""
        return self.weight(F.gelu(self.squeeze(z))).unflatten(-1, (self.kernel_size, self.dim))
