"""DropConnect masks of a seed in torch operations, bit for bit the same as the Triton kernel's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq.kernels.dropconnect import last_word, significant_digits

LOW = 0xFFFFFFFF  # 32 bits of a number in int64


def keep_words(seed: Tensor, size: Sequence[int], keep: int, kernel_size: int) -> Tensor:
    """Draw int32 words of `size` whose bits are 1 with probability keep / 256, 0 after K; seed is (1,)."""
    i = torch.arange(math.prod(size), device=seed.device)
    drawn = torch.cat((philox(seed, 2 * i), philox(seed, 2 * i + 1)))  # (8, words), the last digit's first
    digits = significant_digits(keep)
    words = torch.zeros_like(i)
    for row, digit in zip(drawn[-len(digits) :], digits, strict=True):
        words = words | row if digit else words & row
    words = words.view(*size)
    words[..., -1] &= last_word(kernel_size)
    # int32 has two's complement: bit 31 is its sign
    return torch.where(words > LOW // 2, words - LOW - 1, words).to(torch.int32)


def philox(seed: Tensor, counter: Tensor) -> Tensor:
    """Draw four random words (4, n) for each counter (n,), as int64, by Philox 4x32-10 (Salmon et al. 2011)."""
    low, high = seed & LOW, seed >> 32 & LOW
    c0, c1, c2, c3 = counter, *[torch.zeros_like(counter)] * 3
    for _ in range(10):
        # Products of 64 bits in signed numbers: shifting and masking gives the upper half
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (b >> 32 & LOW) ^ c1 ^ low, b & LOW
        c2, c3 = (a >> 32 & LOW) ^ c3 ^ high, a & LOW
        low, high = (low + 0x9E3779B9) & LOW, (high + 0xBB67AE85) & LOW
    return torch.stack((c0, c1, c2, c3))
