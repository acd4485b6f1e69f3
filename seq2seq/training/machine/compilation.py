"""torch.compile in training: when a run uses it, on which parts, and the number of graphs that it makes."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, NamedTuple

import torch
from torch import nn

from seq2seq.kernels.dispatch import launcher_obstacle
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.trainer import TrainerSettings

log = logging.getLogger(__name__)
# Updates before `settle`; their batches cover the kinds of batches that a run has
FIRST_UPDATES = 10
# Most graphs of one layer: a size of 1 (a single row, a side of one piece) has a separate graph
_GRAPHS = 4


def resolve_compile(settings: TrainerSettings, accelerator: str, model: nn.Module) -> bool:
    """Return True if a run compiles its model, which requires trainer.compile=true.

    `auto` does not compile: on an H200 the first update came 28 s (Transformer) and 62 s (DynamicConv) after the start,
    and later shapes stalled training for up to 20 s.

    Args:
        accelerator: "cpu" or "gpu".
        model: The model, possibly on the meta device.

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
    if names := ", ".join(unrolled(model)):
        log.warning("trainer.compile=true: %s will be compiled again for every length of the first updates", names)
    return True


def unrolled(model: nn.Module) -> list[str]:
    """List the classes of mixers whose attribute `unrolls` is true.

    These are loops and recurrent layers, which a compiler unrolls position by position, again for every length.
    """
    mixers = (module for module in model.modules() if isinstance(module, SelfMixer | CrossMixer))
    return sorted({type(mixer).__name__ for mixer in mixers if getattr(mixer, "unrolls", False)})


def compile_parts(model: Seq2Seq) -> None:
    """Compile each layer and the output layer in place, so that names in the checkpoint do not change.

    Layers that differ only in their weights share a graph. As one graph, six encoder and six decoder layers of the base
    Transformer take 4.6 times as long to compile (docs/log.md), minutes before the first update.

    A layer has one graph for all sizes but 1. Dynamo keeps a limited number of graphs of a function for all models of
    the process. The graphs of earlier models are therefore dropped, and the limit is raised to what the layers of a
    model need if they all differ.

    These settings last for the rest of the process, as does SDPA's flag for cuDNN, which must be off whenever a graph
    with attention is made or runs; eager calls never take cuDNN, see `attention.without_cudnn`.
    """
    import torch.fx.experimental._config
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    torch.compiler.set_stance("default")  # an earlier run of the process may have called `settle`
    counters.clear()  # what `count_graphs` reads
    torch.backends.cuda.enable_cudnn_sdp(False)
    layers = [*model.encoder.layers, *model.decoder.layers]
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, _GRAPHS * len(layers))
    # Rates of dropout become constants in any case; without this, a layer is first traced with them as symbols
    dynamo.specialize_float = True
    symbols: Any = torch.fx.experimental._config
    # Else a graph made for equal S and T, as a third of all batches have, serves only batches with equal S and T
    symbols.use_duck_shape = False
    for part in (*layers, model.output):
        part.compile(dynamic=True)


def is_compiled(model: Seq2Seq) -> bool:
    """Return True if `compile_parts` has compiled the model."""
    return model.output._compiled_call_impl is not None


def eager(model: Seq2Seq) -> Any:
    """Return a context in which a compiled model runs eagerly.

    A validation computes without gradients, in other types and with many shapes. Each difference would take another of
    the few graphs that Dynamo allows a function, for a small part of the run.
    """
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else contextlib.nullcontext()


def settle(model: Seq2Seq) -> None:
    """Stop compiling a compiled model: calls that no graph serves run eagerly.

    A graph takes up to a minute, more than a run gains by it; the first `FIRST_UPDATES` updates have made the graphs
    that most batches need. This lasts until the next `compile_parts`, also after a block of `eager`.
    """
    if is_compiled(model):
        torch.compiler.set_stance("eager_on_recompile")


class CompiledGraphs(NamedTuple):
    """Graphs compiled since `compile_parts`, and calls of functions that could not be compiled."""

    compiled: int
    eager: int

    @property
    def whole(self) -> bool:
        """True if something was compiled, and nothing ran eagerly."""
        return self.compiled > 0 and not self.eager


def count_graphs() -> CompiledGraphs:
    """Count the graphs that Dynamo has compiled."""
    from torch._dynamo.utils import counters

    # Dynamo gives up on a function that has the maximum number of graphs, which torch reports only in a warning.
    frames = counters["frames"]
    return CompiledGraphs(counters["stats"]["unique_graphs"], frames["total"] - frames["ok"])
