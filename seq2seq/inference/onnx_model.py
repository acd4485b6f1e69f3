"""Run a model's two ONNX graphs inside our own search: the encoder, and one decoding step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.checkpoint import Loaded, build_form, load_tokenizer
from seq2seq.inference.description import CONFIG, read_description
from seq2seq.inference.export.int8 import int8_linear
from seq2seq.network.model import NarrowOutput, Seq2Seq
from seq2seq.network.state import Ancestry, Cache, leaves, rebuild, shared_ancestries
from seq2seq.system.files import read_arrays
from seq2seq.system.model_path import CheckpointError
from seq2seq.system.packages import require

# ONNX Runtime would report its use to its maker; it reads this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# The graphs of the encoder and the step.
GRAPHS = ("encoder.onnx", "step.onnx")
# The weights of the output layer; a shortlist needs some of its rows.
OUTPUT = "output.npz"
# Format of the inputs and outputs of the graphs.
FORMAT = 1
# Caches grow by this number of slots: fewer are copied more often, and more are read in vain.
_SLOTS = 8
# Fusions that make a graph slower: the sum and the normalization take half the time apart, and a product with a factor
# has no fast path for one row.
_SLOWER = ("SkipLayerNormFusion", "MatMulScaleFusion")
# Fewest bytes of a layer in a graph: a node takes some hundred, without its weights.
_LAYER_BYTES = 256


class _Graph:
    """A session of ONNX Runtime as a function of arrays."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.shapes = {each.name: each.shape for each in session.get_inputs()}

    def is_fixed(self, name: str, axis: int) -> bool:
        """Return True if an input's axis has a number as its size; a free axis has a name."""
        return name not in self.shapes or isinstance(self.shapes[name][axis], int)

    def run(self, feeds: dict[str, np.ndarray]) -> list[Any]:
        """Compute the outputs; inputs that the graph does not have, since nothing depends on them, are left out."""
        arrays = {name: array for name, array in feeds.items() if name in self.shapes}
        try:
            return self.session.run(None, arrays)
        except Exception as error:  # errors of the runtime have a dozen types
            sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
            reason = " ".join(str(error).split())[:200]
            raise RuntimeError(f"ONNX Runtime cannot run the graph on {sizes}: {reason}") from None


class _Memory:
    """Arrays of a context and a state, given to each step of a search; they share the tensors' memory.

    Args:
        graph: The step's.
        context: Written in place between steps.
        state: Its caches are written in place, here and between steps.
    """

    def __init__(self, graph: _Graph, context: Any, state: Any) -> None:
        self.context = context
        given: Any = leaves(context)
        parts = leaves(state)
        self.sentences = np.arange(len(given[0]))
        self.arrays = {f"context.{i}": part.numpy() for i, part in enumerate(given)}
        tensors = {f"state.{i}": part for i, part in enumerate(parts) if isinstance(part, Tensor)}
        self.arrays |= {name: self.by_sentence(part) for name, part in tensors.items()}
        self.caches = {i: part for i, part in enumerate(parts) if isinstance(part, Cache)}
        self.arrays |= {f"values.{i}": cache.values.numpy() for i, cache in self.caches.items()}
        found = list(dict.fromkeys(cache.ancestry for cache in self.caches.values()))
        self.owners = [(f"owner.{i}", each, graph.is_fixed(f"owner.{i}", 2)) for i, each in enumerate(found)]
        # A ring buffer has a table of fixed size, and so have its values
        self.free = [i for i, cache in self.caches.items() if not graph.is_fixed(f"values.{i}", cache.slot_axis)]
        self.slots: list[int] = []  # in use by each ancestry at the last step

    def by_sentence(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor of hypotheses (N, ...) as an array (B, beam, ...)."""
        array = tensor.numpy()
        # Not -1, which an empty array leaves open: a kernel of one tap has no past
        return array.reshape(len(self.sentences), len(array) // len(self.sentences), *array.shape[1:])

    def begin(self, position: Tensor) -> dict[str, np.ndarray]:
        """Begin the step of position (N,), and return what the graph reads of the context and the state."""
        for name, ancestry, fixed in self.owners:
            ancestry.begin(position)
            owner = self.by_sentence(ancestry.owner)
            self.arrays[name] = owner if fixed else owner[..., : _slots(ancestry)]
        slots = [_slots(ancestry) for _, ancestry, _ in self.owners]
        if slots != self.slots:
            self.slots = slots
            for number in self.free:
                self.arrays[f"values.{number}"] = _fit(self.caches[number]).values.numpy()
        return self.arrays

    def append(self, following: list[Any], position: Tensor) -> None:
        """Replace the values (N, width) of each cache by the cache, after writing them at position (N,)."""
        # The hypotheses of a sentence have the same position, and each its own row of a slot
        time = self.by_sentence(position)[:, 0]
        slots: dict[tuple[int, int], np.ndarray] = {}
        for number, cache in self.caches.items():
            array = self.arrays[f"values.{number}"]  # (B, L, beam, width) or, by head, (B, G, L, beam, d)
            *heads, size, beam, width = array.shape[1:]
            where = cache.ancestry.stride, size
            if where not in slots:
                slots[where] = time // where[0] % size
            value = following[number].reshape(-1, beam, *heads, width)
            if heads:
                array[self.sentences, :, slots[where]] = value.swapaxes(1, 2)
            else:
                array[self.sentences, slots[where]] = value
            cache.steps = cache.ancestry.steps
            following[number] = cache


class _Stepped(list[Any]):
    """A state of caches alone after a step; whatever changes more than their contents returns a plain list."""

    def __init__(self, state: Sequence[Any], memory: _Memory) -> None:
        super().__init__(state)
        self.memory = memory


class OnnxModel(nn.Module):
    """A model for the search (see `seq2seq.search.models.Model`) whose `context` and `step` are ONNX graphs.

    Args:
        form: The model on the meta device, for the structure of contexts and states.
        encoder: Session of the encoder's graph.
        decoder: Session of the step's graph.
        weights: File of the output layer's weights.
    """

    normalized = True  # the step's graph ends with a log-softmax
    stepwise = True  # whole targets have no graph

    def __init__(self, form: Seq2Seq, encoder: Any, decoder: Any, weights: Path = Path(OUTPUT)) -> None:
        super().__init__()
        self.form = form
        self.graphs = (_Graph(encoder), _Graph(decoder))
        self.context_form = context_form(form)
        self._weights = weights
        self._rows: dict[str, Tensor] | None = None

    @property
    def file_bytes(self) -> int:
        """Bytes of the graphs' files, about what their sessions hold."""
        return sum(path.stat().st_size for path in self._weights.parent.glob("*.onnx*"))

    def context(self, src: Tensor, src_mask: Tensor) -> Any:
        """Compute the context of each decoder layer from the source src (B, S)."""
        arrays = self.graphs[0].run({"src": src.numpy(), "mask": src_mask.numpy()})
        return rebuild(self.context_form, [torch.from_numpy(array) for array in arrays])

    def init_state(self, context: Any, *, beam_size: int, max_len: int) -> Any:
        """Return the state before the first position."""
        return self.form.init_state(context, beam_size=beam_size, max_len=max_len)

    def narrow(self, ids: Tensor, allowed: Tensor) -> NarrowOutput:
        """Return an output layer for the tokens `ids` (U,), computed by torch, in whole numbers for int8."""
        if self._rows is None:
            self._rows = _read_output(self._weights, self.form.output)
        part = {name: array[ids] for name, array in self._rows.items()}
        weight, scale, bias = part["weight"].float(), part.get("scale"), part.get("bias")

        def project(x: Tensor) -> Tensor:
            return F.linear(x, weight, bias) if scale is None else int8_linear(x, weight, scale, bias)

        return NarrowOutput(project=project, allowed=allowed)

    def step(
        self, token: Tensor, context: Any, state: Any, position: Tensor, output: NarrowOutput | None = None
    ) -> tuple[Tensor, Any]:
        """Return log p of the token after `token` (N,), (N, V) or (N, U) with a narrow output, and the next state."""
        memory = state.memory if isinstance(state, _Stepped) else None
        if memory is None or memory.context is not context:
            memory = _Memory(self.graphs[1], context, state)
        feeds = memory.begin(position)
        feeds |= {"token": memory.by_sentence(token), "position": memory.by_sentence(position)}
        # The graph scores no hypothesis if the narrow output does
        feeds["scored"] = np.arange(len(token) if output is None else 0)
        scores, features, *following = self.graphs[1].run(feeds)
        log_probs = torch.from_numpy(scores) if output is None else output(torch.from_numpy(features)).log_softmax(-1)
        memory.append(following, position)
        if len(memory.caches) == len(following):
            # A state of caches alone has the same memory at the next step
            return log_probs, _Stepped(state, memory)
        parts = [torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in following]
        return log_probs, rebuild(state, parts)


def _slots(ancestry: Ancestry) -> int:
    """Return the slots that a graph reads: few more than are in use, but not a new number at each step."""
    used = -(-ancestry.length // ancestry.stride)
    return min(-(-used // _SLOTS) * _SLOTS, ancestry.slots)


def _fit(cache: Cache) -> Cache:
    """Resize a cache to the slots in use, since a graph reads all of its memory in one piece."""
    axis, old, slots = cache.slot_axis, cache.values, _slots(cache.ancestry)
    kept = min(slots, old.shape[axis]) if cache.steps else 0
    cache.values = old.new_empty(*old.shape[:axis], slots, *old.shape[axis + 1 :])
    cache.values.narrow(axis, 0, kept).copy_(old.narrow(axis, 0, kept))
    # Zeros, since slots that a hypothesis does not see have the weight 0
    cache.values.narrow(axis, kept, slots - kept).zero_()
    return cache


def load_onnx(folder: Path, *, trust: Sequence[str] = ()) -> Loaded:
    """Load a folder of ONNX graphs.

    Raises:
        CheckpointError: A file is missing or damaged.
        ValueError: The package onnxruntime is missing.
    """
    meta, values = read_description(folder)
    if values.get("format") != FORMAT:
        raise CheckpointError(f"{folder / CONFIG}: its graphs are of format {values.get('format')!r}, not {FORMAT}")
    tokenizer = load_tokenizer(meta, folder / CONFIG)
    paths = [folder / name for name in GRAPHS]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise CheckpointError(f"{folder}: has no {missing[0]}; copy the folder again")
    # Without memory for weights, which are in the graphs
    most = sum(path.stat().st_size for path in paths) // _LAYER_BYTES
    form = build_form(meta, folder / CONFIG, most_layers=most, trust=trust)
    context = context_form(form)
    inputs, outputs = step_names(leaves(context), leaves(form.init_state(context, beam_size=1, max_len=1)))
    encoder = _session(paths[0], ["src", "mask"], [name for name in inputs if name.startswith("context.")])
    model: Any = OnnxModel(form, encoder, _session(paths[1], inputs, outputs), folder / OUTPUT).eval()
    return Loaded(model, tokenizer, meta)


def context_form(form: Seq2Seq) -> list[Any]:
    """Return the structure of the context of each decoder layer, on the meta device."""
    layers: Any = form.decoder.layers
    memory = torch.empty(1, 2, layers[0].cross_mixer.memory_dim, device="meta")
    mask = torch.ones(1, 2, dtype=torch.bool, device="meta")
    return [layer.project(memory, mask) for layer in layers]


def step_names(context: Sequence[Any], parts: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return the names of the step's inputs and outputs, from the parts of a context and of a state, numbered."""
    caches = [i for i, part in enumerate(parts) if not isinstance(part, Tensor)]
    tensors = [i for i, part in enumerate(parts) if isinstance(part, Tensor)]
    owners = range(len(shared_ancestries(parts)[0]))
    inputs = ["token", "position", "scored", *(f"context.{i}" for i in range(len(context)))]
    inputs += [
        f"{kind}.{i}" for kind, some in (("values", caches), ("owner", owners), ("state", tensors)) for i in some
    ]
    both = sorted([*((i, "append") for i in caches), *((i, "next") for i in tensors)])
    return inputs, ["log_probs", "features", *(f"{kind}.{i}" for i, kind in both)]


def _read_output(path: Path, layer: Any) -> dict[str, Tensor]:
    """Read the weights of an output layer.

    Raises:
        CheckpointError: The file is missing or damaged, or has other arrays.
    """
    try:
        found = {name: torch.from_numpy(array) for name, array in read_arrays(path).items()}
    except (ValueError, TypeError, OSError):
        found = {}
    wanted = {"weight": layer.weight.shape} | ({} if layer.bias is None else {"bias": layer.bias.shape})
    wanted |= {"scale": layer.weight.shape[:1]} if "scale" in found else {}
    if {name: array.shape for name, array in found.items()} != wanted:
        raise CheckpointError(f"{path}: is missing, damaged or of another model; a shortlist needs it; copy it again")
    return found


def _session(path: Path, inputs: list[str], outputs: list[str]) -> Any:
    """Open a graph, which may lack inputs on which nothing depends."""
    runtime = require("onnxruntime", "a folder of ONNX graphs", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Errors only: warnings are about constants that the runtime folds
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_SLOWER)
        )
    except Exception as error:  # errors of the runtime have a dozen types
        raise CheckpointError(f"{path}: does not load ({' '.join(str(error).split())[:200]})") from None
    given = [each.name for each in session.get_outputs()]
    if given != outputs or not {each.name for each in session.get_inputs()} <= set(inputs):
        raise CheckpointError(f"{path}: has the outputs {given} or inputs of another model; copy the folder again")
    return session
