"""`relative`, `quadratic` and `relative_bias` against their equations, against convolutions and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from composed import lengths_mask
from conftest import jiggle
from exact import array, wide
from test_taps import at_taps
from torch import Tensor, nn

from seq2seq.kernels.relative_positions import extents, offsets
from seq2seq.mixers.quadratic import Quadratic
from seq2seq.mixers.relative import Relative
from seq2seq.mixers.relative_bias import RelativeBias
from seq2seq.network.introspection import freeze_mixing
from seq2seq.network.mixer import SelfMixer


def place(p: int, grid_width: int | None) -> list[int]:
    return [p] if grid_width is None else [p // grid_width, p % grid_width]


def by_hand(mixer: Any, x: np.ndarray, score: Any) -> np.ndarray:
    """A sentence x (T, D) mixed by score(h, q, k), one head and position at a time."""
    heads, length = mixer.num_heads, len(x)
    values = (x @ array(mixer.inner.weight).T)[:, -mixer.out.in_features :]
    head_dim = mixer.out.in_features // heads
    mixed = np.zeros_like(values)
    for h in range(heads):
        own = slice(h * head_dim, (h + 1) * head_dim)
        for q in range(length):
            seen = range(q + 1 if mixer.causal else length)
            weights = np.exp([score(h, q, k) for k in seen])
            mixed[q, own] = weights / weights.sum() @ values[: len(seen), own]
    return mixed @ array(mixer.out.weight).T


def content(mixer: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys (T, H, d) of x (T, D)."""
    q, k, _ = np.split(x @ array(mixer.inner.weight).T, 3, axis=1)
    return q.reshape(len(x), mixer.num_heads, -1), k.reshape(len(x), mixer.num_heads, -1)


def sinusoids(d: int, dim: int) -> np.ndarray:
    angles = [d / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def relative_score(mixer: Relative, x: np.ndarray) -> Any:
    """The four terms of Dai et al. 2019, section 3.3, as they stand there."""
    places = array(mixer.place.weight).reshape(mixer.num_heads, mixer.head_dim, mixer.dim)

    def encoding(q: int, k: int) -> np.ndarray:
        parts = []
        d = np.subtract(place(k, mixer.grid_width), place(q, mixer.grid_width))
        for axis, along in enumerate(d):
            if mixer.r is None:
                parts.append(sinusoids(along, mixer.dim // len(d)))
            else:
                clipped = max(-mixer.max_offset, min(mixer.max_offset, along))
                parts.append(array(mixer.r)[axis, clipped + mixer.max_offset])
        return np.concatenate(parts)

    def score(h: int, q: int, k: int) -> float:
        r = places[h] @ encoding(q, k)
        total = 0.0 if mixer.v is None else array(mixer.v)[h] @ r
        if mixer.content:
            queries, keys = content(mixer, x)
            total += queries[q, h] @ keys[k, h] + queries[q, h] @ r
            total += 0.0 if mixer.u is None else array(mixer.u)[h] @ keys[k, h]
        return total / math.sqrt(mixer.head_dim)

    return score


@pytest.mark.parametrize(("with_content", "biases"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("encoding", ["learned", "sinusoidal"])
@pytest.mark.parametrize(("causal", "grid_width"), [(True, None), (False, None), (False, 3)])
def test_relative_by_hand(causal, grid_width, encoding, with_content, biases):
    mixer = Relative(dim=8, causal=causal, num_heads=2, encoding=encoding, max_offset=3, content=with_content,
                     biases=biases, grid_width=grid_width)  # fmt: skip
    mixer, x, lengths = jiggle(mixer).double(), wide(2, 7, 8), [7, 4]
    y = mixer(x, lengths_mask(lengths))
    for row, length in enumerate(lengths):
        sentence = array(x[row, :length])
        expected = by_hand(mixer, sentence, relative_score(mixer, sentence))
        np.testing.assert_allclose(array(y[row, :length]), expected, atol=1e-11)


def quadratic_score(mixer: Quadratic, x: np.ndarray) -> Any:
    """v'r_d with r_d = (|d|^2, d) and v = -a (1, -2 c), as in Cordonnier et al. 2020; the constant a |c|^2 left out."""

    def score(h: int, q: int, k: int) -> float:
        d = np.subtract(place(k, mixer.grid_width), place(q, mixer.grid_width))
        a, c = array(mixer.sharpness)[h], array(mixer.centers)[h]
        total = -a * np.concatenate([[1.0], -2.0 * c]) @ np.concatenate([[d @ d], d])
        if mixer.u is not None:
            queries, keys = content(mixer, x)
            scale = math.sqrt(queries.shape[-1])
            total += (queries[q, h] + array(mixer.u)[h]) @ keys[k, h] / scale
        return total

    return score


@pytest.mark.parametrize("with_content", [True, False])
@pytest.mark.parametrize("head_dim", [None, 5])
@pytest.mark.parametrize(("causal", "grid_width"), [(True, None), (False, None), (False, 3)])
def test_quadratic_by_hand(causal, grid_width, head_dim, with_content):
    sizes = {"dim": 6, "num_heads": 3, "head_dim": head_dim}
    mixer = jiggle(Quadratic(**sizes, causal=causal, content=with_content, grid_width=grid_width)).double()
    x, lengths = wide(2, 7, 6), [7, 4]
    y = mixer(x, lengths_mask(lengths))
    for row, length in enumerate(lengths):
        sentence = array(x[row, :length])
        expected = by_hand(mixer, sentence, quadratic_score(mixer, sentence))
        np.testing.assert_allclose(array(y[row, :length]), expected, atol=1e-10)


# ---- attention is a convolution


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("size", "dilation"), [(3, 1), (3, 2), (5, 1)])
def test_the_whole_theorem_on_a_grid(size, dilation, stride):
    """SAME padding, any dilation, and any stride by pooling after attention, which picks one position of a pool."""
    conv = nn.Conv2d(3, 3, size, dilation=dilation, padding="same", bias=False).double()
    image = wide(2, 3, 6, 12)
    x = image.flatten(2).transpose(1, 2)
    mixer = at_taps(conv.weight, dilation=dilation, grid_width=12, padding="zeros")
    y = mixer(x, lengths_mask([72, 72])).transpose(1, 2).unflatten(2, (6, 12))
    half = dilation * (size // 2)
    expected = F.conv2d(image, conv.weight, stride=stride, padding=half, dilation=dilation)
    torch.testing.assert_close(F.max_pool2d(y, 1, stride=stride), expected, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("sharpness", [0.004, 0.5, 3.1, 3.2, 46.0, 9000.0])
@pytest.mark.parametrize(("causal", "grid_width"), [(True, None), (False, None), (False, 3)])
def test_zeros_outside_by_hand(causal, grid_width, sharpness):
    """Weights of a softmax over far more offsets than there are positions, whose values outside are zero."""
    mixer = jiggle(Quadratic(dim=4, causal=causal, num_heads=2, padding="zeros", grid_width=grid_width)).double()
    with torch.no_grad():
        mixer.log_sharpness.fill_(math.log(sharpness))
    x, far = wide(7, 4), torch.arange(-150, 151)
    values = mixer.inner(x).unflatten(-1, (2, 2))
    expected = torch.zeros(7, 2, 2).double()
    for h, c in enumerate(mixer.centers):
        totals = [(-sharpness * (far - center).square()).logsumexp(0) for center in c]
        for q in range(7):
            for k in range(q + 1 if causal else 7):
                d = torch.tensor(place(k, grid_width)) - torch.tensor(place(q, grid_width))
                weight = (-sharpness * (d - c).square().sum() - sum(totals)).exp()
                expected[q, h] += weight * values[k, h]
    y = mixer(x[None], lengths_mask([7]))[0]
    torch.testing.assert_close(y, mixer.out(expected.flatten(1)), atol=1e-12, rtol=1e-11)


def test_settings_of_the_theorem_are_checked():
    sizes = {"dim": 4, "causal": False, "num_heads": 2}
    for wrong, message in (
        ({"dilation": 2}, "dilation 2 .*center_std"),
        ({"dilation": 0, "center_std": None}, "dilation is 0"),
        ({"padding": "same"}, "padding is 'same'"),
        ({"padding": "zeros", "content": True}, "padding=zeros.*content"),
    ):
        with pytest.raises(ValueError, match=message):
            Quadratic(**sizes, **wrong)


# ---- where they meet plain attention, and each other


@pytest.mark.parametrize("causal", [True, False])
def test_bias_is_that_of_each_offset(causal):
    """torch's attention with the matrix written out; offsets beyond the farthest share its bias."""
    mixer, x = jiggle(RelativeBias(dim=8, causal=causal, num_heads=2, max_offset=3), 1.0).double(), wide(1, 9, 8)
    matrix = torch.full((2, 9, 9), -math.inf, dtype=torch.float64)
    for q in range(9):
        for k in range(q + 1 if causal else 9):
            matrix[:, q, k] = mixer.bias[max(-3, min(3, k - q)) + 3].detach()
    q, k, v = (part.view(1, 9, 2, 4).transpose(1, 2) for part in mixer.qkv(x).chunk(3, -1))
    y = ((q @ k.transpose(2, 3) / 2.0 + matrix).softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer(x, lengths_mask([9])), mixer.out(y), atol=1e-12, rtol=1e-12)


# ---- settings that no preset has

VARIANTS: list[tuple[type[SelfMixer], dict[str, Any]]] = [
    (Relative, {"encoding": "sinusoidal", "dropout": 0.3}),
    (Relative, {"content": False, "max_offset": 4, "dropout": 0.3}),
    (Relative, {"content": False, "encoding": "sinusoidal"}),
    (Relative, {"biases": False}),
    (RelativeBias, {"max_offset": 3, "dropout": 0.3}),
    (Quadratic, {"content": True, "dropout": 0.3}),
    (Quadratic, {"head_dim": 3, "dropout": 0.3}),
    (Quadratic, {"padding": "zeros", "dropout": 0.3}),
]


@pytest.mark.parametrize(("kind", "given"), [*VARIANTS, (Relative, {}), (Quadratic, {})])
def test_variants_are_what_they_declare(kind, given):
    """With routing held, the Jacobian J (T, D, T, D) is the mixing matrix times the heads' projections."""
    mixer = jiggle(kind(dim=8, causal=False, num_heads=2, **given)).double().eval()
    mask, inputs = lengths_mask([24]), [wide(1, 24, 8) for _ in range(2)]
    with freeze_mixing():
        found = [torch.autograd.functional.jacobian(lambda x: mixer(x, mask)[0], x)[:, :, 0] for x in inputs]
        rest = [mixer(x, mask)[0] - torch.einsum("tosi,si->to", j, x[0]) for x, j in zip(inputs, found, strict=True)]
    one, other = found
    says = mixer.properties
    within = {"atol": 1e-9, "rtol": 1e-9}
    assert torch.allclose(one, other, **within) != says.dynamic
    assert torch.allclose(rest[0], rest[1], **within) == says.linear
    matrix = one.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)  # (T T, D D)
    singular = torch.linalg.svdvals(matrix)
    assert (int((singular > 1e-9 * singular[0]).sum()) <= 2) == says.shares_channels
    assert (one[0].norm(dim=(0, 2)) > 0).all() == (not says.sparse)
    if says.shares_positions:
        for h in range(2):  # two queries' rows as functions of k - q, up to a factor
            weights = head_weights(mixer, one, h)
            here, there = weights[5, 2:20], weights[8, 5:23]
            torch.testing.assert_close(here / here.max(), there / there.max(), atol=1e-9, rtol=1e-9)


def head_weights(mixer: Any, jacobian: Tensor, head: int) -> Tensor:
    """M of one head (T, T), from J_{qk} = sum_h M_hqk W_o W_v."""
    size = mixer.out.in_features // mixer.num_heads
    values = mixer.inner.weight[-mixer.out.in_features :]
    parts = []
    for h in range(mixer.num_heads):
        own = slice(h * size, (h + 1) * size)
        parts.append((mixer.out.weight[:, own] @ values[own]).flatten())
    matrix = jacobian.permute(0, 2, 1, 3).flatten(2)  # (T, T, D D)
    return (matrix @ torch.linalg.pinv(torch.stack(parts)))[..., head].detach()


# ---- offsets


@pytest.mark.parametrize("grid_width", [None, 1, 4, 30])
def test_offsets(grid_width):
    position = torch.arange(11)
    found = offsets(position, position, grid_width)
    for q in range(11):
        for k in range(11):
            expected = np.subtract(place(k, grid_width), place(q, grid_width))
            assert found[:, q, k].tolist() == expected.tolist()
    assert extents(11, grid_width) == tuple(found.flatten(1).amax(1).tolist())


def test_refusals():
    """A grid has no past; errors name impossible sizes and names."""
    for kind in (Relative, Quadratic):
        with pytest.raises(ValueError, match="encoder-only"):
            kind(dim=8, causal=True, num_heads=2, grid_width=4)
        with pytest.raises(ValueError, match="grid_width is 0"):
            kind(dim=8, causal=False, num_heads=2, grid_width=0)
    with pytest.raises(ValueError, match="rotary"):
        Relative(dim=8, causal=False, num_heads=2, encoding="rotary")
    for kind in (Relative, RelativeBias):
        with pytest.raises(ValueError, match="max_offset is 0"):
            kind(dim=8, causal=False, num_heads=2, max_offset=0)
    with pytest.raises(ValueError, match="dim 6 is not divisible by 4"):
        Relative(dim=6, causal=False, num_heads=2, encoding="sinusoidal", grid_width=4)
    with pytest.raises(ValueError, match="dim 5 is not divisible by 2"):
        Relative(dim=5, causal=False, num_heads=1, grid_width=4)
    with pytest.raises(ValueError, match="center_std is -1"):
        Quadratic(dim=8, causal=False, num_heads=2, center_std=-1.0)
    with pytest.raises(ValueError, match="head_dim 0"):
        Quadratic(dim=8, causal=False, num_heads=2, head_dim=0)


def test_centers_start_where_they_can_be_seen():
    """Causal heads look back; standard deviations start from one position to sixteen, on a grid from 0.7 to 1.4."""
    assert (Quadratic(dim=64, causal=True, num_heads=64).centers <= 0).all()
    mixer = Quadratic(dim=8, causal=False, num_heads=8, grid_width=5)
    assert mixer.centers.shape == (8, 2)
    for made, ends in ((mixer, [0.5**0.5, 2**0.5]), (Quadratic(dim=8, causal=False, num_heads=8), [1.0, 16.0])):
        torch.testing.assert_close(((2 * made.sharpness) ** -0.5)[[0, -1]], torch.tensor(ends))
