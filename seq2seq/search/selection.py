"""Choices among the extensions of a sentence's hypotheses: beam search, diverse beam search, and sampling."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from seq2seq.search.choice import Choice, Extensions, OpenHypotheses, Scores, Selection
from seq2seq.search.hypothesis import NEVER

# Columns of a block in `top`.
_BLOCK = 64


@dataclasses.dataclass(frozen=True)
class BeamSearch(Selection):
    """Beam search: of the 2 * beam best extensions, the first `beam` may end; the first `beam` without eos are kept."""

    eos: int

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose."""
        sentences, size = rows.log_prob.shape
        log_probs = scores.log_probs.view(sentences, size, -1)
        # 2 * beam extensions, since up to `beam` of them may end and `beam` must be kept
        return _cut(top(log_probs, 2 * size, rows.log_prob), size, self.eos)


@dataclasses.dataclass(frozen=True)
class Drawn(Selection):
    """Sampling: each hypothesis draws its next token by its own uniform number in `OpenHypotheses.draws`.

    Args:
        temperature: The distribution is softmax(logits / temperature).
        top_k: Only the k most probable tokens are drawn (Fan et al. 2018); 0 for all.
        top_p: Only the most probable tokens that together have this probability (Holtzman et al. 2020); 1 for all.
    """

    reorders = False

    eos: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        # Within this range, scaled float32 logits stay finite
        if not 1e-3 <= self.temperature <= 1e3:
            raise ValueError(f"temperature is {self.temperature}; choose 0.001 to 1000, or decode greedily")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; choose 1 or more, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; choose more than 0 up to 1, which is all tokens")

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Draw."""
        sentences, beam = rows.log_prob.shape
        token = self._draw(scores.log_probs, rows)[:, None]  # (N, 1)
        # Under the model's own distribution, without temperature, top_k or top_p
        log_prob = rows.log_prob + scores.log_probs.gather(1, token).view(sentences, beam)
        token = token.view(sentences, beam)
        parent = torch.arange(beam, device=token.device).expand(sentences, beam)
        # A sample that has ended leaves an empty row
        kept = log_prob.masked_fill(token == self.eos, NEVER)
        return Choice(Extensions(log_prob, parent, token), Extensions(kept, parent, token))

    def _draw(self, log_probs: Tensor, rows: OpenHypotheses) -> Tensor:
        """Invert the cumulative distribution at each hypothesis's uniform number: (N,)."""
        at = rows.position[:, None, None].expand(-1, rows.draws.shape[1], 1)
        uniform = rows.draws.gather(2, at).flatten()[:, None]  # (N, 1)
        scaled = log_probs / self.temperature
        index = None
        if self.top_k:
            scaled, _, index = top(scaled[:, None], self.top_k)
        elif self.top_p < 1:
            scaled, index = scaled.sort(-1, descending=True)
        probability = scaled.double().softmax(-1)  # (N, W)
        if self.top_p < 1:
            before = probability.cumsum(-1) - probability
            probability = probability.masked_fill(before >= self.top_p, 0.0)
        mass = probability.cumsum(-1)
        # A token of probability 0 adds nothing to the sum, so it is never drawn
        place = torch.searchsorted(mass, uniform * mass[:, -1:], right=True).clamp(max=mass.shape[1] - 1)
        return (place if index is None else index.gather(1, place)).squeeze(1)


@dataclasses.dataclass(frozen=True)
class Diverse(Selection):
    """Diverse beam search: groups of a beam choose in turn, with a penalty on tokens that earlier groups chose.

    A group ranks by log p - strength * (how many hypotheses of earlier groups have just chosen the token), but its
    scores keep log p itself.

    Reference:
        Vijayakumar et al. 2018, 'Diverse Beam Search', with Hamming diversity.
    """

    eos: int
    strength: float
    groups: int

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose for one group after another."""
        sentences, beam = rows.log_prob.shape
        size = beam // self.groups
        vocab = scores.log_probs.shape[1]
        log_probs = scores.log_probs.view(sentences, beam, vocab)
        counts = log_probs.new_zeros(sentences, 1, vocab)
        may_end: list[Extensions] = []
        kept: list[Extensions] = []
        for start in range(0, beam, size):
            part = slice(start, start + size)
            price = self.strength * counts  # (B, 1, V)
            found = top(log_probs[:, part] - price, 2 * size, rows.log_prob[:, part])
            paid = price[:, 0].gather(1, found.token)  # (B, 2 size)
            choice = _cut(found, size, self.eos, paid)
            real = (choice.kept.log_prob > NEVER).to(counts.dtype)  # (B, size)
            counts.scatter_add_(2, choice.kept.token[:, None], real[:, None])
            # Parents count from the first row of the beam
            may_end.append(choice.may_end._replace(parent=choice.may_end.parent + start))
            kept.append(choice.kept._replace(parent=choice.kept.parent + start))
        return Choice(_joined(may_end), _joined(kept))


def _joined(groups: list[Extensions]) -> Extensions:
    """Put the extensions of all groups side by side."""
    return Extensions(*(torch.cat(parts, 1) for parts in zip(*groups, strict=True)))


def _cut(found: Extensions, size: int, eos: int, paid: Tensor | None = None) -> Choice:
    """Choose among extensions (B, n), best first; their log p is found.log_prob + paid."""
    rank, parent, token = found
    kept_rank, kept = rank.masked_fill(token == eos, NEVER).topk(size, -1)  # (B, size)
    may_end = Extensions(rank[:, :size], parent[:, :size], token[:, :size])
    open_ones = Extensions(kept_rank, parent.gather(1, kept), token.gather(1, kept))  # -inf for an empty row
    if paid is not None:
        may_end = may_end._replace(log_prob=may_end.log_prob + paid[:, :size])
        open_ones = open_ones._replace(log_prob=open_ones.log_prob + paid.gather(1, kept))
    return Choice(may_end, open_ones)


def top(x: Tensor, k: int, before: Tensor | None = None) -> Extensions:
    """Return the k largest numbers before + x of each sentence's x (B, beam, V), best first, or all if they are fewer.

    They lie in the k blocks of columns with the largest maxima, or after the last whole block. NaN counts as the
    largest number.

    Args:
        before: Added to the numbers of each row, (B, beam) (default: 0).
    """
    before = x.new_zeros(x.shape[:2]) if before is None else before
    _, beam, size = x.shape
    blocks = size // _BLOCK
    # `topk` is slow on long rows of a CPU, where the maxima of blocks take one pass over memory
    if x.is_cuda or blocks < 2 * k:
        best, column = x.topk(min(k, size), -1)  # (B, beam, width)
        ranked, flat = (best + before[:, :, None]).flatten(1).topk(min(k, beam * best.shape[2]), -1)  # (B, k)
        return Extensions(ranked, flat // best.shape[2], column.flatten(1).gather(1, flat))
    maxima = x[..., : blocks * _BLOCK].unflatten(2, (blocks, _BLOCK)).amax(-1) + before[:, :, None]
    chosen = maxima.flatten(1).topk(k, -1).indices  # (B, k)
    begin = chosen // blocks * size + chosen % blocks * _BLOCK
    flat = (begin[:, :, None] + torch.arange(_BLOCK)).flatten(1)  # (B, k * block), of beam * V
    if size % _BLOCK:
        # Columns after the last whole block are always candidates
        rest = torch.arange(beam)[:, None] * size + torch.arange(blocks * _BLOCK, size)
        flat = torch.cat([flat, rest.flatten().expand(len(x), -1)], 1)
    parent = flat // size
    ranked, at = (x.flatten(1).gather(1, flat) + before.gather(1, parent)).topk(k, -1)
    flat = flat.gather(1, at)
    return Extensions(ranked, flat // size, flat % size)
