"""Score given translations: the log-probability of each piece, and the weights of the source pieces for it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seq2seq.inference.encoding import begins_word
from seq2seq.network.mixer import CrossMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.network.pooling import spread
from seq2seq.search import Ensemble, NotFiniteScoresError, Specials, models_of
from seq2seq.system.characters import UNSPACED_OF_ANY_WIDTH

_UNSPACED = re.compile(f"[{UNSPACED_OF_ANY_WIDTH}]")


class SourceAttention(NamedTuple):
    """Weights of each decoder layer and head over the pieces of the source.

    Attributes:
        source: Pieces of the source, its tags and end included.
        target: Pieces of the translation, its end included.
        weights: (layers, heads, target pieces, source pieces).
    """

    source: list[str]
    target: list[str]
    weights: Tensor


class Forced(NamedTuple):
    """Scores of a given translation.

    Attributes:
        log_probs: log p of each piece and of the end, in nats.
        weights: Weight of each source piece for each target piece and the end, (T, S), or None. A row sums to 1, or
            to 0 if no head reads anything.
    """

    log_probs: list[float]
    weights: Tensor | None


def force(
    model: Seq2Seq | Ensemble,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    special: Specials,
    device: torch.device,
    align: bool = False,
) -> list[Forced]:
    """Compute the log-probabilities of given targets, eos included.

    Args:
        pairs: Ids of sources and targets, each with eos; they are computed as one batch.

    Raises:
        NotFiniteScoresError: A log-probability is not finite.
    """
    src, src_mask = _padded([source for source, _ in pairs], special.pad, device)
    out, mask = _padded([target for _, target in pairs], special.pad, device)
    given = torch.cat([torch.full_like(out[:, :1], special.bos), out[:, :-1]], 1)
    parts = [_force_one(member, src, src_mask, given, out, mask, align) for member in models_of(model)]
    # The mean of probabilities, not of their logarithms
    log_probs = torch.stack([log_prob for log_prob, _ in parts]).logsumexp(0) - math.log(len(parts))  # (B, T)
    # No token is forbidden here, unlike in a search: finite logits give finite log-probabilities
    if not log_probs[mask].isfinite().all():
        raise NotFiniteScoresError
    # A head that reads nothing, possible with relu, adds a row of zeros to the mean
    weights = _shares(torch.stack([weight for _, weight in parts if weight is not None]).mean(0)) if align else None
    found = []
    for row, (source, target) in enumerate(pairs):
        own = None if weights is None else weights[row, : len(target), : len(source)].cpu()
        found.append(Forced(log_probs[row, : len(target)].tolist(), own))
    return found


def _force_one(
    model: Any, src: Tensor, src_mask: Tensor, given: Tensor, out: Tensor, mask: Tensor, align: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log p (B, T) of `out` after `given` under one model, and weights (B, T, S) over the source."""
    log_probs, weights = _forward(model, src, src_mask, given, mask, align)
    chosen = log_probs.gather(2, out[:, :, None]).squeeze(2)  # (B, T)
    if not align:
        return chosen, None
    if any(each is None for each in weights):
        found = saliency(model, src, src_mask, given, out, mask)
    else:
        # Mean over heads, then over layers
        found = torch.stack([_shares(each).mean(1) for each in weights if each is not None]).mean(0)
    return chosen, spread(found, model.encoder.poolings.values(), model.encoder.position_mask(src_mask))


def read_attention(
    model: Seq2Seq, source: Sequence[int], target: Sequence[int], *, special: Specials, device: torch.device
) -> Tensor:
    """Return the weights of each decoder layer and head over the source, (layers, heads, T, S), if all have some.

    Args:
        source: Ids with eos.
        target: Ids of the translation, with eos.

    Raises:
        ValueError: A layer has no weights over the source.
    """
    src, src_mask = _padded([source], special.pad, device)
    given, mask = _padded([[special.bos, *target[:-1]]], special.pad, device)
    _, weights = _forward(model, src, src_mask, given, mask, align=True)
    whole = [each for each in weights if each is not None]
    if len(whole) < len(weights):
        raise ValueError("a cross mixer without weights over the source has no attention to read; align works for all")
    poolings = model.encoder.poolings.values()
    mask = model.encoder.position_mask(src_mask)
    return torch.stack([spread(each[0], poolings, mask) for each in whole]).cpu()


def _forward(
    model: Any, src: Tensor, src_mask: Tensor, given: Tensor, mask: Tensor, align: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the log-probabilities (B, T, V), and each layer's weights (B, heads, T, S') if `align`."""
    reads: list[tuple[CrossMixer[Any, Any], Tensor, Any]] = []
    handles = [
        layer.cross_mixer.register_forward_hook(lambda mixer, inputs, _: reads.append((mixer, *inputs)))
        for layer in model.decoder.layers
        if align
    ]
    try:
        with torch.no_grad():
            log_probs = model(src, src_mask, given, mask).float().log_softmax(-1)
    finally:
        for handle in handles:
            handle.remove()
    with torch.no_grad():
        return log_probs, [mixer.read_weights(x, context) for mixer, x, context in reads]


def _shares(weights: Tensor) -> Tensor:
    """Scale rows to a sum of 1, so that all heads count the same; a row of zeros stays zero."""
    size = weights.abs()
    return size / size.sum(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)


def saliency(model: Seq2Seq, src: Tensor, src_mask: Tensor, given: Tensor, out: Tensor, mask: Tensor) -> Tensor:
    """Return how much log p of each target token depends on each output of the encoder, (B, T, S'); rows sum to 1.

    This is |d log p(y_t) / d h_s| with h_s the encoder's output at s, for mixers without weights over the source.

    Reference:
        Ding et al. 2019, 'Saliency-driven Word Alignment Interpretation for Neural Machine Translation'.
    """
    with torch.enable_grad():
        memory, memory_mask = model.encoder(src, src_mask)
        memory = memory.detach().requires_grad_()  # (B, S', M)
        context: Any = [layer.project(memory, memory_mask) for layer in model.decoder.layers]  # type: ignore[operator]
        log_probs = model.output(model.decoder(given, mask, context)).float().log_softmax(-1)
        chosen = log_probs.gather(2, out[:, :, None]).squeeze(2).sum(0)  # (T,): sentences are independent
        norms = [torch.autograd.grad(each, memory, retain_graph=True)[0].norm(dim=-1) for each in chosen]
    found = torch.stack(norms, 1).masked_fill(~memory_mask[:, None], 0.0)  # (B, T, S')
    return _shares(found)


def _padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the right; return them and their mask, both (B, T)."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(row) for row in rows])
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths[:, None]).to(device)


def word_weights(weights: Tensor, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Tensor:
    """Return the weight of each source word for each target word: (target words, source words).

    The weight is the sum over the pieces of the source word, and the mean over the pieces of the target word.

    Args:
        weights: (T, S) for pieces, eos and tags included.
        source: Positions of the pieces of each source word, as `words_of` returns them.
        target: Positions of the pieces of each target word.
    """
    rows, columns = (_members(words, size) for words, size in zip((target, source), weights.shape, strict=True))
    return rows / rows.sum(1, keepdim=True) @ weights.float() @ columns.t()


def _members(words: Sequence[Sequence[int]], size: int) -> Tensor:
    """Return 1 where a piece belongs to a word, (words, pieces)."""
    table = torch.zeros(len(words), size)
    for number, pieces in enumerate(words):
        table[number, list(pieces)] = 1.0
    return table


def links(weights: Tensor) -> list[tuple[int, int]]:
    """Return pairs (source word, target word): for each target word, the source word of the largest weight, if any."""
    if not weights.numel():
        return []
    # With ReLU instead of softmax, all weights of a word may be 0
    reads = weights.any(1).tolist()
    return [(best, i) for i, best in enumerate(weights.argmax(1).tolist()) if reads[i]]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Format an alignment in Pharaoh format, such as `0-0 1-2`: source-target, from 0."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def words_of(pieces: Sequence[str], *, unspaced: bool = False) -> list[list[int]]:
    """Group the positions of pieces into words (`begins_word`); "" stands for a piece that is not text.

    Args:
        unspaced: Pieces of scripts without spaces are words.
    """
    words: list[list[int]] = []
    before = ""
    for position, piece in enumerate(pieces):
        if not piece:
            continue
        apart = unspaced and before != "▁" and (_UNSPACED.match(piece) or _UNSPACED.match(before[-1:]))
        if not words or apart or begins_word(before, piece):
            words.append([])
        words[-1].append(position)
        before = piece
    return words
