"""Encoded text on disk: flat arrays of ids, written block by block by one or more processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from seq2seq.data.cleaning import Pairs
from seq2seq.data.languages import NO_TAGS, Tags
from seq2seq.data.pace import Pace
from seq2seq.data.ragged import Ragged
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.system.errors import LineError

SIDES = ("src", "tgt")

Encoded = tuple[Ragged, Ragged]  # source and target of a block


class PairEncoder:
    """Encoder of blocks of pairs, with `tags` before every source and every target."""

    def __init__(self, *, tokenizer: Tokenizer, tags: Tags = NO_TAGS) -> None:
        self.tokenizer = tokenizer
        self.tags = tags
        self.dtypes = list(map(_id_type, (tokenizer.src_vocab_size * tokenizer.codes, tokenizer.tgt_vocab_size)))

    def __call__(self, block: Pairs, *, sample_seed: int | None = None) -> Encoded:
        """Encode both sides; with `sample_seed`, sample segmentations by the tokenizer's `sampling_alpha`."""
        src = self.tokenizer.encode_src(block[0], seed=sample_seed)
        # Another seed, so that the sides are sampled independently
        other_seed = None if sample_seed is None else sample_seed + 1
        tgt = self.tokenizer.encode_tgt(block[1], seed=other_seed)
        return (
            Ragged.from_rows(src, dtype=self.dtypes[0], prefix=self.tags.source),
            Ragged.from_rows(tgt, dtype=self.dtypes[1], prefix=self.tags.target),
        )


def _id_type(vocab_size: int) -> np.dtype:
    """Choose the smallest type of ids on disk: 2 or 4 bytes, or 8 for patches of images and many factors."""
    types = {np.uint16: 16, np.int32: 31, np.uint32: 32}
    return np.dtype(next((each for each, bits in types.items() if vocab_size <= 1 << bits), np.int64))


def write_ids(folder: Path, blocks: Iterable[Pairs], *, encoder: PairEncoder, num_proc: int, pace: Pace) -> None:
    """Encode `blocks` into `folder`; the files do not depend on the number of processes.

    A side is <side>.ids (a flat array), <side>.lengths.npy (int32) and <side>.starts.npy (int64, where rows begin).

    Args:
        num_proc: Processes that encode; 1 for this process.

    Raises:
        LineError: A source line cannot be encoded; its position counts over all blocks.
    """
    # Memory holds 4 bytes a row; the ids go straight to the file
    lengths: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    done = 0
    with (folder / "src.ids").open("wb") as src, (folder / "tgt.ids").open("wb") as tgt:
        results = map(encoder, blocks) if num_proc == 1 else _encode_in_parallel(blocks, encoder, num_proc)
        try:
            for encoded in results:
                for side, file, rows in zip(SIDES, (src, tgt), encoded, strict=True):
                    rows.ids.tofile(file)
                    lengths[side].append(rows.lengths)
                done += len(encoded[0].lengths)
                pace.add(len(encoded[0].lengths))
        except LineError as error:
            # The encoder counts lines within a block
            raise LineError(done + error.position, error.line, error.reason) from None
    for side in SIDES:
        # pop frees one side's list before the other's array is made
        write_lengths(folder, side, np.concatenate(lengths.pop(side)))
    # The flat files carry no type of their own
    types = {side: dtype.name for side, dtype in zip(SIDES, encoder.dtypes, strict=True)}
    (folder / "meta.json").write_text(json.dumps(types))


def read_ids(folder: Path) -> Encoded:
    """Memory-map both sides from a folder of `write_ids`; pages are read on use, and shared by processes.

    Raises:
        ValueError: The files do not belong together.
    """
    types = json.loads((folder / "meta.json").read_text())
    src, tgt = (map_rows(folder, side, types[side]) for side in SIDES)
    return src, tgt


def write_lengths(folder: Path, name: str, lengths: np.ndarray) -> None:
    """Write where the rows of the flat file `name`.ids begin, and their lengths, for `map_rows`."""
    np.save(folder / f"{name}.lengths.npy", lengths)
    np.save(folder / f"{name}.starts.npy", np.cumsum(lengths, dtype=np.int64) - lengths)


def map_rows(folder: Path, name: str, dtype: DTypeLike) -> Ragged:
    """Memory-map the rows of `name`.ids.

    Raises:
        ValueError: The file and its lengths do not belong together.
    """
    ids = np.memmap(folder / f"{name}.ids", dtype=dtype, mode="r")
    starts, lengths = (np.load(folder / f"{name}.{each}.npy", mmap_mode="r") for each in ("starts", "lengths"))
    if len(starts) != len(lengths) or starts[-1] + lengths[-1] != len(ids):
        raise ValueError(f"{name}.ids, {name}.starts.npy and {name}.lengths.npy do not belong together")
    # Plain arrays over the same map are indexed faster than memmap, a subclass
    return Ragged(*map(np.asarray, (ids, starts, lengths)))


def _encode_in_parallel(blocks: Iterable[Pairs], encoder: PairEncoder, num_proc: int) -> Iterator[Encoded]:
    """Encode the blocks, in their order, in `num_proc` processes with at most two blocks each in the queue."""
    # Spawned: a forked process with threads may hang, and would inherit the lock of the cache folder
    pool = ProcessPoolExecutor(
        num_proc,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(encoder.tokenizer.to_state(), encoder.tags),
    )
    try:
        waiting: deque[Future[Encoded]] = deque()
        for block in blocks:
            # A bounded queue: `blocks` is read no faster than it is encoded
            waiting.append(pool.submit(_encode_block, block))
            if len(waiting) >= 2 * num_proc:
                yield waiting.popleft().result()  # the oldest first: results stay in order
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ValueError(
            f"data.num_proc={num_proc}: one of the processes that encode was killed, most often for lack of memory: "
            "set a smaller data.num_proc, and run the command again. A script of your own needs its calls under "
            "if __name__ == '__main__'"
        ) from None
    finally:
        # Also after an error, and if the generator is abandoned
        pool.shutdown(wait=True, cancel_futures=True)


_worker: list[PairEncoder] = []  # the encoder of a worker process


def _start_worker(tokenizer: dict[str, Any], tags: Tags) -> None:
    """Build the encoder of a worker process from the state of a tokenizer."""
    # Started first, to notice if the parent is killed in the meantime
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _worker[:] = [PairEncoder(tokenizer=Tokenizer.from_state(tokenizer), tags=tags)]


def _die_with_parent() -> None:
    """End this worker when its parent is killed; by default it would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])  # ready when the parent has ended
        # sys.exit would end only this thread
        os._exit(1)


def _encode_block(block: Pairs) -> Encoded:
    return _worker[0](block)
