"""What every mixer of a model does with one sentence pair: mixing matrices by head, alignments, its own portrait."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.mixer import SelfMixer
from seq2seq.model import Seq2Seq

DIRECTIONS = 32  # in which outputs are differentiated; all channels of a narrower output


@dataclasses.dataclass(frozen=True)
class View:
    """One mixer at work: `total` (T, S) and by head (H, T, S), rows that sum to 1, and its portrait.

    part is "encoder", "decoder" or "cross"; layers count from 1. heads is None where they cannot be told apart.
    """

    part: str
    layer: int
    kind: str
    total: Tensor
    heads: Tensor | None
    portrait: dict[str, Tensor]
    columns: int | None = None  # of a grid that the positions fill, row by row


def views(
    model: Seq2Seq,
    src: Tensor,
    tgt: Tensor,
    *,
    columns: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> list[View]:
    """Every mixer of `model` with one pair of token rows, src (1, S) and the decoder's input tgt (1, T).

    columns: of a source that is a picture's patches, how many there are in a row.
    Each is differentiated for every position in up to DIRECTIONS directions: S^2 and T^2 times its cost for a
    position, at least, so that long sentences take minutes. `tell` is called with what is next.
    """
    model.eval()
    calls = _calls(model, src, tgt)
    memory = calls.pop("memory")
    mask, read = torch.ones_like(src).bool(), torch.ones_like(tgt).bool()
    found = []
    for part, stack, real, width in (("encoder", model.encoder, mask, columns), ("decoder", model.decoder, read, None)):
        for layer, block in enumerate(stack.layers, 1):
            mixer: Any = block.self_mixer
            if mixer is not None:
                tell(f"{part} layer {layer} of {len(stack.layers)}")
                own = _self_view(mixer, calls[part, layer], real, part, layer)
                found.append(dataclasses.replace(own, columns=width))
    for layer, block in enumerate(model.decoder.layers, 1):
        tell(f"cross mixer {layer} of {len(model.decoder.layers)}")
        found.append(_cross_view(block.cross_mixer, calls["cross", layer], memory, mask, layer))
    return found


def shares(blocks: Tensor) -> Tensor:
    """The norms of a Jacobian's blocks (T, R, S, D), each row divided by its sum: (T, S). A row of zeros stays."""
    norms = blocks.square().sum((1, 3)).sqrt()
    return norms / norms.sum(-1, keepdim=True).clamp_min(torch.finfo(norms.dtype).tiny)


def distance_profile(total: Tensor, columns: int | None = None) -> Tensor:
    """The mean share of a matrix (T, T) at each distance, over the rows; sums to 1.

    The distance is |i - j|; where positions fill a grid of so many columns, the more of rows and columns apart.
    """
    position = torch.arange(len(total), device=total.device)
    places = torch.stack([position // columns, position % columns] if columns else [position])
    apart = (places[:, :, None] - places[:, None]).abs().amax(0)
    found = total.new_zeros(int(apart.max()) + 1)
    return found.index_add_(0, apart.flatten(), total.flatten()) / len(total)


def mean_distance(total: Tensor, columns: int | None = None) -> float:
    """The mean distance in a matrix (T, T), weighted by its shares."""
    profile = distance_profile(total, columns)
    return float(profile @ torch.arange(len(profile), dtype=profile.dtype, device=profile.device))


def equal_shares(length: int, *, causal: bool) -> Tensor:
    """The matrix (T, T) that reads everything alike, of a causal mixer the past: what a profile is compared with."""
    seen = torch.ones(length, length)
    seen = seen.tril() if causal else seen
    return seen / seen.sum(-1, keepdim=True)


def locality(view: View) -> float:
    """The mean distance over that of equal shares: 0 reads only itself, 1 everything alike."""
    everything = mean_distance(equal_shares(len(view.total), causal=view.part == "decoder"), view.columns)
    return mean_distance(view.total, view.columns) / everything if everything else 0.0


def _calls(model: Seq2Seq, src: Tensor, tgt: Tensor) -> dict[Any, Tensor]:
    """What each mixer is given as x (1, T, D), and the memory, when `model` reads the pair."""
    found: dict[Any, Tensor] = {}
    slots = [("encoder", "self_mixer", model.encoder), ("decoder", "self_mixer", model.decoder)]
    slots.append(("cross", "cross_mixer", model.decoder))
    handles = []
    for part, name, stack in slots:
        for layer, block in enumerate(stack.layers, 1):
            mixer = getattr(block, name)
            if mixer is not None:
                handles.append(mixer.register_forward_pre_hook(_keeper(found, (part, layer))))

    def keep_memory(_: nn.Module, __: Any, memory: Any) -> None:
        found["memory"] = memory

    handles.append(model.encoder.register_forward_hook(keep_memory))
    try:
        with torch.no_grad():
            model.features(src, torch.ones_like(src).bool(), tgt)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _keeper(found: dict[Any, Tensor], key: Any) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        found[key] = given[0]

    return keep


def _self_view(mixer: SelfMixer, x: Tensor, mask: Tensor, part: str, layer: int) -> View:
    def function(z: Tensor) -> Tensor:
        return mixer(z, mask.expand(len(z), -1))

    with torch.no_grad():
        portrait = mixer.introspect(x, mask)
    return _view(mixer, function, x, portrait, part, layer)


def _cross_view(mixer: Any, x: Tensor, memory: Tensor, mask: Tensor, layer: int) -> View:
    def function(z: Tensor) -> Tensor:
        return mixer(x.expand(len(z), -1, -1), mixer.project(z, mask.expand(len(z), -1)))

    with torch.no_grad():
        portrait = mixer.introspect(x, mixer.project(memory, mask))
    return _view(mixer, function, memory, portrait, "cross", layer)


def _view(
    mixer: Any, function: Callable[[Tensor], Tensor], x: Tensor, portrait: dict[str, Tensor], part: str, layer: int
) -> View:
    total = shares(jacobian(function, x[0], _directions(mixer.out_dim, x)))
    return View(part, layer, type(mixer).__name__, total, _heads(mixer, function, x[0]), portrait)


def _heads(mixer: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """The same for each head, (H, T, S): from what the last projection `out` reads, in which heads lie side by side.

    None for a mixer without several heads, or without such a projection. Of attention these are its weights: a head's
    blocks are w_ij W_v, so their norms are in proportion to w_ij, and the w_ij of a row sum to 1.
    """
    heads, out = getattr(mixer, "num_heads", 1), getattr(mixer, "out", None)
    if heads < 2 or not isinstance(out, nn.Linear) or out.in_features % heads:
        return None
    width = out.in_features // heads
    basis = _directions(width, x, most=max(1, DIRECTIONS // heads))
    found = []
    for head in range(heads):
        directions = basis.new_zeros(len(basis), out.in_features)
        directions[:, head * width : (head + 1) * width] = basis
        found.append(shares(jacobian(_before(out, function), x, directions)))
    return torch.stack(found)


def _before(out: nn.Linear, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What `out` reads while `function` runs."""

    def inner(z: Tensor) -> Tensor:
        read: list[Tensor] = []
        handle = out.register_forward_pre_hook(lambda _, given: read.append(given[0]))
        try:
            function(z)
        finally:
            handle.remove()
        return read[-1]

    return inner


def _directions(width: int, like: Tensor, most: int = DIRECTIONS) -> Tensor:
    """Orthonormal directions among `width` outputs: all of them, or `most` random ones."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    if width <= most:
        return eye
    generator = torch.Generator().manual_seed(width)
    return torch.linalg.qr(torch.randn(width, most, generator=generator, dtype=torch.float64)).Q.T.to(like)
