"""Convolution from source to target: LightConv and DynamicConv in place of attention to the source."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.dropout import dropout
from seq2seq.mixers.memory import Values, shortened_rate
from seq2seq.mixers.projections import merge, projection, split, with_zero_gradient
from seq2seq.network.introspection import mark_mixing
from seq2seq.network.mixer import CrossMixer, require_divisible, require_positive, require_probability
from seq2seq.network.state import NoState


class CrossConvolution(CrossMixer[Values, NoState]):
    """Convolution of the source around the target's position, with normalized kernels per head.

    y_t = W_o sum_k softmax(w_h)_k z_{p + k - K // 2}, z = W_v h, p = min(round(r (t + 1/2) - 1/2), S - 1); w_h is a
    parameter, as LightConv's, or, if predicted, (W x_t)_h, as DynamicConv's.

    The softmax is over all K taps; then taps outside the source meet zeros. A position reads a window of K around the
    line of slope r. Static kernels start as LightConv's. Published within a sequence alone; reading the source is ours.

    Args:
        num_heads: H groups of channels that share a kernel; must divide dim.
        kernel_size: K taps.
        predicted: Predict a kernel at every position.
        rate: r positions of the source for each position of the target; an encoder whose stages shorten the source
            divides it.
        weight_dropout: DropConnect on the normalized kernels: static ones once per forward, predicted
            ones per (b, t, h, k).

    Cost:
        M D + D^2 + H K parameters (D H K in place of H K where predicted), O(T S D) time, since
        kernels are laid out over the source, no state.

    Reference:
        Wu et al. 2019, 'Pay Less Attention with Lightweight and Dynamic Convolutions'.
    """

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        num_heads: int,
        kernel_size: int,
        predicted: bool = False,
        rate: float = 1.0,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        require_divisible(dim, num_heads)
        if rate <= 0:
            raise ValueError(f"rate is {rate}; choose a number above 0, the source positions per target position")
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.rate = rate
        self.weight_dropout = require_probability(weight_dropout, "weight_dropout")
        self.value = projection(memory_dim, dim)
        self.out = projection(dim, dim)
        # A layer that predicts H kernels of K taps, or a parameter with their logits
        self.kernel = projection(dim, num_heads * kernel_size) if predicted else None
        self.weight = None if predicted else nn.Parameter(torch.empty(num_heads, kernel_size))
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)

    shortened_values = staticmethod(shortened_rate)

    def project(self, memory: Tensor, memory_mask: Tensor) -> Values:
        """Compute values of memory (B, S, M)."""
        return Values(split(self.value(memory), self.num_heads), memory_mask)

    def forward(self, x: Tensor, context: Values) -> Tensor:
        """Convolve the source around each position of x (B, T, D)."""
        y = self._read(x, torch.arange(x.shape[1], device=x.device)[None], context)
        return with_zero_gradient(y, x) if self.kernel is None else y

    def introspect(self, x: Tensor, context: Values) -> dict[str, Tensor]:
        """Return the normalized kernels, static ones (H, K) or those that x (B, T, D) predicts, (B, T, H, K)."""
        if self.kernel is None:
            return {"kernels": self._kernels(x)[0, :, 0]}
        return {"predicted kernels": self._kernels(x).transpose(1, 2)}

    def read_weights(self, x: Tensor, context: Values) -> Tensor:
        """Return the kernels over the source, (B, H, T, S); at its ends they sum to less than 1."""
        position = torch.arange(x.shape[1], device=x.device)[None]
        return self._over_source(self._kernels(x), position, context.mask)

    def step(self, x: Tensor, context: Values, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Convolve the source around one position; a sentence's hypotheses share its values."""
        folded = x.view(context.mask.shape[0], -1, self.dim)  # (B, beam, D)
        y = self._read(folded, position.view(folded.shape[:2]), context)
        return y.flatten(0, 1), NoState()

    def _read(self, x: Tensor, position: Tensor, context: Values) -> Tensor:
        """Convolve the source around position (B or 1, n) of x (B, n, D): (B, n, D)."""
        kernels = dropout(mark_mixing(self._kernels(x)), self.weight_dropout, training=self.training)
        weights = self._over_source(kernels, position, context.mask)
        return self.out(merge(weights.to(context.value.dtype) @ context.value))

    def _kernels(self, x: Tensor) -> Tensor:
        """Return the normalized kernels of x (B, n, D), (B, H, n, K); static kernels are (1, H, 1, K)."""
        if self.kernel is None:
            assert self.weight is not None
            return self.weight.softmax(-1)[None, :, None]
        return split(self.kernel(x), self.num_heads).softmax(-1)

    def _over_source(self, kernels: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Lay kernels (B or 1, H, n or 1, K) out over the source, centered for position (B or 1, n): (B, H, n, S)."""
        # In float32 even if torch's default is narrower; the terms 0.5 align the middles of positions
        center = (self.rate * (position.float() + 0.5) - 0.5).round().long()
        # The window does not move past the end of the source
        center = torch.minimum(center, mask.sum(1, keepdim=True) - 1)  # (B, n)
        source = torch.arange(mask.shape[1], device=mask.device)
        tap = source - center[..., None] + self.kernel_size // 2  # (B, n, S)
        outside = (tap < 0) | (tap >= self.kernel_size) | ~mask[:, None]
        tap = tap.clamp(0, self.kernel_size - 1)[:, None].expand(-1, self.num_heads, -1, -1)  # (B, H, n, S)
        kernels = kernels.expand(*tap.shape[:3], -1)
        return kernels.gather(-1, tap).masked_fill(outside[:, None], 0.0)
