"""Shortlists: the pieces that the translation of a source may have, by a table of lexical translations."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.ibm1 import Block, lexical_table
from seq2seq.data.readers import text_pairs
from seq2seq.data.text_checks import checked
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.system.files import atomic_file

FORMAT = 1
# A sentence pair with a longer side is left out of the estimate, whose work grows with the product of both.
LONGEST = 100
_ARRAYS = {"starts": np.int64, "tokens": np.int32, "frequent": np.int32, "meta": np.uint8}


class Shortlist:
    """Target pieces that translations may have: for each source piece its likely translations, and frequent pieces.

    The end, the unknown piece and byte pieces are always among them.

    Args:
        starts: Where the translations of each source piece begin, and the end of the last, (src_vocab_size + 1,).
        tokens: Those of source piece f are tokens[starts[f] : starts[f + 1]].
        frequent: Pieces that every translation may have.
    """

    def __init__(self, tokenizer: Tokenizer, starts: np.ndarray, tokens: np.ndarray, frequent: np.ndarray) -> None:
        self.tokenizer = tokenizer
        self.starts = starts
        self.tokens = tokens
        self.frequent = frequent
        self._always = torch.zeros(tokenizer.tgt_vocab_size, dtype=torch.bool)
        self._always[[tokenizer.eos_id, tokenizer.unk_id, *tokenizer.byte_of, *frequent.tolist()]] = True

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Return the pieces that a translation of these source ids may have, True in a new tensor (V,)."""
        allowed = self._always.clone()
        starts, tokens = self.starts, self.tokens
        found = [tokens[starts[i] : starts[i + 1]] for i in dict.fromkeys(ids)]
        if found:
            allowed[torch.from_numpy(np.concatenate(found).astype(np.int64))] = True
        return allowed

    def save(self, path: str | os.PathLike[str], **made_by: Any) -> None:
        """Write the file, atomically.

        Args:
            made_by: Noted in the file.
        """
        meta = {"format": FORMAT, "tokenizer": self.tokenizer.fingerprint, **made_by}
        arrays: dict[str, Any] = {"starts": self.starts, "tokens": self.tokens, "frequent": self.frequent}
        with atomic_file(path) as file:
            np.savez(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], tokenizer: Tokenizer) -> Shortlist:
        """Load a file that `save` has written; nothing in it is executed.

        Raises:
            ValueError: It is no such file, is damaged, or belongs to another tokenizer; the message is one line.
        """
        arrays, meta = _read(Path(path))
        if meta.get("tokenizer") != tokenizer.fingerprint:
            raise ValueError(
                f"{path} was made for another tokenizer; make one for this checkpoint: python -m seq2seq.shortlist"
            )
        starts, tokens, frequent = (arrays[name] for name in ("starts", "tokens", "frequent"))
        whole = len(starts) == tokenizer.src_vocab_size + 1 and starts[0] == 0 and starts[-1] == len(tokens)
        every = np.concatenate([tokens, frequent])
        known = not len(every) or (every.min() >= 0 and every.max() < tokenizer.tgt_vocab_size)
        if not (whole and known and (np.diff(starts) >= 0).all()):
            raise ValueError(f"{path} is damaged; make it again")
        return cls(tokenizer, starts, tokens, frequent)


def is_shortlist(path: Path) -> bool:
    """Return True for a file that can be read as a shortlist, of whatever tokenizer."""
    try:
        _read(path)
    except ValueError:
        return False
    return True


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays of a file, whose sizes are within that of the file, and its note."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory, no shortlist; python -m seq2seq.shortlist makes one")
    try:
        with zipfile.ZipFile(path) as archive:
            # What is not packed cannot grow
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("packed")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
        if any(arrays[name].dtype != kind or arrays[name].ndim != 1 for name, kind in _ARRAYS.items()):
            raise ValueError("other arrays")
        meta = json.loads(arrays["meta"].tobytes())
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ValueError("another format")
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, RecursionError, NotImplementedError, MemoryError):
        raise ValueError(f"{path} is not a shortlist, or damaged; python -m seq2seq.shortlist makes one") from None
    return arrays, meta


class Estimate(NamedTuple):
    """Shortlist, with figures of the corpus's first block: the share of target pieces in the lists, and their size."""

    shortlist: Shortlist
    covered: float
    mean_size: float


def make_shortlist(
    tokenizer: Tokenizer,
    src: Path,
    tgt: Path,
    *,
    best: int,
    frequent: int,
    iterations: int,
    progress: Callable[[int, int], None] = lambda done, entries: None,
) -> Estimate:
    """Estimate a shortlist from a parallel corpus of two files, line by line.

    Args:
        best: Translations of each source piece.
        frequent: Pieces that every translation may have, the most frequent ones.
        iterations: Of `lexical_table`.
        progress: See `lexical_table`.

    Raises:
        ValueError: Sources are images, or the files have no pairs or other numbers of lines.
    """
    if tokenizer.patches:
        raise ValueError("this checkpoint translates images, whose patches have no shortlist")
    sizes = {"src_size": tokenizer.src_vocab_size, "tgt_size": tokenizer.tgt_vocab_size}
    table = lexical_table(lambda: _encoded(tokenizer, src, tgt), **sizes, iterations=iterations, progress=progress)
    counts = np.zeros(tokenizer.tgt_vocab_size, np.int64)
    for _, targets in _encoded(tokenizer, src, tgt):
        # Of integers: an empty row alone would be an array of floats
        rows = [np.asarray(row, dtype=np.int64) for row in targets]
        counts += np.bincount(np.concatenate([np.zeros(0, np.int64), *rows]), minlength=len(counts))
    order = np.argsort(-counts, kind="stable")[: min(frequent, np.count_nonzero(counts))]
    found = Shortlist(tokenizer, *table.best(best, tokenizer.src_vocab_size), order.astype(np.int32))
    return Estimate(found, *_figures(found, next(_encoded(tokenizer, src, tgt))))


def _encoded(tokenizer: Tokenizer, src: Path, tgt: Path) -> Iterator[Block]:
    """Read the corpus as ids without ends; of pairs that are too long none are left."""
    for sources, targets in checked(text_pairs(src, tgt), [str(src), str(tgt)], unit="line", training=True):
        rows = zip(tokenizer.encode_src(sources), tokenizer.encode_tgt(targets), strict=True)
        pairs = [(one[:-1], other[:-1]) for one, other in rows if max(len(one), len(other)) <= LONGEST + 1]
        yield [one for one, _ in pairs], [other for _, other in pairs]


def _figures(shortlist: Shortlist, block: Block) -> tuple[float, float]:
    """Return the share of target pieces that are in the lists of their sources, and the mean size of the lists."""
    lists = [(shortlist(source), target) for source, target in zip(*block, strict=True) if source and target]
    inside = sum(int(allowed[list(target)].sum()) for allowed, target in lists)
    count = max(1, sum(len(target) for _, target in lists))
    return inside / count, sum(int(allowed.sum()) for allowed, _ in lists) / max(1, len(lists))
