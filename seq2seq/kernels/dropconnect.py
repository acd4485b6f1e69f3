"""DropConnect masks as packed words, so that every twin of a kernel drops exactly the same weights.

A kernel of K taps is ceil(K / 32) int32 words; bit k % 32 of word k // 32 is 1 where tap k is kept.
The keep probability is rounded to 1/256 once, here, and everything scales by the rounded value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def keep_probability(drop: float) -> float:
    """1 - drop rounded to 1/256 (never 0)."""
    return max(round((1.0 - drop) * 256), 1) / 256


def keep_words(shape: Sequence[int], kernel_size: int, drop: float, *, device: torch.device | None = None) -> Tensor:
    """Draw a mask for kernels of `shape`: int32 words (*shape, ceil(K / 32)) whose bits are 1 with keep_probability."""
    highest = int(keep_probability(drop) * 256) - 1  # uint8 has no 256 to compare with
    return pack(random_bytes((*shape, kernel_size), device=device) <= highest)


def random_bytes(shape: Sequence[int], *, device: torch.device | None = None) -> Tensor:
    """Uniform bytes, uint8, from torch's default generator.

    On a CPU, whose drawing is slow, eight bytes are made of each 64-bit draw; a compiled graph draws bytes itself.
    """
    size = torch.Size(shape)
    if torch.compiler.is_compiling() or (device is not None and device.type != "cpu"):
        return torch.randint(0, 256, size, dtype=torch.uint8, device=device)
    count = size.numel()
    draws = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)  # type: ignore[arg-type]
    return draws.view(torch.uint8)[:count].view(size)


def pack(keep: Tensor) -> Tensor:
    """Boolean (..., K) -> int32 words (..., ceil(K / 32)); the bits after K are 0."""
    words = -(-keep.shape[-1] // 32)
    padded = torch.nn.functional.pad(keep, (0, words * 32 - keep.shape[-1]))
    bits = padded.unflatten(-1, (words, 32)).to(torch.int64)
    total = (bits << torch.arange(32, device=keep.device)).sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def unpack(words: Tensor, kernel_size: int) -> Tensor:
    """int32 words (..., ceil(K / 32)) -> boolean (..., K)."""
    bits = (words[..., None] >> torch.arange(32, device=words.device, dtype=torch.int32)) & 1
    return bits.flatten(-2)[..., :kernel_size].bool()


def drop_weights(weights: Tensor, keep: Tensor | None, keep_prob: float) -> Tensor:
    """weights (..., K) where kept, scaled by 1 / keep_prob, else 0; unchanged where keep is None."""
    if keep is None:
        return weights
    return torch.where(unpack(keep, weights.shape[-1]), weights / keep_prob, 0.0)
