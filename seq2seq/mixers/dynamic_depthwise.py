"""Dynamic depthwise convolution: one kernel for all positions, predicted from the whole sequence (Han et al. 2022)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import tap_inputs
from seq2seq.kernels.dispatch import require_backend
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.batch_norm import BatchNorm
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive
from seq2seq.network.state import Device, DType


class DynamicDepthwise(SelfMixer):
    """Depthwise convolution with kernels predicted from the whole sentence.

    y = W_o DW(z; w(p)), z = GLU(W_i x).

    The kernels are w(p) = V gelu(U p) + w_0 (K x D) with p the mean of z over the sentence's real
    tokens: every position has the same ones, where dynamicconv predicts each position's from that
    position alone. Causal: p_t is the mean of z_1 .. z_t, so kernels change along the sentence. For
    each channel this is a Toeplitz matrix of width K (causal: banded, rows of p_t). U reduces
    the width to D / 4, as published; a GELU stands in place of the published batch norm and ReLU,
    which `batch_norm` brings back.

    Args:
        kernel_size: K taps.
        glu: Gate the input.
        batch_norm: Predict kernels by V relu(BN(U p)), as published. Outputs then depend on the batch in training (see
            `seq2seq.mixers.batch_norm`).
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`); auto takes torch, since each channel of
            each sentence has its own kernel, and the Triton kernel would store a matrix for each. The causal form,
            whose kernels change along the sentence, has no Triton kernel.

    Cost:
        (13 + K) D^2 / 4 + D K + 13 D / 4 parameters; O(T K D + T D^2 + K D^2) time, causal O(T K
        D^2 / 4 + T D^2) with B T K D numbers of memory; the last K - 1 inputs and the sum of all as
        state.

    Reference:
        Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise
        Convolution' (D-DW-Conv, the homogeneous form).
    """

    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        kernel_size: int,
        glu: bool = True,
        batch_norm: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        self.glu = glu
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.backend = require_backend(backend)
        if causal and backend == "triton":
            raise ValueError("backend=triton cannot serve the causal form; choose backend=auto or backend=torch")
        self.properties = MixingProperties(sparse=True, shares_positions=not causal, dynamic=True, linear=not glu)
        # No bias without GLU: weights that do not sum to one would scale it unevenly
        self.inner = glu_input(dim, glu=glu, bias=glu)
        self.out = nn.Linear(dim, dim)
        # Batch norm cancels a bias
        self.squeeze = nn.Linear(dim, max(1, dim // 4), bias=not batch_norm)
        self.weight = nn.Linear(max(1, dim // 4), kernel_size * dim)  # V, w_0
        self.norm = BatchNorm(dim=self.squeeze.out_features) if batch_norm else None
        initialize(self.inner, self.squeeze, self.out)
        # For inputs of unit size V p would start as large as w_0; p is a mean, so it starts smaller
        nn.init.normal_(self.weight.weight, std=(self.weight.in_features * kernel_size) ** -0.5)
        nn.init.normal_(self.weight.bias, std=kernel_size**-0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        z = gated(self.inner(x), self.glu).masked_fill(~mask[:, :, None], 0.0)
        exact = at_least_float32(z.dtype)  # means in float32 at least
        if not self.causal:
            mean = z.sum(1, dtype=exact) / mask.sum(1, keepdim=True)  # p, (B, D)
            weights = self._weights(mean.to(z.dtype), mask[:, 0])  # every sentence has a first token
            return self.out(self._homogeneous(z, mark_mixing(weights)))
        # Causal: each position has its own p_t, kernels and window; `lightconv` has the same kernels for all positions
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        mean = z.cumsum(1, dtype=exact) / count  # (B, T, D)
        weights = mark_mixing(self._weights(mean.to(z.dtype), mask))  # (B, T, K, D)
        inputs = tap_inputs(z, self.kernel_size, left=self.kernel_size - 1)  # (B, T, K, D)
        return self.out((weights * inputs).sum(2))  # (B, T, D)

    class State(NamedTuple):
        """The gated inputs of the last K - 1 positions, (N, K - 1, D), zeros at first, and the sum of all, (N, D)."""

        past: Tensor
        total: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return zeros for the inputs before the sentence, and for their sum."""
        past = torch.zeros(batch_size, self.kernel_size - 1, self.dim, device=device, dtype=dtype)
        wide = at_least_float32(past.dtype)
        return self.State(past, torch.zeros(batch_size, self.dim, device=device, dtype=wide))

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Predict kernels from all inputs up to x (N, D), and convolve the last K."""
        z = gated(self.inner(x), self.glu).to(state.past.dtype)
        total = state.total + z  # (N, D)
        window = torch.cat([state.past, z[:, None]], 1)  # (N, K, D)
        mean = (total / (position[:, None] + 1)).to(z.dtype)
        weights = self._weights(mean, torch.ones_like(position, dtype=torch.bool))  # (N, K, D)
        return self.out((weights * window).sum(1)), self.State(window[:, 1:], total)

    def _weights(self, mean: Tensor, mask: Tensor) -> Tensor:
        """Predict kernels (..., K, D) from means (..., D); a batch norm counts those where mask (...) is True."""
        squeezed = self.squeeze(mean)
        squeezed = F.gelu(squeezed) if self.norm is None else self.norm(squeezed, mask).relu()
        return self.weight(squeezed).unflatten(-1, (self.kernel_size, self.dim))

    def _homogeneous(self, z: Tensor, weights: Tensor) -> Tensor:
        """Convolve z (B, T, D) with one set of kernels per sentence, (B, K, D); sentences become further channels."""
        channels = z.transpose(0, 1).flatten(1)[None]  # (1, T, B D)
        kernels = weights.transpose(1, 2).flatten(0, 1)  # (B D, K)
        backend = "torch" if self.backend == "auto" else self.backend
        y = lightconv(channels, kernels, causal=False, backend=backend)  # (1, T, B D)
        return y[0].unflatten(1, (-1, self.dim)).transpose(0, 1)  # (B, T, D)
