"""A learned low-rank matrix over positions, or over positions and channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.mlp import mix_positions
from seq2seq.mixers.past import Sums
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_length, require_positive
from seq2seq.network.state import Device, DType


class LowRankMLP(SelfMixer[Sums]):
    """Learned matrix of low rank over positions, or over positions and channels, between projections.

    y = W_o M_h (W_i x), M_h = A_h B_h, A (N x r) and B (r x N) for each of H heads of channels.

    B mixes positions into r slots, A mixes the slots into positions: an `mlp` with fewer parameters, or a static
    `lowrank`. Causal: the lower triangle of A B, so that at position t a slot holds positions up to t.

    With `mix_channels` the matrix is over positions and channels together, y_i = W_o A_i sum_j B_j W_i x_j, A_i (D x r)
    and B_j (r x D): a `full_mlp` of rank r. Causal: the sum ends at i.

    With `nonlinear`, y = W_o A_h GELU(B_h W_i x): MLP-Mixer's MLP over positions, without its biases, is H = 1.

    At position j = 0, 1, ... the variance of B starts in proportion to 1 / (1 + j), so that the output hardly grows
    with the length. Positions beyond the longest training sentence keep these weights.

    Args:
        max_len: N; longer sequences are a ValueError.
        rank: r slots.
        mix_channels: Use one matrix over positions and channels, without heads.
        nonlinear: Apply GELU to the slots. A causal layer then holds the slots of all positions, T r D numbers.

    Cost:
        2 D^2 + D + 2 H N r parameters; O(T r D + T D^2) time, causal and linear O(T^2 D + T D^2);
        r D numbers of state. With `mix_channels` 2 D^2 + D + 2 N D r parameters, r numbers of state.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (low-rank MLP, appendix B); Tolstikhin et al. 2021, 'MLP-Mixer: An all-MLP
        Architecture for Vision' (two layers over positions).
    """

    length_arguments = ("max_len",)
    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        max_len: int,
        rank: int = 16,
        mix_channels: bool = False,
        nonlinear: bool = False,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.mix_channels = mix_channels
        self.nonlinear = nonlinear
        linear = MixingProperties(shares_channels=not mix_channels, linear=True)
        # The derivative of GELU is a factor that depends on x and on the channel
        self.properties = MixingProperties(dynamic=True) if nonlinear else linear
        self.max_len = require_positive(max_len, "max_len")
        self.rank = require_positive(rank, "rank")
        self.inner = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        initialize(self.inner, self.out)
        # The variances of a row sum to one, in A and in B
        variance = 1.0 / (1 + torch.arange(max_len))
        scale = (variance / variance.sum()).sqrt()
        if mix_channels:
            # A slot sums products with all channels, too
            self.read = nn.Parameter(torch.randn(max_len, rank, dim) * scale[:, None, None] * dim**-0.5)  # B
            self.write = nn.Parameter(torch.randn(max_len, dim, rank) * rank**-0.5)  # A
        else:
            self.read = nn.Parameter(torch.randn(num_heads, rank, max_len) * scale)  # B
            self.write = nn.Parameter(torch.randn(num_heads, max_len, rank) * rank**-0.5)  # A

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D); padding counts as zero where positions mix."""
        mask = real_positions(x, mask)
        length = x.shape[1]
        require_length(length, self.max_len)
        if self.mix_channels:
            z = self.inner(x).masked_fill(~mask[:, :, None], 0.0)
            read = torch.einsum("btd,trd->btr", z, self.read[:length].to(z.dtype)).to(at_least_float32(z.dtype))
            slots = read.cumsum(1) if self.causal else read.sum(1, keepdim=True)  # (B, T or 1, r)
            slots = self._activated(slots.to(z.dtype)).expand_as(read)
            return self.out(torch.einsum("btr,tdr->btd", slots, self.write[:length].to(z.dtype)))
        write = self.write[:, :length]  # (H, T, r)
        read = self.read[:, :, :length]  # (H, r, T)
        if not self.nonlinear:
            factors = ((write @ read).tril(),) if self.causal else (write, read)
            return self.out(mix_positions(self.inner(x), mask, *factors))
        z = self.inner(x).masked_fill(~mask[:, :, None], 0.0).unflatten(-1, (self.num_heads, -1))  # (B, T, H, R)
        if self.causal:
            products = torch.einsum("bthc,hrt->bthrc", z, read.to(z.dtype)).to(at_least_float32(z.dtype))
            slots = products.cumsum(1).to(z.dtype)  # (B, T, H, r, R)
            y = torch.einsum("bthrc,htr->bthc", self._activated(slots), write.to(z.dtype))
        else:
            slots = torch.einsum("bthc,hrt->bhrc", z, read.to(z.dtype))
            y = torch.einsum("bhrc,htr->bthc", self._activated(slots), write.to(z.dtype))
        return self.out(y.flatten(2))

    def _activated(self, slots: Tensor) -> Tensor:
        return F.gelu(slots) if self.nonlinear else slots

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Sums:
        """Return empty slots, (N, H, r, D / H), or (N, r) if channels are mixed."""
        require_length(max_len, self.max_len)
        heads = (self.num_heads, self.rank, self.dim // self.num_heads)
        sizes = (self.rank,) if self.mix_channels else heads
        return Sums.empty(batch_size, *sizes, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
        """Add this position's input to the slots by its column of B, then mix them by its row of A."""
        z = self.inner(x)
        if self.mix_channels:
            total = state.total
            total = total + (self.read[position].to(total) @ z.to(total)[..., None]).squeeze(-1)  # (N, r)
            y = (self.write[position].to(total) @ self._activated(total)[..., None]).squeeze(-1)  # (N, D)
            return self.out(y.to(z.dtype)), Sums(total)
        values = z.unflatten(-1, (self.num_heads, 1, -1))  # (N, H, 1, R)
        read = self.read[:, :, position].permute(2, 0, 1)  # (N, H, r)
        write = self.write[:, position].transpose(0, 1)  # (N, H, r)
        slots = state.total + read[..., None].to(state.total) * values.to(state.total)  # (N, H, r, R)
        y = (write[:, :, None].to(slots) @ self._activated(slots)).flatten(1)  # (N, D)
        return self.out(y.to(z.dtype)), Sums(slots)
