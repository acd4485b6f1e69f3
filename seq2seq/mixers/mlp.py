"""A learned matrix over positions (MLP-Mixer, ResMLP)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_length, require_positive
from seq2seq.network.state import Cache, Device, DType

# Initial values of a matrix over positions.
STARTS = ("convolution", "mlp_mixer", "resmlp")


class PositionMatrix(nn.Module):
    """Learned matrix over positions.

    y_i = sum_j M_{h(c),ij} z_j, N x N for each of H heads; lower-triangular where causal.

    By default it starts as a random convolution, M_ij = w_{j-i} with independent w_d of standard deviation
    `std` a / (1 + |d|) and a such that the squares of all w_d sum to about std^2. Thus even the output of a short
    sentence starts at about the scale of its input; entries of equal size 1 / sqrt(N) would make it tiny. Rows and
    columns beyond the longest training sentence keep this convolution, so max_len should be about the length of the
    longest sentence.

    The published models start with independent entries from normal distributions: MLP-Mixer with variance 1 / N, cut
    off at two standard deviations, ResMLP with standard deviation 0.02.

    Args:
        num_heads: H.
        max_len: N; longer sequences are a ValueError.
        causal: Keep the lower triangle only.
        std: Scale of y at the start, for z of scale 1 and start "convolution".
        start: "convolution", "mlp_mixer" or "resmlp".
    """

    def __init__(
        self, *, num_heads: int, max_len: int, causal: bool, std: float = 1.0, start: str = "convolution"
    ) -> None:
        super().__init__()
        self.max_len = max_len
        self.causal = causal
        if start not in STARTS:
            raise ValueError(f"start is {start!r}; choose one of {', '.join(STARTS)}")
        if start == "convolution":
            weight = random_convolutions(num_heads, max_len, causal=causal, std=std)
        else:
            weight = torch.empty(num_heads, require_positive(max_len, "max_len"), max_len)
            if start == "resmlp":
                nn.init.normal_(weight, std=0.02)
            else:
                # The cut leaves 0.8796 of the standard deviation, for which jax's lecun_normal makes up
                wider = max_len**-0.5 / 0.87962566103423978
                nn.init.trunc_normal_(weight, std=wider, a=-2 * wider, b=2 * wider)
        self.weight = nn.Parameter(weight)  # (H, N, N)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        """Mix z (B, T, D); padding counts as zero."""
        length = z.shape[1]
        require_length(length, self.max_len)
        weight = self.weight[:, :length, :length]  # (H, T, T)
        return mix_positions(z, mask, weight.tril() if self.causal else weight)

    def empty_state(self, batch_size: int, max_len: int, width: int, **place: Any) -> Past:
        """Allocate a cache of max_len inputs of `width` channels."""
        require_length(max_len, self.max_len)
        return Past(Cache.empty(batch_size, max_len, width, **place))

    def step(self, z: Tensor, past: Cache, position: Tensor) -> Tensor:
        """Append z (N, D) to the past at position (N,), then mix the past by the matrix's row of that position."""
        past.append(z, position)
        slots, visible = past.read(position)  # (B, slots, D), (B, beam, slots)
        sentences, beam, size = visible.shape
        limit = size // beam  # number of positions: each has `beam` adjacent slots
        rows = self.weight[:, position, :limit].view(-1, sentences, beam, limit)  # (H, B, beam, positions)
        # By `expand`, since the ONNX exporter repeats the wrong axis for a beam of dynamic size
        weights = rows[..., None].expand(-1, -1, -1, -1, beam).flatten(3)  # (H, B, beam, slots)
        # Slots of other hypotheses have weight 0
        weights = weights.masked_fill(~visible, 0.0).transpose(0, 1)
        values = slots.unflatten(-1, (self.weight.shape[0], -1)).transpose(1, 2)  # (B, H, slots, R)
        return (weights.to(values.dtype) @ values).transpose(1, 2).reshape(z.shape).to(z.dtype)


def random_convolutions(count: int, max_len: int, *, causal: bool, std: float) -> Tensor:
    """Draw `count` initial matrices of PositionMatrix, (count, N, N), N = max_len."""
    require_positive(max_len, "max_len")
    offset = torch.arange(max_len) - torch.arange(max_len)[:, None]  # j - i
    scale = 1.0 / (1 + torch.arange(1 - max_len, max_len).abs())  # 1 / (1 + |d|), d = 1 - N .. N - 1
    used = scale[:max_len] if causal else scale  # taps that a causal matrix keeps: d <= 0
    # w, (count, 2 N - 1)
    taps = torch.randn(count, 2 * max_len - 1) * scale * (std / used.square().sum().sqrt())
    return taps[:, offset + max_len - 1]


def mix_positions(z: Tensor, mask: Tensor, *factors: Tensor) -> Tensor:
    """Multiply z (B, T, D) along positions by the product of matrices (H, ., .); padding counts as zero."""
    values = z.masked_fill(~mask[:, :, None], 0.0).unflatten(-1, (len(factors[0]), -1))  # (B, T, H, R)
    columns = values.permute(2, 1, 0, 3).flatten(2)  # (H, T, B R): one product per head serves the whole batch
    for factor in reversed(factors):
        columns = factor.to(z.dtype) @ columns
    mixed = columns.unflatten(2, (z.shape[0], -1))  # (H, T, B, R)
    return mixed.permute(2, 1, 0, 3).flatten(-2)  # (B, T, D)


class MLP(SelfMixer[Past]):
    """Learned matrix over positions between projections.

    y = W_o M_h (W_i x), N x N for each of H heads of channels.

    M is any matrix, lower-triangular if causal, and the same for every sentence. It starts as a random convolution, or
    as a published model does. Positions beyond the longest training sentence are untrained (see PositionMatrix).
    Both models were published with one matrix for all channels and without W_i and W_o; MLP-Mixer with two layers over
    positions and a GELU between them.

    Args:
        num_heads: H; must divide dim. The published models have one matrix for all channels, H = 1.
        max_len: N; longer sequences are a ValueError.
        start: M at first: "convolution", "mlp_mixer" or "resmlp". The published ones are for sentences of N tokens;
            outputs of shorter ones start smaller.

    Cost:
        2 D^2 + D + H N^2 parameters, O(T^2 D + T D^2) time, O(T D) state: all inputs.

    Reference:
        Touvron et al. 2021, 'ResMLP: Feedforward networks for image classification with
        data-efficient training'; Tolstikhin et al. 2021, 'MLP-Mixer: An all-MLP Architecture for Vision'.
    """

    properties = MixingProperties(shares_channels=True, linear=True)
    length_arguments = ("max_len",)

    def __init__(self, *, dim: int, causal: bool, num_heads: int, max_len: int, start: str = "convolution") -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.inner = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.positions = PositionMatrix(num_heads=num_heads, max_len=max_len, causal=causal, start=start)
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D); padding counts as zero where positions mix."""
        mask = real_positions(x, mask)
        return self.out(self.positions(self.inner(x), mask))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache; ValueError if it is longer than the matrix."""
        return self.positions.empty_state(batch_size, max_len, self.dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's input, then weight all of the past."""
        return self.out(self.positions.step(self.inner(x), state.past, position)), state
