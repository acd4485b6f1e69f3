"""Export a model as two ONNX graphs: the encoder, which prepares the source for decoding, and one decoding step.

Shapes: B sentences, S source length, beam hypotheses of each, L slots of a cache.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq.checkpoint import Loaded
from seq2seq.inference.description import write_description
from seq2seq.inference.export.agreement import TIE, greedy, require_agreement
from seq2seq.inference.export.int8 import Int8Linear, in_int8
from seq2seq.inference.onnx_model import FORMAT, GRAPHS, OUTPUT, load_onnx, step_names
from seq2seq.kernels.attention.weights import normalize
from seq2seq.kernels.conv_step.torch_impl import weigh_slots
from seq2seq.network.classifier import NoEmbedding
from seq2seq.network.model import Seq2Seq
from seq2seq.network.state import leaves, rebuild, shared_ancestries
from seq2seq.system.packages import require

# Logits this close count as equal in int8: a number halfway between two integers may be rounded either way.
_INT8_TIE = 0.1
# Each axis has two sizes at which a graph is traced. An axis whose sizes differ is dynamic, and axes with the same two
# sizes are one axis. All pairs must differ, even when stages halve the source, and no size may occur elsewhere.
_SIZES = {"sentences": (2, 5), "beam": (3, 4), "source": (13, 22), "scored": (6, 9)}
_SLOTS = 300


class _TracedAncestry:
    """Stand-in for an Ancestry in a traced step; `begin` has already been called.

    Args:
        owner: (N, M).
        stride: Consecutive positions that share a slot.
    """

    def __init__(self, owner: Tensor, stride: int) -> None:
        self.owner = owner
        self.stride = stride

    def turns(self, slots: int, slot: Tensor) -> Tensor:
        """Return the owners (N, slots) in a ring buffer of `slots` slots, written up to `slot` (N,)."""
        place = torch.arange(slots)
        # The last position that wrote the slot
        time = slot[:, None] - (slot[:, None] - place) % slots  # (N, slots)
        table = self.owner.shape[1]
        time = time.clamp(min=0)  # slots that are not written yet are not read either
        # ONNX has no operator for a remainder by a free size
        return self.owner.gather(1, time % table if isinstance(table, int) else time)


class _TracedCache:
    """Stand-in for a Cache in a traced step: the appended values are an output, and nothing is written in place.

    Args:
        values: (B, L, beam, width).
    """

    def __init__(self, values: Tensor, ancestry: _TracedAncestry) -> None:
        self.values = values
        self.ancestry = ancestry
        self.owner = ancestry.owner
        self.appended: Tensor | None = None

    def append(self, value: Tensor, position: Tensor) -> None:
        """See `Cache.append`."""
        batch_size, slots, beam, width = self.values.shape
        self.appended = value.to(self.values.dtype)
        slot = position // self.ancestry.stride  # (N,)
        if isinstance(slots, int):
            self.owner = self.ancestry.turns(slots, slot)
            slot = slot % slots
        here = torch.arange(slots) == slot[:, None]  # (N, L)
        here = here.view(batch_size, beam, slots).transpose(1, 2)[..., None]  # (B, L, beam, 1)
        self.values = torch.where(here, self.appended.view(batch_size, 1, beam, width), self.values)

    def read(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cache.read`."""
        batch_size, slots, beam, width = self.values.shape
        seen = torch.arange(slots) <= position[:, None] // self.ancestry.stride  # (N, L)
        return self.values.reshape(batch_size, slots * beam, width), self.visible(seen)

    def visible(self, seen: Tensor) -> Tensor:
        """Return which of the slots `seen` (N, L) the ancestors of each hypothesis wrote, (B, beam, L * beam)."""
        batch_size, *_, slots, beam, _ = self.values.shape
        own = self.owner[:, :, None] == torch.arange(beam)  # (N, L, beam)
        return (own & seen[:, :, None]).view(batch_size, beam, slots * beam)


class _TracedHeadCache(_TracedCache):
    """Stand-in for a Cache with heads in a traced step: the past and the appended values are read separately.

    Args:
        values: (B, G, L, beam, d).
    """

    def append(self, value: Tensor, position: Tensor) -> None:
        """See `Cache.append`."""
        assert self.ancestry.stride == 1, "a traced cache with heads has a slot for each position"
        self.appended = value.to(self.values.dtype)
        if isinstance(slots := self.values.shape[2], int):
            self.owner = self.ancestry.turns(slots, position)

    def attend(self, q: Tensor, values: _TracedHeadCache, position: Tensor, *, weights: str = "softmax") -> Tensor:
        """See `Cache.attend`: one softmax over the scores of the past and of the position itself."""
        heads, size = self.values.shape[1], self.values.shape[-1]
        keys, past = (part.values.flatten(2, 3) for part in (self, values))  # (B, G, L * beam, d)
        key, own = (part.own() for part in (self, values))  # (B, G, beam, d)
        slots, slot = self.values.shape[2], position[:, None]
        seen = torch.arange(slots) < slot  # (N, L): the slots before the position itself
        if isinstance(slots, int):
            # The slot of this position still holds the value from L positions ago
            seen = seen & (torch.arange(slots) != slot % slots)
        hidden = ~self.visible(seen)[:, None]  # (B, 1, beam, L * beam)
        q = q * size**-0.5
        shared = q.shape[1] != heads
        if shared:  # H / G query heads for each key head
            q = q.unflatten(1, (heads, -1))  # (B, G, H / G, beam, d)
            keys, past, key, own, hidden = (part.unsqueeze(2) for part in (keys, past, key, own, hidden))
        scores = (q @ keys.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
        both = normalize(torch.cat([scores, (q * key).sum(-1, keepdim=True)], -1), weights)
        before, here = both.split([scores.shape[-1], 1], -1)
        y = before @ past + here * own
        return y.flatten(1, 2) if shared else y  # (B, H, beam, d)

    def convolve(self, weights: Tensor, position: Tensor, *, softmax: bool, backend: str = "auto") -> Tensor:
        """See `Cache.convolve`: the sum over the past, plus the position itself."""
        if softmax:
            weights = weights.softmax(-1)
        slots = self.values.shape[2]
        age = (position[:, None] - torch.arange(slots)) % slots  # (N, L): positions since the slot was written
        # The slot of this position still holds the value from K positions ago
        read = (age > 0) & (age <= position[:, None])
        y = weigh_slots(self.values, weights, age, read, self.owner)
        assert self.appended is not None
        here = weights[..., -1:] * self.appended.unflatten(-1, (weights.shape[1], -1))  # (N, H, R)
        return y + here.flatten(1)

    def own(self) -> Tensor:
        """Return the appended values by head, (B, G, beam, d)."""
        batch_size, heads, _, beam, size = self.values.shape
        assert self.appended is not None
        return self.appended.view(batch_size, beam, heads, size).transpose(1, 2)


class EncoderGraph(nn.Module):
    """Graph from a source to the context of the decoder, a flat list of tensors."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor, mask: Tensor) -> list[Tensor]:
        # Cloned: an output must not be an input
        return [part.clone() for part in leaves(self.model.context(src, mask))]  # type: ignore[union-attr]


class StepGraph(nn.Module):
    """Graph of one decoding step: log p (M, V), the output layer's input (N, readout_dim), and the next state's parts.

    Args:
        context: An example of a context, for its structure.
        state: An example of a state, for its structure.
    """

    def __init__(self, model: Seq2Seq, context: Any, state: Any) -> None:
        super().__init__()
        self.model = model
        self.context_form = context
        self.state_form = state

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        scored: Tensor,
        context: list[Tensor],
        values: list[Tensor],
        owners: list[Tensor],
        tensors: list[Tensor],
    ) -> list[Tensor]:
        ancestries, numbers = shared_ancestries(leaves(self.state_form))
        # (B, beam, ...) -> (N, ...)
        known = [
            _TracedAncestry(owner.flatten(0, 1), form.stride) for owner, form in zip(owners, ancestries, strict=True)
        ]
        forms = [part for part in leaves(self.state_form) if not isinstance(part, Tensor)]
        kinds = [_TracedHeadCache if form.values.dim() == 5 else _TracedCache for form in forms]
        caches = iter([kind(part, known[i]) for kind, part, i in zip(kinds, values, numbers, strict=True)])
        rest = iter(tensors)
        parts: list[Any] = [
            next(rest).flatten(0, 1) if isinstance(form, Tensor) else next(caches) for form in leaves(self.state_form)
        ]
        state = rebuild(self.state_form, parts)
        features, state = self.model.step(
            token.flatten(), rebuild(self.context_form, context), state, position.flatten(), nn.Identity()
        )
        # Logits of the `scored` hypotheses alone; `scored` is empty if a narrow output layer reads the features.
        output = self.model.output
        int8 = isinstance(output, Int8Linear)
        logits = output(features, scored) if int8 else output(features.index_select(0, scored))
        following: list[Any] = leaves(state)
        after = [(part if isinstance(part, Tensor) else part.appended).clone() for part in following]
        return [logits.log_softmax(-1), features, *after]


class Sample(NamedTuple):
    """Inputs of both graphs at one choice of sizes."""

    encoder: dict[str, Any]
    step: dict[str, Any]
    context: Any
    state: Any


def write_onnx(
    folder: Path,
    loaded: Loaded,
    *,
    positions: int | None,
    tags: list[int],
    trust: Sequence[str] = (),
    dtype: str = "float32",
) -> int:
    """Write the folder of the two graphs, compare it with ours, and return how many sentences agree.

    Args:
        positions: The longest sequence that the model takes; None without a limit.
        dtype: "float32", or "int8" for linear layers in integers (see `export.int8`).

    Raises:
        ValueError: A package is missing, the model cannot be traced, or it translates differently.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "--format onnx", extra="export")
    if isinstance(loaded.model.decoder.embedding, NoEmbedding):
        raise ValueError("a classifier (model.decoder_layers=0) has no ONNX graph of its step; use the checkpoint")
    if any(pooling.grid for pooling in loaded.model.encoder.poolings.values()):
        raise ValueError(
            "model.encoder_stages pools the grid of an image, for which there is no ONNX graph: export a model of one "
            "stage, or to another format"
        )
    least = max(_SIZES["source"])
    if positions is not None and positions < least:
        raise ValueError(
            f"model.max_len={positions}: ONNX graphs need a model of at least {least} positions; train with more, or "
            "with model.positions=sinusoidal"
        )
    with torch.no_grad():
        one, other = samples(loaded.model, positions)
    notes = {**beginning(one), "dtype": dtype}
    model = in_int8(loaded.model) if dtype == "int8" else loaded.model
    encoder = EncoderGraph(model).eval()
    step = StepGraph(model, one.context, one.state).eval()
    inputs, outputs = step_names(leaves(one.context), leaves(one.state))
    context = [name for name in inputs if name.startswith("context.")]
    _export(encoder, one.encoder, other.encoder, folder / GRAPHS[0], ["src", "mask"], context, positions)
    _export(step, one.step, other.step, folder / GRAPHS[1], inputs, outputs, positions)
    _write_output(folder / OUTPUT, loaded.model, dtype)
    write_description(folder, loaded.meta, loaded.tokenizer, "onnx", {"format": FORMAT, **notes})
    # Read back, so that the files are compared
    written = load_onnx(folder, trust=trust)
    translate = functools.partial(greedy, written.model, loaded.tokenizer)
    try:
        tie = _INT8_TIE if dtype == "int8" else TIE
        return require_agreement(
            model, loaded.tokenizer, translate, what="ONNX Runtime", positions=positions, tags=tags, tie=tie
        )
    except RuntimeError as error:
        # The exporter has fixed a size inside the graph, which the inputs do not show
        raise ValueError(f"no ONNX export with dynamic sizes for this model; nothing was written: {error}") from None


def _write_output(path: Path, model: Seq2Seq, dtype: str) -> None:
    """Write the output layer to its own file, since a shortlist needs some of its rows."""
    parts: dict[str, Any] = {"weight": model.output.weight}
    if dtype == "int8":
        layer = Int8Linear(model.output)
        parts = {"weight": layer.integers.t(), "scale": layer.scale}
    if model.output.bias is not None:
        parts["bias"] = model.output.bias
    arrays: dict[str, Any] = {name: part.detach().contiguous().numpy() for name, part in parts.items()}
    np.savez(path, **arrays)


def samples(model: Seq2Seq, positions: int | None) -> tuple[Sample, Sample]:
    """Compute inputs of the graphs at both sizes, for a model of at most `positions` positions (None: no limit)."""
    slots = min(_SLOTS, positions or _SLOTS)
    return _sample(model, 0, slots), _sample(model, 1, slots // 2)


def _sample(model: Seq2Seq, number: int, slots: int) -> Sample:
    """Compute the inputs of a first step at one of the two sizes."""
    batch_size, beam, length, scored = (pair[number] for pair in _SIZES.values())
    src = torch.ones(batch_size, length, dtype=torch.int64)
    mask = torch.ones_like(src).bool()
    context = model.context(src, mask)
    state = model.init_state(context, beam_size=beam, max_len=slots)
    token = torch.ones(batch_size, beam, dtype=torch.int64)
    parts = leaves(state)
    caches = [part for part in parts if not isinstance(part, Tensor)]
    step = {
        "token": token,
        "position": torch.zeros_like(token),
        "scored": torch.arange(scored) % (batch_size * beam),
        "context": leaves(context),
        "values": [cache.values for cache in caches],
        "owners": [ancestry.owner.unflatten(0, (batch_size, beam)) for ancestry in shared_ancestries(parts)[0]],
        "tensors": [part.unflatten(0, (batch_size, beam)) for part in parts if isinstance(part, Tensor)],
    }
    return Sample({"src": src, "mask": mask}, step, context, state)


def beginning(sample: Sample) -> dict[str, dict[str, Any]]:
    """Describe how each state begins and how positions share the slots of caches, for searches by other programs.

    Raises:
        ValueError: A state begins with neither zeros nor a part of the context.
    """
    parts = leaves(sample.state)
    context: Any = leaves(sample.context)
    states = {}
    for i, part in enumerate(parts):
        if not isinstance(part, Tensor):
            continue
        beam = len(part) // len(context[0])
        same = [j for j, given in enumerate(context) if given.repeat_interleave(beam, 0).equal(part)]
        if part.any() and not same:
            raise ValueError(
                f"this model has no ONNX graph of its step: state {i} begins with neither zeros nor context"
            )
        states[f"state.{i}"] = f"context.{same[0]}" if part.any() else "zeros"
    strides = {f"owner.{i}": ancestry.stride for i, ancestry in enumerate(shared_ancestries(parts)[0])}
    return {"states": states, "strides": strides}


def _export(
    graph: nn.Module,
    one: dict[str, Any],
    other: dict[str, Any],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    positions: int | None,
) -> None:
    """Write the graph of a module, which is traced with the inputs `one` and has free axes where `other` differs.

    Raises:
        ValueError: The exporter cannot trace the module, or only with fixed sizes.
    """
    shapes = _free_axes(one, other, positions)
    level = logging.getLogger("torch.onnx").level
    try:
        # Silence the exporter's reports of its stages and of its own deprecations
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                graph,
                (),
                kwargs=one,
                dynamic_shapes=shapes,
                input_names=inputs,
                output_names=outputs,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # errors of the exporter or of torch.export: there are dozens
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())[:300]
        raise ValueError(f"this model has no ONNX graph of its {path.stem}: {type(cause).__name__}: {reason}") from None
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    flat = [each for shape in shapes.values() for each in (shape if isinstance(shape, list) else [shape])]
    free = dict(zip(inputs, flat, strict=True))
    for value in program.model.graph.inputs:
        # The exporter silently fixes an axis that it cannot leave free
        if fixed := [axis for axis in free[value.name] if isinstance(value.shape[axis], int)]:
            place = f"axis {fixed[0]} of {value.name}"
            raise ValueError(f"no ONNX export of the {path.stem} with dynamic sizes: torch's exporter fixed {place}")
    # The exporter's notes name places in the source, with folders of this machine
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(str(path))


def _free_axes(one: dict[str, Any], other: dict[str, Any], positions: int | None) -> dict[str, Any]:
    """Return the axes that differ in size between two samples, for each input; axes with the same sizes are one axis.

    Args:
        positions: Most positions, which also bound the slots of caches.
    """
    names = {pair: name for name, pair in _SIZES.items()}
    axes: dict[tuple[int, int], Any] = {}

    def of(first: Any, second: Any) -> Any:
        if isinstance(first, list):
            return [of(*pair) for pair in zip(first, second, strict=True)]
        found = {}
        for axis, pair in enumerate(zip(first.shape, second.shape, strict=True)):
            if pair[0] != pair[1] and pair not in axes:
                name = names.get(pair, f"slots{len(axes)}")
                bound = None if name in ("sentences", "beam", "scored") else positions
                axes[pair] = torch.export.Dim(name, max=bound)
            if pair[0] != pair[1]:
                found[axis] = axes[pair]
        return found

    return {name: of(one[name], other[name]) for name in one}
