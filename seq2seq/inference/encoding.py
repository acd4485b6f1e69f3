"""Turn lines of any content into source ids, and look up pieces of both vocabularies."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Callable, Sequence

from seq2seq.data.text_files import is_blank
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.notes import Note
from seq2seq.settings.values import shown
from seq2seq.system.errors import LineError


def longest_part(max_len: int, tags: Sequence[int]) -> int:
    """Return how many pieces a source of `max_len` ids has besides its tags and eos."""
    return max(1, max_len - len(tags) - 1)


def source_end(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end a source: eos, or nothing for an image."""
    return [] if tokenizer.patches else [tokenizer.eos_id]


def encode_pieces(tokenizer: Tokenizer, lines: Sequence[str], *, note: Callable[[Note], None]) -> list[list[int]]:
    """Tokenize every line, without eos; [] for a blank line, and for an invalid image or factor, with a note."""
    pieces: list[list[int]] = [[] for _ in lines]
    texts = {i: whole_characters(line) for i, line in enumerate(lines) if not is_blank(line)}
    if not tokenizer.patches:
        with contextlib.suppress(LineError):
            for i, ids in zip(texts, tokenizer.encode_src(list(texts.values())), strict=True):
                pieces[i] = ids[:-1]
            # Factors are in the ids, and other characters would change their places
            if tokenizer.factors:
                return pieces
            unusual = [i for i, text in texts.items() if not (text.isascii() and text.isprintable())]
            lacking = [i for i in unusual if _lacking(tokenizer, pieces[i])]
            if lacking:
                read = _readable(tokenizer, [texts[i] for i in lacking])
                for i, ids in zip(lacking, tokenizer.encode_src(read), strict=True):
                    pieces[i] = ids[:-1]
            return pieces
    for i, line in texts.items():
        try:
            pieces[i] = tokenizer.encode_src([line])[0][: None if tokenizer.patches else -1]
        except LineError as error:
            note(Note.failed(i, error.reason))
    return pieces


def _lacking(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Count the ids of characters that the vocabulary lacks: unknown ones, and their bytes."""
    return sum(i == tokenizer.unk_id or tokenizer.src.is_byte(i) for i in ids)


def _readable(tokenizer: Tokenizer, lines: Sequence[str]) -> list[str]:
    """Replace characters that the vocabulary lacks by others that mean the same, so that the model can read them.

    A character becomes its composed form (NFC), or else its compatible form (NFKC: wide letters, ligatures), if the
    vocabulary has that. White space becomes a space, and other invisible characters are left out.
    """

    def lacks(texts: Sequence[str]) -> list[int]:
        # One call for all texts: the tokenizer's overhead is per call
        return [_lacking(tokenizer, ids) for ids in tokenizer.encode_src(texts)]

    def better(old: Sequence[str], new: Sequence[str]) -> list[str]:
        rows = zip(old, new, lacks(old), lacks(new), strict=True)
        return [two if after < before else one for one, two, before, after in rows]

    composed = better(lines, [unicodedata.normalize("NFC", line) for line in lines])
    characters = sorted(set("".join(composed)))
    forms = {each: _form(each) for each, lacking in zip(characters, lacks(characters), strict=True) if lacking}
    unread = dict(zip(forms, lacks([*forms.values()]), strict=True))
    table = str.maketrans({each: form for each, form in forms.items() if not unread[each]})
    return better(composed, [line.translate(table) for line in composed])


def _form(character: str) -> str:
    """Return what a character may be read as."""
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    # Raised digits, circled ones and fractions would be other numbers
    is_number = unicodedata.decomposition(character).startswith(("<super>", "<sub>", "<circle>", "<fraction>"))
    return character if is_number else unicodedata.normalize("NFKC", character)


def whole_characters(line: str) -> str:
    """Replace lone surrogates, which no UTF-8 tokenizer accepts."""
    return line.encode("utf-8", "replace").decode()


def source_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of source ids; "" for each patch of an image."""
    if tokenizer.patches:
        return [""] * (len(ids) // tokenizer.patches.parts)
    return [tokenizer.src.id_to_piece(int(i) % tokenizer.src_vocab_size) for i in ids]


def target_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of target ids; ids beyond the model's pieces are special symbols."""
    size = tokenizer.tgt.get_piece_size()
    return [tokenizer.tgt.id_to_piece(int(i)) if i < size else "</s>" for i in ids]


def begins_word(before: str, after: str) -> bool:
    """Return True if the piece `after` begins a word, by its ▁ or by ▁ at the end of the piece `before`."""
    # A piece that is ▁ alone begins the word that follows
    return after.startswith("▁") or (before.endswith("▁") and before[0] != "▁")


def target_ids(tokenizer: Tokenizer, pieces: Sequence[str]) -> tuple[int, ...]:
    """Look up target pieces.

    Raises:
        ValueError: The vocabulary lacks a piece.
    """
    pieces = [whole_characters(piece) for piece in pieces]
    ids = tuple(int(tokenizer.tgt.piece_to_id(piece)) for piece in pieces)
    for piece, number in zip(pieces, ids, strict=True):
        # piece_to_id returns unk for an unknown piece
        if number == tokenizer.unk_id and piece != tokenizer.tgt.id_to_piece(number):
            raise ValueError(f"the target's vocabulary has no piece '{shown(piece)}'; ▁ marks where words begin or end")
    return ids
