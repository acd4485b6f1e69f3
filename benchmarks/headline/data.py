"""The prepared arrays read back, and batches of them made in a thread beside the training."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2seq.data.batching import Batch, Ragged, TokenBatchSampler, collate


class Prepared:
    """A folder that `--prepare` wrote; ValueError if it is none."""

    def __init__(self, folder: Path) -> None:
        place = folder / "headline-data.json"
        if not place.is_file():
            raise ValueError(f"{folder} holds no headline-data.json; make it with --prepare CORPORA --data {folder}")
        self.folder, self.description = folder, json.loads(place.read_text(encoding="utf-8"))
        self.ids: dict[str, int] = self.description["ids"]
        self.tests: list[str] = list(self.description["tests"])

    def model(self, size: str, mixer: str) -> dict[str, Any]:
        """build_model's settings."""
        return self.description["models"][f"{size}/{mixer}"]

    def split(self, name: str) -> tuple[Ragged, Ragged]:
        """Source and target ids."""
        with np.load(self.folder / f"{name}.npz") as found:
            sides = []
            for side in ("src", "tgt"):
                lengths = found[f"{side}_lengths"]
                starts = np.cumsum(lengths, dtype=np.int64) - lengths
                sides.append(Ragged(found[f"{side}_ids"].astype(np.int32), starts, lengths))
        return sides[0], sides[1]

    def references(self, name: str) -> list[str]:
        """The raw target text of a test set."""
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
        """Batches of one epoch after another; a thread keeps some ready."""
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
        found = collate(
            self.src.select(rows), self.tgt.select(rows), rows, pad_id=self.ids["pad"], bos_id=self.ids["bos"]
        )
        return Batch(*(part.pin_memory() for part in found)) if self.device.type == "cuda" else found


def synthetic(rows: int, length: int, vocab: int, device: torch.device) -> Batch:
    """Random pairs of equal length, no padding."""
    src, tgt_in, tgt_out = torch.randint(4, vocab, (3, rows, length), device=device)
    mask = torch.ones(rows, length, dtype=torch.bool, device=device)
    return Batch(src, mask, tgt_in, tgt_out, mask, torch.arange(rows, device=device))
