"""Dropout, residual sum and layer norm of a sublayer, by definition, and the masks of the Triton kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.dropconnect.torch_impl import philox


def residual_norm_reference(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *, eps: float, kept: Tensor | None = None, keep: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute s = x + dropout(y), where dropout(y) is y / keep if kept and else 0, and norm(s), (..., D) each."""
    y = y if kept is None else (y / keep).where(kept, 0.0)
    s = x + y
    return s, F.layer_norm(s, s.shape[-1:], weight, bias, eps)


def kept(seed: Tensor, rows: int, width: int, keep: int) -> Tensor:
    """Draw the kernels' mask (rows, width), True with probability keep / 256; seed is (1,)."""
    # Philox gives four words for a counter, which hold the 16-bit numbers of eight neighboring elements
    counters = -(-width // 8)
    words = philox(seed, torch.arange(rows * counters, device=seed.device))  # (4, rows * counters)
    halves = torch.stack((words & 0xFFFF, words >> 16), -1)  # (4, rows * counters, 2)
    drawn = halves.transpose(0, 1).reshape(rows, -1)  # (rows, 8 * counters)
    return drawn[:, :width] < keep * 256
