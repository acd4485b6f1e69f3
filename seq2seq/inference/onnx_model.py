"""Run a model's two ONNX graphs inside our own search: the encoder, and one decoding step."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.checkpoint import Loaded, load_tokenizer
from seq2seq.inference.description import CONFIG, read_description
from seq2seq.inference.export.int8 import int8_linear
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.network.model import NarrowOutput, Seq2Seq
from seq2seq.network.state import Cache, leaves, rebuild, shared_ancestries
from seq2seq.system.model_path import CheckpointError
from seq2seq.system.packages import require

# The graphs of the encoder and the step.
GRAPHS = ("encoder.onnx", "step.onnx")
# The weights of the output layer; a shortlist needs some of its rows.
OUTPUT = "output.npz"
# Format of the inputs and outputs of the graphs.
FORMAT = 1


class _Graph:
    """A session of ONNX Runtime as a function of tensors on the CPU."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.shapes = {each.name: each.shape for each in session.get_inputs()}

    def is_fixed(self, name: str, axis: int) -> bool:
        """Return True if an input's axis has a number as its size; a free axis has a name."""
        return name not in self.shapes or isinstance(self.shapes[name][axis], int)

    def run(self, feeds: dict[str, Tensor]) -> list[Any]:
        """Compute the outputs; inputs that the graph does not have, since nothing depends on them, are left out."""
        arrays = {name: part.contiguous().numpy() for name, part in feeds.items() if name in self.shapes}
        try:
            return [torch.from_numpy(array) for array in self.session.run(None, arrays)]
        except Exception as error:  # errors of the runtime have a dozen types
            sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
            reason = " ".join(str(error).split())[:200]
            raise RuntimeError(f"ONNX Runtime cannot run the graph on {sizes}: {reason}") from None


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
        layers: Any = form.decoder.layers
        memory = torch.empty(1, 2, layers[0].cross_mixer.memory_dim, device="meta")
        mask = torch.ones(1, 2, dtype=torch.bool, device="meta")
        self.context_form = [layer.project(memory, mask) for layer in layers]
        self._weights = weights
        self._rows: dict[str, Tensor] | None = None

    def context(self, src: Tensor, src_mask: Tensor) -> Any:
        """Compute the context of each decoder layer from the source src (B, S)."""
        return rebuild(self.context_form, self.graphs[0].run({"src": src, "mask": src_mask}))

    def init_state(self, context: Any, *, beam_size: int, max_len: int) -> Any:
        """Return the state before the first position."""
        return self.form.init_state(context, beam_size=beam_size, max_len=max_len)

    def narrow(self, ids: Tensor, allowed: Tensor) -> NarrowOutput:
        """Return an output layer for the tokens `ids` (U,), computed by torch, in whole numbers for int8."""
        if self._rows is None:
            self._rows = _read_output(self._weights)
        part = {name: array[ids] for name, array in self._rows.items()}
        weight, scale, bias = part["weight"].float(), part.get("scale"), part.get("bias")

        def project(x: Tensor) -> Tensor:
            return F.linear(x, weight, bias) if scale is None else int8_linear(x, weight, scale, bias)

        return NarrowOutput(project=project, allowed=allowed)

    def step(
        self, token: Tensor, context: Any, state: Any, position: Tensor, output: NarrowOutput | None = None
    ) -> tuple[Tensor, Any]:
        """Return log p of the token after `token` (N,), (N, V) or (N, U) with a narrow output, and the next state."""
        parts = leaves(state)
        sentences = len(next(iter(leaves(context))))  # type: ignore[arg-type]
        ancestries, numbers = shared_ancestries(parts)
        for ancestry in ancestries:
            ancestry.begin(position)
        feeds = {"token": token, "position": position, **{f"state.{i}": part for i, part in enumerate(parts)}}
        for i, ancestry in enumerate(ancestries):
            # Only the slots in use, unless a ring buffer has a table of fixed size
            fixed = self.graphs[1].is_fixed(f"owner.{i}", 2)
            feeds[f"owner.{i}"] = ancestry.owner if fixed else ancestry.owner[:, : ancestry.limit]
        feeds = {name: part.unflatten(0, (sentences, -1)) for name, part in feeds.items() if isinstance(part, Tensor)}
        # The graph scores no hypothesis if the narrow output does
        feeds["scored"] = torch.arange(len(token) if output is None else 0)
        feeds |= {f"context.{i}": part for i, part in enumerate(leaves(context))}  # type: ignore[misc]
        caches = {i: part for i, part in enumerate(parts) if not isinstance(part, Tensor)}
        for (i, cache), number in zip(caches.items(), numbers, strict=True):
            if not self.graphs[1].is_fixed(f"values.{i}", cache.slot_axis):
                _fit(cache, ancestries[number].limit)
            feeds[f"values.{i}"] = cache.values
        log_probs, features, *following = self.graphs[1].run(feeds)
        log_probs = log_probs if output is None else output(features).log_softmax(-1)
        for i, cache in caches.items():
            # Written in place, as by our own layers
            cache.append(following[i], position)
            following[i] = cache
        return log_probs, rebuild(state, following)


def _fit(cache: Cache, slots: int) -> None:
    """Resize a cache to the slots in use: a graph reads all of its memory in one piece."""
    axis, old = cache.slot_axis, cache.values
    kept = old.narrow(axis, 0, min(slots, old.shape[axis]))
    missing = slots - kept.shape[axis]
    # Every 16th step, since slots come into use 16 at a time
    if missing:
        # Zeros, since slots that a hypothesis does not see have the weight 0
        kept = torch.cat([kept, old.new_zeros(*old.shape[:axis], missing, *old.shape[axis + 1 :])], axis)
    cache.values = kept.contiguous()


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
    try:
        # Without memory for weights, which are in the graphs
        with on_meta_device():
            form = build_model(meta["model"], trust=trust, portable=True)
    except Exception as error:  # wrong settings of an untrusted file
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder / CONFIG}: its settings build no model ({reason})") from None
    encoder, step = (_session(folder / name) for name in GRAPHS)
    model: Any = OnnxModel(form, encoder, step, folder / OUTPUT).eval()
    return Loaded(model, tokenizer, meta)


def _read_output(path: Path) -> dict[str, Tensor]:
    """Read the weights of the output layer.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in file.files}
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile):
        found = {}
    if "weight" not in found:
        raise CheckpointError(f"{path}: is missing or damaged, and a shortlist needs it; copy the folder again")
    return found


def _session(path: Path) -> Any:
    runtime = require("onnxruntime", "a folder of ONNX graphs", extra="export")
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: has no {path.name}; copy the folder again")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Errors only: warnings are about constants that the runtime folds
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # errors of the runtime have a dozen types
        raise CheckpointError(f"{path}: does not load ({' '.join(str(error).split())[:200]})") from None
