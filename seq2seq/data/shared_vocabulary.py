"""SentencePiece models whose pieces are numbered by another vocabulary, as Marian and others do.

Two models, one a side, may then share one vocabulary, and one table of embeddings. The serialized vocabulary precedes
the serialized model, as a field that SentencePiece ignores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece as spm

from seq2seq.data.protobuf import field, varint

# A field of SentencePiece's ModelProto: those from 200 on are free for others.
_VOCABULARY = 200
# Largest vocabulary that is read, in bytes; 256,000 pieces take 4 MB.
_LARGEST = 16 << 20
_SPECIAL = ("unk", "bos", "eos", "pad")


class Numbered:
    """Ids of a model of pieces, under the names of SentencePieceProcessor.

    Attributes:
        pieces: All pieces by their ids.
        special: The ids of unk, bos, eos and pad; bos, which the decoder reads first, may equal eos or pad.
        controls: The ids that stand for no text.
    """

    def number(self, pieces: Sequence[str], special: Mapping[str, int], controls: Iterable[int]) -> None:
        """Set the attributes."""
        self.pieces = list(pieces)
        self.numbers = {piece: i for i, piece in enumerate(pieces)}
        self.special = special
        self.controls = frozenset(controls)

    def get_piece_size(self) -> int:
        """Return the number of pieces."""
        return len(self.pieces)

    def id_to_piece(self, number: int) -> str:
        """Return a piece."""
        return self.pieces[number]

    def piece_to_id(self, piece: str) -> int:
        """Look up a piece; unk for any other."""
        return self.numbers.get(piece, self.unk_id())

    def is_control(self, number: int) -> bool:
        """Return True for ids that stand for no text."""
        return number in self.controls

    def unk_id(self) -> int:
        return self.special["unk"]

    def bos_id(self) -> int:
        return self.special["bos"]

    def eos_id(self) -> int:
        return self.special["eos"]

    def pad_id(self) -> int:
        return self.special["pad"]


class VocabularyProcessor(Numbered, spm.SentencePieceProcessor):
    """SentencePiece model whose pieces are numbered by a vocabulary; pieces that the vocabulary lacks are unk.

    Text for which the model has no piece may still be a piece of the vocabulary, which the other side's model has.

    Raises:
        ValueError: The vocabulary is damaged.
    """

    def __init__(self, model: bytes, vocabulary: bytes) -> None:
        super().__init__()
        self.load_from_serialized_proto(model)
        # The file may come from a stranger
        if len(vocabulary) > _LARGEST:
            raise ValueError(f"its vocabulary has more than {_LARGEST:,} bytes")
        self.vocabulary = vocabulary
        stored = json.loads(vocabulary)
        pieces = list(map(str, stored["pieces"]))
        numbers = {piece: i for i, piece in enumerate(pieces)}
        if wrong := [name for name in _SPECIAL if stored[name] not in numbers]:
            raise ValueError(f"its vocabulary has no piece for {wrong[0]}")
        special = {name: numbers[stored[name]] for name in _SPECIAL}
        controls = [number for name, number in special.items() if name != "unk"]
        self.number(pieces, special, [*controls, *(numbers[name] for name in stored["controls"])])
        self.tags_targets = bool(stored.get("tags_targets"))
        # Text never becomes a control symbol
        self.cut = {piece: i for i, piece in enumerate(self.pieces) if i not in self.controls}

    def __reduce__(self) -> tuple[Any, ...]:
        return VocabularyProcessor, (self.serialized_model_proto(), self.vocabulary)

    def encode(self, lines: Sequence[str], **options: Any) -> Any:
        """Encode lines as ids."""
        unk = self.unk_id()
        rows = super().encode(lines, **{**options, "out_type": str})
        return [[self.cut.get(piece, unk) for piece in row] for row in rows]

    def decode(self, rows: Sequence[Any]) -> Any:
        """Decode one row of ids or of pieces, or several rows."""
        if rows and isinstance(rows[0], list):
            return [self.decode(row) for row in rows]
        pieces = [each if isinstance(each, str) else self.pieces[each] for each in rows]
        text = super().decode(pieces) if pieces else ""
        # Pieces of the other side's model keep their marks of spaces
        return text.replace("▁", " ").strip()

    def is_byte(self, number: int) -> bool:
        """Return True for a piece such as <0x41>."""
        model = spm.SentencePieceProcessor
        return bool(model.is_byte(self, model.piece_to_id(self, self.pieces[number])))


def with_vocabulary(
    model: bytes,
    pieces: Sequence[str],
    *,
    special: Mapping[str, str],
    controls: Iterable[str],
    tags_targets: bool = False,
) -> bytes:
    """Number the pieces of a serialized SentencePiece model by a vocabulary; the model cuts text as before.

    Args:
        pieces: The vocabulary by its ids, with the special pieces.
        special: The pieces unk, bos, eos and pad; bos, which the decoder reads first, may be eos or pad.
        controls: Further pieces that stand for no text, such as tags.
        tags_targets: Sources begin with the tag of their own language, and targets with the tag of theirs.
    """
    stored: dict[str, Any] = {"pieces": list(pieces), **special, "controls": list(controls)}
    # Absent in the vocabularies of other families
    stored |= {"tags_targets": True} if tags_targets else {}
    _, own = split_vocabulary(model)
    return field(_VOCABULARY, json.dumps(stored, ensure_ascii=False).encode()) + own


def split_vocabulary(model: bytes) -> tuple[bytes | None, bytes]:
    """Return the vocabulary that numbers a serialized model's pieces, None for its own; and the model without it."""
    key = field(_VOCABULARY, b"")[:-1]
    if not model.startswith(key):
        return None, model
    size, start = varint(model, len(key))
    return model[start : start + size], model[start + size :]
