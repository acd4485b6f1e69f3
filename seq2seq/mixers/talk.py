"""Time-aware large kernel convolution: the mean of a window whose size each position predicts (TaLK)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.past import Window
from seq2seq.mixers.projections import gated, glu_input
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible
from seq2seq.network.state import Device, DType
from seq2seq.network.weight_blocks import in_blocks


class TaLK(SelfMixer[Window]):
    """Means of windows whose size each position predicts.

    y = W_o s, s_t = (z_{t-l} + ... + z_{t+r}) / K, z = GLU(W_i x).

    [l, r] = sigmoid(U z_t)_h [L, R]: each position predicts for each of H heads how far its window reaches, at most
    L = K // 2 to the left and R = K - 1 - L to the right; causal, L = K - 1 and r = 0. Sizes are real numbers, so that
    they have gradients: the last position on either side has a fraction of the weight, to the left
    M_ij = min(1, max(0, 1 + l_i - (i - j))) / K. Sums are differences of prefix sums, so cost does not grow with K.
    As published, the divisor is the largest window K. Published with a reach set for each side (K = 2 l + 1, causal
    l + 1), and with dropout of the predicted sizes, which this class lacks.

    Args:
        kernel_size: K, the largest window.
        glu: Gate the input.

    Cost:
        3 D^2 + 3 D + 2 (D + 1) H parameters (causal (D + 1) H), O(T D^2) time, the last K - 1
        inputs as state.

    Reference:
        Lioutas & Guo 2020, 'Time-aware Large Kernel Convolutions'.
    """

    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, num_heads: int, kernel_size: int, glu: bool = True) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        if kernel_size < 2:
            raise ValueError(
                f"kernel_size is {kernel_size}; choose 2 or more, so that the mixer can choose among sizes"
            )
        self.num_heads = num_heads
        self.glu = glu
        self.kernel_size = kernel_size
        self.left = left_padding(kernel_size, causal)
        self.right = kernel_size - 1 - self.left
        self.properties = MixingProperties(sparse=True, shares_channels=True, dynamic=True, linear=not glu)
        # No bias without GLU: weights that do not sum to one would scale it unevenly
        self.inner = glu_input(dim, glu=glu, bias=glu)
        self.out = nn.Linear(dim, dim)
        # A size for each side to which the window can reach
        sides = [num_heads] * ((self.left > 0) + (self.right > 0))
        self.size = in_blocks(nn.Linear(dim, sum(sides)), *sides)
        for weight in (self.inner.weight, *self.size.weight.split(sides), self.out.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.inner, self.size, self.out):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum windows of x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        z = gated(self.inner(x), self.glu)  # (B, T, D)
        left, right = self._sizes(mark_mixing(z))  # (B, T, H)
        z = z.masked_fill(~mask[:, :, None], 0.0).unflatten(-1, (self.num_heads, -1))  # (B, T, H, R)
        sums = z.cumsum(1, dtype=at_least_float32(z.dtype))
        sums = F.pad(sums, (0, 0, 0, 0, 1, 0))  # (B, T + 1, H, R): at t, the sum before t
        start = torch.arange(x.shape[1], device=x.device)[:, None]
        # Sum of the window: prefix sum after its right end, less that before its left end
        high = sums[:, 1:] if right is None else _between(sums, start + 1, right, 1)
        y = (high - _between(sums, start, left, -1)) / self.kernel_size
        return self.out(y.flatten(-2).to(z.dtype))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Window:
        """Return zeros for the inputs before the sentence."""
        return Window.empty(batch_size, self.kernel_size, self.dim, device, dtype)

    def step(self, x: Tensor, state: Window, position: Tensor) -> tuple[Tensor, Window]:
        """Sum the last K inputs up to x (N, D), each weighted by its fraction in the window."""
        z = gated(self.inner(x), self.glu).to(state.past.dtype)
        inputs, state = state.appended(z)  # (N, K, D)
        distance = torch.arange(self.kernel_size - 1, -1, -1, device=x.device)  # K - 1 .. 0
        covered = (1 + self._sizes(z)[0][..., None] - distance).clamp(0, 1)  # (N, H, K)
        heads = inputs.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (N, H, K, R)
        y = (covered[:, :, None].to(heads.dtype) @ heads).flatten(1) / self.kernel_size
        return self.out(y), state

    def _sizes(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Predict how far the windows of z (..., D) reach left and right, (..., H); None if they never reach right."""
        sizes = self.size(z)
        share = sizes.to(at_least_float32(sizes.dtype)).sigmoid()
        if not self.right:
            return share * self.left, None
        left, right = share.chunk(2, -1)
        return left * self.left, right * self.right


def _between(sums: Tensor, start: Tensor, size: Tensor, sign: int) -> Tensor:
    """Read sums (B, T + 1, H, R) at start (T, 1) + sign size (B, T, H), linear between positions: (B, T, H, R)."""
    # The whole part is an index, without a gradient; the fraction carries the gradient
    whole = size.detach().floor()
    near = start + sign * whole.long()  # (B, T, H)
    fraction = (size - whole)[..., None]
    one, other = (_at(sums, index) for index in (near, near + sign))
    return one + fraction * (other - one)


def _at(sums: Tensor, index: Tensor) -> Tensor:
    """Gather sums (B, T + 1, H, R) at index (B, T, H); beyond an end, prefix sums do not change."""
    index = index.clamp(0, sums.shape[1] - 1)[..., None]
    return sums.gather(1, index.expand(*index.shape[:-1], sums.shape[-1]))
