"""Copy batches to a GPU ahead of the step that reads them, from pinned memory and on a separate stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from seq2seq.data.batching import Batch
from seq2seq.data.dataset import Packed, views_of

# Starts the copy of a batch without waiting for it, and returns the function that returns the copy.
Start = Callable[[Batch | Packed], Callable[[], Batch]]


def copied_ahead(batches: Iterable[Batch | Packed], start: Start) -> Iterator[Batch]:
    """Iterate over copies of the batches; the copy of the next batch starts before a batch is yielded."""
    finish: Callable[[], Batch] | None = None
    for batch in batches:
        following = start(batch)
        if finish is not None:
            yield finish()
        finish = following
    if finish is not None:
        yield finish()


class StreamCopier:
    """Copy batches to a CUDA device; neither the host nor the device's other work waits for a copy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def __call__(self, batch: Batch | Packed) -> Callable[[], Batch]:
        """Queue the copy of a batch as one buffer; the returned function returns the batch on the device."""
        packed = batch if isinstance(batch, Packed) else Packed.of(batch)
        # The driver would first copy memory that is not pinned, and the host would wait for that copy
        pinned = torch.from_numpy(packed.data).pin_memory()
        with torch.cuda.stream(self.stream):
            data = pinned.to(self.device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self.stream)

        def finish() -> Batch:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(ready)
            # The copier's stream owns this memory, and would otherwise reuse it while the current stream reads it
            data.record_stream(current)
            return views_of(data, packed.shape)

        return finish
