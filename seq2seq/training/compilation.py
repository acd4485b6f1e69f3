"""torch.compile in training: when it is used, on which parts, and how many graphs it makes."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, NamedTuple

import torch
from torch import nn

from seq2seq.config.trainer import TrainerSettings
from seq2seq.kernels.dispatch import launcher_obstacle
from seq2seq.mixer import CrossMixer, SelfMixer
from seq2seq.model import Seq2Seq

log = logging.getLogger(__name__)
# Most graphs of one layer: of a first shape, of all others, of a single row, and of one row and others beside it
_GRAPHS = 4


def resolve_compile(settings: TrainerSettings, accelerator: str, model: nn.Module) -> bool:
    """Decide whether a run compiles its model; `auto` does on a GPU, where nothing speaks against it.

    Args:
        accelerator: "cpu" or "gpu".
        model: The model; one on the meta device will do.
    """
    if settings.compile != "auto":
        return bool(settings.compile)
    if accelerator != "gpu":
        return False
    problem = obstacle(settings, model)
    if problem:
        log.info("trainer.compile=auto: the model is not compiled, since %s", problem)
    return problem is None


def obstacle(settings: TrainerSettings, model: nn.Module) -> str | None:
    """Return why `trainer.compile=auto` leaves a model on a GPU uncompiled, None if it does not."""
    if settings.sharded:
        return "its weights are sharded (trainer.strategy=fsdp)"
    if loops := unrolled(model):
        return f"{', '.join(loops)} would be compiled anew for every length"
    if settings.processes > 1:
        return "several processes (DDP) with a compiled model are not tested: ask for it with trainer.compile=true"
    from torch.utils._triton import has_triton

    return launcher_obstacle() if has_triton() else "Triton is missing, or does not serve this GPU"


def unrolled(model: nn.Module) -> list[str]:
    """List the classes of mixers that a compiler unrolls position by position, in alphabetical order."""
    mixers = (module for module in model.modules() if isinstance(module, SelfMixer | CrossMixer))
    return sorted({type(mixer).__name__ for mixer in mixers if mixer.unrolls})


def compile_parts(model: Seq2Seq) -> None:
    """Compile each layer and the output layer in place, so that names in the checkpoint stay.

    Layers that differ in their weights alone share a graph. As one graph, six encoder and six decoder layers of the
    base Transformer take 4.6 times as long to compile (docs/log.md), minutes before the first update.

    Dynamo keeps a limited number of graphs of a function for all models of the process, so those of earlier models
    are dropped, and the limit is raised to what layers that all differ may need.
    """
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()  # what `count_graphs` reads
    layers = [*model.encoder.layers, *model.decoder.layers]
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _GRAPHS * len(layers))
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
