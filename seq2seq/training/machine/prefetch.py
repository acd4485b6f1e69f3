"""Copy batches to a GPU ahead of the step that reads them, from pinned memory and on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from seq2seq.data.batching import Batch
from seq2seq.data.dataset import Packed, views_of

Ticket = TypeVar("Ticket")


class Copier(Protocol[Ticket]):
    """Asynchronous copy of batches: `start` queues one, `finish` returns the batch that it has become."""

    def start(self, batch: Batch | Packed) -> Ticket:
        """Queue the copy of a batch, without waiting for it."""
        ...

    def finish(self, ticket: Ticket) -> Batch:
        """Return the batch, which what is queued from now on may read."""
        ...


def copied_ahead(batches: Iterable[Batch | Packed], copier: Copier[Ticket]) -> Iterator[Batch]:
    """Iterate over copies of the batches; the next one's copy is queued before a batch is handed out."""
    waiting: list[Ticket] = []
    for batch in batches:
        waiting.append(copier.start(batch))
        if len(waiting) > 1:
            yield copier.finish(waiting.pop(0))
    for ticket in waiting:
        yield copier.finish(ticket)


class _Queued(NamedTuple):
    """Bytes of a batch whose copy is queued, its B, S and T, and the event that ends the copy."""

    data: Tensor
    shape: tuple[int, int, int]
    ready: torch.cuda.Event


class StreamCopier:
    """Copier to a CUDA device: neither the host nor the device's other work waits for a copy.

    Args:
        device: Where the batches go.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def start(self, batch: Batch | Packed) -> _Queued:
        """Queue the copy of a batch on this copier's stream, as one buffer."""
        packed = batch if isinstance(batch, Packed) else Packed.of(batch)
        # Of memory that is not pinned, the driver would make a copy first, for which the host waits
        pinned = torch.from_numpy(packed.data).pin_memory()
        with torch.cuda.stream(self.stream):
            data = pinned.to(self.device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return _Queued(data, packed.shape, ready)

    def finish(self, ticket: _Queued) -> Batch:
        """Return the batch; the current stream waits for its copy, and its memory is kept for that stream."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(ticket.ready)
        # Allocated on the copier's stream, which would otherwise reuse it as soon as the host lets go of it
        ticket.data.record_stream(current)
        return views_of(ticket.data, ticket.shape)
