"""Train a copy of the model on every rank, and sum the gradients of a window over the ranks in one message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn


class ReplicatedStrategy(DDPStrategy):
    """Lightning's DDP strategy without torch's wrapper, which sends gradients during backward passes.

    A rank adds the gradients of its micro-batches, and the ranks exchange them once, between the last backward pass of
    a window and the update. Forward and backward passes are therefore the same as in a run of one process, and can be
    captured (see `Replay`).
    """

    def configure_ddp(self) -> None:
        """Send the weights of rank 0 to all ranks."""
        assert self.model is not None
        kept = self.model.state_dict()
        self._send(kept.values())
        # Buffers in the checkpoint, such as a user's batch-norm statistics; other buffers follow from the settings
        self._statistics = kept.keys() & {name for name, _ in self.model.named_buffers()}

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Update the weights with the gradients of all ranks."""

        def passes() -> Any:
            loss = closure()
            assert self.model is not None
            sum_gradients(self.model.parameters())
            if self._statistics:
                self._send(buffer for name, buffer in self.model.named_buffers() if name in self._statistics)
            return loss

        return super().optimizer_step(optimizer, passes, model, **kwargs)

    def _send(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            # A message must be contiguous
            sent = tensor.contiguous()
            dist.broadcast(sent, src=0)
            tensor.copy_(sent)


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of trained parameters over all ranks, in place, by one all-reduce for each type and device.

    A rank without a gradient adds 0. A parameter that has no gradient on any rank keeps none, so that the optimizer
    skips it; with a gradient of 0, weight decay would change it.
    """
    groups: defaultdict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.requires_grad:
            groups[parameter.dtype, parameter.device].append(parameter)
    for group in groups.values():
        missing = [number for number, parameter in enumerate(group) if parameter.grad is None]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in group]
        # The message ends with the number of ranks that have a gradient, for each parameter
        owners = parts[0].new_ones(len(group))
        for number in missing:
            owners[number] = 0
        flat = torch.cat([*(part.flatten() for part in parts), owners])
        dist.all_reduce(flat)
        *sums, owners = flat.split([*(part.numel() for part in parts), len(group)])
        # Reading the counts waits for the device, so only a rank that lacks a gradient does it
        counts = owners.tolist() if missing else []
        for number in missing:
            group[number].grad = parts[number] if counts[number] else None
        # Copied into the memory that captured passes write
        views = [part.view_as(gradient) for part, gradient in zip(sums, parts, strict=True)]
        torch._foreach_copy_(parts, views)  # type: ignore[reportPrivateImportUsage]
