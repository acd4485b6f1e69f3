"""Top k, fast on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of each row of x (N, V), best first, and their columns, as `topk` does.

    They are in the k blocks of columns with the largest maxima. NaN counts as the largest number.
    """
    size = x.shape[1]
    blocks = size // _BLOCK
    # `topk` is slow on long rows of a CPU, where the maxima of blocks take one pass over memory
    if x.is_cuda or blocks < 2 * k:
        values, index = x.topk(k, -1)
        return values, index
    maxima = x[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)).amax(-1)  # (N, blocks)
    chosen = maxima.topk(k, -1).indices  # (N, k)
    columns = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=x.device)  # (N, k, block)
    # Columns after the last whole block are always candidates
    rest = torch.arange(blocks * _BLOCK, size, device=x.device).expand(x.shape[0], -1)
    columns = torch.cat([columns.flatten(1), rest], 1)
    values, at = x.gather(1, columns).topk(k, -1)
    return values, columns.gather(1, at)
