"""The full convolution, and its grouped, bottleneck, dilated and circular forms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import full_convolution, left_padding
from seq2seq.mixers.past import Window
from seq2seq.mixers.projections import add_bias, initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive
from seq2seq.network.state import Device, DType


class Conv(SelfMixer[Window]):
    """Full convolution: every output channel reads every input channel of the window.

    y_t = sum_k W_k x_{t+r(k-left)} + b, each W_k of D x D; left = K - 1 (causal) or K // 2, dilation r.

    As a matrix over positions it is Toeplitz, with a D x D matrix for each offset. It mixes positions and channels at
    once, so it has no projections. The published layer ends with a gate (GLU), which this one lacks (Gehring et al.
    2017).

    Grouped: each W_k is block diagonal, with a block of its own for each of G groups of neighboring channels. A second
    matrix then mixes the n-th channels of all groups, for each n, so that every output still reads every input
    (interleaved group convolution). With G = D it is a depthwise separable convolution.

    Bottleneck: W_k is C x C, between projections without activation: a matrix of rank C for each offset. Circular:
    t + r (k - left) is taken modulo the length of the sentence, so that its matrix is circulant.

    Args:
        kernel_size: K taps.
        dilation: r, the distance between two taps.
        groups: G; must divide the channels. 1 is the full convolution.
        hidden_dim: C; None is no bottleneck.
        circular: Join the ends of a sentence, encoder only; otherwise zeros surround it.

    Cost:
        K C^2 / G parameters, and C G if grouped, 2 D C with a bottleneck, D as bias; C is D without one. O(T K C^2 / G)
        time, the last r (K - 1) inputs as state.

    Reference:
        Gehring et al. 2017, 'Convolutional Sequence to Sequence Learning'; Zhang et al. 2017,
        'Interleaved Group Convolutions for Deep Neural Networks'; Han et al. 2022, appendix A and B (bottlenecks,
        groups, circular matrix).
    """

    state_growth = "constant"
    properties = MixingProperties(sparse=True, shares_positions=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        kernel_size: int,
        dilation: int = 1,
        groups: int = 1,
        hidden_dim: int | None = None,
        circular: bool = False,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        if causal and circular:
            raise ValueError("circular=true is encoder-only: the start of a sentence would read its end; set it false")
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.dilation = require_positive(dilation, "dilation")
        self.circular = circular
        self.channels = require_positive(dim if hidden_dim is None else hidden_dim, "hidden_dim")  # C
        self.groups = groups
        of = "dim" if hidden_dim is None else "hidden_dim"
        width = require_divisible(self.channels, groups, what="groups", of=of)  # of a group
        # (out, in, K), as conv1d has it
        self.weight = nn.Parameter(torch.empty(self.channels, width, kernel_size))
        self.bias = nn.Parameter(torch.zeros(dim))
        # Each output sums C / G K products: variance 1 for inputs of variance 1
        nn.init.normal_(self.weight, std=(width * kernel_size) ** -0.5)
        self.interleave = nn.Parameter(torch.randn(width, groups, groups) * groups**-0.5) if groups > 1 else None
        self.inner = None if hidden_dim is None else nn.Linear(dim, self.channels, bias=False)
        self.out = None if hidden_dim is None else nn.Linear(self.channels, dim, bias=False)
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero."""
        mask = real_positions(x, mask)
        z = x if self.inner is None else self.inner(x)  # (B, T, C)
        bias = None if self.groups > 1 or self.out is not None else self.bias
        taps = {"dilation": self.dilation, "groups": self.groups}
        if self.circular:
            left = self.dilation * left_padding(self.kernel_size, self.causal)
            right = self.dilation * (self.kernel_size - 1) - left
            # Row t + left of the extended sentence is position t, counted around the real positions
            place = torch.arange(-left, z.shape[1] + right, device=z.device) % mask.sum(1, keepdim=True).clamp(min=1)
            around = z.gather(1, place[:, :, None].expand(-1, -1, self.channels)).transpose(1, 2)
            y = F.conv1d(around, self.weight, bias, **taps).transpose(1, 2)
        else:
            y = full_convolution(z.masked_fill(~mask[:, :, None], 0.0), self.weight, bias, causal=self.causal, **taps)
        return self._project(y) if bias is None else y  # (B, T, D)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        reach = self.dilation * (self.kernel_size - 1) + 1
        return Window.empty(batch_size, reach, self.channels, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Convolve the last K inputs up to x (N, D)."""
        inputs, state = state.appended(x if self.inner is None else self.inner(x))
        inputs = inputs[:, :: self.dilation]  # (N, K, C)
        if self.groups == 1 and self.out is None:
            # Taps before channels in both: (N, K D) by (D, K D)
            return F.linear(inputs.flatten(1), self.weight.transpose(1, 2).flatten(1), self.bias), state
        y = F.conv1d(inputs.transpose(1, 2), self.weight, groups=self.groups)  # (N, C, 1)
        return self._project(y.squeeze(-1)), state

    def _project(self, y: Tensor) -> Tensor:
        """Mix the groups of y (..., C), leave the bottleneck, and add the bias."""
        if self.interleave is not None:
            # Channel n of group g becomes channel n of group e: (..., G, C / G)
            y = torch.einsum("...gn,nge->...en", y.unflatten(-1, (self.groups, -1)), self.interleave.to(y.dtype))
            y = y.flatten(-2)
        y = y if self.out is None else self.out(y)
        return add_bias(y, self.bias)
