"""Lines of text and given translations of them: log-probabilities by sentence and by piece, and word alignments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import encode_lines, source_pieces, target_pieces
from seq2seq.inference.forced import Forced, force, links, pharaoh, word_weights, words_of
from seq2seq.inference.limits import MOST_WEIGHTS
from seq2seq.inference.notes import Note

if TYPE_CHECKING:
    from seq2seq.inference.translator import TranslatedText, Translator


class Alignment(NamedTuple):
    """Words of a line and of its translation, and which belong together.

    Attributes:
        links: The source word that counts most for each target word: pairs source, target, from 0.
        weights: How much every source word counts for each target word; none of parts with more than MOST_WEIGHTS.
    """

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    weights: list[list[float]]


class ForcedLine(NamedTuple):
    """A given translation of a line under a model.

    Attributes:
        log_prob: log p(y | x) in nats, the end counted; None where nothing was computed, as for a blank source.
        pieces: Pieces of the translation with their log-probabilities, the end </s> last.
        words: Alignment of its words, if asked for.
    """

    log_prob: float | None
    pieces: list[tuple[str, float]]
    words: Alignment | None

    @property
    def alignment(self) -> str:
        """Alignment in Pharaoh format, source-target from 0; "" unless asked for."""
        return pharaoh(self.words.links) if self.words else ""

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        pieces = [{"piece": piece, "log_prob": log_prob} for piece, log_prob in self.pieces]
        return {"log_prob": self.log_prob, "pieces": pieces, "alignment": self.alignment}

    def as_text(self) -> str:
        """Return one line of three columns: log p, the number of pieces, and each piece with its log p."""
        if self.log_prob is None:
            return ""
        pieces = " ".join(f"{piece}:{log_prob:.4f}" for piece, log_prob in self.pieces)
        return f"{self.log_prob:.4f}\t{len(self.pieces)}\t{pieces}"


def force_lines(
    translator: Translator,
    lines: Iterable[tuple[str, str]],
    *,
    note: Callable[[Note], None],
    align: bool = False,
    left_out: Callable[[int, str], None] | None = None,
) -> Iterator[ForcedLine]:
    """Compute the log-probabilities of given translations, in order, in batches of consecutive lines.

    Args:
        lines: Sources with their translations.
        note: Called for every source that is cut.
        align: Align words, too.
        left_out: Called with the number, from 0, and the fault of a translation that has more pieces than the model has
            positions, which is then treated as that of a blank source. Without it such a translation is an error.

    Raises:
        ValueError: A translation has more pieces than the model has positions.
        NotFiniteScoresError: A log-probability is not finite.
    """
    batch: list[tuple[int, list[int], list[int]]] = []
    for number, (source, target) in enumerate(lines):
        told = _numbered(note, number)
        tokenizer = translator.tokenizer
        (src,) = encode_lines(tokenizer, [source], max_len=translator.max_len, tags=translator.tags, note=told)
        (tgt,) = tokenizer.encode_tgt([target])
        most = translator.settings.max_len
        # Of a blank source nothing is computed
        if src and most is not None and len(tgt) > most:
            reason = f"has {len(tgt)} pieces; the model has {most} positions"
            if left_out is None:
                raise ValueError(f"translation {number + 1} {reason}")
            left_out(number, reason)
            src = []
        grown = [*batch, (number, src, tgt)]
        if batch and _numbers(grown) > translator.max_tokens:
            yield from _force_batch(translator, batch, align)
            grown = grown[-1:]
        batch = grown
    if batch:
        yield from _force_batch(translator, batch, align)


def force_candidates(
    translator: Translator,
    lines: Sequence[str],
    candidates: Sequence[Sequence[TranslatedText]],
    *,
    align: bool = False,
    left_out: Callable[[int, str], None],
) -> list[list[ForcedLine]]:
    """Compute the log-probabilities of a model's own translations of lines, each part of a line by itself.

    Args:
        candidates: Translations of each line; nothing is computed of one that failed.
        left_out: Called with the number of a line, from 0, and why one of its translations is left out.
    """
    pairs: list[tuple[str, str]] = []
    line_of: list[int] = []
    for number, (line, row) in enumerate(zip(lines, candidates, strict=True)):
        for each in row:
            own = each.parts or [(line if math.isfinite(each.score) else "", each.text)]
            pairs += own
            line_of += [number] * len(own)
    told: set[int] = set()

    def left_out_part(number: int, reason: str) -> None:
        # Of a line it is said once
        if line_of[number] not in told:
            left_out(line_of[number], reason)
        told.add(line_of[number])

    # What was cut is known from the translation
    found = force_lines(translator, pairs, note=lambda _: None, align=align, left_out=left_out_part)
    return [[_joined([next(found) for _ in each.parts or (each,)]) for each in row] for row in candidates]


def _joined(parts: Sequence[ForcedLine]) -> ForcedLine:
    """Join what is known of the parts of a line; nothing is, if nothing is known of one of them."""
    if len(parts) == 1:
        return parts[0]
    if any(part.log_prob is None for part in parts):
        return ForcedLine(None, [], None)
    words = [part.words for part in parts if part.words is not None]
    return ForcedLine(
        log_prob=sum(part.log_prob or 0.0 for part in parts),
        pieces=[piece for part in parts for piece in part.pieces],
        words=_side_by_side(words) if words else None,
    )


def _side_by_side(alignments: Sequence[Alignment]) -> Alignment:
    """Join alignments of parts, whose words follow each other, and count nothing for the words of another part."""
    links: list[tuple[int, int]] = []
    sources = targets = 0
    for each in alignments:
        links += [(source + sources, target + targets) for source, target in each.links]
        sources += len(each.source)
        targets += len(each.target)
    table: list[list[float]] = []
    if sources * targets <= MOST_WEIGHTS:
        blocks = (torch.tensor(each.weights).view(len(each.target), len(each.source)) for each in alignments)
        table = torch.block_diag(*blocks).tolist()
    return Alignment(
        [word for each in alignments for word in each.source],
        [word for each in alignments for word in each.target],
        links,
        table,
    )


def _numbered(note: Callable[[Note], None], number: int) -> Callable[[Note], None]:
    return lambda told: note(told._replace(position=number))


def _numbers(batch: Sequence[tuple[int, list[int], list[int]]]) -> int:
    """Return the size of the larger padded side of a batch."""
    return len(batch) * max(max(len(src), len(tgt)) for _, src, tgt in batch)


def _force_batch(
    translator: Translator, batch: Sequence[tuple[int, list[int], list[int]]], align: bool
) -> Iterator[ForcedLine]:
    pairs = [(src, tgt) for _, src, tgt in batch if src]
    found: Iterator[Forced] = iter(())
    if pairs:
        device = torch.device(translator.device)
        found = iter(force(translator.model, pairs, special=translator.special, device=device, align=align))
    for _, src, tgt in batch:
        if not src:
            yield ForcedLine(None, [], None)
            continue
        forced = next(found)
        pieces = target_pieces(translator.tokenizer, tgt)
        words = None
        if forced.weights is not None:
            # Tags and the end stand for no text
            tags = len(translator.tags)
            source = [*[""] * tags, *source_pieces(translator.tokenizer, src[tags:-1]), ""]
            words = _align(forced.weights, source, [*pieces[:-1], ""], translator.tokenizer)
        yield ForcedLine(sum(forced.log_probs), list(zip(pieces, forced.log_probs, strict=True)), words)


def _align(weights: torch.Tensor, source: Sequence[str], target: Sequence[str], tokenizer: Tokenizer) -> Alignment:
    """Align the words of pieces, of which those that stand for no text are ""."""
    table = word_weights(weights, source, target)
    columns, rows = (
        [side.decode([pieces[i] for i in word]) for word in words_of(pieces)]
        for side, pieces in ((tokenizer.src, source), (tokenizer.tgt, target))
    )
    return Alignment(columns, rows, links(table), table.tolist())
