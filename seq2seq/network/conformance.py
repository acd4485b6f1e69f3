"""Try mixers on a few random sentences, to find mistakes against their contract that a training would not show."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.kernels.dispatch import portable
from seq2seq.network.build import grid_of, max_positions
from seq2seq.network.make_mixer import checked_values, class_of, layer_values, make_mixer
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.state import expand, reorder
from seq2seq.settings.classes import mixers_of

_POSITIONS = 6
# Mistakes are much larger; mixers that compute in float32 round, and some divide by small sums.
_TOLERANCE = 1e-3


def try_mixers(config: Mapping[str, Any], *, trust: Sequence[str] = ()) -> None:
    """Try one layer of each mixer that a model's settings use, see `try_mixer`.

    Args:
        config: See `build_model`.
        trust: See `build_model`.

    Raises:
        ValueError: A mixer breaks the contract; the message begins with its settings key.
    """
    dim = config["model"]["dim"]
    grid = grid_of(config)
    most = max_positions(config, trust=trust)
    for slot, path, settings in mixers_of(config["mixer"], used=True):
        # The first layer, whatever the depth
        values = layer_values(settings, 0, 2**20, path)
        mixer = class_of(values, slot, trust)
        values = getattr(mixer, "portable_values", portable)(checked_values(mixer, values, path))
        positions = _POSITIONS
        if grid and slot == "encoder":
            # Two rows of the grid; the shorter sentence has one
            positions = 2 * grid[1]
            if hasattr(mixer, "grid_values"):
                values = mixer.grid_values(values, grid[1])
        positions = min(positions, most or positions)
        sizes = {"memory_dim": dim} if slot == "cross" else {"causal": slot == "decoder"}
        # A check changes no random number of the run
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try_mixer(make_mixer(mixer, values, path, dim=dim, **sizes), path, positions=positions)


@torch.no_grad()
def try_mixer(
    mixer: SelfMixer[Any] | CrossMixer[Any, Any], path: str = "mixer", *, positions: int = _POSITIONS
) -> None:
    """Compute with a copy of a mixer in float64, its parameters moved off their initial values, and compare.

    The copy takes no Triton kernels, which lack float64.

    In evaluation, the output is (B, T, out_dim), and the same each time. A sentence has the same output alone as in a
    batch, whatever is in its padding. The output of a causal mixer or a cross mixer does not depend on later positions,
    and `step` computes `forward`, also after the hypotheses of a beam were reordered. All layers are registered.

    Args:
        path: The mixer's settings key, for messages.
        positions: Length of the sentences.

    Raises:
        ValueError: One of these does not hold.
    """
    wrong = f"{path}: {type(mixer).__name__}"
    _require_registered(mixer, wrong)
    mixer = copy.deepcopy(mixer).double().eval()
    for part in mixer.modules():
        if getattr(part, "backend", None) == "triton":
            part.backend = "auto"  # type: ignore[assignment]
    for parameter in mixer.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    cross = isinstance(mixer, CrossMixer)
    lengths = [positions, (positions + 1) // 2]
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    # A self mixer reads no memory
    widths = (mixer.dim, getattr(mixer, "memory_dim", 1))
    x, memory = (torch.randn(2, positions, width, dtype=torch.float64) for width in widths)

    def whole(x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return mixer(x, mixer.project(memory, mask)) if cross else mixer(x, mask)  # type: ignore[operator]

    padded = [each.masked_fill(~mask[:, :, None], 100.0) for each in (x, memory)]
    together = whole(x if cross else padded[0], padded[1], mask)
    found = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
    if found != (expected := (2, positions, mixer.out_dim)):
        raise ValueError(f"{wrong}.forward returns {found} for B=2 and T={positions}; (B, T, out_dim) is {expected}")
    plain = whole(x, memory, mask)
    if not _equal(plain, whole(x, memory, mask)):
        raise ValueError(
            f"{wrong}.forward varies in evaluation; draw random numbers only if self.training is true, and change no "
            "input in place"
        )
    now = positions // 2
    later = torch.cat([x[:, :now], torch.randn_like(x[:, now:])], 1)
    decodes = cross or mixer.causal
    if decodes and not _equal(whole(later, memory, mask)[:, :now], plain[:, :now]):
        raise ValueError(f"{wrong}.forward depends on later positions, which do not exist yet in decoding: mask them")
    for row, length in enumerate(lengths):
        own, some = slice(row, row + 1), slice(positions if cross else length)
        alone = whole(x[own, some], memory[own, :length], mask[own, :length])
        if not _equal(alone, together[own, some]):
            raise ValueError(
                f"{wrong}.forward depends on padding or on other sentences of the batch: mask them, and keep the first "
                "dimension apart"
            )
    if decodes:
        _try_steps(mixer, memory, mask, wrong)


def _try_steps(mixer: Any, memory: Tensor, mask: Tensor, wrong: str) -> None:
    """Raise ValueError if `step` does not compute `forward` in beams of two hypotheses."""
    sentences, positions = mask.shape
    cross = isinstance(mixer, CrossMixer)
    context = mixer.project(memory, mask) if cross else None
    like = {"device": memory.device, "dtype": memory.dtype}
    state = mixer.init_state(context, positions) if cross else mixer.empty_state(sentences, positions, **like)
    state = expand(state, 2)
    reordered = positions // 2
    history = memory.new_empty(2 * sentences, 0, mixer.dim)
    for place in range(positions):
        history = torch.cat([history, torch.randn(2 * sentences, 1, mixer.dim, **like)], 1)
        position = torch.full((2 * sentences,), place)
        y, state = mixer.step(history[:, -1], *([context] if cross else []), state, position)
        # A search gives `step` the context of each sentence once, for all its hypotheses
        given = expand(context, 2) if cross else torch.ones(history.shape[:2], dtype=torch.bool)
        if not _equal(y, mixer(history, given)[:, -1]):
            why = ": hypotheses of a sentence are neighboring rows of x, and one row of the context" if cross else ""
            if place > reordered:
                why = ", after hypotheses were reordered: the first dimension of a state is the hypothesis"
            raise ValueError(f"{wrong}.step differs from forward at position {place}{why}")
        if place == reordered:
            index = torch.arange(2 * sentences) // 2 * 2
            state, history = reorder(state, index), history[index]


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs are equal up to rounding."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)


def _require_registered(mixer: nn.Module, wrong: str) -> None:
    """Raise ValueError for layers in a list or a dict, which torch neither trains nor saves."""
    for part in mixer.modules():
        for name, value in vars(part).items():
            entries = value.values() if isinstance(value, dict) else value
            if name in ("_modules", "_parameters") or not isinstance(value, list | tuple | dict):
                continue
            if any(isinstance(each, nn.Module | nn.Parameter) for each in entries):
                raise ValueError(
                    f"{wrong}.{name} is a {type(value).__name__} of layers, which torch neither trains nor saves; use "
                    "nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.ParameterDict"
                )
