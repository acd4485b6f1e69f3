"""Attention with a center and a sharpness per head: the quadratic encoding by which attention is a convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.weights import allow, weigh
from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.dropout import dropout as drop
from seq2seq.kernels.precision import at_least_float32
from seq2seq.kernels.relative_positions import offsets, require_axes, slot_offsets
from seq2seq.mixers.past import Past, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType


class Quadratic(SelfMixer[Past]):
    """Attention by quadratic relative positions, a center and a sharpness per head.

    M_qk = softmax_k(-a |d - c|^2), d = k - q, with a center c and sharpness a per head.

    Up to a constant the scores are the published quadratic encoding, v'r_d with r_d = (|d|^2, d), v = -a (1, -2c). As a
    grows, K heads centered on the taps compute a convolution of width K, with the border repeated outside: any such
    convolution if head_dim = D. With padding="zeros" the softmax is over all whole d, and positions that do not exist
    have values of zero, so that the convolution is padded by zeros (SAME); what a causal row has in its future is lost
    as well. A stride is this convolution with pooling after it. Without content M is static and the same for all
    positions. M is dense, with little weight on far offsets, and shared by a head's channels.

    Centers start from N(0, center_std^2), in the past if causal; sharpness falls geometrically from 1/2 for the first
    head to 1/512 for the last, or from 1 to 1/4 on a grid, whose sides are shorter. Without center_std, centers start
    at the taps of a convolution, sqrt(H) x sqrt(H) of them on a grid, `dilation` apart, and sharpness at 4, where a
    neighbor of the tap has 2% of its weight.

    Args:
        num_heads: H.
        head_dim: Channels of a head (default: D / H); E = H head_dim.
        content: Add (x_q'W_q' + u')W_k x_k / sqrt(head_dim) to the scores; an unbounded product of x_q with r_d is
            left out.
        center_std: Standard deviation of the centers at the start; None puts them at the taps.
        dilation: Distance of neighboring taps; needs center_std=None.
        padding: Outside the sentence, "repeat" its border, or assume "zeros"; these need content=False.
        grid_width: Columns w of a grid, encoder only: position p lies at row p // w, column p % w.
        dropout: Probability of dropping an entry of M; without content, a causal batch shares M.

    Cost:
        2 D E + H (1 + axes) parameters, and 2 D E + E for content; O(T^2 E + T D E) time, O(T E)
        state.

    Reference:
        Cordonnier et al. 2020, 'On the Relationship between Self-Attention and Convolutional
        Layers', section 3.
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        head_dim: int | None = None,
        content: bool = False,
        center_std: float | None = 2.0,
        dilation: int = 1,
        padding: str = "repeat",
        grid_width: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        if head_dim is None:
            head_dim = require_divisible(dim, num_heads)
        if min(num_heads, head_dim) < 1:
            raise ValueError(f"num_heads is {num_heads}, head_dim {head_dim}; choose 1 or more")
        if center_std is not None and center_std < 0:
            raise ValueError(f"center_std is {center_std}; choose a standard deviation, 0 or more")
        if require_positive(dilation, "dilation") > 1 and center_std is not None:
            raise ValueError(
                f"dilation {dilation} spaces the centers evenly, but center_std={center_std} draws them at random; "
                "set center_std to null, or dilation to 1"
            )
        if padding not in ("repeat", "zeros"):
            raise ValueError(f"padding is {padding!r}; choose repeat or zeros")
        if padding == "zeros" and content:
            raise ValueError("padding=zeros needs scores of offsets alone; set content to false, or padding to repeat")
        axes = require_axes(grid_width, causal=causal)
        self.padding = padding
        self.num_heads = num_heads
        self.content = content
        self.grid_width = grid_width
        self.width = num_heads * head_dim  # E
        self.dropout = require_probability(dropout, "attention dropout")
        self.properties = MixingProperties(
            shares_positions=not content, shares_channels=True, dynamic=content, linear=True
        )
        width = self.width
        self.inner = attention_inputs(dim, width, width, width) if content else projection(dim, width)  # q, k, v; or v
        self.out = projection(self.width, dim)
        self.u = nn.Parameter(torch.zeros(num_heads, head_dim)) if content else None
        if center_std is None:
            centers = dilation * _taps(num_heads, axes, causal=causal)
            halvings = torch.full((num_heads,), -2.0)  # 2^2
        else:
            centers = center_std * torch.randn(num_heads, axes)
            centers = -centers.abs() if causal else centers
            # sharpness 2^-1 to 2^-9 on a line, 2^0 to 2^-2 on a grid
            halvings = torch.linspace(1.0, 9.0, num_heads) if axes == 1 else torch.linspace(0.0, 2.0, num_heads)
        self.centers = nn.Parameter(centers)  # (H, axes)
        self.log_sharpness = nn.Parameter(-math.log(2.0) * halvings)

    @property
    def sharpness(self) -> Tensor:
        """Return a of each head, (H,); the weights' standard deviation in positions is 1 / sqrt(2 a)."""
        return self.log_sharpness.exp()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        *query_key, v = (split(part, self.num_heads) for part in self.inner(x).split(self.width, -1))
        position = torch.arange(x.shape[1], device=x.device)  # (T,)
        scores = self._scores(offsets(position, position, self.grid_width)[:, None])  # (H, T, T)
        allowed = None if self.causal else mask[:, None, None, :]
        return self.out(merge(self._attend([mark_mixing(part) for part in query_key], v, mark_mixing(scores), allowed)))

    def introspect(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the centers, (H,) on a line and (H, 2) on a grid, and the sharpness (H,)."""
        return {"centers": self.centers.squeeze(-1), "sharpness": self.sharpness}

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Fill in grid_width where the settings leave it null."""
        width = values.get("grid_width")
        return {**values, "grid_width": columns if width is None else width}

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of keys and values."""
        width = 2 * self.width if self.content else self.width
        return Past(Cache.empty(batch_size, max_len, width, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's key and value, then attend to the hypothesis's own past."""
        query_key, v, visible = attend_to_past(state.past, self.inner(x), position, self.num_heads)
        _, beam, slots = visible.shape
        scores = self._scores(slot_offsets(position, slots, beam)[:, :, None])  # (B, H, beam, slots)
        y = self._attend(query_key, v, scores, visible[:, None])
        return self.out(merge(y)).view(x.shape[0], -1), state

    def _attend(self, query_key: list[Tensor], v: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Mix values (B, H, S, d) by scores (..., H, T, S) and, if there are queries and keys, by content."""
        dropout = self.dropout if self.training else 0.0
        causal = self.causal and mask is None  # a step has a mask
        if self.padding == "zeros":
            shares = allow(scores - self._log_total()[:, None, None], mask, causal).exp()
            return drop(shares.to(v.dtype), dropout) @ v
        if self.u is None:
            return weigh(scores, v, mask=mask, causal=causal, dropout=dropout)
        q, k = query_key
        q = (q + mark_mixing(self.u)[:, None]).to(k.dtype)
        return attention(q, k, v, bias=scores, mask=mask, causal=causal, dropout=dropout)

    def _scores(self, offset: Tensor) -> Tensor:
        """Compute -a |d - c|^2 of d (axes, ..., 1, T, S): (..., H, T, S), in float32 at least, as d^2 is large."""
        dtype = at_least_float32(self.centers.dtype)
        centers = self.centers.to(dtype)
        sharpness = self.sharpness.to(dtype)
        # (axes, ..., H, T, S)
        distance = offset - centers.T.view(-1, *[1] * (offset.dim() - 4), self.num_heads, 1, 1)
        return -sharpness[:, None, None] * distance.square().sum(0)

    def _log_total(self) -> Tensor:
        """Compute log sum_d exp(-a |d - c|^2) over all whole d, (H,): a sum for each axis, the faster of two series."""
        dtype = at_least_float32(self.centers.dtype)
        centers = self.centers.to(dtype)
        a = self.sharpness.to(dtype)[:, None, None]  # (H, 1, 1)
        n = torch.arange(-4, 5, device=centers.device, dtype=dtype)
        near = (-a * (n - (centers - centers.round())[..., None]).square()).logsumexp(-1)  # (H, axes)
        # Poisson's sum, sqrt(pi / a) sum_n exp(-pi^2 n^2 / a) cos(2 pi n c): each series has its largest a or least
        waves = (-(math.pi * n).square() / a).exp() * (2 * math.pi * n * centers[..., None]).cos()
        far = ((math.pi / a[..., 0]).sqrt() * waves.sum(-1)).log()
        return torch.where(a[..., 0] > math.pi, near, far).sum(-1)


def _taps(count: int, axes: int, *, causal: bool) -> Tensor:
    """Return the offsets of a convolution's `count` taps, on a grid in a square: (count, axes)."""
    side = count if axes == 1 else math.isqrt(count)
    if side**axes != count:
        raise ValueError(
            f"num_heads is {count}, but a grid needs a square number; choose {side**2} or {(side + 1) ** 2}"
        )
    line = torch.arange(side).float() - left_padding(side, causal)
    return torch.cartesian_prod(*[line] * axes).view(count, axes)
