"""DropConnect masks as packed words, so that every implementation of a kernel drops the same weights.

A kernel of K taps has ceil(K / 32) int32 words; bit k % 32 of word k // 32 is 1 if tap k is kept.
The keep probability is rounded to 1/256 here, and all implementations scale by the rounded value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq.kernels.dispatch import device_obstacle


def keep_probability(drop: float) -> float:
    """Return 1 - drop, rounded to 1/256 (never 0)."""
    return max(round((1.0 - drop) * 256), 1) / 256


def keep_words(
    shape: Sequence[int],
    kernel_size: int,
    drop: float,
    *,
    device: torch.device | None = None,
    backend: str = "auto",
) -> Tensor:
    """Draw a mask for kernels of `shape`: int32 words (*shape, ceil(K / 32)) whose bits are 1 with keep_probability.

    All 32 bits of a word are drawn at once, from one random word for each binary digit of the probability, the last
    digit first: a bit that is 1 with probability p is 1 with p / 2 after `and` with a random bit, and with (1 + p) / 2
    after `or`. On a GPU one kernel draws the mask, unless backend is "torch" or the graph is compiled. Bits after K
    are 0.

    Args:
        shape: Shape of the kernels, without their taps.
        kernel_size: K.
        drop: Probability of dropping a weight.
        device: Device of the mask.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).
    """
    size = (*shape, -(-kernel_size // 32))  # (*shape, words)
    keep = int(keep_probability(drop) * 256)  # of 256
    compiled, kind = torch.compiler.is_compiling(), "cpu" if device is None else device.type
    # Torch's generator seeds the kernel, so that manual_seed has effect; the host does not wait for the seed
    if keep < 256 and kind == "cuda" and backend != "torch" and not compiled:
        seed = torch.randint(2**62, (1,), device=device)
        return seeded_words(seed, size, keep, kernel_size)
    # Ones for the taps of each word; only the last word may have fewer than 32
    last = torch.full((size[-1],), -1, dtype=torch.int32, device=device)
    last[-1] = last_word(kernel_size)
    if keep == 256:
        return last.expand(size).contiguous()
    words = torch.zeros(size, dtype=torch.int32, device=device)
    # Each digit halves the weight of the earlier digits
    for digit in significant_digits(keep):
        if compiled or kind != "cpu":
            drawn = torch.randint(-(2**31), 2**31, size, dtype=torch.int32, device=device)
        else:
            drawn = random_bytes((*size, 4)).view(torch.int32).view(size)
        words = words | drawn if digit else words & drawn
    return words & last


def keep_words_or_none(
    shape: Sequence[int], kernel_size: int, drop: float, *, device: torch.device, backend: str
) -> Tensor | None:
    """Draw `keep_words`, or return None, which keeps all weights, if nothing is dropped."""
    return keep_words(shape, kernel_size, drop, device=device, backend=backend) if drop else None


def last_word(kernel_size: int) -> int:
    """Return the last word of a mask that keeps all K taps, as an int32."""
    return -1 if kernel_size % 32 == 0 else (1 << kernel_size % 32) - 1


def significant_digits(keep: int) -> list[int]:
    """Return the binary digits of keep / 256, last first, from the last 1 to the digit of 1/2."""
    digits = [keep >> place & 1 for place in range(8)]
    return digits[digits.index(1) :]


def seeded_words(seed: Tensor, size: Sequence[int], keep: int, kernel_size: int) -> Tensor:
    """Draw `keep_words` of `size` with Philox from `seed` (1,): Triton and torch draw the same mask."""
    if device_obstacle(seed.device) is None:
        from seq2seq.kernels.dropconnect import triton

        return triton.keep_words(seed, size, keep, kernel_size)
    from seq2seq.kernels.dropconnect import torch_impl

    return torch_impl.keep_words(seed, size, keep, kernel_size)


def check_words(keep: Tensor | None, shape: Sequence[int]) -> None:
    """Raise ValueError unless `keep` has the words of a mask for kernels of `shape` (..., K)."""
    if keep is None:
        return
    size = (*shape[:-1], -(-shape[-1] // 32))
    if keep.dtype != torch.int32 or keep.shape != size:
        raise ValueError(f"keep is {keep.dtype} of shape {tuple(keep.shape)}; give int32 words of shape {tuple(size)}")


def random_bytes(shape: Sequence[int]) -> Tensor:
    """Draw uniform bytes, uint8, on a CPU, from torch's default generator."""
    # The cost of a CPU's generator depends on how many numbers are drawn: one 64-bit number makes eight bytes
    size = torch.Size(shape)
    count = size.numel()
    draws = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)  # type: ignore[arg-type]
    return draws.view(torch.uint8)[:count].view(size)


def unpack(words: Tensor, kernel_size: int) -> Tensor:
    """Unpack int32 words (..., ceil(K / 32)) to boolean (..., K)."""
    # (..., words, 32)
    bits = (words[..., None] >> torch.arange(32, device=words.device, dtype=torch.int32)) & 1
    return bits.flatten(-2)[..., :kernel_size].bool()


def drop_weights(weights: Tensor, keep: Tensor | None, keep_prob: float) -> Tensor:
    """Apply a DropConnect mask to weights (..., K).

    Args:
        weights: Normalized kernels.
        keep: Words (..., ceil(K / 32)); None keeps all weights, unscaled.
        keep_prob: Kept weights are scaled by 1 / keep_prob, so that the mean does not change.

    Reference:
        Wan et al. 2013, 'Regularization of Neural Networks using DropConnect'.
    """
    if keep is None:
        return weights
    return torch.where(unpack(keep, weights.shape[-1]), weights / keep_prob, 0.0)
