"""A split of text as ids on disk: flat arrays, written block by block, by one process or several."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2seq.data.cleaning import Pairs
from seq2seq.data.images import PictureError
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.files import Pace

SIDES = ("src", "tgt")


class Ids(NamedTuple):
    """One side of a block: all ids in one array, and how many belong to each row."""

    flat: np.ndarray
    lengths: np.ndarray  # (rows,) int32

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int]], dtype: Any, prefix: Sequence[int] = ()) -> Ids:
        """Lists of ids, each after `prefix`, as arrays."""
        lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)) + np.int32(len(prefix))
        parts = itertools.chain.from_iterable((prefix, row) for row in rows) if prefix else rows
        flat = np.fromiter(itertools.chain.from_iterable(parts), dtype=dtype, count=int(lengths.sum()))
        return cls(flat, lengths)


class Encoder:
    """Blocks of text to ids, with tags (ids) before every source."""

    def __init__(self, *, tokenizer: Tokenizer, tags: Sequence[int] = ()) -> None:
        self.tokenizer, self.tags = tokenizer, list(tags)
        sizes = (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
        self.dtypes = [_id_type(size) for size in sizes]

    def __call__(self, block: Pairs, *, sample_seed: int | None = None) -> list[Ids]:
        """The ids of both sides; with `sample_seed`, segmentations drawn as the tokenizer's `sampling_alpha` says."""
        sample = sample_seed is not None
        src = self.tokenizer.encode_src(block[0], sample=sample, seed=sample_seed)
        tgt = self.tokenizer.encode_tgt(block[1], sample=sample, seed=sample_seed)
        return [Ids.pack(src, self.dtypes[0], self.tags), Ids.pack(tgt, self.dtypes[1])]


def _id_type(vocab_size: int) -> np.dtype:
    """What an id takes on disk: 2 bytes, or 4; patches of a picture up to 8."""
    kinds = {np.uint16: 16, np.int32: 31, np.uint32: 32}
    return np.dtype(next((kind for kind, bits in kinds.items() if vocab_size <= 1 << bits), np.int64))


def write_ids(folder: Path, blocks: Iterable[Pairs], *, encoder: Encoder, num_proc: int, pace: Pace) -> None:
    """Encode `blocks` into `folder`; the files are the same for every number of processes.

    A side is <side>.ids (the flat array), <side>.lengths.npy (int32) and <side>.starts.npy (int64: where a row begins).
    """
    lengths: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    with (folder / "src.ids").open("wb") as src, (folder / "tgt.ids").open("wb") as tgt:
        found = map(encoder, blocks) if num_proc == 1 else _in_parallel(blocks, encoder, num_proc)
        for encoded in _counted(found):
            for side, file, ids in zip(SIDES, (src, tgt), encoded, strict=True):
                ids.flat.tofile(file)
                lengths[side].append(ids.lengths)
            pace.add(len(encoded[0].lengths))
    for side in SIDES:
        rows = np.concatenate(lengths.pop(side))
        np.save(folder / f"{side}.lengths.npy", rows)
        np.save(folder / f"{side}.starts.npy", np.cumsum(rows, dtype=np.int64) - rows)
    (folder / "meta.json").write_text(json.dumps(dict(zip(SIDES, (d.name for d in encoder.dtypes), strict=True))))


def _counted(blocks: Iterable[list[Ids]]) -> Iterator[list[Ids]]:
    """The blocks; a PictureError on the way tells the line's position in all of them."""
    rows = 0
    try:
        for block in blocks:
            yield block
            rows += len(block[0].lengths)
    except PictureError as error:
        raise PictureError(rows + error.position, error.line, error.reason) from None


class IdArrays(NamedTuple):
    """One side of a split, memory-mapped: row i is the lengths[i] ids from starts[i]."""

    flat: np.ndarray
    starts: np.ndarray  # (N,) int64
    lengths: np.ndarray  # (N,) int32


def read_ids(folder: Path) -> list[IdArrays]:
    """Both sides as `write_ids` left them; nothing is read before it is used, and processes share what is."""
    meta = json.loads((folder / "meta.json").read_text())
    sides = []
    for side in SIDES:
        flat = np.memmap(folder / f"{side}.ids", dtype=meta[side], mode="r")
        rows = [np.load(folder / f"{side}.{name}.npy", mmap_mode="r") for name in ("starts", "lengths")]
        sides.append(IdArrays(*map(np.asarray, (flat, *rows))))
    return sides


def _in_parallel(blocks: Iterable[Pairs], encoder: Encoder, num_proc: int) -> Iterator[list[Ids]]:
    """The encoded blocks in their order, from `num_proc` processes that have two blocks each in hand at most."""
    # Spawned, not forked: a fork of a process with threads may hang, and would inherit the lock of the preparation.
    pool = ProcessPoolExecutor(
        num_proc,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(encoder.tokenizer.to_state(), encoder.tags),
    )
    try:
        waiting: deque[Future[list[Ids]]] = deque()
        for block in blocks:
            waiting.append(pool.submit(_encode_block, block))
            if len(waiting) >= 2 * num_proc:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_worker: list[Encoder] = []  # of a worker process: its encoder


def _start_worker(tokenizer: dict[str, Any], tags: list[int]) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _worker[:] = [Encoder(tokenizer=Tokenizer.from_state(tokenizer), tags=tags)]


def _die_with_parent() -> None:
    """A pool's workers wait for work forever when their parent is killed; these end with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _encode_block(block: Pairs) -> list[Ids]:
    return _worker[0](block)
