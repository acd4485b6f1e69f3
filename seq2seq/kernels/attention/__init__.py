"""Attention by torch's kernels, by its definition, or by the project's kernels for short rows.

The definition serves exported graphs, weights other than softmax, and bf16 with gradients on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.attention import short_rows as short
from seq2seq.kernels.attention.reference import attention_reference
from seq2seq.kernels.attention.weights import allow

# Queries up to which the memory-efficient kernel is faster than flash attention
_SHORT = 128


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    weights: str = "softmax",
) -> Tensor:
    """Compute softmax(q k' / sqrt(d) + bias where allowed) v through torch's SDPA.

    Shape:
        q: (..., T, d); k and v: (..., S, d); returns (..., T, d).
        bias, mask: broadcastable to (..., T, S).
        With q (B, H, T, d), k and v may be (B, G, S, d): each of their heads serves H / G neighboring heads of q.

    Args:
        bias: Added to the scores.
        mask: Boolean, True where a query may see a key.
        causal: Query t sees keys s <= t only. A causal call with a mask needs a bias, since SDPA takes one of the two.
        dropout: Probability of dropping a weight.
        weights: The function that replaces the softmax, see `weights.normalize`; only softmax has fast paths.

    Reference: Vaswani et al. 2017, eq. 1.
    """
    by_one_tile = short.is_on() and weights == "softmax" and short.is_served(q, k, v, bias, mask)
    # A program sums the gradients of k and v over a group of query heads, but not the gradient of a bias
    if not by_one_tile or bias is not None:
        k, v = serve_groups(q, k, v)
    if by_one_tile:
        return short.one_tile_attention(q, k, v, bias, mask, causal=causal, dropout=dropout)
    # In an exported graph SDPA's decomposition would copy the transposed keys
    if torch.compiler.is_exporting() or weights != "softmax":
        return attention_reference(q, k, v, bias=bias, mask=mask, causal=causal, dropout=dropout, weights=weights)
    # In bf16 on a CPU the backward pass of SDPA is up to ten times slower than two plain products (T = S = 10: 29.7
    # and 2.6 ms; 512: 24.6 and 18.6 ms)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        return attention_reference(q, k, v, bias=bias, mask=mask, causal=causal, dropout=dropout)
    # SDPA adds one tensor to the scores, so the mask and causality become -inf in the bias
    if bias is not None:
        bias = allow(bias.to(q.dtype), mask, causal)
        mask = bias.expand(*q.shape[:-1], k.shape[-2])  # (..., T, S)
        causal = False  # SDPA refuses both
    with without_cudnn(q.is_cuda), without_flash(q):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Compute `attention` of q (B, H, T, d) to the keys where mask (B, S) is True; see `packed.packed_attention`."""
    # Imported on use, because the import registers operators
    from seq2seq.kernels.attention import packed

    return packed.packed_attention(q, *serve_groups(q, k, v), mask, dropout=dropout)


def serve_groups(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat heads of keys and values for their groups of query heads, as torch's kernels need them."""
    if q.dim() != 4 or q.shape[1] <= k.shape[1]:
        return k, v
    groups = q.shape[1] // k.shape[1]
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def without_cudnn(on_gpu: bool) -> Any:
    """Return a context in which SDPA does not choose cuDNN.

    It does nothing on a CPU, with cuDNN's flag off, and in compiled or exported graphs.

    On Hopper torch 2.11 to 2.13 prefer cuDNN, whose backward pass gives NaN under a mask for some lengths
    (pytorch#196678), and which plans again for every shape. Without it flash attention serves calls without a mask, and
    the memory-efficient kernel calls with a padding mask. Torch's own context, `sdpa_kernel`, takes 0.4 ms of an eager
    call, and keeps compiled calls out of the compiler's cache (pytorch#194007).
    """
    if not on_gpu or torch.compiler.is_compiling() or not torch.backends.cuda.cudnn_sdp_enabled():
        return contextlib.nullcontext()
    return _off(torch.backends.cuda.enable_cudnn_sdp, before=True)


def without_flash(q: Tensor) -> Any:
    """Return a context in which SDPA does not choose flash attention for training with short rows of queries on a GPU.

    Flash attention's tiles have 64 to 128 queries. On an H200, the forward and backward pass over 16,384 causal queries
    takes 532 us with flash attention and 183 us with the memory-efficient kernel in rows of 28, 149 and 128 us in rows
    of 128, and 169 and 242 us in rows of 256.
    """
    if not (q.is_cuda and torch.is_grad_enabled()) or q.shape[-2] > _SHORT or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return _off(torch.backends.cuda.enable_flash_sdp, before=torch.backends.cuda.flash_sdp_enabled())


@contextlib.contextmanager
def _off(switch: Callable[[bool], None], *, before: bool) -> Iterator[None]:
    """Turn a kernel of SDPA off in a block."""
    switch(False)
    try:
        yield
    finally:
        switch(before)
