"""Scaled dot-product attention by its definition."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.attention.weights import weigh


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
    keep: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q k' / sqrt(d) + bias where allowed) v, with dropout on the weights.

    `weights` names the function that replaces the softmax, see `weights.normalize`.

    Shape:
        q: (..., T, d); k and v: (..., S, d); returns (..., T, d).
        bias, mask: broadcastable to (..., T, S); the mask is boolean, True where a query may see a key.
        keep: A given dropout mask in words (..., T, ceil(S / 32)) of `kernels.dropconnect`; None draws one.

    Reference:
        Vaswani et al. 2017, eq. 1.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (..., T, S)
    scores = scores if bias is None else scores + bias
    return weigh(scores, v, mask=mask, causal=causal, dropout=dropout, weights=weights, keep=keep)
