"""The dropout masks of the Triton kernels in torch operations: the same bits of the same seed."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.dropconnect.torch_impl import philox


def kept(seed: Tensor, rows: int, width: int, keep: int) -> Tensor:
    """Draw a mask (rows, width) that is True with probability keep / 256; seed is (1,)."""
    # Philox gives four words for a counter: the numbers of eight neighbors, 16 bits each
    counters = -(-width // 8)
    words = philox(seed, torch.arange(rows * counters, device=seed.device))  # (4, rows * counters)
    halves = torch.stack((words & 0xFFFF, words >> 16), -1)  # (4, rows * counters, 2)
    drawn = halves.transpose(0, 1).reshape(rows, -1)  # (rows, 8 * counters)
    return drawn[:, :width] < keep * 256
