"""Attention: torch's own, but for one case where its definition is faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.attention.reference import allow, attention_reference

# On Hopper torch 2.11 to 2.13 prefer cuDNN, whose backward pass gives NaN under a mask for some lengths
# (pytorch#196678) and which plans anew for every shape; without it FLASH serves no mask, EFFICIENT a padding mask.
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
    """softmax(q k' / sqrt(d) + bias where allowed) v (Vaswani et al. 2017, eq. 1) through torch's SDPA.

    q (..., T, d), k and v (..., S, d), bias and mask broadcastable to (..., T, S), mask boolean, True = may be seen.
    In bf16 on a CPU the backward pass of SDPA is up to ten times slower than two plain products (T = S = 10: 29.7
    against 2.6 ms; 512: 24.6 against 18.6 ms), so training there takes the definition.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        return attention_reference(q, k, v, bias=bias, mask=mask, causal=causal, dropout=dropout)
    if bias is not None:
        bias = allow(bias.to(q.dtype), mask, causal)
        mask, causal = bias.expand(*q.shape[:-1], k.shape[-2]), False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
