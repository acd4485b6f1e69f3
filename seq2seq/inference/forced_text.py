"""Score and align given translations of lines: log-probabilities by sentence and by piece, and word alignments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from seq2seq.data.context import fit_context, sentence_start
from seq2seq.data.marks import unmarked
from seq2seq.inference.batch_rows import most_rows
from seq2seq.inference.encoding import (
    encode_pieces,
    longest_part,
    source_end,
    source_pieces,
    target_pieces,
    whole_characters,
)
from seq2seq.inference.forced import Forced, force, links, pharaoh, word_weights, words_of
from seq2seq.inference.limits import MOST_WEIGHTS
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import LINE_BREAKS
from seq2seq.system.errors import visible

if TYPE_CHECKING:
    from seq2seq.inference.translator import TranslatedText, Translator


class Alignment(NamedTuple):
    """Word alignment of a line and its translation.

    Attributes:
        links: Pairs (source word, target word), from 0: for each target word, the source word of the largest weight.
        weights: Weight of every source word for each target word; [] if a line has several parts and more than
            MOST_WEIGHTS weights.
        parts: Alignment of each part, if a line has several parts.
    """

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    weights: list[list[float]]
    parts: Sequence[Alignment] = ()


class ForcedLine(NamedTuple):
    """Scores of a given translation of a line.

    Attributes:
        log_prob: log p(y | x) in nats, the end included; None if it was not computed, as for a blank source.
        pieces: Pieces of the translation with their log-probabilities, the end </s> last.
        words: Word alignment, if asked for.
        reason: Why the translation has no scores, as the predicate of a sentence; "" for a blank source.
    """

    log_prob: float | None
    pieces: list[tuple[str, float]]
    words: Alignment | None
    reason: str = ""

    @property
    def alignment(self) -> str:
        """Alignment in Pharaoh format, source-target from 0; "" without one."""
        return pharaoh(self.words.links) if self.words else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        pieces = [{"piece": piece, "log_prob": log_prob} for piece, log_prob in self.pieces]
        return {"log_prob": self.log_prob, "pieces": pieces, "alignment": self.alignment}

    def as_text(self) -> str:
        """Return three columns: log p, the number of pieces, and each piece with its log p."""
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
    strict: bool = True,
) -> Iterator[ForcedLine]:
    """Compute the log-probabilities of given translations, in order, in batches of consecutive lines.

    Args:
        lines: Sources with their translations.
        note: Called for every source that is cut.
        align: Align words, too.
        strict: A translation with more pieces than the model has positions is an error; otherwise it has no scores.

    Raises:
        ValueError: A translation has more pieces than the model has positions, or the model is a folder of ONNX graphs.
        NotFiniteScoresError: A log-probability is not finite.
    """
    if not translator.can_force:
        raise ValueError("a folder of ONNX graphs decodes step by step only; name the checkpoint")
    most = translator.settings.max_len
    reasons: dict[int, str] = {}

    def encoded() -> Iterator[tuple[list[int], list[int]]]:
        for number, (src, tgt) in enumerate(encoded_pairs(translator, lines, note=note)):
            if src and most is not None and len(tgt) > most:
                reason = f"has {len(tgt)} pieces; the model has {most} positions"
                if strict:
                    raise ValueError(f"translation {number + 1} {reason}")
                reasons[number] = reason
            yield [] if number in reasons else src, tgt

    for number, (src, tgt, forced) in enumerate(force_in_batches(translator, encoded(), align=align)):
        yield _line(translator, src, tgt, forced) if forced else ForcedLine(None, [], None, reasons.get(number, ""))


def encoded_pairs(
    translator: Translator, lines: Iterable[tuple[str, str]], *, note: Callable[[Note], None]
) -> Iterator[tuple[list[int], list[int]]]:
    """Tokenize sources with their translations: tags, pieces, eos; [] for a source without any piece.

    Args:
        note: Called for a source that is cut or fails.
    """
    tokenizer, tags = translator.tokenizer, translator.tags
    longest = longest_part(translator.max_len, tags.source)
    for number, (source, target) in enumerate(lines):
        (pieces,) = encode_pieces(tokenizer, [source], note=lambda told, i=number: note(told._replace(position=i)))
        pieces = fit_context(pieces, tokenizer.separator, longest)
        # Images have a fixed size and stay whole
        if len(pieces) > longest and not tokenizer.patches:
            note(Note.cut(number, len(pieces), longest))
            pieces = pieces[:longest]
        src = [*tags.source, *pieces, *source_end(tokenizer)] if pieces else []
        yield src, [*tags.target, *tokenizer.encode_tgt([whole_characters(target)])[0]]


def force_in_batches(
    translator: Translator, pairs: Iterable[tuple[list[int], list[int]]], *, align: bool
) -> Iterator[tuple[list[int], list[int], Forced | None]]:
    """Score pairs of ids, a source with a translation, in batches of consecutive pairs; None for an empty source."""

    def batches() -> Iterator[list[tuple[list[int], list[int]]]]:
        batch: list[tuple[list[int], list[int]]] = []
        width = 0
        most = min(translator.max_tokens, most_rows(1, translator.tokenizer.tgt_vocab_size))
        for pair in pairs:
            width = max(width, *map(len, pair))
            if batch and (len(batch) + 1) * width > most:
                yield batch
                batch = []
                width = max(map(len, pair))
            batch.append(pair)
        yield batch

    device = torch.device(translator.device)
    for batch in batches():
        whole = [pair for pair in batch if pair[0]]
        scored = force(translator.model, whole, special=translator.special, device=device, align=align) if whole else []
        found = iter(scored)
        yield from ((src, tgt, next(found) if src else None) for src, tgt in batch)


def force_candidates(
    translator: Translator,
    lines: Sequence[str],
    candidates: Sequence[Sequence[TranslatedText]],
    *,
    align: bool = False,
    step: Callable[[], None] = lambda: None,
) -> list[list[ForcedLine]]:
    """Compute the log-probabilities of a model's own translations of lines, each part of a line by itself.

    Args:
        candidates: Translations of each line; nothing is computed for one that failed.
        step: Called before each translation of a part; an error that it raises ends the call.
    """
    pairs: list[tuple[str, str]] = []
    for line, row in zip(lines, candidates, strict=True):
        for each in row:
            # A line in one part has line breaks only at its ends, which its search has not seen
            own = unmarked(line) if math.isfinite(each.score) else ""
            pairs += each.parts or [(LINE_BREAKS.sub("", own), LINE_BREAKS.sub("", each.text))]
    # Without notes: the translation of these lines has reported the cuts
    found = force_lines(translator, pairs, note=lambda _: None, align=align, strict=False)

    def following() -> ForcedLine:
        step()
        return next(found)

    return [[_joined([following() for _ in each.parts or (each,)]) for each in row] for row in candidates]


def _joined(parts: Sequence[ForcedLine]) -> ForcedLine:
    """Join the scores of a line's parts; if one part has no scores, the line has none."""
    if len(parts) == 1:
        return parts[0]
    if any(part.log_prob is None for part in parts):
        return ForcedLine(None, [], None, next((part.reason for part in parts if part.reason), ""))
    words = [part.words for part in parts if part.words is not None]
    return ForcedLine(
        log_prob=sum(part.log_prob or 0.0 for part in parts),
        pieces=[piece for part in parts for piece in part.pieces],
        words=_side_by_side(words) if words else None,
    )


def _side_by_side(alignments: Sequence[Alignment]) -> Alignment:
    """Join the alignments of parts, whose words follow each other; weights between different parts are 0."""
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
        alignments,
    )


def _line(translator: Translator, src: Sequence[int], tgt: Sequence[int], forced: Forced) -> ForcedLine:
    """Return the scores of a pair of ids by pieces and words."""
    tokenizer = translator.tokenizer
    pieces = target_pieces(tokenizer, tgt)
    words = None
    if forced.weights is not None:
        # Tags, context and eos are not aligned: "" stands for them
        start = sentence_start(src, tokenizer.separator, translator.tags.source)
        first = len(translator.tags.target)
        source = [*[""] * start, *source_pieces(tokenizer, src[start:-1]), ""]
        target = [*[""] * first, *pieces[first:-1], ""]
        of_source, of_target = (words_of(each, unspaced=True) for each in (source, target))
        table = word_weights(forced.weights, of_source, of_target)
        columns = [tokenizer.src.decode([source[i] for i in word]) for word in of_source]
        rows = [tokenizer.tgt.decode([target[i] for i in word]) for word in of_target]
        words = Alignment(columns, rows, links(table), table.tolist())
    # A piece of another's tokenizer may be any text
    return ForcedLine(sum(forced.log_probs), list(zip(visible(pieces), forced.log_probs, strict=True)), words)
