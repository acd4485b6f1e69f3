"""Compare the greedy translations of an exported model with ours, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Specials, search
from seq2seq.settings.search import SearchSettings

# Number of drawn sentences.
SENTENCES = 12
# Most pieces of a sentence. The last sentence has _LONG, more than any block into which our layers cut a source.
_SHORT = 20
_LONG = 140
# Most pieces of a translation.
_LIMIT = 30
# Logits closer than this may swap ranks when sums are computed in another order.
TIE = 1e-3

Rows = list[list[int]]


def drawn_sources(tokenizer: Tokenizer, tags: Sequence[int] = ()) -> Rows:
    """Draw sentences from the source vocabulary, each with eos, or draw images; the result is always the same."""
    generator = torch.Generator().manual_seed(0)
    if patches := tokenizer.patches:
        return torch.randint(patches.vocab_size, (SENTENCES, patches.ids), generator=generator).tolist()
    silent = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    size = tokenizer.src.get_piece_size()
    pieces = torch.tensor([i for i in range(size) if i not in silent and not tokenizer.src.is_control(i)])
    rows = []
    for number in range(SENTENCES):
        length = _LONG if number == SENTENCES - 1 else 1 + number * _SHORT // SENTENCES
        ids = pieces[torch.randint(len(pieces), (length,), generator=generator)]
        if tokenizer.factors:
            ids = ids + tokenizer.src_vocab_size * torch.randint(tokenizer.codes, (length,), generator=generator)
        rows.append([*tags, *ids.tolist(), tokenizer.eos_id])
    return rows


def greedy(model: Seq2Seq, tokenizer: Tokenizer, rows: Rows, limit: int) -> Rows:
    """Translate source ids with our own search to at most `limit` tokens, eos included; return ids without eos."""
    settings = SearchSettings(beam_size=1, max_len_ratio=0.0, max_len_extra=limit)
    special = specials(tokenizer)
    # One at a time, so that padding has no influence
    found = [search(model, *_one(row), special=special, settings=settings) for row in rows]
    return [beams[0][0].ids for beams in found]


def require_agreement(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    translate: Callable[[Rows, int], Rows],
    *,
    what: str,
    positions: int | None = None,
    tags: Sequence[int] = (),
    tie: float = TIE,
) -> int:
    """Compare greedy translations of drawn sentences, and return how many sentences agree to the last token.

    A translation may differ from ours if the logit of its first different token nearly equals the logit of our token.

    Args:
        translate: The exported model, called with sources of ids and the most tokens of a translation, eos included.
        what: Name of the exported model in messages.
        positions: The longest sequence that the model takes.
        tags: Ids before every source.
        tie: Logits that are closer count as equal.

    Raises:
        ValueError: A translation differs by more than rounding.
    """
    rows = drawn_sources(tokenizer, tags)
    if positions:
        # The last id is eos
        rows = [row if len(row) <= positions else [*row[: positions - 1], row[-1]] for row in rows]
    limit = min(_LIMIT, positions or _LIMIT)
    same = 0
    for row, ours, theirs in zip(rows, greedy(model, tokenizer, rows, limit), translate(rows, limit), strict=True):
        if ours == theirs:
            same += 1
        elif (gap := _gap(model, tokenizer, row, ours, theirs)) > tie:
            raise ValueError(
                f"{what} does not translate as this model does, and was not written: from {row} it makes {theirs}, "
                f"not {ours} (logits differ by {gap:.3g}); please report this"
            )
    return same


@torch.inference_mode()
def _gap(model: Seq2Seq, tokenizer: Tokenizer, row: list[int], ours: list[int], theirs: list[int]) -> float:
    """Return the logit of our token minus the logit of theirs at the first difference of two translations."""
    ours, theirs = [*ours, tokenizer.eos_id], [*theirs, tokenizer.eos_id]
    place = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    prefix = torch.tensor([[tokenizer.bos_id, *ours[:place]]])  # (1, T)
    logits = model(*_one(row), prefix)[0, -1]  # (V,)
    # Our search never chooses these tokens, however close their logits are
    if theirs[place] in specials(tokenizer).never:
        return float("inf")
    return float(logits[ours[place]] - logits[theirs[place]])


def specials(tokenizer: Tokenizer) -> Specials:
    """Return the special tokens of a tokenizer; pieces of bytes are pieces like any other."""
    return Specials(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)


def _one(row: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    src = torch.tensor([row])  # (1, S)
    return src, torch.ones_like(src).bool()
