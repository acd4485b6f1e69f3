"""DropConnect masks on a GPU: one kernel draws 32 kept or dropped taps from eight Philox words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.dropconnect import last_word

BLOCK = 512  # words per program


@triton.jit(do_not_specialize=("count", "keep", "last"))
def keep_words_kernel(seed, words, count, keep, row, last, BLOCK: tl.constexpr):
    """Draw words[i], whose bits are 1 with probability keep / 256: `or` random bits for a digit 1, `and` for a 0.

    Each kernel has `row` words; the last word has taps only where `last` has bits.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Philox gives four words for each counter: eight for the eight binary digits of keep
    key = tl.load(seed)
    w0, w1, w2, w3 = tl.randint4x(key, 2 * i)
    w4, w5, w6, w7 = tl.randint4x(key, 2 * i + 1)
    word = tl.zeros((BLOCK,), tl.int32)
    # From the last digit to the first, see `keep_words` of the package
    for place in tl.static_range(8):
        drawn = w0 if place == 0 else w1 if place == 1 else w2 if place == 2 else w3 if place == 3 else w4
        drawn = w5 if place == 5 else w6 if place == 6 else w7 if place == 7 else drawn
        drawn = drawn.to(tl.int32, bitcast=True)  # drawn is w0 .. w7 in turn
        word = tl.where(((keep >> place) & 1) != 0, word | drawn, word & drawn)
    word &= tl.where(i % row == row - 1, last, -1)
    tl.store(words + i, word, mask=i < count)


def keep_words(seed: Tensor, size: Sequence[int], keep: int, kernel_size: int) -> Tensor:
    """Draw int32 words of `size` whose bits are 1 with probability keep / 256, 0 after K."""
    words = torch.empty(size, dtype=torch.int32, device=seed.device)
    count, row, last = words.numel(), words.shape[-1], last_word(kernel_size)
    with torch.cuda.device_of(seed):
        keep_words_kernel[(triton.cdiv(count, BLOCK),)](seed, words, count, keep, row, last, BLOCK=BLOCK)
    return words
