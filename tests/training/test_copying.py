"""Batches that are copied ahead: their order on any machine, and their contents on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seq2seq.data.batching import Batch
from seq2seq.data.dataset import Packed
from seq2seq.training.machine.prefetch import StreamCopier, copied_ahead


def batch(number: int) -> Batch:
    ids = torch.full((2, 3), number)
    return Batch(ids, ids > 0, ids, ids, ids > 0, torch.tensor([number, number]))


class Recorder:
    """Copier that records its calls."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, given: Batch | Packed) -> Callable[[], Batch]:
        assert isinstance(given, Batch)
        number = int(given.index[0])
        self.seen.append(f"start {number}")

        def finish() -> Batch:
            self.seen.append(f"finish {number}")
            return batch(-number)

        return finish


def test_the_next_copy_begins_before_a_batch_is_handed_out():
    recorder = Recorder()
    for copied in copied_ahead(map(batch, range(1, 4)), recorder):
        recorder.seen.append(f"step {int(copied.index[0])}")
    assert recorder.seen == [
        "start 1", "start 2", "finish 1", "step -1", "start 3", "finish 2", "step -2", "finish 3", "step -3",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1])
def test_few_batches(count):
    recorder = Recorder()
    assert len(list(copied_ahead(map(batch, range(1, 1 + count)), recorder))) == count


def test_calls_of_a_copier(monkeypatch):
    """A stand-in for the GPU shows that batches are pinned, copied without blocking on another stream, and awaited."""
    seen: list[Any] = []

    @contextmanager
    def stream(which: Any) -> Iterator[None]:
        seen.append("enter")
        yield
        seen.append("leave")

    event = SimpleNamespace(record=lambda which: seen.append(("record", which)))
    current = SimpleNamespace(wait_event=lambda which: seen.append(("wait", which is event)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: seen.append("pin") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **given: seen.append(given) or self.clone())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, which: seen.append(("keep", which is current)))
    copier, given = StreamCopier(torch.device("cuda")), batch(5)
    # A batch of this process, and a packed one of a worker
    for sent in (given, Packed.of(given)):
        seen.clear()
        finish = copier(sent)
        assert seen == ["pin", "enter", {"non_blocking": True}, ("record", "side"), "leave"]
        seen.clear()
        found = finish()
        assert seen == [("wait", True), ("keep", True)]
        for one, other in zip(found, given, strict=True):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
            # Kernels are compiled for aligned pointers
            assert one.data_ptr() % 16 == 0


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (16, 4, 8)])
def test_a_packed_batch_is_the_batch(shape):
    rows, src, tgt = shape
    sides = [torch.randint(9, (rows, width)) for width in (src, tgt, tgt)]
    given = Batch(sides[0], sides[0] > 3, sides[1], sides[2], sides[2] > 3, torch.arange(rows))
    for one, other in zip(Packed.of(given).unpack(), given, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.gpu
def test_batches_arrive_whole_on_a_gpu():
    device = torch.device("cuda", 0)
    given = [batch(number) for number in range(1, 200)]
    sent = [Packed.of(each) if i % 2 else each for i, each in enumerate(given)]
    total = torch.zeros((), dtype=torch.int64, device=device)
    for copied, original in zip(copied_ahead(sent, StreamCopier(device)), given, strict=True):
        assert all(part.device == device for part in copied)
        total += (copied.src - original.src.to(device)).abs().sum()
    assert total.item() == 0
