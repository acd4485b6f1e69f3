"""Depthwise convolutions of several widths side by side, weighted by learned gates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.dispatch import require_backend
from seq2seq.kernels.dropconnect import keep_probability, keep_words_or_none
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.shortconv import shortconv_step
from seq2seq.mixers.past import Window
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_probability
from seq2seq.network.state import Device, DType


class Multiscale(SelfMixer[Window]):
    """Depthwise convolutions of several widths, weighed by gates.

    y = W_o sum_s softmax(g_c)_s DW_s(z), z = GLU(W_i x).

    The gates choose among scales for each channel. They are parameters and do not depend on the input, so the sum is
    computed as one depthwise convolution of the widest K: for each channel a Toeplitz matrix whose taps near the center
    belong to every scale. Published gates see the input (Li et al. 2019), or there is one for each scale of a layer
    (Zhao et al. 2019).

    Args:
        kernel_sizes: Widths K_1 ... K_S of the S scales.
        glu: Gate the input.
        weight_dropout: Probability of dropping a tap of the sum of all scales (DropConnect), 0 <= p < 1.

    Cost:
        3 D^2 + D (sum K_s + S + 3) parameters, O(T K D + T D^2) time, the last K - 1 inputs as
        state.

    Reference:
        Li et al. 2019, 'Selective Kernel Networks'; Zhao et al. 2019, 'MUSE: Parallel Multi-Scale
        Attention for Sequence to Sequence Learning'.
    """

    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        kernel_sizes: Sequence[int],
        glu: bool = True,
        weight_dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        if not kernel_sizes or min(kernel_sizes) < 1:
            raise ValueError(f"kernel_sizes is {list(kernel_sizes)}; list one width or more, each 1 or more")
        self.kernel_sizes = list(kernel_sizes)
        self.kernel_size = max(kernel_sizes)
        self.glu = glu
        self.weight_dropout = require_probability(weight_dropout, "weight_dropout")
        self.backend = require_backend(backend)
        self.properties = MixingProperties(sparse=True, shares_positions=True, linear=not glu)
        # No bias without GLU: weights that do not sum to one would scale it unevenly
        self.inner = glu_input(dim, glu=glu, bias=glu)
        self.out = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.empty(dim, sum(kernel_sizes)))  # the scales side by side
        self.gate = nn.Parameter(torch.zeros(dim, len(kernel_sizes)))  # g; zeros: even gates at first
        for size, part in zip(kernel_sizes, self.weight.detach().split(self.kernel_sizes, 1), strict=True):
            nn.init.normal_(part, std=(len(kernel_sizes) / size) ** 0.5)  # with even gates their sum has variance 1
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        # DropConnect: one mask for the D kernels, drawn here so that all backends drop the same taps
        drop = self.weight_dropout if self.training else 0.0
        keep = keep_words_or_none((self.dim,), self.kernel_size, drop, device=x.device, backend=self.backend)
        y = lightconv(
            self.inner(x),
            self.merged(),  # one convolution, however many scales
            causal=self.causal,
            glu=self.glu,
            keep=keep,
            keep_prob=keep_probability(self.weight_dropout),
            end=mask.sum(1),  # the convolution zeroes padding itself
            backend=self.backend,
        )
        return self.out(y)

    def merged(self) -> Tensor:
        """Return the gated sum of all scales as one kernel (D, K) of the widest."""
        total = self.weight.new_zeros(self.dim, self.kernel_size)
        parts = self.weight.split(self.kernel_sizes, 1)  # (D, K_s) each
        for part, gate in zip(parts, self.gate.softmax(1).unbind(1), strict=True):
            size = part.shape[1]
            # Aligned at the current position, not at the edges
            before = left_padding(self.kernel_size, self.causal) - left_padding(size, self.causal)
            total = total + F.pad(gate[:, None] * part, (before, self.kernel_size - size - before))
        return total

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        return Window.empty(batch_size, self.kernel_size, self.dim, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Convolve the last K inputs up to x (N, D)."""
        z = gated(self.inner(x), self.glu)
        y, past = shortconv_step(z, state.past, self.merged())
        return self.out(y), Window(past)
