"""Extend a tokenizer by pieces for new text and by tags, and trace new pieces back to the old ones.

Every new piece has a character that no old piece has, so text without such characters is encoded as before. New pieces
follow the old ones, which keep their ids.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from sentencepiece import SentencePieceProcessor

from seq2seq.data.moses_bpe import MosesBpe
from seq2seq.data.protobuf import field
from seq2seq.data.shared_vocabulary import VocabularyProcessor
from seq2seq.data.tokenizer import Tokenizer, load_model, reservoir, run_trainer
from seq2seq.settings.tokenizer import TokenizerSettings

log = logging.getLogger(__name__)

# Fields of SentencePiece's ModelProto: a piece, with its text, its score, and its type if it is a control symbol.
_PIECE, _TEXT, _SCORE, _CONTROL = 1, 1, b"\x15", b"\x18\x03"
_SPACE = "▁"


def extend_tokenizer(
    old: Tokenizer, *, src_lines: Iterable[str], tgt_lines: Iterable[str], settings: TokenizerSettings
) -> Tokenizer:
    """Add the tags that `old` lacks, and up to `settings.extend` pieces a model; deterministic to the byte.

    Raises:
        ValueError: The tokenizer is of an imported model, whose vocabulary is apart from its models.
    """
    state = old.to_state()
    if isinstance(old.tgt, VocabularyProcessor | MosesBpe):
        raise ValueError(
            "a tokenizer imported by seq2seq.convert cannot be extended: leave tokenizer.extend out, and use the "
            "language tags that it has"
        )
    source = chain.from_iterable(zip(src_lines, tgt_lines, strict=True)) if old.joint else src_lines
    for side, lines in (("src_model", source), ("tgt_model", tgt_lines)):
        if side in state:
            # Tags stand before sources alone
            tags = settings.symbols if side == "src_model" else ()
            state[side] += _new_pieces(state[side], lines, settings, tags)
    return Tokenizer.from_state(state)


def _new_pieces(model: bytes, lines: Iterable[str], settings: TokenizerSettings, tags: Iterable[str]) -> bytes:
    """Return the serialized pieces to append to a model: the tags that it lacks, then new pieces of `lines`."""
    old = load_model(model)
    missing = [tag for tag in tags if old.piece_to_id(tag) == old.unk_id()]
    learned = _learn(old, lines, settings, most=settings.extend) if settings.extend else []
    sizes = (f"{old.get_piece_size():,}", f"{len(learned):,}")
    log.info("the tokenizer of %s pieces gets %s more and the tags %s", *sizes, ", ".join(missing) or "none")
    found = [(tag, 0.0, _CONTROL) for tag in missing] + [(piece, score, b"") for piece, score in learned]
    # A message may be continued by further values of its repeated fields
    parts = ((field(_TEXT, piece.encode()), _SCORE, struct.pack("<f", score), kind) for piece, score, kind in found)
    return b"".join(field(_PIECE, b"".join(each)) for each in parts)


def _learn(
    old: SentencePieceProcessor, lines: Iterable[str], settings: TokenizerSettings, *, most: int
) -> list[tuple[str, float]]:
    """Learn up to `most` pieces with characters that `old` lacks, single ones first; return them with their scores."""
    scores = dict(_texts(old))
    known = {_SPACE, *chain.from_iterable(scores)}
    sample = old.normalize(reservoir(lines, settings.input_sentence_size, settings.seed))
    words = [" ".join(word for word in line.split(_SPACE) if not known.issuperset(word)) for line in sample]
    words = [line for line in words if line]
    if not words:
        return []
    # Scores are ranks in a BPE model, and logarithms of probabilities in a unigram model
    bpe = all(score.is_integer() for score in scores.values())
    size = most + len(set(chain.from_iterable(words))) + 4
    given = replace(settings, type="bpe" if bpe else "unigram", vocab_size=size, byte_fallback=False, symbols=())
    try:
        # The text is normalized. The limit of pieces is soft, since a small text has fewer
        model = run_trainer(words, given, normalization_rule_name="identity", hard_vocab_limit=False)
    except RuntimeError as error:
        raise ValueError(f"SentencePiece finds no pieces for tokenizer.extend={most}: {error}") from None
    # Not even the text of an unused piece, since all pieces differ
    found = {piece: score for piece, score in _texts(load_model(model)) if old.piece_to_id(piece) == old.unk_id()}
    new = [piece for piece in found if not known.issuperset(piece)]
    singles = [piece for piece in new if len(piece) == 1]
    merged = {*scores, *singles}
    longer = [piece for piece in new if len(piece) > 1 and (not bpe or _is_merge(piece, merged))]
    chosen = [*singles, *longer][:most]
    lowest, highest = min(scores.values()), max(scores.values())
    # Old merges come first
    if bpe:
        return [(piece, lowest - 1 - rank) for rank, piece in enumerate(chosen)]
    # Within the range of old scores, since the score of an unknown character follows the lowest one
    return [(piece, min(max(found[piece], lowest), highest)) for piece in chosen]


def _texts(model: SentencePieceProcessor) -> Iterator[tuple[str, float]]:
    """Yield the pieces of text of a model, and their scores."""
    others = (model.is_control, model.is_unknown, model.is_byte, model.is_unused)
    for i in range(model.get_piece_size()):
        if not any(is_other(i) for is_other in others):
            yield model.id_to_piece(i), model.get_score(i)


def _is_merge(piece: str, merged: set[str]) -> bool:
    """Return True if two pieces of `merged`, or characters, make `piece`; add it to them then."""
    halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
    if any(all(len(half) == 1 or half in merged for half in pair) for pair in halves):
        merged.add(piece)
    return piece in merged


def origins(old: Tokenizer, new: Tokenizer) -> dict[str, list[Sequence[int]]]:
    """Return, for each id of the sides `src` and `tgt` of `new`, the ids of `old` that it stands for.

    They are the id of the same piece or special symbol, or the pieces into which `old` cuts a new piece. A new tag
    stands for all old tags or, without any, for all ids. Patches of images, which do not change, are left out.

    Raises:
        ValueError: `new` does not extend `old`.
    """
    remedy = "leave tokenizer.model out, or name a model that only adds pieces to the checkpoint's"
    if (old.joint, old.patches, str(old.factors)) != (new.joint, new.patches, str(new.factors)):
        kinds = "the number of models, tokenizer.patches and tokenizer.factors must be the checkpoint's"
        raise ValueError(f"tokenizer.model: {kinds}: {remedy}")
    special = {new.pad_id: old.pad_id, new.bos_id: old.bos_id, new.eos_id: old.eos_id}
    found = {}
    for side in ("tgt",) if old.patches else ("src", "tgt"):
        before, after = getattr(old, side), getattr(new, side)
        there, here = ([each.id_to_piece(i) for i in range(each.get_piece_size())] for each in (before, after))
        for i, (one, other) in enumerate(zip_longest(there, here[: len(there)], fillvalue="missing")):
            if one != other:
                raise ValueError(f"tokenizer.model: piece {i} is {other!r}, and {one!r} in the checkpoint: {remedy}")
        everything = range(getattr(old, f"{side}_vocab_size"))
        tags = [i for i in range(len(there)) if before.is_control(i) and i not in special.values()]
        rows: list[Sequence[int]] = []
        for i in range(getattr(new, f"{side}_vocab_size")):
            if i in special or i < len(there):
                rows.append([special.get(i, i)])
            # Beyond the pieces are ids that no text has
            elif i >= len(here) or after.is_control(i):
                rows.append(tags or everything)
            else:
                rows.append(_cut(before, here[i]) or everything)
        found[side] = rows
    return found


def _cut(model: SentencePieceProcessor, piece: str) -> list[int]:
    """Encode the text of a piece, without the space that SentencePiece puts before a text."""
    ids = model.encode(piece.replace(_SPACE, " "))
    return ids[1:] if ids[:1] == [model.piece_to_id(_SPACE)] and not piece.startswith(_SPACE) else ids
