"""Mixing matrices of a model's mixers for one sentence pair, by layer and head, with each mixer's own details."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.network.model import Seq2Seq
from seq2seq.network.pooling import Halving, spread
from seq2seq.search import NotFiniteScoresError

# Outputs are differentiated in so many random directions, or in all channels of a narrower output.
DIRECTIONS = 32


@dataclasses.dataclass(frozen=True)
class View:
    """One mixer at work on a sentence pair.

    Attributes:
        part: "encoder", "decoder" or "cross".
        layer: Number of the layer, from 1.
        mixer: Name of the mixer's class.
        total: Mixing matrix (T, S) of the whole mixer, rows that sum to 1.
        heads: The same by head (H, T, S); None where heads cannot be separated.
        details: Tensors by name that the mixer's own `introspect` returns.
        columns: Width of a grid that the positions fill, row by row.
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

    Each mixer is differentiated for every position in up to DIRECTIONS directions: at least S^2 and T^2 times its cost
    for a position, so that long sentences take minutes.

    Args:
        src: Source ids (1, S).
        tgt: The decoder's input (1, T).
        columns: Patches in a row of a source that is an image.
        report: Called with the name of each mixer before its turn.

    Returns:
        Encoder, decoder, then cross mixers, each layer by layer.

    Raises:
        NotFiniteScoresError: The model computes something that is not finite.
    """
    model.eval()
    # One run of the model gives every mixer the input that it has in place
    inputs, memory = _inputs(model, src, tgt)
    _require_finite([*inputs.values(), memory])
    # One sentence, so no padding
    src_mask = torch.ones_like(src).bool()
    tgt_mask = torch.ones_like(tgt).bool()
    result = []
    halvings: list[Halving] = []
    # A slot may be empty, as the decoder's is in recurrent models
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
    """Show a mixer of a later stage at the source's own positions, each of which has its share of what they became."""
    if not halvings:
        return view

    def longer(matrices: Tensor) -> Tensor:  # (..., T, S')
        rows = spread(matrices.reshape(1, -1, matrices.shape[-1]), halvings, mask)
        return rows.reshape(*matrices.shape[:-1], -1)

    def lengthened(matrices: Tensor) -> Tensor:
        matrices = longer(matrices)
        if view.part == "encoder":  # a position reads what the position reads that it became a part of
            matrices = longer(matrices.transpose(-1, -2)).transpose(-1, -2)
        return matrices / matrices.sum(-1, keepdim=True).clamp_min(torch.finfo(matrices.dtype).tiny)

    # Of its details only weights have a source position a column, and those of the encoder a row, too
    details = {name: lengthened(each) if name == "weights" else each for name, each in view.details.items()}
    if view.part == "encoder":
        details.pop("predicted kernels", None)  # of positions that the source does not have
    heads = None if view.heads is None else lengthened(view.heads)
    return dataclasses.replace(view, total=lengthened(view.total), heads=heads, details=details)


def _require_finite(tensors: Sequence[Tensor]) -> None:
    """Raise NotFiniteScoresError unless all numbers are finite: NaN would be drawn as a share of 0."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise NotFiniteScoresError


def shares(blocks: Tensor) -> Tensor:
    """Return the norms (T, S) of a Jacobian's blocks (T, R, S, D), divided by the row's sum; a row of zeros stays."""
    # The Frobenius norm of each block; tiny keeps a row of zeros from becoming nan
    norms = blocks.square().sum((1, 3)).sqrt()  # (T, S)
    return norms / norms.sum(-1, keepdim=True).clamp_min(torch.finfo(norms.dtype).tiny)


def distance_profile(total: Tensor, columns: int | None = None) -> Tensor:
    """Average the shares of a matrix (T, T) at each distance over the rows; the result sums to 1.

    Args:
        columns: Width of a grid that the positions fill. The distance is |i - j|, and on a grid the larger of the
            distances in rows and in columns.
    """
    position = torch.arange(len(total), device=total.device)
    coordinates = torch.stack([position // columns, position % columns] if columns else [position])  # (1 or 2, T)
    distance = (coordinates[:, :, None] - coordinates[:, None]).abs().amax(0)  # (T, T)
    # Every row adds its shares to the bin of their distance
    profile = total.new_zeros(int(distance.max()) + 1)
    return profile.index_add_(0, distance.flatten(), total.flatten()) / len(total)


def mean_distance(total: Tensor, columns: int | None = None) -> float:
    """Return the mean distance in a matrix (T, T), weighted by its shares."""
    profile = distance_profile(total, columns)
    return float(profile @ torch.arange(len(profile), dtype=profile.dtype, device=profile.device))


def uniform_weights(length: int, *, causal: bool) -> Tensor:
    """Return the matrix (T, T) that reads all positions alike, of a causal mixer all of the past."""
    visible = torch.ones(length, length)
    visible = visible.tril() if causal else visible
    return visible / visible.sum(-1, keepdim=True)  # (T, T)


def locality(view: View) -> float:
    """Divide the mean distance by that of uniform weights: 0 reads only itself, 1 reads everything alike."""
    equal = uniform_weights(len(view.total), causal=view.part == "decoder")
    # 0 for a single position, which can only read itself
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
    # Hooks see the positional arguments: the first of every mixer is the sequence that it mixes
    handles = []
    for part, name, stack in slots:
        for layer, block in enumerate(stack.layers, 1):
            mixer = getattr(block, name)
            if mixer is not None:
                handles.append(mixer.register_forward_pre_hook(_recorder(inputs, (part, layer))))
    memories: list[Any] = []
    handles.append(model.encoder.register_forward_hook(lambda _, __, found: memories.append(found[0])))
    try:
        with torch.no_grad():
            # Features, not logits: the output layer mixes nothing
            model.features(src, torch.ones_like(src).bool(), tgt)
    finally:
        # The model may go on to other uses, even after an error
        for handle in handles:
            handle.remove()
    return inputs, memories[-1]


def _recorder(
    inputs: dict[tuple[str, int], Tensor], key: tuple[str, int]
) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def record(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[key] = arguments[0]

    return record


@runtime_checkable
class Introspectable(Protocol):
    """Mixer that shows what it has inside, besides its mixing matrix."""

    def introspect(self, x: Tensor, context: Any) -> dict[str, Tensor]:
        """Return what `python -m seq2seq.inspect` plots, by name, for x and the mask or the context of a call.

        Returns:
            "kernels": fixed ones (H, K); "predicted kernels": along x, (B, T, H, K); "weights": (B, H, T, T), over the
            source (B, H, T, S). Any other name: a number for each head, (H,), where "centers" c, (H,) or (H, 2: row,
            column), and "sharpness" a of scores -a |d - c|^2 are plotted together.
        """
        ...


def _details(mixer: nn.Module, x: Tensor, context: Any) -> dict[str, Tensor]:
    return mixer.introspect(x, context) if isinstance(mixer, Introspectable) else {}


def _self_view(mixer: Any, x: Tensor, mask: Tensor, part: str, layer: int) -> View:
    """Differentiate a self mixer as a function of its input x (1, T, D)."""

    # The Jacobian passes many copies of the sentence at once, so the mask grows with them
    def function(z: Tensor) -> Tensor:
        return mixer(z, mask.expand(len(z), -1))

    with torch.no_grad():
        details = _details(mixer, x, mask)
    return _view(mixer, function, x, details, part, layer)


def _cross_view(mixer: Any, x: Tensor, memory: Tensor, mask: Tensor, layer: int) -> View:
    """Differentiate a cross mixer as a function of the memory (1, S, D)."""

    # Differentiated by the memory alone; the decoder's side stays as it was
    def function(z: Tensor) -> Tensor:
        return mixer(x.expand(len(z), -1, -1), mixer.project(z, mask.expand(len(z), -1)))

    with torch.no_grad():
        details = _details(mixer, x, mixer.project(memory, mask))
    return _view(mixer, function, memory, details, "cross", layer)


def _view(
    mixer: Any,
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    details: dict[str, Tensor],
    part: str,
    layer: int,
) -> View:
    total = shares(jacobian(function, x[0], _directions(mixer.out_dim, x)))
    heads = _heads(mixer, function, x[0])
    return View(part, layer, type(mixer).__name__, total, heads, details)


def _heads(mixer: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """Compute the mixing matrix of each head, (H, T, S), from the input of the last projection `out`.

    The heads lie side by side there, or at the input of the norm that precedes it, which would mix them. Of attention
    these are its weights: a head's blocks are w_ij W_v, so their norms are in proportion to w_ij, as shares of their
    row, which those of a softmax are by themselves.

    Returns:
        None for a mixer without several heads, or without such a projection.
    """
    heads = getattr(mixer, "num_heads", 1)
    out = getattr(mixer, "out", None)
    # By the convention of this project's mixers: `num_heads`, a last projection `out`, at times a `norm` before it
    if heads < 2 or not isinstance(out, nn.Linear) or out.in_features % heads:
        return None
    norm = getattr(mixer, "norm", None)
    entry = norm if isinstance(norm, nn.Module) else out
    width = out.in_features // heads
    # Together the heads cost about as much as the whole mixer
    basis = _directions(width, x, most=max(1, DIRECTIONS // heads))
    matrices = []
    for head in range(heads):
        # Unit vectors of this head's channels, zero in those of the others
        directions = basis.new_zeros(len(basis), out.in_features)
        directions[:, head * width : (head + 1) * width] = basis
        matrices.append(shares(jacobian(_input_of(entry, function), x, directions)))
    return torch.stack(matrices)  # (H, T, S)


def _input_of(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function whose result is the input of a module while `function` runs."""

    def inner(z: Tensor) -> Tensor:
        inputs: list[Tensor] = []
        # A hook, since the mixers have no other way to return what precedes the projection
        handle = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        try:
            function(z)
        finally:
            handle.remove()
        return inputs[-1]

    return inner


def _directions(width: int, like: Tensor, most: int = DIRECTIONS) -> Tensor:
    """Return orthonormal directions among `width` outputs: all of them, or `most` random ones."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    if width <= most:
        return eye
    # A seed of its own: reports of one model agree, and the caller's generator is untouched
    generator = torch.Generator().manual_seed(width)
    noise = torch.randn(width, most, generator=generator, dtype=torch.float64)
    # Squared norms along random orthonormal directions are, on average, in proportion to the full ones
    return torch.linalg.qr(noise).Q.T.to(like)
