"""torch.compile in training: when it is used, on which parts, and how many graphs it makes."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from seq2seq.kernels.dispatch import launcher_obstacle
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.trainer import TrainerSettings

log = logging.getLogger(__name__)
# Updates before `settle`: among their batches are all kinds that a run has
FIRST_UPDATES = 10
# Most graphs of one layer: sizes of 1 (a single row, a side of one piece) are compiled apart from all others
_GRAPHS = 4


def resolve_compile(settings: TrainerSettings, accelerator: str, model: nn.Module) -> bool:
    """Return True if a run compiles its model, for which trainer.compile=true must ask.

    `auto` does not: on an H200 the first update came 28 s (Transformer) and 62 s (DynamicConv) after the start, and
    later shapes stalled training for up to 20 s.

    Args:
        accelerator: "cpu" or "gpu".
        model: The model; one on the meta device will do.

    Raises:
        ValueError: The compiler cannot serve this GPU.
    """
    if settings.compile is not True:
        return False
    if accelerator == "gpu":
        from torch.utils._triton import has_triton

        problem = launcher_obstacle() if has_triton() else "Triton is missing, or does not serve this GPU"
        if problem:
            raise ValueError(f"trainer.compile=true: {problem}; or set trainer.compile=false")
    if loops := unrolled(model):
        names = ", ".join(loops)
        log.warning("trainer.compile=true: %s will be compiled anew for every length of the first updates", names)
    return True


class Unrolled(Protocol):
    """Mixer that a compiler unrolls position by position, anew for every length: a loop, or a recurrent layer."""

    unrolls: bool


def unrolled(model: nn.Module) -> list[str]:
    """List the classes of mixers that a compiler unrolls position by position, in alphabetical order."""
    mixers = (module for module in model.modules() if isinstance(module, SelfMixer | CrossMixer))
    return sorted({type(mixer).__name__ for mixer in mixers if getattr(mixer, "unrolls", False)})


def compile_parts(model: Seq2Seq) -> None:
    """Compile each layer and the output layer in place, so that names in the checkpoint stay.

    Layers that differ in their weights alone share a graph. As one graph, six encoder and six decoder layers of the
    base Transformer take 4.6 times as long to compile (docs/log.md), minutes before the first update.

    Such layers have one graph for all sizes but 1. Dynamo keeps a limited number of graphs of a function for all models
    of the process, so those of earlier models are dropped, and the limit is raised to what layers that all differ may
    need.

    What is set here stays set for the rest of the process. So does SDPA's flag for cuDNN, which must be off whenever a
    graph with attention is made or runs; eager calls do without cuDNN in any case, see `attention.without_cudnn`.
    """
    import torch.fx.experimental._config
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    torch.compiler.set_stance("default")  # an earlier run of the process may have settled
    counters.clear()  # what `count_graphs` reads
    torch.backends.cuda.enable_cudnn_sdp(False)
    layers = [*model.encoder.layers, *model.decoder.layers]
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, _GRAPHS * len(layers))
    # Rates of dropout become constants in any case, but only when a layer has been traced with them as symbols
    dynamo.specialize_float = True
    symbols: Any = torch.fx.experimental._config
    # Else a graph that is made for equal sizes, as S and T of a third of all batches are, serves equal ones alone
    symbols.use_duck_shape = False
    for part in (*layers, model.output):
        part.compile(dynamic=True)


def is_compiled(model: Seq2Seq) -> bool:
    """Return True if `compile_parts` has been here."""
    return model.output._compiled_call_impl is not None


def eager(model: Seq2Seq) -> Any:
    """Return a context in which a compiled model runs as if it were not.

    A validation has no gradients, its own types and many shapes: each would be a graph more, of those that Dynamo
    allows a function, for a small part of the run.
    """
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else contextlib.nullcontext()


def settle(model: Seq2Seq) -> None:
    """Compile nothing more of a compiled model: calls that no graph serves run as if it were not compiled.

    A graph takes up to a minute, more than a run gains by it; `FIRST_UPDATES` have made those that most batches need.
    This lasts until the next `compile_parts`, through blocks of `eager`.
    """
    if is_compiled(model):
        torch.compiler.set_stance("eager_on_recompile")


class Graphs(NamedTuple):
    """Graphs that were compiled since `compile_parts`, and calls of functions for which that failed."""

    compiled: int
    eager: int

    @property
    def whole(self) -> bool:
        """True if something was compiled, and nothing ran without."""
        return self.compiled > 0 and not self.eager


def count_graphs() -> Graphs:
    """Count the graphs that Dynamo has compiled."""
    from torch._dynamo.utils import counters

    # A function that has its most graphs is tried and given up, which torch reports only in a warning.
    frames = counters["frames"]
    return Graphs(counters["stats"]["unique_graphs"], frames["total"] - frames["ok"])
