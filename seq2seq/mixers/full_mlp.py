"""One fully connected layer over all positions and channels of a sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.mixers.mlp import random_convolutions
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_length, require_positive
from seq2seq.network.state import Cache, Device, DType

# Maximum number of weights over positions and channels of a layer: half a GiB in float32.
LIMIT = 2**27


class FullMLP(SelfMixer[Past]):
    """Fully connected layer over all positions and channels together.

    y_i = W_o sum_j M_ij W_i x_j, with a C x C matrix M_ij for each pair of N x N positions.

    Every other static mixer is a special case: convolutions share M along diagonals, and `mlp` has a multiple of the
    identity in each M_ij. It has at most 2^27 weights, so sizes are small. It starts as a full convolution, which
    positions beyond the longest training sentence remain.

    Args:
        max_len: N; longer sequences are a ValueError.
        hidden_dim: C channels, between projections; dim if None.

    Cost:
        2 D C + D + N^2 C^2 parameters, O(T^2 C^2 + T C D) time, O(T C) state: all inputs.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (the fully connected layer from which their relation graph starts).
    """

    properties = MixingProperties(linear=True)
    length_arguments = ("max_len",)

    def __init__(self, *, dim: int, causal: bool, max_len: int, hidden_dim: int | None = None) -> None:
        super().__init__(dim=dim, causal=causal)
        width = require_positive(dim if hidden_dim is None else hidden_dim, "hidden_dim")  # C
        count = (require_positive(max_len, "max_len") * width) ** 2
        if count > LIMIT:
            raise ValueError(
                f"max_len {max_len} and hidden_dim {width} make {count:,} weights, more than {LIMIT:,}: "
                f"choose max_len up to {int(LIMIT**0.5) // width}, or a smaller hidden_dim"
            )
        self.max_len = max_len
        self.hidden_dim = width
        self.inner = nn.Linear(dim, width, bias=False)
        self.out = nn.Linear(width, dim)
        initialize(self.inner, self.out)
        # Each output sums products with C channels
        taps = random_convolutions(width * width, max_len, causal=causal, std=width**-0.5)  # (C^2, N, N)
        self.weight = nn.Parameter(taps.unflatten(0, (width, width)).permute(2, 0, 3, 1).contiguous())  # (N, C, N, C)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D); padding counts as zero where positions mix."""
        mask = real_positions(x, mask)
        length = x.shape[1]
        require_length(length, self.max_len)
        z = self.inner(x).masked_fill(~mask[:, :, None], 0.0)  # (B, T, C)
        weight = self.weight[:length, :, :length]  # (T, C, T, C)
        if self.causal:
            past = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            weight = weight * past[:, None, :, None]
        matrix = weight.flatten(2).flatten(0, 1).to(z.dtype)  # (T C, T C)
        return self.out((z.flatten(1) @ matrix.t()).view_as(z))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache; ValueError if there are fewer weights than positions."""
        require_length(max_len, self.max_len)
        return Past(Cache.empty(batch_size, max_len, self.hidden_dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's input, then multiply all of the past by this position's weights."""
        z = self.inner(x)  # (N, C)
        state.past.append(z, position)
        slots, visible = state.past.read(position)  # (B, slots, C), (B, beam, slots)
        sentences, beam, size = visible.shape
        # Only the hypothesis's own slot of each position counts: (N, positions, C)
        own = visible.reshape(sentences, beam, -1, beam, 1).to(slots)
        past = (own * slots.view(sentences, 1, -1, beam, self.hidden_dim)).sum(3).flatten(0, 1)
        rows = self.weight[position, :, : size // beam].to(past.dtype)  # (N, C, positions, C)
        y = (rows.flatten(2) @ past.flatten(1)[..., None]).squeeze(-1)  # (N, C)
        return self.out(y.to(z.dtype)), state
