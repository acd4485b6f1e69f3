"""Attention whose queries and keys are normalized in each head before their product (QK-norm)."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.mixers.attention import Attention, CrossAttention


class HeadNorm(nn.RMSNorm):
    """Root mean square norm of each head, with gains shared by the heads: (..., H d) -> (..., H d).

    Args:
        head_dim: Width d of a head.
    """

    def __init__(self, *, head_dim: int) -> None:
        super().__init__(head_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the heads of x, side by side, in the type of the gains."""
        heads = x.unflatten(-1, (-1, *self.normalized_shape)).to(self.weight.dtype)
        return super().forward(heads).flatten(-2).to(x.dtype)


class NormalizedAttention(Attention):
    """Multi-head attention within a sequence with normalized queries and keys.

    softmax(N(Q) N(K)' / sqrt(D / H)) V, N(x) = g x / rms(x) in each head, with gains g for queries and for keys: the
    scores do not grow with the weights of the projections.

    Published with an L2 norm and one learned scale (Henry et al. 2020), or with LayerNorm (Dehghani et al. 2023).

    Args:
        num_kv_heads: As in `Attention`.
        packed: As in `Attention`.

    Cost:
        2 D^2 (1 + G / H) + 2 D / H parameters, O(T^2 D + T D^2) time, O(T D G / H) state.

    Reference:
        Henry et al. 2020, 'Query-Key Normalization for Transformers'; Dehghani et al. 2023 (a norm with gains).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        packed: bool = False,
    ) -> None:
        super().__init__(
            dim=dim, causal=causal, num_heads=num_heads, num_kv_heads=num_kv_heads, dropout=dropout, packed=packed
        )
        self.query_norm = HeadNorm(head_dim=self.head_dim)
        self.key_norm = HeadNorm(head_dim=self.head_dim)

    def _project(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._project(x, position)
        # Keys are normalized once, when they enter the cache
        return self.query_norm(query), self.key_norm(key), value


class NormalizedCrossAttention(CrossAttention):
    """Multi-head attention to the source with normalized queries and keys, as in `NormalizedAttention`.

    Args:
        packed: As in `Attention`.

    Cost:
        2 D^2 + 2 D M + 2 D / H parameters, O(T S D) time, no state.

    Reference:
        Henry et al. 2020, 'Query-Key Normalization for Transformers'.
    """

    def __init__(
        self, *, dim: int, memory_dim: int, num_heads: int, dropout: float = 0.0, packed: bool = False
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim, num_heads=num_heads, dropout=dropout, packed=packed)
        self.query_norm = HeadNorm(head_dim=dim // num_heads)
        self.key_norm = HeadNorm(head_dim=dim // num_heads)

    def _project_query(self, x: Tensor) -> Tensor:
        return self.query_norm(super()._project_query(x))

    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        key, value = super()._project_memory(memory)
        return self.key_norm(key), value
