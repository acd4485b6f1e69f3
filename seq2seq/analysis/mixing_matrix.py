"""Mixing matrices of a model's mixers for one sentence pair, by layer and head, with each mixer's own details."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.network.model import Seq2Seq
from seq2seq.network.pooling import Halving, spread
from seq2seq.search import NotFiniteScoresError

# Random directions in which outputs are differentiated; all channels of a narrower output.
DIRECTIONS = 32


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
    # Run the model once to record the input of every mixer
    inputs, memory = _inputs(model, src, tgt)
    _require_finite([*inputs.values(), memory])
    # One sentence, so no padding
    src_mask = torch.ones_like(src).bool()
    tgt_mask = torch.ones_like(tgt).bool()
    result = []
    halvings: list[Halving] = []
    # A slot may be empty, as in the decoder of recurrent models
    for layer, block in enumerate(model.encoder.layers, 1):
        if layer - 1 in model.encoder.halvings:
            halvings.append(model.encoder.halvings[layer - 1])
        if block.self_mixer is not None:
            report(f"encoder layer {layer} of {len(model.encoder.layers)}")
            x = inputs["encoder", layer]
            view = _self_view(block.self_mixer, x, src_mask[:, : x.shape[1]], "encoder", layer)
            # Only the source can be an image
            result.append(dataclasses.replace(_lengthened(view, halvings, src_mask), columns=columns))
    for layer, block in enumerate(model.decoder.layers, 1):
        if block.self_mixer is not None:
            report(f"decoder layer {layer} of {len(model.decoder.layers)}")
            result.append(_self_view(block.self_mixer, inputs["decoder", layer], tgt_mask, "decoder", layer))
    for layer, block in enumerate(model.decoder.layers, 1):
        report(f"cross mixer {layer} of {len(model.decoder.layers)}")
        view = _cross_view(block.cross_mixer, inputs["cross", layer], memory, src_mask[:, : memory.shape[1]], layer)
        result.append(_lengthened(view, halvings, src_mask))
    _require_finite([view.total for view in result])
    return result


def _lengthened(view: View, halvings: Sequence[Halving], mask: Tensor) -> View:
    """Spread the matrices of a later, shorter stage over the positions of the source."""
    if not halvings:
        return view

    def longer(matrices: Tensor) -> Tensor:  # (..., T, S')
        rows = spread(matrices.reshape(1, -1, matrices.shape[-1]), halvings, mask)
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
    """Return the matrix (T, T) with equal shares of all positions; of past positions if causal."""
    visible = torch.ones(length, length)
    visible = visible.tril() if causal else visible
    return visible / visible.sum(-1, keepdim=True)  # (T, T)


def locality(view: View) -> float:
    """Return the mean distance relative to uniform weights: 0 if a position reads only itself, 1 if uniform."""
    equal = uniform_weights(len(view.total), causal=view.part == "decoder")
    # A single position can only read itself
    reference = mean_distance(equal, view.columns)
    return mean_distance(view.total, view.columns) / reference if reference else 0.0


def _inputs(model: Seq2Seq, src: Tensor, tgt: Tensor) -> tuple[dict[tuple[str, int], Tensor], Tensor]:
    """Record the input x (1, T, D) of each mixer by part and layer, and the memory, while the model reads the pair."""
    inputs: dict[tuple[str, int], Tensor] = {}
    slots = (
        ("encoder", "self_mixer", model.encoder),
        ("decoder", "self_mixer", model.decoder),
        ("cross", "cross_mixer", model.decoder),
    )

    # The first positional argument of every mixer is the sequence that it mixes
    def record(key: tuple[str, int], _: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[key] = arguments[0]

    handles = []
    for part, name, stack in slots:
        for layer, block in enumerate(stack.layers, 1):
            mixer = getattr(block, name)
            if mixer is not None:
                handles.append(mixer.register_forward_pre_hook(functools.partial(record, (part, layer))))
    memories: list[Any] = []
    handles.append(model.encoder.register_forward_hook(lambda _, __, found: memories.append(found[0])))
    try:
        with torch.no_grad():
            # Features, not logits: the output layer mixes nothing
            model.features(src, torch.ones_like(src).bool(), tgt)
    finally:
        # Also after an error: the model may be used again
        for handle in handles:
            handle.remove()
    return inputs, memories[-1]


@runtime_checkable
class Introspectable(Protocol):
    """Mixer that can return internal tensors for plots."""

    def introspect(self, x: Tensor, context: Any) -> dict[str, Tensor]:
        """Return tensors by name, which `python -m seq2seq.inspect` plots, for x and the mask or context of a call.

        Returns:
            "kernels" (H, K) are fixed, "predicted kernels" (B, T, H, K) are along x, "weights" are (B, H, T, T), or
            (B, H, T, S) over the source. "centers" c, (H,) or (H, 2: row, column), and "sharpness" a of the scores
            -a |d - c|^2 are plotted together. Any other name has a number for each head, (H,).
        """
        ...


def _self_view(mixer: Any, x: Tensor, mask: Tensor, part: str, layer: int) -> View:
    """Differentiate a self mixer as a function of its input x (1, T, D)."""

    # The Jacobian passes many copies of the sentence at once
    def function(z: Tensor) -> Tensor:
        return mixer(z, mask.expand(len(z), -1))

    return _view(mixer, function, x, (x, mask), part, layer)


def _cross_view(mixer: Any, x: Tensor, memory: Tensor, mask: Tensor, layer: int) -> View:
    """Differentiate a cross mixer as a function of the memory (1, S, D)."""

    # The decoder's side stays constant
    def function(z: Tensor) -> Tensor:
        return mixer(x.expand(len(z), -1, -1), mixer.project(z, mask.expand(len(z), -1)))

    with torch.no_grad():
        context = mixer.project(memory, mask)
    return _view(mixer, function, memory, (x, context), "cross", layer)


def _view(
    mixer: Any,
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    shown: tuple[Tensor, Any],
    part: str,
    layer: int,
) -> View:
    """Differentiate a function of x (1, S, D); `shown` has the arguments of the mixer's `introspect`."""
    total = shares(jacobian(function, x[0], _directions(mixer.out_dim, x)))
    heads = _heads(mixer, function, x[0])
    with torch.no_grad():
        details = mixer.introspect(*shown) if isinstance(mixer, Introspectable) else {}
    return View(part, layer, type(mixer).__name__, total, heads, details)


def _heads(mixer: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """Compute the mixing matrix of each head, (H, T, S), from the input of the last projection `out`.

    The heads are adjacent there, or at the input of a preceding norm, which would mix them. For attention the result is
    its weights: a head's blocks are w_ij W_v, so their norms are proportional to w_ij.

    Returns:
        None for a mixer with one head or without such a projection.
    """
    heads = getattr(mixer, "num_heads", 1)
    out = getattr(mixer, "out", None)
    # This project's mixers have `num_heads`, a last projection `out`, and some have a `norm` before it
    if heads < 2 or not isinstance(out, nn.Linear) or out.in_features % heads:
        return None
    norm = getattr(mixer, "norm", None)
    entry = norm if isinstance(norm, nn.Module) else out
    width = out.in_features // heads
    # All heads together cost about as much as the whole mixer
    basis = _directions(width, x, most=max(1, DIRECTIONS // heads))
    matrices = []
    for head in range(heads):
        # Zero outside the channels of this head
        directions = basis.new_zeros(len(basis), out.in_features)
        directions[:, head * width : (head + 1) * width] = basis
        matrices.append(shares(jacobian(_input_of(entry, function), x, directions)))
    return torch.stack(matrices)  # (H, T, S)


def _input_of(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function whose result is the input of a module while `function` runs."""

    def inner(z: Tensor) -> Tensor:
        inputs: list[Tensor] = []
        # Mixers have no other way to return the input of the projection
        handle = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        try:
            function(z)
        finally:
            handle.remove()
        return inputs[-1]

    return inner


def _directions(width: int, like: Tensor, most: int = DIRECTIONS) -> Tensor:
    """Return orthonormal directions in `width` dimensions: all axes, or `most` random directions."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    if width <= most:
        return eye
    # A fixed seed, so that reports of one model agree, and its own generator
    generator = torch.Generator().manual_seed(width)
    noise = torch.randn(width, most, generator=generator, dtype=torch.float64)
    # On average, squared norms along random orthonormal directions are proportional to the full ones
    return torch.linalg.qr(noise).Q.T.to(like)
