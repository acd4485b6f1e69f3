"""Additive attention from target to source (Bahdanau et al. 2015) without a recurrence, for any decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.mixers.memory import KeyedMemory
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import mark_mixing
from seq2seq.network.mixer import CrossMixer, require_positive
from seq2seq.network.state import NoState


class AdditiveScore(nn.Module):
    """Additive attention weights.

    softmax over j of e_ij = v' tanh(W s_i + U h_j), where the mask allows.

    Shape:
        query s (B, T, Q), keys U h (B, S, A), computed beforehand, mask (B, S) -> weights (B, T, S).

    Args:
        query_dim: Width Q of the queries.
        score_dim: Width A of the hidden layer.
        coverage: Add Z C_ij to the hidden layer, where C_ij is a number for each query and key.

    Reference:
        Bahdanau et al. 2015, appendix A.1.2; Tu et al. 2016 (coverage), eq. 8.
    """

    def __init__(self, *, query_dim: int, score_dim: int, coverage: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, score_dim, bias=True)
        self.score = nn.Linear(score_dim, 1, bias=False)
        initialize(self.query, self.score)
        self.coverage = nn.Linear(1, score_dim, bias=False) if coverage else None  # Z
        initialize(self.coverage)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights of query (B, T, Q) over keys (B, S, A) where mask (B, S) is True."""
        return self.energy(query, keys).masked_fill(~mask[:, None], float("-inf")).softmax(-1)  # (B, T, S)

    def energy(self, query: Tensor, keys: Tensor, coverage: Tensor | None = None) -> Tensor:
        """Return e (B, T, S) of query (B, T, Q) and keys (B, S, A), with coverage (B, T, S) if the module has it."""
        # A hidden layer for every pair of query and key takes (B, T, S, A) of memory
        hidden = self.query(query)[:, :, None] + keys[:, None]
        if self.coverage is not None:
            assert coverage is not None
            hidden = hidden + self.coverage(coverage[..., None].to(hidden.dtype))
        return self.score(torch.tanh(hidden)).squeeze(-1)


class AdditiveAttention(CrossMixer[KeyedMemory, NoState]):
    """Additive attention to the source.

    c_i = sum_j softmax_j(v' tanh(W x_i + b + U h_j)) h_j, then an output projection.

    The published equation has no bias b.

    Args:
        score_dim: Width A of the scores' hidden layer (default: dim).

    Cost:
        D A + M A + 2 A + M D parameters, O(T S A) time, no state.

    Reference:
        Bahdanau et al. 2015, 'Neural Machine Translation by Jointly Learning to Align and
        Translate'.
    """

    def __init__(self, *, dim: int, memory_dim: int, score_dim: int | None = None) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        score_dim = dim if score_dim is None else require_positive(score_dim, "score_dim")
        # U has no bias, since the query's bias is added to the same hidden layer
        self.key = nn.Linear(memory_dim, score_dim, bias=False)
        self.attend = AdditiveScore(query_dim=dim, score_dim=score_dim)
        self.out = nn.Linear(memory_dim, dim, bias=False)
        initialize(self.key, self.out)

    def project(self, memory: Tensor, memory_mask: Tensor) -> KeyedMemory:
        """Compute keys of memory (B, S, M)."""
        return KeyedMemory(memory, self.key(memory), memory_mask)

    def forward(self, x: Tensor, context: KeyedMemory) -> Tensor:
        """Read the source from each position of x (B, T, D)."""
        weights = mark_mixing(self.attend(x, context.keys, context.mask))  # (B, T, S)
        return self.out(weights.to(context.memory.dtype) @ context.memory)  # (B, T, D)

    def read_weights(self, x: Tensor, context: KeyedMemory) -> Tensor:
        """Return the attention weights of x (B, T, D), (B, 1, T, S)."""
        return self.attend(x, context.keys, context.mask)[:, None]

    def step(self, x: Tensor, context: KeyedMemory, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Read the source at one position; a sentence's hypotheses are its queries."""
        folded = x.view(context.memory.shape[0], -1, self.dim)  # (B, beam, D)
        return self.forward(folded, context).view(x.shape[0], -1), NoState()
