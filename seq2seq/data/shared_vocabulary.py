"""SentencePiece models that number their pieces by a vocabulary in common, as Marian and others do.

Two models, one a side, may then share one table of embeddings. The serialized model begins with a mark that names the
vocabulary, which SentencePiece ignores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sentencepiece as spm

from seq2seq.data.protobuf import content_of, field, fields, varint

# Fields of SentencePiece's ModelProto, TrainerSpec and SentencePiece. Fields from 200 on are free for others.
_PIECE, _TRAINER_SPEC, _MARK = 1, 2, 200
_MODEL_TYPE, _UNK_PIECE, _BOS_PIECE, _EOS_PIECE, _PAD_PIECE = 3, 45, 46, 47, 48
_NAME, _TYPE = 1, 3
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
_UNIGRAM = 1


class Mark(NamedTuple):
    """Name of a vocabulary: its size, and a hash of its pieces."""

    size: int
    digest: str


class VocabularyProcessor(spm.SentencePieceProcessor):
    """Model whose ids are those of a vocabulary of `size` pieces; further pieces are unk.

    Text for which the model has no piece may still be a piece of the vocabulary, which the other side has.
    """

    def __init__(self, model: bytes, size: int) -> None:
        super().__init__()
        self.load_from_serialized_proto(model)
        # The file may come from a stranger
        if not 0 <= self.unk_id() < size <= super().get_piece_size():
            raise ValueError(f"its vocabulary of {size:,} pieces does not fit its SentencePiece model")
        self.size = size
        self.ids = {self.id_to_piece(i): i for i in range(size) if not self.is_control(i)}

    def get_piece_size(self) -> int:
        """Return the size of the vocabulary."""
        return self.size

    def piece_to_id(self, piece: Any) -> Any:
        """Look up a piece."""
        number = super().piece_to_id(piece)
        return number if number < self.size else self.unk_id()

    def encode(self, lines: Sequence[str], **options: Any) -> Any:
        """Encode lines as ids."""
        unk = self.unk_id()
        rows = super().encode(lines, **{**options, "out_type": str})
        return [[self.ids.get(piece, unk) for piece in row] for row in rows]


def with_vocabulary(
    model: bytes, names: Sequence[str], *, unk: str, bos: str, eos: str, pad: str, controls: Collection[str] = ()
) -> bytes:
    """Return a serialized model with the ids of a vocabulary, which cuts text as before.

    Pieces that the vocabulary lacks follow after it. Pieces of the vocabulary that the model lacks are never cut.

    Args:
        names: The pieces of the vocabulary by their ids; special tokens are among them.
        bos: The token that the decoder reads first, which may be eos or pad.
        controls: Further pieces that stand for no text, such as tags.
    """
    roles = {_UNK_PIECE: unk, _BOS_PIECE: bos, _EOS_PIECE: eos, _PAD_PIECE: pad}
    # A message that occurs twice is merged, and later values win
    special = field(_TRAINER_SPEC, b"".join(field(number, name.encode()) for number, name in roles.items()))
    own: dict[str, tuple[int, bytes]] = {}
    rest = b""
    for number, content, raw in fields(model):
        if number == _PIECE:
            own[content_of(content, _NAME).decode()] = (_piece_type(content), raw)
        # A model may have a vocabulary already
        elif number != _MARK and raw != special:
            rest += raw
    # Merges of BPE would pass through unused pieces; those of control symbols are not tried
    kind = content_of(content_of(model, _TRAINER_SPEC), _MODEL_TYPE)
    missing = _UNUSED if not kind or kind[0] == _UNIGRAM else _CONTROL
    pieces = []
    for name in names:
        type_and_piece = own.pop(name, None)
        if name == unk:
            pieces.append(_piece(name, _UNKNOWN))
        elif name in (bos, eos, pad) or name in controls:
            pieces.append(_piece(name, _CONTROL))
        else:
            pieces.append(_piece(name, missing) if type_and_piece is None else type_and_piece[1])
    pieces += [raw for kind, raw in own.values() if kind not in (_UNKNOWN, _CONTROL)]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    return field(_MARK, f"{len(names)} {digest}".encode()) + b"".join(pieces) + rest + special


def vocabulary_mark(model: bytes) -> Mark | None:
    """Return the mark of the vocabulary by which a serialized model numbers its pieces; None for its own."""
    start = field(_MARK, b"")[:-1]
    if not model.startswith(start):
        return None
    size, begin = varint(model, len(start))
    count, digest = model[begin : begin + size].decode().split()
    return Mark(int(count), digest)


def _piece_type(content: bytes) -> int:
    kind = content_of(content, _TYPE)
    return kind[0] if kind else _NORMAL


def _piece(name: str, kind: int) -> bytes:
    return field(_PIECE, field(_NAME, name.encode()) + field(_TYPE, kind))
