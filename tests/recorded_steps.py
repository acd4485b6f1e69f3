"""Imitate CUDA graphs on a CPU: capture the operations of a step, and replay them in the same memory.

As on a GPU, a capture has no effect (memory that it wrote is restored), numbers of the host are the captured ones, a
step that waits cannot be captured, and the memory of a replay is overwritten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
# Functions that read a tensor on the host, and operations that do so or copy from it.
READS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"}
WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"),
    "lift_fresh",
}


class Call(NamedTuple):
    """A captured operation."""

    func: Any
    args: Any
    kwargs: Any
    places: list[Tensor | None]  # of its results; None for one in the memory of an argument

    def again(self) -> None:
        """Run the operation, and write its results to their original memory."""
        results = tensors(self.func(*self.args, **self.kwargs))
        for old, new in zip(self.places, results, strict=True):
            if old is not None:
                old.copy_(new)


class PretendedGPU(TorchFunctionMode):
    """Mode that lets tensors claim to be on a GPU, so that its branches run."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__self__.__name__ if getattr(func, "__name__", "") == "__get__" else ""
        if name in ("device", "is_cuda"):
            return torch.device("cuda", 0) if name == "device" else True
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = kwargs | {"device": "cpu"}
        return func(*(CPU if isinstance(each, torch.device) else each for each in args), **kwargs)


class _NoReads(TorchFunctionMode):
    """Mode that refuses functions that make the host wait."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            raise RuntimeError(f"{name} is not permitted while a step is captured")
        return func(*args, **(kwargs or {}))


class Capture(TorchDispatchMode):
    """Collector of operations, and of the memory that they write and do not own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.own: dict[int, Tensor] = {}
        self.kept: list[Any] = []  # kept, so that no memory is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split("::")[1].split(".")[0]
        masks = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in WAITS or masks:
            raise RuntimeError(f"{name} is not permitted while a step is captured")
        named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        written = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
        for tensor in tensors([named.get(each) for each in written]):
            address = tensor.untyped_storage().data_ptr()
            if address not in self.own and address not in self.before:
                memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[address] = memory, memory.clone()
        found = func(*args, **kwargs)
        known = {each.untyped_storage().data_ptr() for each in tensors((args, kwargs))}
        results = tensors(found)
        # Detached: torch's GRU transposes a result in place
        places = [each.detach() if each.untyped_storage().data_ptr() not in known else None for each in results]
        self.own |= {each.untyped_storage().data_ptr(): each for each in places if each is not None and each.numel()}
        self.kept.append(results)
        # A view is not captured
        if (written and name != "transpose_") or any(each is not None for each in places):
            self.calls.append(Call(func, args, kwargs, places))
        return found

    def restore(self) -> None:
        """Undo the writes to memory outside of the capture."""
        with torch.no_grad():
            for memory, copy in self.before.values():
                memory.copy_(copy)
            self.spoil()

    def spoil(self) -> None:
        """Overwrite all results, as the next graph of the pool does."""
        for each in self.own.values():
            each.fill_(torch.nan if each.is_floating_point() else 1 if each.dtype == torch.bool else 2**30)

    def replay(self) -> None:
        """Run all operations again."""
        # Run below autograd, where the operations were captured
        with torch._C.DisableTorchFunction(), torch._C._AutoDispatchBelowAutograd():
            for call in self.calls:
                call.again()
            self.spoil()


class TwinRecorder:
    """A recorder whose captures run on a CPU; it counts them and their replays in the dictionary of the caller."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.released = False
        self.stale = False

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def warm_up(self, step: Callable[[], None]) -> None:
        assert not self.released
        self._count("plain")
        step()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        assert not self.released
        capture = Capture()
        try:
            with capture, _NoReads():
                step()
        finally:
            capture.restore()
        self._count("captured")

        def replay() -> None:
            assert not self.released
            self._count("replayed")
            capture.replay()

        return replay

    def release(self) -> None:
        self.released = True


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def multiply_without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply gradients by the gradient of the loss, as on a GPU, without reading it first."""
    monkeypatch.setattr(
        "seq2seq.training.objective.loss.scaled",
        lambda gradients, factor: [None if each is None else each * factor.to(each.dtype) for each in gradients],
    )


def replay_by_twin(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let training runs on a CPU replay with the twin, unless trainer.graphs=false, and return the twin's counts."""
    found: dict[str, int] = {}
    monkeypatch.setattr("seq2seq.training.lightning_parts.task.CudaRecorder", lambda device: TwinRecorder(found))
    monkeypatch.setattr("seq2seq.training.run.resolve_graphs", lambda settings, *_, **__: settings.graphs == "auto")
    return found
