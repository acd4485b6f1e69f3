"""Shortlists: the pieces that a translation may contain, by a table of lexical translations of its source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.ibm1 import Block, lexical_table
from seq2seq.data.ragged import Ragged
from seq2seq.data.readers import text_pairs
from seq2seq.data.text_checks import checked
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.system.files import atomic_file, read_arrays

FORMAT = 1
# Sentence pairs with a longer side are left out of the estimate, whose cost grows with the product of both lengths.
LONGEST = 100
_ARRAYS = {"starts": np.int64, "tokens": np.int32, "frequent": np.int32, "meta": np.uint8}


class Shortlist:
    """Target pieces that translations may contain: the likely translations of each source piece, and frequent pieces.

    The end, the unknown piece and byte pieces are always allowed.

    Args:
        starts: Offsets into tokens, (src_vocab_size + 1,).
        tokens: The translations of source piece f are tokens[starts[f] : starts[f + 1]].
        frequent: Pieces that every translation may contain.
    """

    def __init__(self, tokenizer: Tokenizer, starts: np.ndarray, tokens: np.ndarray, frequent: np.ndarray) -> None:
        self.tokenizer = tokenizer
        self.starts = starts
        self.tokens = tokens
        self.frequent = frequent
        self._always = torch.zeros(tokenizer.tgt_vocab_size, dtype=torch.bool)
        self._always[[tokenizer.eos_id, tokenizer.unk_id, *tokenizer.byte_of, *frequent.tolist()]] = True

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Return the pieces that a translation of these source ids may contain, True in a new tensor (V,)."""
        allowed = self._always.clone()
        pieces = dict.fromkeys(i % (len(self.starts) - 1) for i in ids)
        found = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in pieces]
        if found:
            allowed[torch.from_numpy(np.concatenate(found).astype(np.int64))] = True
        return allowed

    def save(self, path: str | os.PathLike[str], **made_by: Any) -> None:
        """Write the file atomically, with the options `made_by`."""
        meta = {"format": FORMAT, "tokenizer": self.tokenizer.fingerprint, **made_by}
        arrays: dict[str, Any] = {"starts": self.starts, "tokens": self.tokens, "frequent": self.frequent}
        with atomic_file(path) as file:
            np.savez(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], tokenizer: Tokenizer) -> Shortlist:
        """Load a file that `save` has written for this tokenizer; no code in it is executed.

        Raises:
            ValueError: The file is not a shortlist, is damaged, or belongs to another tokenizer.
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
    """Return True if a file can be read as a shortlist of any tokenizer."""
    try:
        _read(path)
    except ValueError:
        return False
    return True


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and the meta data of a file; the arrays are no larger than the file."""
    if not path.is_file():
        reason = "is a directory" if path.is_dir() else "no such file"
        raise ValueError(f"{path}: {reason}; python -m seq2seq.shortlist makes a shortlist")
    try:
        arrays = read_arrays(path)
        if any(arrays[name].dtype != kind or arrays[name].ndim != 1 for name, kind in _ARRAYS.items()):
            raise ValueError("other arrays")
        meta = json.loads(arrays["meta"].tobytes())
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ValueError("another format")
    except (ValueError, KeyError, RecursionError):
        raise ValueError(f"{path} is not a shortlist, or damaged; python -m seq2seq.shortlist makes one") from None
    return arrays, meta


def make_shortlist(
    tokenizer: Tokenizer,
    src: Path,
    tgt: Path,
    *,
    best: int,
    frequent: int,
    iterations: int,
    progress: Callable[[int, int], None] = lambda done, entries: None,
) -> tuple[Shortlist, float, float]:
    """Estimate a shortlist from a parallel corpus of two files, line by line; see `lexical_table`.

    Args:
        best: Number of translations of each source piece.
        frequent: Number of pieces that every translation may contain, the most frequent ones.

    Returns:
        The shortlist; for a part of the corpus, the share of target pieces in the lists and the mean size of a list.

    Raises:
        ValueError: Sources are images, or the files have no pairs or different numbers of lines.
    """
    if tokenizer.patches:
        raise ValueError("this checkpoint translates images, whose patches have no shortlist")
    sizes = {"src_size": tokenizer.src_vocab_size, "tgt_size": tokenizer.tgt_vocab_size}
    table = lexical_table(lambda: _encoded(tokenizer, src, tgt), **sizes, iterations=iterations, progress=progress)
    counts = np.zeros(tokenizer.tgt_vocab_size, np.int64)
    for _, targets in _encoded(tokenizer, src, tgt):
        counts += np.bincount(Ragged.from_rows(targets).ids, minlength=len(counts))
    order = np.argsort(-counts, kind="stable")[: min(frequent, np.count_nonzero(counts))]
    found = Shortlist(tokenizer, *table.best(best, tokenizer.src_vocab_size), order.astype(np.int32))
    sources, targets = next(_encoded(tokenizer, src, tgt))
    lists = [(found(source), target) for source, target in zip(sources, targets, strict=True) if source and target]
    inside = sum(int(allowed[list(target)].sum()) for allowed, target in lists)
    covered = inside / max(1, sum(len(target) for _, target in lists))
    return found, covered, sum(int(allowed.sum()) for allowed, _ in lists) / max(1, len(lists))


def _encoded(tokenizer: Tokenizer, src: Path, tgt: Path) -> Iterator[Block]:
    """Read the corpus as ids of pieces without eos, and drop pairs that are too long."""
    for sources, targets in checked(text_pairs(src, tgt), [str(src), str(tgt)], unit="line", training=True):
        rows = zip(tokenizer.encode_src(sources), tokenizer.encode_tgt(targets), strict=True)
        pairs = [(one[:-1], other[:-1]) for one, other in rows if max(len(one), len(other)) <= LONGEST + 1]
        yield [[i % tokenizer.src_vocab_size for i in one] for one, _ in pairs], [other for _, other in pairs]
