"""Read the prepared arrays, and make batches from them in a thread during training."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.records import DATA_FILE
from seq2seq.data.batching import Batch, Ragged, collate
from seq2seq.data.updates import TokenBatchSampler


class Prepared:
    """Folder that `benchmarks.gpu.prepare` wrote.

    Raises:
        ValueError: The folder lacks its description.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / DATA_FILE
        if not path.is_file():
            raise ValueError(f"{folder} holds no {DATA_FILE}; make it with benchmarks.gpu --pack")
        self.folder = folder
        self.description = json.loads(path.read_text(encoding="utf-8"))
        self.ids: dict[str, int] = self.description["ids"]
        self.tests: list[str] = list(self.description["tests"])

    def model(self, size: str, mixer: str) -> dict[str, Any]:
        """Return the settings of `build_model`."""
        return self.description["models"][f"{size}/{mixer}"]

    def split(self, name: str) -> tuple[Ragged, Ragged]:
        """Read source and target ids."""
        with np.load(self.folder / f"{name}.npz") as arrays:
            sides = []
            for side in ("src", "tgt"):
                lengths = arrays[f"{side}_lengths"]
                # All sentences are stored one after another, as unsigned 16-bit ids
                starts = np.cumsum(lengths, dtype=np.int64) - lengths
                sides.append(Ragged(arrays[f"{side}_ids"].astype(np.int32), starts, lengths))
        return sides[0], sides[1]

    def references(self, name: str) -> list[str]:
        """Read the raw target text of a test set."""
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))["references"]


class Batches:
    """Endless shuffled batches of the training set on the device."""

    def __init__(self, prepared: Prepared, *, max_tokens: int, seed: int, device: torch.device) -> None:
        self.src, self.tgt = prepared.split("train")
        self.ids, self.device = prepared.ids, device
        self.sampler = TokenBatchSampler(
            src_lengths=self.src.lengths, tgt_lengths=self.tgt.lengths, max_tokens=max_tokens, seed=seed
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch after another; a thread keeps some ready."""
        ready: queue.Queue[Batch] = queue.Queue(maxsize=16)
        over = threading.Event()
        maker = threading.Thread(target=self._fill, args=(ready, over), daemon=True)
        maker.start()
        try:
            while True:
                yield Batch(*(part.to(self.device, non_blocking=True) for part in ready.get()))
        finally:
            over.set()

    def _fill(self, ready: queue.Queue[Batch], over: threading.Event) -> None:
        epoch = 0
        while not over.is_set():
            self.sampler.set_epoch(epoch)
            for rows in self.sampler:
                batch = self._collate(rows)
                # Without a reader a full queue would block forever, so check for the end every 0.1 s
                while not over.is_set():
                    try:
                        ready.put(batch, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if over.is_set():
                    return
            epoch += 1

    def _collate(self, rows: np.ndarray) -> Batch:
        batch = collate(
            self.src.select(rows), self.tgt.select(rows), rows, pad_id=self.ids["pad"], bos_id=self.ids["bos"]
        )
        return Batch(*(part.pin_memory() for part in batch)) if self.device.type == "cuda" else batch


def synthetic(rows: int, length: int, vocab: int, device: torch.device) -> Batch:
    """Draw random pairs of equal length, without padding."""
    # Ids start at 4; the lower ids are special symbols
    src, tgt_in, tgt_out = torch.randint(4, vocab, (3, rows, length), device=device)
    mask = torch.ones(rows, length, dtype=torch.bool, device=device)
    return Batch(src, mask, tgt_in, tgt_out, mask, torch.arange(rows, device=device))
