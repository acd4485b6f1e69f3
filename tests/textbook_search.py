"""Search beams as a textbook describes it: one sentence at a time, whole prefixes through `forward`, Python lists.

The reference implementation of `seq2seq.search`: no state, no batch, and it stops early only where sets of endings are
full.
"""

from __future__ import annotations

import codecs
import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from composed import BOS, EOS, PAD, VOCAB
from torch import Tensor

from seq2seq.network.model import Seq2Seq
from seq2seq.search import Hypothesis
from seq2seq.settings.search import SearchSettings


@torch.no_grad()
def next_log_probs(
    model: Seq2Seq, src: Tensor, prefixes: list[list[int]], shortlist: Tensor | None = None
) -> list[list[float]]:
    """log p of every next token after each prefix of the same length, given one source (1, S).

    With a shortlist (V,) the logits of all other tokens are -inf.
    """
    given = torch.tensor([[BOS, *ids] for ids in prefixes])
    many = src.expand(len(prefixes), -1)
    logits = model(many, torch.ones_like(many).bool(), given)[:, -1].double()
    if shortlist is not None:
        logits[:, ~shortlist] = -torch.inf
    return logits.log_softmax(-1).tolist()


def beam_search(
    model: Seq2Seq,
    src: Tensor,
    how: SearchSettings,
    prefix: Sequence[int] = (),
    suppress: Sequence[int] = (),
    byte_of: Mapping[int, int] | None = None,
    shortlist: Tensor | None = None,
) -> list[Hypothesis]:
    """Return the n best hypotheses of one source (1, S), best first."""
    limit = int(how.max_len_ratio * src.shape[1]) + how.max_len_extra
    limit = max(limit, how.min_len + 1, len(prefix) + 1)
    size = how.beam_size // how.beam_groups
    beams: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(how.beam_groups)]
    ended: list[list[Hypothesis]] = [[] for _ in beams]
    for length in range(1, limit + 1):
        chosen: Counter[int] = Counter()  # by earlier groups, at this step
        for group, beam in enumerate(beams):
            extended = []
            rows = next_log_probs(model, src, [ids for _, ids in beam], shortlist) if beam else []
            for (total, ids), log_probs in zip(beam, rows, strict=True):
                tokens = allowed(ids, limit, how, prefix, suppress, byte_of or {})
                for token in tokens:
                    price = how.diversity * chosen[token] if len(tokens) > 1 else 0.0
                    if log_probs[token] > -torch.inf:
                        extended.append((total + log_probs[token] - price, total + log_probs[token], [*ids, token]))
            extended.sort(key=lambda each: -each[0])
            for _, total, ids in extended[:size]:
                known = any(ids[:-1] == each.ids for other in ended for each in other)
                if ids[-1] == EOS and len(ended[group]) < size and not known:
                    ended[group].append(Hypothesis(ids[:-1], total / divisor(length, how), total))
            beams[group] = [(total, ids) for _, total, ids in extended if ids[-1] != EOS][:size]
            chosen.update(ids[-1] for _, ids in beams[group])
        if not any(beams) or all(len(group) == size for group in ended):
            break
    return sorted((each for group in ended for each in group), key=lambda each: -each.score)[: how.n_best]


def allowed(
    ids: list[int],
    limit: int,
    how: SearchSettings,
    prefix: Sequence[int],
    suppress: Sequence[int],
    byte_of: Mapping[int, int],
) -> list[int]:
    """List the tokens that may follow `ids`."""
    if len(ids) < len(prefix):
        return [prefix[len(ids)]]
    # The last token can only be the end
    if len(ids) + 1 == limit:
        return [EOS]
    forbidden = {PAD, BOS, *suppress, *([EOS] if len(ids) < how.min_len else [])}
    size = how.no_repeat_ngram
    if size:
        known = [ids[i : i + size] for i in range(len(ids) - size + 1)]
        forbidden |= {token for token in range(VOCAB) if [*ids, token][-size:] in known}
    if byte_of:
        known_bytes = frozenset(byte for token, byte in byte_of.items() if token not in suppress)
        left = limit - len(ids) - 2  # after the next token and without the end
        begun = unfinished(ids, byte_of)
        forbidden |= {token for token in range(VOCAB) if not spells(begun, byte_of.get(token), left, known_bytes)}
    return [token for token in range(VOCAB) if token not in forbidden]


def unfinished(ids: list[int], byte_of: Mapping[int, int]) -> bytes:
    """Return the bytes of an incomplete character, which Python's decoder leaves over."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for token in ids:
        if token in byte_of:
            decoder.decode(bytes([byte_of[token]]))
        else:
            decoder.reset()
    return decoder.getstate()[0]


@functools.cache
def spells(begun: bytes, byte: int | None, left: int, available: frozenset[int]) -> bool:
    """Return True if a byte, or None for another piece, leaves what at most `left` bytes make valid UTF-8."""
    if byte is None:
        return not begun
    # A character that has begun may always be completed
    for more in range(4 if begun else min(left, 3) + 1):
        for rest in itertools.product(available, repeat=more):
            try:
                text = bytes([*begun, byte, *rest]).decode()
            except UnicodeDecodeError:
                continue
            # Not another character
            if len(text) == 1:
                return True
    return False


def divisor(length: int, how: SearchSettings) -> float:
    """Return the divisor of log p for `length` tokens, including the end."""
    return (length if how.length_norm == "power" else (5 + length) / 6) ** how.length_penalty
