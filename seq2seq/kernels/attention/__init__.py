"""Attention: torch's own, but for one case where its definition is faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.attention.reference import allow, attention_reference

# On Hopper torch 2.11 to 2.13 prefer cuDNN, whose backward pass gives NaN under a mask for some lengths
# (pytorch#196678) and which plans anew for every shape; without it FLASH serves no mask, EFFICIENT a padding mask.
# Once for the process: sdpa_kernel around each call compiles without a graph break, but an eager call then takes
# 0.6 to 0.7 ms instead of 0.2 to 0.35 (B 4, H 4, T 10, d 32, on a busy CPU).
torch.backends.cuda.enable_cudnn_sdp(False)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q k' / sqrt(d) + bias where allowed) v through torch's SDPA.

    Shape:
        q: (..., T, d); k and v: (..., S, d); returns (..., T, d).
        bias, mask: broadcastable to (..., T, S).

    Args:
        bias: Added to the scores.
        mask: Boolean, True where a query may see a key.
        causal: Query t sees keys s <= t only; with a mask too, there must be a bias (SDPA takes one or the other).
        dropout: Probability to drop a weight.

    Reference: Vaswani et al. 2017, eq. 1.
    """
    # in bf16 on a CPU the backward pass of SDPA is up to ten times slower than two plain products (T = S = 10: 29.7
    # against 2.6 ms; 512: 24.6 against 18.6 ms)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        return attention_reference(q, k, v, bias=bias, mask=mask, causal=causal, dropout=dropout)
    # SDPA adds one tensor to the scores: masks and causality become -inf in the bias
    if bias is not None:
        bias = allow(bias.to(q.dtype), mask, causal)
        mask = bias.expand(*q.shape[:-1], k.shape[-2])  # (..., T, S)
        causal = False  # in the bias already; SDPA refuses both
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
