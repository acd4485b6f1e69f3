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
class BestFirst(Selection):
    """Beam search: of the best 2 beam extensions, the first `beam` may end; the first `beam` without eos are kept."""

    eos: int

    def __call__(self, scores: Scores, rows: OpenHypotheses) -> Choice:
        """Choose."""
        size = rows.log_prob.shape[1]
        # 2 * beam tokens of each hypothesis, since up to `beam` extensions may end and `beam` must be kept
        width = min(2 * size, scores.log_probs.shape[1])
        value, token = _alone(*top(scores.log_probs, width), scores)  # (N, width)
        total = value.view(-1, size, width) + rows.log_prob[:, :, None]
        return _cut(total, token.view(total.shape), size, self.eos)


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
        drawn = self._draw(scores.log_probs, rows)  # (N,)
        single = scores.only >= 0
        token = torch.where(single, scores.only, drawn)
        chosen = torch.where(single, scores.only_log_prob, scores.log_probs.gather(1, drawn[:, None]).squeeze(1))
        # Under the model's own distribution, without temperature, top_k or top_p
        log_prob = rows.log_prob + chosen.view(sentences, beam)
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
            scaled, index = top(scaled, min(self.top_k, log_probs.shape[1]))
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
            own = _part(scores, sentences, part)
            price = self.strength * counts  # (B, 1, V)
            width = min(2 * size, vocab)
            value, token = _alone(*top((log_probs[:, part] - price).flatten(0, 1), width), own)
            total = value.view(-1, size, width) + rows.log_prob[:, part, None]
            token = token.view(total.shape)
            paid = price.expand(-1, size, -1).gather(2, token)  # (B, size, width)
            # A forced token has no penalty
            paid = paid.masked_fill((own.only >= 0).view(sentences, size, 1), 0.0)
            choice = _cut(total, token, size, self.eos, paid)
            real = (choice.kept.log_prob > NEVER).to(counts.dtype)  # (B, size)
            counts.scatter_add_(2, choice.kept.token[:, None], real[:, None])
            # Parents count from the first row of the beam
            may_end.append(choice.may_end._replace(parent=choice.may_end.parent + start))
            kept.append(choice.kept._replace(parent=choice.kept.parent + start))
        return Choice(_joined(may_end), _joined(kept))


def _joined(groups: list[Extensions]) -> Extensions:
    """Put the extensions of all groups side by side."""
    return Extensions(*(torch.cat(parts, 1) for parts in zip(*groups, strict=True)))


def _part(scores: Scores, sentences: int, part: slice) -> Scores:
    """Return the scores of some rows of each beam, with `log_probs` of all rows."""
    only = scores.only.view(sentences, -1)[:, part].flatten()
    only_log_prob = scores.only_log_prob.view(sentences, -1)[:, part].flatten()
    return Scores(scores.log_probs, only, only_log_prob)


def _alone(value: Tensor, token: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    """Replace the best tokens (N, width) by the forced token, in rows that have one."""
    single = (scores.only >= 0)[:, None]  # (N, 1)
    best = torch.arange(value.shape[1], device=value.device) == 0  # (width,)
    alone = torch.where(best, scores.only_log_prob[:, None], NEVER)  # (N, width)
    return torch.where(single, alone, value), torch.where(single, scores.only[:, None], token)


def _cut(total: Tensor, token: Tensor, size: int, eos: int, paid: Tensor | None = None) -> Choice:
    """Choose among extensions (B, size, width) by `total`; their log p is total + paid."""
    width = total.shape[2]
    ranked, flat = total.flatten(1).topk(min(2 * size, size * width), -1)  # (B, 2 size)
    # Flat = parent * width + rank
    found = Extensions(ranked, flat // width, token.flatten(1).gather(1, flat))
    open_rank, kept = ranked.masked_fill(found.token == eos, NEVER).topk(size, -1)  # (B, size)
    may_end = Extensions(ranked[:, :size], found.parent[:, :size], found.token[:, :size])
    parent = found.parent.gather(1, kept)
    chosen = found.token.gather(1, kept)
    log_prob = open_rank  # -inf for an empty row
    if paid is not None:
        cost = paid.flatten(1).gather(1, flat)
        may_end = may_end._replace(log_prob=may_end.log_prob + cost[:, :size])
        log_prob = log_prob + cost.gather(1, kept)
    return Choice(may_end, Extensions(log_prob, parent, chosen))


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of each row of x (N, V), best first, and their columns, as `topk` does.

    They lie in the k blocks of columns with the largest maxima, or after the last whole block. NaN counts as the
    largest number.
    """
    size = x.shape[1]
    blocks = size // _BLOCK
    # `topk` is slow on long rows of a CPU, where the maxima of blocks take one pass over memory
    if x.is_cuda or blocks < 2 * k:
        values, index = x.topk(k, -1)
        return values, index
    maxima = x[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)).amax(-1)  # (N, blocks)
    chosen = maxima.topk(k, -1).indices  # (N, k)
    columns = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=x.device)  # (N, k, block)
    columns = columns.flatten(1)
    if size % _BLOCK:
        # Columns after the last whole block are always candidates
        rest = torch.arange(blocks * _BLOCK, size, device=x.device).expand(x.shape[0], -1)
        columns = torch.cat([columns, rest], 1)
    values, at = x.gather(1, columns).topk(k, -1)
    return values, columns.gather(1, at)
