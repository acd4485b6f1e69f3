"""A decoding step of the convolutions: the last K inputs of every hypothesis, weighted and summed."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.conv_step import torch_impl
from seq2seq.kernels.dispatch import is_plain, takes_triton
from seq2seq.kernels.operation import Operation

OP = "decoding step of a convolution"


def conv_step(
    values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, *, softmax: bool, backend: str = "auto"
) -> Tensor:
    """Compute y_{n,h,r} = sum_k w_{n,h,k} v_{n,h,position_n+k-K+1,r}, with v zero before position 0.

    It reads K rows of the cache in place, without reordering or copying it. It has no gradient.

    Args:
        values: The cache's slots, (B, H, L, beam, R); slot p mod L has position p, so that L is K or more. All are
            finite: on a CPU slots that no hypothesis reads are multiplied by zero.
        owner: Which of its sentence's beam rows wrote hypothesis n's position p, at p mod M, (N, M).
        position: The newest position, (N,).
        weights: w, (N or 1, H, K).
        softmax: Take the softmax of the weights over K first.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).

    Returns:
        y (N, H * R).
    """
    _check(values, owner, position, weights)
    if is_plain(OP, backend, values):
        return torch_impl.conv_step(values, owner, position, weights, softmax=softmax)
    return _conv_step(values, owner, position, weights, softmax, backend)


def _check(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor) -> None:
    rows = values.shape[0] * values.shape[3] if values.dim() == 5 else -1  # N = B * beam
    fits = owner.dim() == 2 and len(owner) == rows and position.shape == (rows,) and weights.dim() == 3
    if not fits or weights.shape[0] not in (1, rows) or values.shape[1] != weights.shape[1]:
        raise ValueError(
            f"values {tuple(values.shape)}, owner {tuple(owner.shape)}, position {tuple(position.shape)} and weights "
            f"{tuple(weights.shape)} are not (B, H, L, beam, R), (B beam, M), (B beam,), (B beam or 1, H, K)"
        )


def _compute(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, softmax: bool, backend: str) -> Tensor:
    heads, taps = weights.shape[1:]
    if takes_triton(OP, backend, values, weights, heads=heads, taps=taps):
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.conv_step import triton

        return triton.conv_step(values, owner, position, weights, softmax)
    # An operator computes in the types that it gets, under autocast too
    with torch.autocast(values.device.type, enabled=False):
        return torch_impl.conv_step(values, owner, position, weights, softmax=softmax)


def _fake(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, softmax: bool, backend: str) -> Tensor:
    return values.new_empty((owner.shape[0], values.shape[1] * values.shape[4]))  # y (N, H * R)


_conv_step = Operation("conv_step", _compute, fake=_fake)
