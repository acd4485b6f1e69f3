"""Scaled dot-product attention by its definition."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.attention.weights import allow, weigh
from seq2seq.kernels.dropconnect import drop_weights, keep_probability


def attention_reference(
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
    """Compute softmax(q k' / sqrt(d) + bias where allowed) v, with dropout on the weights.

    `weights` names what stands in place of the softmax, see `weights.normalize`.

    Shape:
        q: (..., T, d); k and v: (..., S, d); returns (..., T, d).
        bias, mask: broadcastable to (..., T, S); the mask is boolean, True where a query may see a key.

    Reference:
        Vaswani et al. 2017, eq. 1.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (..., T, S)
    scores = scores if bias is None else scores + bias
    return weigh(scores, v, mask=mask, causal=causal, dropout=dropout, weights=weights)


def kept_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    causal: bool,
    drop: float,
) -> Tensor:
    """Compute `attention_reference` with given dropout: the reference implementation of the kernels of short rows.

    Shape:
        keep: Words (B, H, T, ceil(S / 32)) of `kernels.dropconnect`, of weights dropped with probability `drop`.
        Else as in `attention_reference`, where k and v may have fewer heads, each for neighbors among q's.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    weights = allow(scores if bias is None else scores + bias, mask, causal).softmax(-1)  # (B, H, T, S)
    return drop_weights(weights, keep, keep_probability(drop)) @ v


def varlen_reference(
    q: Tensor, k: Tensor, v: Tensor, q_bounds: Tensor, k_bounds: Tensor, longest_q: int, longest_k: int
) -> Tensor:
    """Attend within each sequence by itself: the reference implementation of torch's `varlen_attn`.

    Shape:
        q (all queries, H, d); k and v (all keys, H, d); bounds (N + 1,) of N sequences -> (all queries, H, d).
    """
    parts = []
    for i in range(len(q_bounds) - 1):
        queries = slice(int(q_bounds[i]), int(q_bounds[i + 1]))
        keys = slice(int(k_bounds[i]), int(k_bounds[i + 1]))
        assert queries.stop - queries.start <= longest_q
        assert keys.stop - keys.start <= longest_k
        one = (q[queries].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1))  # (H, ., d)
        parts.append(attention_reference(*one).transpose(0, 1))
    return torch.cat(parts)
