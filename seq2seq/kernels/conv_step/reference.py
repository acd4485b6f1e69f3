"""A decoding step of the convolutions by its definition: gather the windows, then weight and sum them."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32


def conv_step_reference(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, *, softmax: bool) -> Tensor:
    """Compute y_{n,h,r} = sum_k w_{n,h,k} v_{n,h,position_n+k-K+1,r}; arguments as `conv_step`'s."""
    if softmax:
        weights = weights.softmax(-1, dtype=at_least_float32(weights.dtype))
    rows = owner.shape[0]  # N
    _, _, slots, beam, _ = values.shape
    taps = weights.shape[-1]
    time = position[:, None] + torch.arange(1 - taps, 1, device=position.device)  # (N, K)
    slot = time.clamp(min=0)  # (N, K); before position 0 any slot will do, because it is zeroed below
    sentence = torch.arange(rows, device=owner.device) // beam  # (N,)
    row = owner.gather(1, slot % owner.shape[1])  # (N, K)
    inputs = values[sentence[:, None], :, slot % slots, row]  # (N, K, H, R)
    inputs = inputs.masked_fill((time < 0)[:, :, None, None], 0.0).transpose(1, 2)  # (N, H, K, R)
    return (weights[:, :, None].to(values.dtype) @ inputs).reshape(rows, -1)  # (N or 1, H, 1, K) @ (N, H, K, R)
