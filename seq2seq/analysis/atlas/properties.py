"""The map of self mixers, measured: which positions are connected, what is shared, what depends on the input.

Nothing is asked of a mixer but its forward pass and what it marks with `mark_mixing`. With that frozen, the Jacobian
of y_i = g_i(sum_j M_ij v(x_j)) is J_ij = G_i M_ij V(x_j): the mixing matrix M between whatever is done to the values of
a position before (V) and after (G_i). What is measured of M holds whatever these are, as long as M mixes no more than D
channels. All is in float64, on random inputs, with random parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.build import build_self_mixer, layer_values
from seq2seq.introspection import MixingProperties, freeze_mixing
from seq2seq.mixer import SelfMixer
from seq2seq.state import Cache

LENGTH, DIM, HEADS = 36, 4, 2
KERNEL = WINDOW = 11  # a row of a full convolution then meets more than DIM equal columns: its rank is above DIM
SPARSE = LENGTH // 2  # the widest window that counts as one
VECTORS = 4  # in turn at the columns that are compared, so that a matrix which depends on them shows
TOLERANCE = 1e-8  # of the largest singular value or entry
ROUNDING = 1e-13  # of the largest entry
DEPTH = 8  # of the stack whose last layer's values of `per_layer` count

# the settings of conf/mixer/self/<name>.yaml for a width, a number of heads and a longest sequence
Settings = Callable[[int, int, int], Mapping[str, Any]]


class Measured(NamedTuple):
    """What was found of one form of a mixer: its properties, the span that a row reads, its rank at equal columns."""

    properties: MixingProperties
    window: int
    rank: int

    @property
    def sparse_channels(self) -> bool:
        """Whether channels mix only in projections, so that M_ij is diagonal over channels between them."""
        return self.rank <= DIM


def sized(settings: Settings, dim: int, heads: int, length: int) -> dict[str, Any]:
    """A mixer's values for sequences of up to `length`, which is its max_len if it has one; those of the last layer."""
    values = layer_values(settings(dim, heads, length), DEPTH - 1, DEPTH)
    return values | ({"max_len": length} if isinstance(values.get("max_len"), int) else {})


def measured_values(settings: Settings) -> dict[str, Any]:
    """The values that a mixer is measured with: its YAML's, but of a size that LENGTH positions tell from all.

    By the setting's name alone: kernel_size is KERNEL, window WINDOW, max_len LENGTH; a list of kernel sizes (its name
    begins with "kernel") is [3, 5, 7, KERNEL], cut to its length.
    """
    values = sized(settings, DIM, HEADS, LENGTH)
    for key, size in (("kernel_size", KERNEL), ("window", WINDOW)):
        if isinstance(values.get(key), int):
            values[key] = size
    for key, value in values.items():
        if key.startswith("kernel") and isinstance(value, list):
            values[key] = [3, 5, 7, KERNEL][-len(value) :]
    return values


def measure(mixer: SelfMixer) -> Measured:
    """The properties of a mixer of width DIM and HEADS heads, of either form; its parameters are made random."""
    mixer = _randomised(mixer.double().eval())
    inputs = _inputs()
    one, two = (_jacobian(mixer, x) for x in inputs[:2])  # (N, D, N, D)
    # equal columns would have equal keys, and a matrix of their own for each channel would not show
    equal = _jacobian(mixer, inputs[2], routed_by=inputs[0])
    window = _window(one, _jacobian(copy.deepcopy(mixer).float(), inputs[0].float()))
    rank = int(_ranks(equal[::2, :, 1::2].transpose(1, 2).flatten(2)).max())
    found = MixingProperties(
        sparse=window <= SPARSE,
        shares_positions=_same_rows(one),
        shares_channels=rank <= HEADS,
        dynamic=_spans_differ(one[::2, :, 1::2].flatten(2), two[::2, :, 1::2].flatten(2)),
        linear=_is_linear(mixer),
    )
    return Measured(found, window, rank)


def measure_forms(settings: Settings) -> tuple[Measured, Measured | None, SelfMixer | None]:
    """Measured bidirectional and causal, and the causal mixer; None for an encoder-only one."""
    values = measured_values(settings)
    found = measure(build_self_mixer(values, dim=DIM, causal=False))
    try:
        causal = build_self_mixer(values, dim=DIM, causal=True, where="decoder")
    except ValueError as error:
        if "encoder-only" not in str(error):
            raise
        return found, None, None
    return found, measure(causal), causal


def state_growth(mixer: SelfMixer) -> str:
    """Whether a causal mixer's state grows with the longest target: "linear", "constant", or "other"."""
    first, second, third = (_numbers(mixer.init_state(1, LENGTH // 3 * times)) for times in (1, 2, 3))
    if first == second == third:
        return "constant"
    return "linear" if third - second == second - first > 0 else "other"


def _numbers(state: Any) -> int:
    if isinstance(state, Cache):
        return state.values.numel() + state.owner.numel()
    return state.numel() if isinstance(state, Tensor) else sum(map(_numbers, state))


def _randomised(mixer: SelfMixer) -> SelfMixer:
    """Noise on every parameter: zeros and ones at the start hide what a mixer can do."""
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return mixer


def _inputs() -> Tensor:
    """Three sequences (3, N, D), random at even positions, whose rows are looked at; at odd ones are their columns.

    There the first and the second agree and go through VECTORS in turn: V of these columns is the same in both, and
    again after each turn. In the third all odd positions are equal, and so is V, which then has one rank for all.
    """
    found = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    for start in range(VECTORS):
        found[:2, 2 * start + 1 :: 2 * VECTORS] = torch.randn(DIM).double()
    found[2, 1::2] = torch.randn(DIM).double()
    return found


def _jacobian(mixer: SelfMixer, x: Tensor, routed_by: Tensor | None = None) -> Tensor:
    mask = torch.ones(1, len(x), dtype=torch.bool)
    return jacobian(lambda z: mixer(z, mask.expand(len(z), -1)), x, routed_by=routed_by)


def _window(found: Tensor, single: Tensor) -> int:
    """The most positions between the first and the last that a position reads, both counted.

    An entry is zero or it is not: weights may decay below any threshold. But a mixer that takes differences of sums
    leaves rounding errors where others have zeros; the Jacobian in `single` precision tells, in which they are large.
    """
    size, rough = (part.double().abs().amax((1, 3)) for part in (found, single))  # (N, N)
    floor = ROUNDING * size.max()
    rounded = ((size < floor) & (rough > 1e3 * size) & (rough > 0)).any()
    connected = size > (floor if rounded else 0.0)
    position = torch.arange(LENGTH)
    last = torch.where(connected, position, -1).amax(1)
    first = torch.where(connected, position, LENGTH).amin(1)
    return max(0, int((last - first + 1).max()))


def _same_rows(found: Tensor) -> bool:
    """Whether rows are the same functions of j - i up to a factor, for each head, or what G_i does: they span no more.

    Rows of random positions away from the ends, at odd offsets: their columns hold the same vectors.
    """
    turn = 2 * VECTORS
    centers = range(turn, LENGTH - turn + 1, turn)
    rows = torch.stack([found[i, :, i - turn + 1 : i + turn : 2].flatten(1) for i in centers])
    return int(_ranks(rows.flatten(0, 1))) == int(_ranks(rows).max())


def _spans_differ(one: Tensor, two: Tensor) -> bool:
    """Whether any of the rows (rows, D, columns * D) spans another space in two: no G makes one of the other."""
    return bool((_ranks(torch.cat([one, two], 1)) > torch.maximum(_ranks(one), _ranks(two))).any())


def _ranks(matrices: Tensor) -> Tensor:
    """The numerical rank of each of matrices (..., m, n)."""
    values = torch.linalg.svdvals(matrices)
    return (values > TOLERANCE * values[..., :1]).sum(-1)


def _is_linear(mixer: SelfMixer) -> bool:
    """Whether f(a) + f(b) = f(a + b) + f(0), all four with the mixing matrices of one more input."""
    x, a, b = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    mask = torch.ones(4, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        with freeze_mixing() as held:
            mixer(x.expand(4, -1, -1), mask)
        with freeze_mixing(held):
            y = mixer(torch.stack([a, b, a + b, torch.zeros_like(x)]), mask)
    left, right = y[0] + y[1], y[2] + y[3]
    return bool((left - right).abs().max() <= TOLERANCE * left.abs().max())


def parameters(settings: Settings, *, dim: int, heads: int, max_len: int) -> int:
    """How many numbers one layer learns; the last layer of a stack with `per_layer` values."""
    values = layer_values(settings(dim, heads, max_len), DEPTH - 1, DEPTH)
    with torch.device("meta"):
        mixer: nn.Module = build_self_mixer(values, dim=dim, causal=False)
    return sum(parameter.numel() for parameter in mixer.parameters())
