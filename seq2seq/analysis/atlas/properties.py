"""Measure the properties of a self mixer's mixing matrix: sparsity, sharing, dependence on the input, linearity.

This needs only the mixer's forward pass and `mark_mixing`. With the marked tensors frozen, the Jacobian of
y_i = g_i(sum_j M_ij v(x_j)) is J_ij = G_i M_ij V(x_j), where the pointwise maps V and G_i come before and after the
mixing matrix M. The measurements hold for any V and G_i as long as M mixes no more than D channels. They are made in
float64 with random inputs and parameters.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.analysis.jacobian import jacobian
from seq2seq.network.build import build_self_mixer, on_meta_device
from seq2seq.network.introspection import MixingProperties, freeze_mixing
from seq2seq.network.make_mixer import layer_values
from seq2seq.network.mixer import SelfMixer
from seq2seq.network.state import Cache

# Positions, width and heads of a measured mixer: small, as the Jacobian has LENGTH^2 DIM^2 numbers.
LENGTH, DIM, HEADS = 36, 4, 2
# A row of a full convolution of this size reads more than DIM equal columns, so that its rank exceeds DIM.
KERNEL = 11
WINDOW = 11
# Number of columns of a grid, which equals its number of rows.
GRID_WIDTH = 6
# Maximum number of positions that a row of a sparse mixing matrix reads.
SPARSE = LENGTH // 2
# Number of vectors that alternate at the compared columns, to detect a matrix that depends on these vectors.
VECTORS = 4
# Singular values and entries below this share of the largest count as zero.
TOLERANCE = 1e-8
# Entries below this share of the largest may be rounding errors.
ROUNDING = 1e-13
# Depth of the stack; a mixer with `per_layer` values is measured with the values of the last layer.
DEPTH = 8

# The settings of conf/mixer/self/<name>.yaml for a width, a number of heads and a longest sequence.
SizedSettings = Callable[[int, int, int], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurement of the bidirectional or causal form of a mixer.

    Attributes:
        properties: The measured properties, which the mixer also declares.
        window: Maximum number of positions that a row reads.
        rank: The highest rank of a row's blocks at equal columns.
        dense_point: The window is 1, and the map of a position mixes its channels.
    """

    properties: MixingProperties
    window: int
    rank: int
    dense_point: bool = False

    @property
    def sparse_channels(self) -> bool:
        """True if only projections mix channels: M_ij is diagonal over channels."""
        return self.rank <= DIM

    @property
    def graph(self) -> tuple[bool, bool, bool, bool, bool]:
        """The columns of Han et al. 2022: sparse over positions, over channels, shared over both, dynamic.

        Where only projections mix channels, M leaves them out. A layer that reads its own position alone is just a
        projection (their 1 x 1 convolution), which is treated as M.
        """
        own = self.properties
        alone = self.dense_point
        channels = self.sparse_channels and not alone
        return own.sparse, channels, own.shares_positions, own.shares_channels and not alone, own.dynamic


def sized(settings: SizedSettings, dim: int, heads: int, length: int) -> dict[str, Any]:
    """Return the settings of a mixer's last layer for sequences of up to `length` positions.

    If the layer has a max_len, it is set to `length`.

    Args:
        settings: The mixer's settings by width, heads and longest sequence.
    """
    values = layer_values(settings(dim, heads, length), DEPTH - 1, DEPTH)
    return values | ({"max_len": length} if isinstance(values.get("max_len"), int) else {})


def measured_values(settings: SizedSettings, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings with which a mixer is measured: its YAML, but with windows shorter than LENGTH positions.

    kernel_size becomes KERNEL, window becomes WINDOW, grid_width becomes GRID_WIDTH, and max_len becomes LENGTH. Any
    list whose name begins with "kernel" is a list of n kernel sizes, and becomes the last n of [3, 5, 7, KERNEL].

    Args:
        given: Settings that keep their values.
    """
    values = sized(settings, DIM, HEADS, LENGTH)
    for key, size in (("kernel_size", KERNEL), ("window", WINDOW), ("grid_width", GRID_WIDTH)):
        if isinstance(values.get(key), int) and key not in given:
            values[key] = size
    for key, value in values.items():
        if key.startswith("kernel") and isinstance(value, list):
            values[key] = [3, 5, 7, KERNEL][-len(value) :]
    return values


def measure(mixer: SelfMixer) -> Measured:
    """Measure a mixer of width DIM with HEADS heads, bidirectional or causal; noise is added to its parameters."""
    mixer = mixer.double().eval()
    # The zeros and ones of initialization hide what a mixer can do. The noise is from torch's global generator, which
    # `write_atlas` seeds for each mixer
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    inputs = _inputs()
    # Two inputs that agree at odd positions: M is compared at these columns
    first = _jacobian(mixer, inputs[0])  # (N, D, N, D)
    second = _jacobian(mixer, inputs[1])  # (N, D, N, D)
    # The first input decides the mixing: equal keys at equal columns would hide a separate matrix for each channel
    equal = _jacobian(mixer, inputs[2], routed_by=inputs[0])
    # In single precision rounding errors are larger by nine orders of magnitude
    in_single = _jacobian(copy.deepcopy(mixer).float(), inputs[0].float())
    window = _window(first, in_single)
    # Rows at even positions, columns at odd ones: (rows, columns, D * D), whose last axis is a block d y_i / d x_j
    rank = int(_ranks(equal[::2, :, 1::2].transpose(1, 2).flatten(2)).max())
    # Equal columns have one V: if all channels of a head share M, the blocks of a row combine HEADS matrices
    properties = MixingProperties(
        sparse=window <= SPARSE,
        shares_positions=_same_rows(first),
        shares_channels=rank <= HEADS,
        dynamic=_spans_differ(first[::2, :, 1::2].flatten(2), second[::2, :, 1::2].flatten(2)),
        linear=_is_linear(mixer),
    )
    own = first.diagonal(dim1=0, dim2=2).abs()  # (D, D, N): blocks of positions with themselves
    across = own[~torch.eye(DIM, dtype=torch.bool)]
    dense_point = window == 1 and bool(across.max() > TOLERANCE * own.max())
    return Measured(properties, window, rank, dense_point)


def state_growth(mixer: SelfMixer) -> str:
    """Classify the growth of a causal mixer's state with the longest target: "linear", "constant", or "other"."""
    # Equal steps: linear growth has equal differences
    lengths = (LENGTH // 3, LENGTH // 3 * 2, LENGTH // 3 * 3)
    first, second, third = (_numbers(mixer.empty_state(1, length)) for length in lengths)
    if first == second == third:
        return "constant"
    return "linear" if third - second == second - first > 0 else "other"


def _numbers(state: Any) -> int:
    """Count the numbers in a state."""
    if isinstance(state, Cache):
        # A cache is allocated for the longest target, and counts in full
        return state.values.numel() + state.owner.numel()
    return state.numel() if isinstance(state, Tensor) else sum(map(_numbers, state))


def _inputs() -> Tensor:
    """Draw three sequences (3, N, D) to compare rows at even positions and columns at odd positions.

    At even positions all sequences are random. At odd positions the first two sequences agree and repeat VECTORS
    vectors: these columns have the same V in both sequences, and V repeats every 2 VECTORS positions. The third
    sequence has one vector at all odd positions.
    """
    inputs = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    # Column 2 start + 1 and every 2 VECTORS-th after it have one vector
    for start in range(VECTORS):
        inputs[:2, 2 * start + 1 :: 2 * VECTORS] = torch.randn(DIM).double()
    inputs[2, 1::2] = torch.randn(DIM).double()
    return inputs


def _jacobian(mixer: SelfMixer, x: Tensor, routed_by: Tensor | None = None) -> Tensor:
    mask = torch.ones(1, len(x), dtype=torch.bool)
    return jacobian(lambda z: mixer(z, mask.expand(len(z), -1)), x, routed_by=routed_by)


def _window(blocks: Tensor, in_single: Tensor) -> int:
    """Return the maximum number of positions that a row of a Jacobian reads, wherever they are.

    Weights may decay below any threshold, so every nonzero entry counts. Mixers that subtract sums have rounding
    errors, which do not count: small entries that are much larger in `in_single`, the Jacobian in single precision.
    """
    # The largest entry of each block
    size = blocks.double().abs().amax((1, 3))  # (N, N)
    rough = in_single.double().abs().amax((1, 3))
    # If any entry is a rounding error, all entries below the floor count as 0
    floor = ROUNDING * size.max()
    rounded = ((size < floor) & (rough > 1e3 * size) & (rough > 0)).any()
    connected = size > (floor if rounded else 0.0)
    return int(connected.sum(1).max())


def _same_rows(blocks: Tensor) -> bool:
    """Return True if all rows of M are the same function of j - i for each head, up to a factor.

    Then the rows of all positions together span the space of a single row, for any G_i. The rows are at positions with
    random inputs away from the ends. The columns are at odd offsets, which hold the same vectors for each row.
    """
    # The vectors of the columns repeat after this many positions
    turn = 2 * VECTORS
    centers = range(turn, LENGTH - turn + 1, turn)
    # Blocks at the same offsets, which have the same vectors: (centers, D, turn * D)
    rows = torch.stack([blocks[i, :, i - turn + 1 : i + turn : 2].flatten(1) for i in centers])
    # The rank of all rows together equals the rank of a single row
    return int(_ranks(rows.flatten(0, 1))) == int(_ranks(rows).max())


def _spans_differ(one: Tensor, two: Tensor) -> bool:
    """Return True if any row spans different spaces in both (rows, D, columns * D), so that no G_i relates them."""
    # A common space has the rank of the larger one
    both = _ranks(torch.cat([one, two], 1))
    return bool((both > torch.maximum(_ranks(one), _ranks(two))).any())


def _ranks(matrices: Tensor) -> Tensor:
    """Return the numerical rank of each of matrices (..., m, n)."""
    values = torch.linalg.svdvals(matrices)
    # Singular values come in descending order
    return (values > TOLERANCE * values[..., :1]).sum(-1)


def _is_linear(mixer: SelfMixer) -> bool:
    """Return True if f(a) + f(b) = f(a + b) + f(0) with the mixing matrices of another input."""
    # With f(0), both sides have the biases twice
    x, a, b = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    mask = torch.ones(4, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        # Record the mixing of x for four sentences, then replay it for the four inputs
        with freeze_mixing() as marked:
            mixer(x.expand(4, -1, -1), mask)
        with freeze_mixing(marked):
            y = mixer(torch.stack([a, b, a + b, torch.zeros_like(x)]), mask)
    left = y[0] + y[1]  # (N, D)
    right = y[2] + y[3]
    return bool((left - right).abs().max() <= TOLERANCE * left.abs().max())


def parameters(settings: SizedSettings, *, dim: int, heads: int, max_len: int) -> int:
    """Count the parameters of the last layer, bidirectional."""
    values = layer_values(settings(dim, heads, max_len), DEPTH - 1, DEPTH)
    # No memory and no initialization: only shapes are counted
    with on_meta_device():
        mixer: nn.Module = build_self_mixer(values, dim=dim, causal=False)
    return sum(parameter.numel() for parameter in mixer.parameters())
