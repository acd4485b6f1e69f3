"""Scaled dot-product attention by its definition."""

from __future__ import annotations

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

    `weights` names the function that replaces the softmax, see `weights.normalize`.

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
    """Compute `attention_reference` with a given dropout mask: the reference of the kernels for short rows.

    Shape:
        keep: Words (B, H, T, ceil(S / 32)) of `kernels.dropconnect`; weights are dropped with probability `drop`.
        The others as in `attention_reference`, but k and v may have fewer heads, each for neighboring heads of q.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    weights = allow(scores if bias is None else scores + bias, mask, causal).softmax(-1)  # (B, H, T, S)
    return drop_weights(weights, keep, keep_probability(drop)) @ v
