"""The non-local operation, whose pairwise function is a choice (Wang et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.dropout import dropout
from seq2seq.mixers.past import Past, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_probability
from seq2seq.network.state import Cache, Device, DType

PAIRWISE = ("gaussian", "embedded_gaussian", "dot_product", "concatenation", "additive", "tanh_concatenation")


class NonLocal(SelfMixer[Past]):
    """Non-local operation with a choice of pairwise function.

    y_i = W_o sum_j f(x_i, x_j) / C_i W_v x_j, in H heads, with a choice of f.

    With q = W_q x, k = W_k x, and N_i the number of positions that i sees (real ones, up to i when
    causal): gaussian f = exp(x_i . x_j), embedded_gaussian f = exp(q_i . k_j), additive f = exp(w .
    tanh(q_i + k_j)), with C the sum over j; dot_product f = q_i . k_j, concatenation f = ReLU(w .
    [q_i; k_j]), with C = N_i. The mixing matrix is dense, dynamic and shared by the channels of a
    head.

    With num_heads=1, embedded_gaussian is O = V softmax(K'Q), the unscaled attention of one head that lectures begin
    with. Lectures also write additive scores with a concatenation, f = exp(w . tanh([q_i; k_j])), which is
    tanh_concatenation. There w . tanh([q_i; k_j]) = w_q . tanh(q_i) + w_k . tanh(k_j), and the first term is the same
    for all j, so that it cancels in f / C: the mixer has no queries, and all positions read one weighted mean.
    Therefore additive adds q_i and k_j before the tanh.

    Products are not scaled, as published; instead W_q and W_k start smaller by (D / H)^(1/4) each
    where q . k is taken, so that no weight starts near 1 (the published block starts as the
    identity).

    Args:
        pairwise: f, by its name above.
        dropout: Probability of dropping an entry of the mixing matrix.

    Cost:
        4 D^2 parameters (2 D^2 for gaussian, 3 D^2 for tanh_concatenation), and D more for additive and
        tanh_concatenation, 2 D for concatenation; O(T^2 D + T D^2) time; O(T^2 H) memory, O(T^2 D) for additive alone;
        O(T D) state.

    Reference:
        Wang et al. 2018, 'Non-local Neural Networks', eq. 1; Bahdanau et al. 2015 (additive).
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        pairwise: str = "embedded_gaussian",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        head_dim = require_divisible(dim, num_heads)
        if pairwise not in PAIRWISE:
            raise ValueError(f"pairwise is {pairwise!r}; choose one of {', '.join(PAIRWISE)}")
        self.num_heads = num_heads
        self.pairwise = pairwise
        self.dropout = require_probability(dropout, "attention dropout")
        # Keys alone for tanh_concatenation, whose queries would cancel
        sides = {"gaussian": 0, "tanh_concatenation": 1}.get(pairwise, 2)
        self.qk = attention_inputs(dim, *sides * [dim]) if sides else None
        # Products q . k are not scaled, so both sides start smaller: together by 1 / sqrt(d)
        if self.qk is not None and pairwise in ("embedded_gaussian", "dot_product"):
            with torch.no_grad():
                self.qk.weight.mul_(head_dim**-0.25)
        if sides == 1:
            # The weight of x_j, up to the factor C of a row, belongs to v(x_j)
            self.properties = MixingProperties(shares_positions=True, shares_channels=True, linear=True)
        self.value = attention_inputs(dim, dim)
        self.out = projection(dim, dim)
        # w, for the functions that have one
        widths = {"additive": head_dim, "concatenation": 2 * head_dim, "tanh_concatenation": head_dim}
        self.score = None
        if pairwise in widths:
            self.score = nn.Parameter(torch.randn(num_heads, widths[pairwise]) * head_dim**-0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read all of x (B, T, D) from each position; a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        query, key = self._embed(x)
        parts = mark_mixing(query), mark_mixing(key), self.value(x)
        q, k, v = (split(part, self.num_heads) for part in parts)  # (B, H, T, d)
        allowed = mask[:, None, None, :]  # (B, 1, 1, T)
        if self.causal:
            allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
        return self.out(merge(self._read(q, k, v, allowed)))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of keys and values."""
        return Past(Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's key and value, then read the hypothesis's own past."""
        query, key = self._embed(x)
        inner = torch.cat([query, key, self.value(x)], -1)  # (N, 3 D)
        (q, k), v, visible = attend_to_past(state.past, inner, position, self.num_heads)
        return self.out(merge(self._read(q, k, v, visible[:, None]))).view(x.shape[0], -1), state

    def _embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.qk is None:
            return x, x  # gaussian compares the inputs themselves
        *query, key = self.qk(x).split(self.dim, -1)
        return query[0] if query else key, key

    def _read(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        """Return the weighted sum of v (B, H, S, d) for each of q (B, H, T, d) where allowed (B or 1, 1, T or 1, S)."""
        drop = self.dropout if self.training else 0.0
        if self.pairwise in ("gaussian", "embedded_gaussian"):
            # `attention` divides by sqrt(d), which this undoes
            return attention(q * q.shape[-1] ** 0.5, k, v, mask=allowed, dropout=drop)
        scores = self._scores(q, k)  # (B, H, T, S)
        if self.pairwise in ("additive", "tanh_concatenation"):
            weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)  # f / C
        else:
            # C = N_i: these f may be negative or sum to zero, so they cannot be their own divisor
            weights = scores.masked_fill(~allowed, 0.0) / allowed.sum(-1, keepdim=True)
        return dropout(weights.to(v.dtype), drop) @ v

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Apply the pairwise function to all pairs: (B, H, T, S)."""
        if self.score is None:
            return q @ k.transpose(-1, -2)
        score = self.score.to(q.dtype)[:, :, None]  # (H, d or 2 d, 1)
        # A hidden layer for each pair takes (B, H, T, S, d) of memory
        if self.pairwise == "additive":
            return (torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ score[:, None]).squeeze(-1)
        if self.pairwise == "tanh_concatenation":
            # The key's part alone: the query's part is the same for all keys
            return (torch.tanh(k) @ score).transpose(-1, -2).expand(*q.shape[:-1], -1)
        # w . [q; k] is a sum of two numbers, so that no pair is concatenated
        from_q, from_k = score.chunk(2, 1)
        return torch.relu(q @ from_q + (k @ from_k).transpose(-1, -2))
