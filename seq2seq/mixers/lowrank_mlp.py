"""A learned low-rank matrix over positions, or over positions and channels."""

from __future__ import annotations

import torch
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

    At position j = 0, 1, ... the variance of B starts in proportion to 1 / (1 + j), so that the output hardly grows
    with the length. Positions beyond the longest training sentence keep these weights.

    Args:
        max_len: N; longer sequences are a ValueError.
        rank: r slots.
        mix_channels: Use one matrix over positions and channels, without heads.

    Cost:
        2 D^2 + D + 2 H N r parameters; O(T r D + T D^2) time, causal O(T^2 D + T D^2); r D numbers
        of state. With `mix_channels` 2 D^2 + D + 2 N D r parameters, r numbers of state.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (low-rank MLP, appendix B).
    """

    length_arguments = ("max_len",)
    state_growth = "constant"

    def __init__(
        self, *, dim: int, causal: bool, num_heads: int, max_len: int, rank: int = 16, mix_channels: bool = False
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.num_heads = num_heads
        self.mix_channels = mix_channels
        self.properties = MixingProperties(shares_channels=not mix_channels, linear=True)
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
            y = torch.einsum("btr,tdr->btd", slots.to(z.dtype).expand_as(read), self.write[:length].to(z.dtype))
            return self.out(y)
        write = self.write[:, :length]  # (H, T, r)
        read = self.read[:, :, :length]  # (H, r, T)
        factors = ((write @ read).tril(),) if self.causal else (write, read)
        return self.out(mix_positions(self.inner(x), mask, *factors))

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
            y = (self.write[position].to(total) @ total[..., None]).squeeze(-1)  # (N, D)
            return self.out(y.to(z.dtype)), Sums(total)
        values = z.unflatten(-1, (self.num_heads, 1, -1))  # (N, H, 1, R)
        read = self.read[:, :, position].permute(2, 0, 1)  # (N, H, r)
        write = self.write[:, position].transpose(0, 1)  # (N, H, r)
        slots = state.total + read[..., None].to(state.total) * values.to(state.total)  # (N, H, r, R)
        y = (write[:, :, None].to(slots) @ slots).flatten(1)  # (N, D)
        return self.out(y.to(z.dtype)), Sums(slots)
