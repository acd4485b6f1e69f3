"""Pieces of a tokenizer's vocabularies, as these write them."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import whole_characters


def source_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of source ids; "" for patches of an image."""
    return [""] * len(ids) if tokenizer.patches else [tokenizer.src.id_to_piece(int(i)) for i in ids]


def target_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of target ids; ids that were added after the model's are special symbols."""
    size = tokenizer.tgt.get_piece_size()
    return [tokenizer.tgt.id_to_piece(int(i)) if i < size else "</s>" for i in ids]


def target_ids(tokenizer: Tokenizer, pieces: Sequence[str]) -> tuple[int, ...]:
    """Look up pieces of the target.

    Raises:
        ValueError: The vocabulary lacks one.
    """
    pieces = [whole_characters(piece) for piece in pieces]
    ids = tuple(int(tokenizer.tgt.piece_to_id(piece)) for piece in pieces)
    for piece, number in zip(pieces, ids, strict=True):
        # piece_to_id returns unk for an unknown piece
        if number == tokenizer.unk_id and piece != tokenizer.tgt.id_to_piece(number):
            raise ValueError(f"the target's vocabulary has no piece '{piece}'; those that begin a word begin with ▁")
    return ids
