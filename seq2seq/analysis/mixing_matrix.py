"""Mixing matrices of a model's mixers for one sentence pair, by layer and head, with each mixer's own details."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.network.model import Seq2Seq
from seq2seq.network.pooling import Pooling, spread
from seq2seq.search import NotFiniteScoresError

# Number of random directions in which outputs are differentiated. A narrower output is differentiated in all channels.
DIRECTIONS = 32

KeyT = TypeVar("KeyT")


@dataclasses.dataclass(frozen=True)
class View:
    """One mixer at work on a sentence pair.

    Attributes:
        part: "encoder", "decoder" or "cross".
        layer: Number of the layer, from 1.
        mixer: Name of the mixer's class.
        total: Mixing matrix (T, S) of the whole mixer, whose rows sum to 1.
        heads: Mixing matrix of each head (H, T, S); None if the heads cannot be separated.
        details: Tensors by name from the mixer's `introspect`.
        columns: Width of the grid that the positions fill row by row, or None.
    """

    part: str
    layer: int
    mixer: str
    total: Tensor
    heads: Tensor | None
    details: dict[str, Tensor]
    columns: int | None = None

    @property
    def title(self) -> str:
        """Layer and mixer."""
        return f"{self.layer} {self.mixer}"

    def matrices(self) -> list[tuple[str, Tensor]]:
        """Return the mixing matrices (T, S) with their names: the whole mixer, then each head."""
        return [("all", self.total), *([] if self.heads is None else by_head(self.heads))]


def by_head(heads: Tensor) -> list[tuple[str, Tensor]]:
    """Name the entries of a tensor (H, ...)."""
    return [(f"head {number}", matrix) for number, matrix in enumerate(heads, 1)]


def views(
    model: Seq2Seq,
    src: Tensor,
    tgt: Tensor,
    *,
    columns: int | None = None,
    report: Callable[[str], None] = lambda part: None,
) -> list[View]:
    """Compute the mixing matrices of every mixer of a model for one pair.

    Each mixer is differentiated at every position in up to DIRECTIONS directions. The cost grows at least with S^2 and
    T^2, so that long sentences take minutes.

    Args:
        src: Source ids (1, S).
        tgt: The decoder's input (1, T).
        columns: Patches in a row of a source that is an image.
        report: Called with the name of each mixer before it is differentiated.

    Returns:
        Encoder, decoder, then cross mixers, each layer by layer.

    Raises:
        NotFiniteScoresError: A number is not finite.
    """
    model.eval()
    # One sentence, so no padding
    masks = {"encoder": torch.ones_like(src).bool(), "decoder": torch.ones_like(tgt).bool()}
    mixers: dict[tuple[str, int], Any] = {}
    for part, stack in (("encoder", model.encoder), ("decoder", model.decoder), ("cross", model.decoder)):
        for layer, block in enumerate(stack.layers, 1):
            mixer = block.cross_mixer if part == "cross" else block.self_mixer
            # A slot may be empty, as in the decoder of recurrent models
            if mixer is not None:
                mixers[part, layer] = mixer
    with torch.no_grad(), _recorded_inputs(mixers) as inputs:
        memory, memory_mask = model.encoder(src, masks["encoder"])
        # Features, not logits: the output layer mixes nothing
        model.features(src, masks["encoder"], tgt)
    _require_finite([*inputs.values(), memory])
    masks["encoder"] = model.encoder.position_mask(masks["encoder"])
    result = []
    for (part, layer), mixer in mixers.items():
        x = inputs[part, layer]
        if part == "cross":
            report(f"cross mixer {layer} of {len(model.decoder.layers)}")
            view = _view(mixer, x, memory_mask, memory, part, layer)
        else:
            report(f"{part} layer {layer} of {len(getattr(model, part).layers)}")
            view = _view(mixer, x, masks[part][:, : x.shape[1]], None, part, layer)
        if part != "decoder":
            poolings = [each for at, each in model.encoder.poolings.items() if part == "cross" or at < layer]
            view = _lengthened(view, poolings, masks["encoder"])
        # Only the source can be an image
        result.append(dataclasses.replace(view, columns=columns) if part == "encoder" else view)
    _require_finite([view.total for view in result])
    return result


def _lengthened(view: View, poolings: Sequence[Pooling], mask: Tensor) -> View:
    """Spread the matrices of a later, shorter stage over the positions of the source."""
    if not poolings:
        return view

    def longer(matrices: Tensor) -> Tensor:  # (..., T, S')
        rows = spread(matrices.reshape(1, -1, matrices.shape[-1]), poolings, mask)
        return rows.reshape(*matrices.shape[:-1], -1)

    def lengthened(matrices: Tensor) -> Tensor:
        matrices = longer(matrices)
        if view.part == "encoder":  # rows are source positions as well
            matrices = longer(matrices.transpose(-1, -2)).transpose(-1, -2)
        return matrices / matrices.sum(-1, keepdim=True).clamp_min(torch.finfo(matrices.dtype).tiny)

    # Only "weights" have a column for each source position
    details = {name: lengthened(each) if name == "weights" else each for name, each in view.details.items()}
    if view.part == "encoder":
        details.pop("predicted kernels", None)  # their positions do not exist in the source
    heads = None if view.heads is None else lengthened(view.heads)
    return dataclasses.replace(view, total=lengthened(view.total), heads=heads, details=details)


def _require_finite(tensors: Sequence[Tensor]) -> None:
    """Raise NotFiniteScoresError unless all numbers are finite: a figure would show NaN as 0."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise NotFiniteScoresError


def shares(blocks: Tensor) -> Tensor:
    """Return the norms (T, S) of a Jacobian's blocks (T, R, S, D) as shares of their row; a row of zeros stays."""
    # The Frobenius norm of each block; tiny keeps a row of zeros from becoming nan
    norms = blocks.square().sum((1, 3)).sqrt()  # (T, S)
    return norms / norms.sum(-1, keepdim=True).clamp_min(torch.finfo(norms.dtype).tiny)


def _norms(rows: Tensor) -> Tensor:
    return rows.norm(dim=-1, keepdim=True)


def distance_profile(total: Tensor, columns: int | None = None) -> Tensor:
    """Average the shares of a matrix (T, T) at each distance over the rows; the result sums to 1.

    Args:
        columns: Width of a grid. The distance is |i - j|; on a grid it is the larger of the distances in rows and in
            columns.
    """
    position = torch.arange(len(total), device=total.device)
    coordinates = torch.stack([position // columns, position % columns] if columns else [position])  # (1 or 2, T)
    distance = (coordinates[:, :, None] - coordinates[:, None]).abs().amax(0)  # (T, T)
    profile = total.new_zeros(int(distance.max()) + 1)
    return profile.index_add_(0, distance.flatten(), total.flatten()) / len(total)


def mean_distance(total: Tensor, columns: int | None = None) -> float:
    """Return the mean distance in a matrix (T, T), weighted by its shares."""
    profile = distance_profile(total, columns)
    return float(profile @ torch.arange(len(profile), dtype=profile.dtype, device=profile.device))


def uniform_weights(length: int, *, causal: bool) -> Tensor:
    """Return a matrix (T, T) whose rows have equal shares of all positions, or of the past positions if causal."""
    visible = torch.ones(length, length)
    visible = visible.tril() if causal else visible
    return visible / visible.sum(-1, keepdim=True)  # (T, T)


def locality(view: View) -> float:
    """Return the mean distance relative to uniform weights: 0 if a position reads only itself, 1 if uniform."""
    equal = uniform_weights(len(view.total), causal=view.part == "decoder")
    # A single position can only read itself
    reference = mean_distance(equal, view.columns)
    return mean_distance(view.total, view.columns) / reference if reference else 0.0


@contextlib.contextmanager
def _recorded_inputs(modules: Mapping[KeyT, nn.Module]) -> Iterator[dict[KeyT, Tensor]]:
    """Record the last input of each module, its first positional argument, by the module's key."""
    inputs: dict[KeyT, Tensor] = {}

    def record(key: KeyT, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[key] = arguments[0]

    handles = [module.register_forward_pre_hook(functools.partial(record, key)) for key, module in modules.items()]
    try:
        yield inputs
    finally:
        # Also after an error: the model may be used again
        for handle in handles:
            handle.remove()


@runtime_checkable
class Introspectable(Protocol):
    """Mixer that can return internal tensors for plots."""

    def introspect(self, x: Tensor, context: Any) -> dict[str, Tensor]:
        """Return tensors by name for `python -m seq2seq.inspect` to plot.

        Args:
            x: The input of a call, (B, T, D).
            context: The mask of a self mixer's call, or the context of a cross mixer's call.

        Returns:
            "kernels" (H, K) are fixed, "predicted kernels" (B, T, H, K) belong to the positions of x, and "weights" are
            (B, H, T, T), or (B, H, T, S) over the source. The scores -a |d - c|^2 have "centers" c, (H,) or
            (H, 2: row, column), and a "sharpness" a, which are plotted together. Any other name has a number for each
            head, (H,).
        """
        ...


def _view(mixer: Any, x: Tensor, mask: Tensor, memory: Tensor | None, part: str, layer: int) -> View:
    """Differentiate a mixer.

    Args:
        x: The mixer's input (1, T, D).
        mask: Mask of the positions that are mixed.
        memory: The memory (1, S, M), which a cross mixer mixes; None for a self mixer, which mixes x.
    """

    # The Jacobian passes many copies of the mixed sequence at once
    def function(mixed: Tensor) -> Tensor:
        every = mask.expand(len(mixed), -1)
        if memory is None:
            return mixer(mixed, every)
        return mixer(x.expand(len(mixed), -1, -1), mixer.project(mixed, every))

    mixed = (x if memory is None else memory)[0]
    total = shares(jacobian(function, mixed, _directions(mixer.out_dim, x), kept=_norms))
    heads = _heads(mixer, function, mixed)
    with torch.no_grad():
        context = mask if memory is None else mixer.project(memory, mask)
        details = mixer.introspect(x, context) if isinstance(mixer, Introspectable) else {}
    return View(part, layer, type(mixer).__name__, total, heads, details)


def _heads(mixer: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """Compute the mixing matrix of each head, (H, T, S), from the input of the last projection `out`.

    The channels of a head are adjacent at this input. A norm before `out` would mix the heads, so the input of the norm
    is used if there is one. For attention the result is the attention weights: a head's blocks are w_ij W_v, so their
    norms are proportional to w_ij.

    Returns:
        None for a mixer with one head or without such a projection.
    """
    heads = getattr(mixer, "num_heads", 1)
    out = getattr(mixer, "out", None)
    # This project's mixers have `num_heads` and a last projection `out`; attention by ReLU has a gated norm before it
    if heads < 2 or not isinstance(out, nn.Linear) or out.in_features % heads:
        return None
    norm = getattr(mixer, "norm", None)
    entry = norm if isinstance(norm, nn.Module) and hasattr(norm, "gate") else out

    def input_of_heads(z: Tensor) -> Tensor:
        with _recorded_inputs({"heads": entry}) as inputs:
            function(z)
        return inputs["heads"]

    width = out.in_features // heads
    # All heads together cost about as much as the whole mixer
    basis = _directions(width, x, most=max(1, DIRECTIONS // heads))
    matrices = []
    for head in range(heads):
        # Zero outside the channels of this head
        directions = basis.new_zeros(len(basis), out.in_features)
        directions[:, head * width : (head + 1) * width] = basis
        matrices.append(shares(jacobian(input_of_heads, x, directions, kept=_norms)))
    return torch.stack(matrices)  # (H, T, S)


def _directions(width: int, like: Tensor, most: int = DIRECTIONS) -> Tensor:
    """Return orthonormal directions in `width` dimensions: all axes, or `most` random directions."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    if width <= most:
        return eye
    # A separate generator with a fixed seed, so that reports of one model agree
    generator = torch.Generator().manual_seed(width)
    noise = torch.randn(width, most, generator=generator, dtype=torch.float64)
    # On average, squared norms along random orthonormal directions are proportional to the full ones
    return torch.linalg.qr(noise).Q.T.to(like)
