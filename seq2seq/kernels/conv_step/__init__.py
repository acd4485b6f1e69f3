"""A decoding step of the convolutions: the last K inputs of every hypothesis, weighted and summed."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.conv_step import torch_impl
from seq2seq.kernels.dispatch import takes_triton
from seq2seq.kernels.precision import without_autocast

OP = "decoding step of a convolution"


def conv_step(
    values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, *, softmax: bool, backend: str = "auto"
) -> Tensor:
    """Compute y_{n,h,r} = sum_k w_{n,h,k} v_{n,h,position_n+k-K+1,r}, with v zero before position 0.

    K rows of the cache are read in place; the cache is neither reordered nor copied. There is no gradient.

    Args:
        values: The cache's slots, (B, H, L, beam, R); slot p mod L has position p, so L is at least K. All must be
            finite: on a CPU, slots that no hypothesis reads are multiplied by zero.
        owner: The beam row that wrote position p of hypothesis n, at p mod M, (N, M); N = B * beam.
        position: The newest position, (N,).
        weights: w, (N or 1, H, K).
        softmax: Take the softmax of the weights over K first.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).

    Returns:
        y (N, H * R).
    """
    # The last axis of the values is the width of one head
    if takes_triton(OP, backend, values, weights, heads=1, taps=weights.shape[2]):
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.conv_step import triton

        return triton.conv_step(values, owner, position, weights, softmax)
    with without_autocast(values):
        return torch_impl.conv_step(values, owner, position, weights, softmax=softmax)
