"""Learned weights over a window, not shared between positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import band_conv, left_padding
from seq2seq.kernels.dispatch import require_backend
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_length, require_positive
from seq2seq.network.state import Cache, Device, DType


class LocalMLP(SelfMixer[Past]):
    """Learned weights over a window, a set of them for each position.

    y_i = W_o sum_k M_{h(c),i,k} z_{i+k-l}, z = W_i x, l = w // 2, or w - 1 when causal.

    An `mlp` whose matrix is zero outside a band, or a convolution with a kernel of its own at each position. M is
    static, sparse, and shared by the D / H channels of a head. It starts as a convolution, and stays one at positions
    beyond the longest training sentence.

    Args:
        window: w positions.
        max_len: N; longer sequences are a ValueError.
        backend: "auto", "triton" or "torch" in decoding (see `seq2seq.kernels.dispatch`).

    Cost:
        2 D^2 + D + H N w parameters, O(T w D + T D^2) time, the last w inputs as state.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (local MLP); LeCun et al. 1989 (locally connected layers).
    """

    properties = MixingProperties(sparse=True, shares_channels=True, linear=True)
    length_arguments = ("max_len",)
    state_growth = "constant"

    def __init__(
        self, *, dim: int, causal: bool, num_heads: int, window: int, max_len: int, backend: str = "auto"
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.window = require_positive(window, "window")
        self.max_len = require_positive(max_len, "max_len")
        self.backend = require_backend(backend)
        if not causal and backend == "triton":
            raise ValueError("backend=triton supports decoding only; choose backend=auto or backend=torch")
        self.inner = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        initialize(self.inner, self.out)
        # Each output sums w products: variance 1 for inputs of variance 1
        kernel = torch.randn(num_heads, 1, window) * window**-0.5
        self.weight = nn.Parameter(kernel.repeat(1, max_len, 1))  # (H, N, w)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D); padding counts as zero where positions mix."""
        mask = real_positions(x, mask)
        length = x.shape[1]
        require_length(length, self.max_len)
        z = self.inner(x).masked_fill(~mask[:, :, None], 0.0).unflatten(-1, (self.num_heads, -1))  # (B, T, H, R)
        y = band_conv(z, self.weight[None, :, :length], left=left_padding(self.window, self.causal))
        return self.out(y.flatten(2))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache; ValueError if there are fewer sets of weights than positions."""
        require_length(max_len, self.max_len)
        past = Cache.empty(batch_size, self.window, self.dim, heads=self.num_heads, device=device, dtype=dtype)
        return Past(past)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's input, then weight the last w inputs by this position's weights."""
        z = self.inner(x)  # (N, D)
        state.past.append(z, position)
        weights = self.weight[:, position].transpose(0, 1).to(z.dtype)  # (N, H, w)
        return self.out(state.past.convolve(weights, position, softmax=False, backend=self.backend)), state
