"""Moses tokenization with BPE of subword-nmt or fastBPE and fairseq's dictionaries, as models of pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from seq2seq.data.shared_vocabulary import Numbered
from seq2seq.system.errors import first_line
from seq2seq.system.packages import require

# The name of the normalization of text.
MOSES = "Moses"
# Ids that fairseq's dictionaries begin with; its decoder starts from </s>.
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_SPECIAL_IDS = {"pad": 1, "bos": 2, "eos": 2, "unk": 3}
# Mark of a piece that does not end its word, in dictionaries.
_CONTINUED = "@@"
# Mark of the end of a word, in the pairs that are merged.
_END = "</w>"
_FORMAT = "moses-bpe 1"
# Number of words whose pieces are remembered, and their most characters.
_CACHED = 1 << 16
_REMEMBERED = 100


class MosesBpe(Numbered):
    """Model of pieces like SentencePieceProcessor: Moses tokenization, then BPE, then the ids of a dictionary.

    Pieces are shown as by a SentencePiece model that marks the ends of words: `ab@@` of a dictionary as `ab`, and `cd`,
    which ends a word, as `cd▁`.

    Args:
        langs: Codes of source and target language, by which Moses separates punctuation.
        merges: Pairs of symbols in the order in which they are merged, such as ("a", "b</w>").
        words: The dictionary, without the special symbols; of equal words the last counts.
        whole_ends: The end of a word is a part of its last symbol; it is a symbol of its own in subword-nmt 0.1.
    """

    def __init__(
        self,
        *,
        langs: tuple[str, str],
        merges: Sequence[tuple[str, str]],
        words: Sequence[str],
        whole_ends: bool = True,
    ) -> None:
        self.langs = langs
        self.merges = merges
        self.whole_ends = whole_ends
        self.symbols = [*SPECIALS, *words]
        self.ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        # Of equal pairs the first counts
        self.ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
        self.number([*SPECIALS, *map(_shown, words)], _SPECIAL_IDS, range(_SPECIAL_IDS["unk"]))
        self._known: dict[str, tuple[str, ...]] = {}
        sacremoses = require("sacremoses", "a model with Moses tokenization", extra="moses")
        self._tokenizers = [sacremoses.MosesTokenizer(lang=lang) for lang in langs]
        self._detokenizers = [sacremoses.MosesDetokenizer(lang=lang) for lang in langs]
        self._side = 0

    @classmethod
    def from_bytes(cls, model: bytes) -> MosesBpe:
        """Restore a model from the result of `to_bytes`; raise ValueError for anything else."""
        try:
            stored = json.loads(model)
            if stored["format"] != _FORMAT:
                raise ValueError(f"of the format {stored['format']!r}")
            first, second = map(str, stored["langs"])
            merges = [(left, right) for left, right in (each.split(" ") for each in stored["merges"])]
            words = list(map(str, stored["words"]))
            whole_ends = bool(stored["whole_ends"])
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                "not a model of Moses and BPE of this version, or damaged "
                f"({type(error).__name__}: {first_line(error)})"
            ) from None
        return cls(langs=(first, second), merges=merges, words=words, whole_ends=whole_ends)

    def to_bytes(self) -> bytes:
        """Return all that decides the pieces, as JSON."""
        stored = {
            "format": _FORMAT,
            "langs": self.langs,
            "whole_ends": self.whole_ends,
            "merges": [" ".join(pair) for pair in self.merges],
            "words": self.symbols[len(SPECIALS) :],
        }
        return json.dumps(stored, ensure_ascii=False).encode()

    def codes(self) -> str:
        """Return the file of codes of subword-nmt; `read_merges` reads it."""
        return "\n".join([f"#version: {0.2 if self.whole_ends else 0.1}", *map(" ".join, self.merges)]) + "\n"

    def for_target(self) -> MosesBpe:
        """Return the same model with the rules of the target language."""
        target = object.__new__(MosesBpe)
        target.__dict__.update(self.__dict__, _side=1)
        return target

    def encode(self, lines: Sequence[str], *, out_type: type[int]) -> list[list[int]]:
        """Return the ids of every line, without </s>; `out_type` is there for SentencePiece's interface."""
        return [[self.ids.get(piece, self.unk_id()) for piece in self.cut(line)] for line in lines]

    def cut(self, line: str) -> list[str]:
        """Tokenize a line, and cut its words into pieces."""
        text = self._tokenizers[self._side].tokenize(line, aggressive_dash_splits=True, return_str=True)
        return [piece for word in text.split() for piece in self._pieces(word)]

    def _pieces(self, word: str) -> tuple[str, ...]:
        found = self._known.get(word)
        if found is None:
            found = self._cut(word)
            # The first words of a text are the frequent ones
            if len(word) <= _REMEMBERED and len(self._known) < _CACHED:
                self._known[word] = found
        return found

    def _cut(self, word: str) -> tuple[str, ...]:
        """Merge the characters of a word, the first pair of `merges` first."""
        parts = [*word[:-1], word[-1] + _END] if self.whole_ends else [*word, _END]
        while pairs := [pair for pair in pairwise(parts) if pair in self.ranks]:
            first, second = min(pairs, key=self.ranks.__getitem__)
            merged: list[str] = []
            for part in parts:
                # A pair's symbols have no empty one, so a merged part differs from `first`
                if merged and merged[-1] == first and part == second:
                    merged[-1] += part
                else:
                    merged.append(part)
            parts = merged
        if parts[-1] == _END:
            parts.pop()
        else:
            parts[-1] = parts[-1].removesuffix(_END)
        return (*(part + _CONTINUED for part in parts[:-1]), parts[-1])

    def decode(self, rows: Sequence[Any]) -> Any:
        """Join pieces to words and words to text, for one row of ids or of pieces as shown, or for several rows."""
        if rows and isinstance(rows[0], list):
            return [self.decode(row) for row in rows]
        ids = [self.piece_to_id(each) if isinstance(each, str) else each for each in rows]
        text = " ".join(self.symbols[i] for i in ids) + " "
        return self._detokenizers[self._side].detokenize(text.replace(f"{_CONTINUED} ", "").split())

    def is_byte(self, number: int) -> bool:
        """Return False: no piece is a byte."""
        return False


def is_moses_bpe(model: bytes) -> bool:
    """Return True for the result of `MosesBpe.to_bytes`; a model of SentencePiece begins with another byte."""
    return model.startswith(b"{")


def read_merges(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Parse a file of codes of subword-nmt or fastBPE, which has a third column of counts.

    Returns:
        The pairs, and the value of `whole_ends`.

    Raises:
        ValueError: A line is not a pair.
    """
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    version = ""
    if lines[0].startswith("#version:"):
        version = lines.pop(0).removeprefix("#version:").strip()
    rows = [line.strip("\r ").split(" ") for line in lines]
    columns = len(rows[0]) if rows else 2
    for line, row in zip(lines, rows, strict=True):
        if len(row) != columns or columns not in (2, 3):
            raise ValueError(f"the line {line[:80]!r} is not two symbols, as in files of codes of subword-nmt")
    # Files without a version are of subword-nmt 0.1, or of fastBPE
    whole_ends = columns == 3 or not (version or "0.1").startswith("0.1")
    return [(row[0], row[1]) for row in rows], whole_ends


def read_dictionary(text: str) -> list[str]:
    """Parse a dictionary of fairseq: a word and its count a line, in the order of the ids.

    Raises:
        ValueError: A line is not a word and a count.
    """
    words = []
    for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"):
        word, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not count.lstrip("-").isdecimal():
            raise ValueError(f"the line {line[:80]!r} is not a word and its count")
        words.append(word)
    return words


def _shown(word: str) -> str:
    return word.removesuffix(_CONTINUED) if word.endswith(_CONTINUED) else f"{word}▁"
