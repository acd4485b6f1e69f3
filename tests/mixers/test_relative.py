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
from seq2seq.mixers.attention import Attention
from seq2seq.mixers.quadratic import Quadratic
from seq2seq.mixers.relative import Relative
from seq2seq.mixers.relative_bias import RelativeBias
from seq2seq.network.introspection import freeze_mixing
from seq2seq.network.mixer import SelfMixer
from seq2seq.network.pooling import Pooling


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


@pytest.mark.parametrize("causal", [True, False])
def test_relative_without_biases_is_theta_d_plus_theta(causal):
    """w = (Theta_d + Theta) x_i of Han et al. 2022: rows of P_k'P_q by content, and a static row for each offset."""
    mixer = jiggle(Relative(dim=8, causal=causal, num_heads=1, max_offset=9, biases=False)).double()
    x = wide(6, 8)
    p_q, p_k, p_v = mixer.inner.weight.split(8)
    expected = torch.zeros_like(x)
    for i in range(6):
        seen = list(range(i + 1 if causal else 6))
        theta_d = torch.stack([x[j] @ p_k.T @ p_q for j in seen])
        theta = torch.stack([mixer.r[0, j - i + 9] @ mixer.place.weight.T @ p_q for j in seen])
        w = ((theta_d + theta) @ x[i] / math.sqrt(8)).softmax(0)
        expected[i] = mixer.out(w @ x[seen] @ p_v.T)
    torch.testing.assert_close(mixer(x[None], lengths_mask([6]))[0], expected, atol=1e-12, rtol=1e-12)


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


@pytest.mark.parametrize("size", [(5, 3), (1, 5)])
def test_attention_on_a_grid_is_a_convolution(size):
    """K x K heads on h x w positions compute a whole Conv2d, the border repeated outside, by the same code."""
    half = torch.tensor(size) // 2
    conv = nn.Conv2d(4, 4, size, padding=tuple(half.tolist()), padding_mode="replicate", bias=False).double()
    image = wide(2, 4, 6, 7)
    taps = torch.tensor([*np.ndindex(size)])
    mixer = at_taps(conv.weight, centers=taps - half, grid_width=7)
    y = mixer(image.flatten(2).transpose(1, 2), lengths_mask([42, 42]))
    torch.testing.assert_close(y.transpose(1, 2).unflatten(2, (6, 7)), conv(image), atol=1e-13, rtol=1e-12)


def test_zero_padding_is_met_inside_and_on_a_framed_input():
    """A zero-padded convolution is equal where no tap leaves the grid, and everywhere if zeros frame the input."""
    conv = nn.Conv2d(3, 3, 3, padding=1, bias=False).double()
    image = wide(1, 3, 5, 6)
    expected = conv(image)

    def attend(image: Tensor) -> Tensor:
        size = image.shape[2:]
        mixer = at_taps(conv.weight, grid_width=size[1])
        y = mixer(image.flatten(2).transpose(1, 2), lengths_mask([size[0] * size[1]]))
        return y.transpose(1, 2).unflatten(2, size)

    inside = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(attend(image)[inside], expected[inside], atol=1e-13, rtol=1e-12)
    assert not torch.allclose(attend(image), expected)
    torch.testing.assert_close(attend(F.pad(image, (1, 1, 1, 1)))[inside], expected, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("taps", [1, 3, 5])
def test_with_zeros_outside_it_is_a_convolution_at_the_borders_too(taps, dilation):
    """SAME padding, of each sentence of a padded batch."""
    conv = nn.Conv1d(5, 5, taps, dilation=dilation, padding="same", bias=False).double()
    x, lengths, mixer = wide(3, 9, 5), [9, 4, 1], at_taps(conv.weight, dilation=dilation, padding="zeros")
    y = mixer(x, lengths_mask(lengths))
    for row, length in enumerate(lengths):
        expected = conv(x[row, :length].t()[None])[0].t()
        torch.testing.assert_close(y[row, :length], expected, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("dilation", [1, 3])
def test_causal_heads_with_zeros_outside_are_a_causal_convolution(dilation):
    conv = nn.Conv1d(5, 5, 3, dilation=dilation, bias=False).double()
    x = wide(2, 9, 5)
    expected = conv(F.pad(x.transpose(1, 2), (2 * dilation, 0))).transpose(1, 2)
    mixer = at_taps(conv.weight, causal=True, dilation=dilation, padding="zeros")
    y = mixer(x, lengths_mask([9, 9]))
    torch.testing.assert_close(y, expected, atol=1e-13, rtol=1e-12)


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


@pytest.mark.parametrize("stride", [2, 3])
def test_means_after_attention_are_a_stride_of_a_wider_kernel(stride):
    """Means of n x n, as between the stages of an encoder: the kernel is wider by n - 1."""
    conv = nn.Conv2d(3, 3, 3, padding="same", bias=False).double()
    image = wide(2, 3, 6, 12)
    x, mask = image.flatten(2).transpose(1, 2), lengths_mask([72, 72])
    mixer = at_taps(conv.weight, grid_width=12, padding="zeros")
    pooled, _ = Pooling((6, 12), stride)(mixer(x, mask), mask)
    means = torch.full((3, 1, stride, stride), stride**-2, dtype=torch.float64)
    wider = F.conv2d(conv.weight, means, padding=stride - 1, groups=3)
    expected = F.conv2d(F.pad(image, (1, 1, 1, 1)), wider, stride=stride)
    size = (6 // stride, 12 // stride)
    torch.testing.assert_close(pooled.transpose(1, 2).unflatten(2, size), expected, atol=1e-13, rtol=1e-12)


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


def test_a_wide_head_is_a_mean():
    """Sharpness 0: every position gets the mean of the sentence."""
    mixer, x = Quadratic(dim=4, causal=False, num_heads=2).double(), wide(2, 6, 4)
    with torch.no_grad():
        mixer.log_sharpness.fill_(-math.inf)
    y = mixer(x, lengths_mask([6, 3]))
    expected = mixer.out(mixer.inner(x[1, :3]).mean(0))
    torch.testing.assert_close(y[1, :3], expected.expand(3, 4), atol=1e-13, rtol=1e-12)


# ---- where they meet plain attention, and each other


def like_attention(mixer: Any) -> Attention:
    """Attention with the mixer's projections."""
    other = Attention(dim=mixer.dim, causal=mixer.causal, num_heads=mixer.num_heads).double()
    own = mixer.qkv if isinstance(mixer, RelativeBias) else mixer.inner
    other.load_state_dict({"qkv.weight": own.weight, "out.weight": mixer.out.weight})
    return other


SILENT: list[tuple[type[SelfMixer], dict[str, Any], list[str]]] = [
    (Relative, {}, ["r", "u", "v"]),
    (Relative, {"encoding": "sinusoidal"}, ["place.weight", "u"]),
    (RelativeBias, {}, ["bias"]),
    (Quadratic, {"content": True}, ["u"]),
]


@pytest.mark.parametrize(("causal", "grid_width"), [(True, None), (False, None), (False, 3)])
@pytest.mark.parametrize(("kind", "given", "zero"), SILENT)
def test_without_its_positions_it_is_attention(kind, given, zero, causal, grid_width):
    given = {**given, "grid_width": grid_width} if kind is not RelativeBias else given
    mixer = jiggle(kind(dim=8, causal=causal, num_heads=2, **given)).double()
    with torch.no_grad():
        for name in zero:
            mixer.get_parameter(name).zero_()
        if kind is Quadratic:
            mixer.log_sharpness.fill_(-math.inf)
    x, mask = wide(3, 8, 8), lengths_mask([8, 5, 1])
    expected = like_attention(mixer)(x, mask)
    torch.testing.assert_close(mixer(x, mask)[mask], expected[mask], atol=1e-12, rtol=1e-12)


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


@pytest.mark.parametrize("causal", [True, False])
def test_quadratic_is_a_bias_of_a_certain_form(causal):
    """The quadratic encoding, a table of biases -a (d - c)^2, and r_d = that number: three mixers, one matrix."""
    quadratic = jiggle(Quadratic(dim=4, causal=causal, num_heads=2)).double()
    table = RelativeBias(dim=4, causal=causal, num_heads=2, max_offset=9).double()
    relative = Relative(dim=4, causal=causal, num_heads=2, max_offset=9, content=False).double()
    d = torch.arange(-9, 1 if causal else 10)[:, None]
    scores = -quadratic.sharpness * (d - quadratic.centers[:, 0]).square()  # (offsets, H)
    with torch.no_grad():
        table.bias.copy_(scores)
        table.qkv.weight.copy_(F.pad(quadratic.inner.weight, (0, 0, 8, 0)))  # queries and keys are zero
        table.out.weight.copy_(quadratic.out.weight)
        relative.inner.load_state_dict(quadratic.inner.state_dict())
        relative.out.load_state_dict(quadratic.out.state_dict())
        relative.v.fill_(1.0)
        relative.r.copy_(F.pad(scores * math.sqrt(2.0), (0, 2)))  # r_d holds each head's score, and
        relative.place.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0] * 4, [0, 1.0, 0, 0], [0] * 4]))  # W_r finds it
    x, mask = wide(2, 8, 4), lengths_mask([8, 5])
    expected = quadratic(x, mask)[mask]
    torch.testing.assert_close(table(x, mask)[mask], expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(relative(x, mask)[mask], expected, atol=1e-12, rtol=1e-12)


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
