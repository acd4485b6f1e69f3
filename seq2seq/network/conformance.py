"""Try mixers on a few random sentences, to find mistakes against their contract that a training would not show."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from seq2seq.kernels.dispatch import portable
from seq2seq.network.build import Uninitialized, grid_of, max_positions
from seq2seq.network.make_mixer import checked_values, class_of, layer_values, make_mixer
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.state import Cache, Nested, expand, leaves, reorder
from seq2seq.settings.classes import mixers_of

AnyMixer: TypeAlias = SelfMixer[Any] | CrossMixer[Any, Any]

# More than the kernels and windows of most mixers
_POSITIONS = 40
# Mistakes are much larger; mixers that compute in float32 round, and some divide by small sums.
_TOLERANCE = 1e-3


class ContractError(ValueError):
    """A mixer breaks its contract."""


def try_mixers(config: Mapping[str, Any], *, trust: Sequence[str] = ()) -> None:
    """Try one layer of each mixer that a model's settings use, see `try_mixer`.

    Args:
        config: See `build_model`.
        trust: See `build_model`.

    Raises:
        ContractError: A mixer breaks the contract; the message begins with its settings key.
        ValueError: A setting is wrong.
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
            made = make_mixer(mixer, values, path, dim=dim, **sizes)
            # As it is made before the weights of a checkpoint are loaded
            with Uninitialized():
                anew = make_mixer(mixer, values, path, dim=dim, **sizes)
            try:
                try_mixer(made, path, positions=positions, anew=anew)
            except ContractError:
                raise
            except Exception as error:
                raise ContractError(
                    f"{path}: {mixer.__name__} fails on random sentences: {_told(error, mixer)}"
                ) from error


@torch.no_grad()
def try_mixer(
    mixer: AnyMixer, path: str = "mixer", *, positions: int = _POSITIONS, anew: AnyMixer | None = None
) -> None:
    """Compute with a copy of a mixer in float64, its parameters moved off their initial values, and compare.

    The copy takes no Triton kernels, which lack float64.

    In evaluation, the output is (B, T, out_dim), finite, and the same each time. A sentence has the same output alone
    as in a batch, whatever is in its padding. The output of a causal mixer or a cross mixer does not depend on later
    positions, also in training (batch normalization apart), and `step` computes `forward`, also after the hypotheses
    of a beam were reordered. All layers are registered. Weights over the source are (B, heads, T, S), 0 on padding.

    Args:
        path: The mixer's settings key, for messages.
        positions: Length of the sentences.
        anew: Another mixer of this class with these arguments. It has the same output with the weights of `mixer`.

    Raises:
        ContractError: One of these does not hold.
    """
    wrong = f"{path}: {type(mixer).__name__}"
    _require_registered(mixer, wrong)
    mixer = _in_float64(mixer)
    for parameter in mixer.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    cross = isinstance(mixer, CrossMixer)
    lengths = [positions, (positions + 1) // 2]
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    # A self mixer reads no memory
    widths = (mixer.dim, getattr(mixer, "memory_dim", 1))
    x, memory = (torch.randn(2, positions, width, dtype=torch.float64) for width in widths)

    padded = [each.masked_fill(~mask[:, :, None], 100.0) for each in (x, memory)]
    together = _whole(mixer, x if cross else padded[0], padded[1], mask)
    found = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
    if found != (expected := (2, positions, mixer.out_dim)):
        raise ContractError(f"{wrong}.forward returns {found} for B=2 and T={positions}; (B, T, out_dim) is {expected}")
    if not (together if cross else together[mask]).isfinite().all():
        raise ContractError(f"{wrong}.forward has values that are not finite, for sentences of {lengths} positions")
    plain = _whole(mixer, x, memory, mask)
    if not _equal(plain, _whole(mixer, x, memory, mask)):
        raise ContractError(
            f"{wrong}.forward varies in evaluation; draw random numbers only if self.training is true, and change no "
            "input in place"
        )
    # A mixer that sees the future sees padding as well
    decodes = cross or mixer.causal
    if decodes:
        _require_causal(mixer, x, memory, mask, wrong)
    for row, length in enumerate(lengths):
        own, some = slice(row, row + 1), slice(positions if cross else length)
        alone = _whole(mixer, x[own, some], memory[own, :length], mask[own, :length])
        if not _equal(alone, together[own, some]):
            raise ContractError(
                f"{wrong}.forward depends on padding or on other sentences of the batch: mask them, and keep the first "
                "dimension apart"
            )
    if cross:
        _require_weights(mixer, x, memory, mask, wrong)
    if anew is not None:
        _require_saved(mixer, anew, lambda each: _whole(each, x, memory, mask), wrong)
    if decodes:
        _try_steps(mixer, memory, mask, wrong)


def _in_float64(mixer: AnyMixer) -> AnyMixer:
    mixer = copy.deepcopy(mixer).double().eval()
    for part in mixer.modules():
        if getattr(part, "backend", None) == "triton":
            part.backend = "auto"  # type: ignore[assignment]
    return mixer


def _whole(mixer: AnyMixer, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """Return the output of `forward`."""
    return mixer(x, mixer.project(memory, mask)) if isinstance(mixer, CrossMixer) else mixer(x, mask)


def _require_causal(mixer: AnyMixer, x: Tensor, memory: Tensor, mask: Tensor, wrong: str) -> None:
    """Raise ContractError if the output depends on later positions, in evaluation or in training."""
    now = x.shape[1] // 2
    later = torch.cat([x[:, :now], torch.randn_like(x[:, now:])], 1)
    # In training, the statistics of batch normalization are of all positions
    normalizes = any(getattr(part, "counts_batches", False) for part in mixer.modules())
    for training in (False,) if normalizes else (False, True):
        found = []
        for each in (x, later):
            # The same dropout
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                found.append(_whole(mixer.train(training), each, memory, mask)[:, :now])
        if not _equal(*found):
            raise ContractError(
                f"{wrong}.forward depends on later positions{' in training' if training else ''}, which do not exist "
                "yet in decoding: mask them"
            )
    mixer.eval()


def _require_weights(mixer: CrossMixer[Any, Any], x: Tensor, memory: Tensor, mask: Tensor, wrong: str) -> None:
    """Raise ContractError for weights over the source of another shape, or on padding."""
    weights = mixer.read_weights(x, mixer.project(memory, mask))
    if weights is None:
        return
    size, length = mask.shape
    if weights.dim() != 4 or (*weights.shape[:1], *weights.shape[2:]) != (size, length, length):
        raise ContractError(
            f"{wrong}.read_weights returns {tuple(weights.shape)} for B={size} and T=S={length}; it must be "
            "(B, heads, T, S)"
        )
    if weights.masked_select(~mask[:, None, None]).any():
        raise ContractError(f"{wrong}.read_weights has weight on padding: mask it, as forward does")


def _require_saved(mixer: AnyMixer, anew: AnyMixer, whole: Callable[[AnyMixer], Tensor], wrong: str) -> None:
    """Raise ContractError if the state_dict does not hold all that the output depends on."""
    anew = _in_float64(anew)
    saved, names = mixer.state_dict(), set(anew.state_dict())
    if late := sorted(names ^ set(saved)):
        raise ContractError(f"{wrong} makes {', '.join(late)} in forward: make all parameters and buffers in __init__")
    anew.load_state_dict(saved)
    if not _equal(whole(mixer), whole(anew)):
        raise ContractError(
            f"{wrong}.forward differs after the weights were saved and loaded: keep all random values in parameters or "
            "in buffers with persistent=True"
        )


def _try_steps(mixer: Any, memory: Tensor, mask: Tensor, wrong: str) -> None:
    """Raise ContractError if `step` does not compute `forward` in beams of two hypotheses."""
    sentences, positions = mask.shape
    cross = isinstance(mixer, CrossMixer)
    like = {"device": memory.device, "dtype": memory.dtype}
    context = mixer.project(memory, mask) if cross else None
    state = mixer.init_state(context, positions) if cross else mixer.empty_state(sentences, positions, **like)
    for name, tree in (("context", context), ("state", state)):
        _require_rows(tree, sentences, f"{wrong}: its {name}")
    state = expand(state, 2)
    reordered = positions // 2
    xs = torch.randn(2 * sentences, positions, mixer.dim, **like)
    found = xs.new_empty(2 * sentences, 0, mixer.out_dim)
    for place in range(positions):
        position = torch.full((2 * sentences,), place)
        y, state = mixer.step(xs[:, place], *([context] if cross else []), state, position)
        found = torch.cat([found, y[:, None]], 1)
        if place == reordered:
            index = torch.arange(2 * sentences) // 2 * 2
            state, xs, found = reorder(state, index), xs[index], found[index]
    # A search gives `step` the context of each sentence once, for all its hypotheses
    expected = mixer(xs, expand(context, 2) if cross else torch.ones(xs.shape[:2], dtype=torch.bool))
    for place in range(positions):
        if not _equal(found[:, place], expected[:, place]):
            why = ": hypotheses of a sentence are neighboring rows of x, and one row of the context" if cross else ""
            if place > reordered:
                why = ", after hypotheses were reordered: the first dimension of a state is the hypothesis"
            raise ContractError(f"{wrong}.step differs from forward at position {place}{why}")


def _require_rows(tree: Nested, rows: int, what: str) -> None:
    """Raise ContractError unless a state or context has tensors and caches alone, each with a row for each sentence."""
    for leaf in leaves(tree):
        if not isinstance(leaf, Tensor | Cache):
            raise ContractError(f"{what} holds a {type(leaf).__name__}; it must be a tuple of tensors and caches")
        if isinstance(leaf, Tensor) and leaf.shape[:1] != (rows,):
            raise ContractError(
                f"{what} has a tensor of shape {tuple(leaf.shape)} for B={rows}; the first dimension is the sentence"
            )


def _told(error: Exception, mixer: type[Any]) -> str:
    """Write an error with the mixer's line that caused it."""
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps if step.filename == inspect.getfile(mixer)]
    step = (own or steps)[-1]
    return f"{type(error).__name__}: {error} ({step.filename}, line {step.lineno})"


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs are equal up to rounding."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)


def _require_registered(mixer: nn.Module, wrong: str) -> None:
    """Raise ContractError for layers in a list or a dict, which torch neither trains nor saves."""
    for part in mixer.modules():
        for name, value in vars(part).items():
            entries = value.values() if isinstance(value, dict) else value
            if name in ("_modules", "_parameters") or not isinstance(value, list | tuple | dict):
                continue
            if any(isinstance(each, nn.Module | nn.Parameter) for each in entries):
                raise ContractError(
                    f"{wrong}.{name} is a {type(value).__name__} of layers, which torch neither trains nor saves; use "
                    "nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.ParameterDict"
                )
