"""Points of the relation graph against plain loops and against neighboring mixers, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config
from conftest import jiggle
from exact import DIM, LENGTHS, MASK, both_forms, exactly, made, sequences
from torch import Tensor, nn

from seq2seq.mixers.attention import Attention
from seq2seq.mixers.batch_norm import BatchNorm
from seq2seq.mixers.conv import Conv
from seq2seq.mixers.criss_cross import CrissCross
from seq2seq.mixers.dynamic_depthwise import DynamicDepthwise
from seq2seq.mixers.inhomogeneous_depthwise import InhomogeneousDepthwise
from seq2seq.mixers.interlaced import Interlaced
from seq2seq.mixers.pyramid import Pyramid
from seq2seq.mixers.relative_bias import RelativeBias
from seq2seq.mixers.resolutions import Resolutions
from seq2seq.network.build import build_model


@both_forms
@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("taps", [1, 4, 11])
def test_inhomogeneous_kernels_by_hand(taps, glu, causal):
    """One position, one tap after another."""
    mixer, x = made(InhomogeneousDepthwise, causal=causal, kernel_size=taps, rank=3, glu=glu), sequences()
    z = F.glu(mixer.inner(x), -1) if glu else mixer.inner(x)
    kernels = mixer.weight(F.gelu(mixer.squeeze(z))).unflatten(-1, (taps, -1))  # (B, T, K, D)
    left = taps - 1 if causal else taps // 2
    y = torch.zeros_like(z)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for k in range(taps):
                if 0 <= t + k - left < length:
                    y[row, t] += kernels[row, t, k] * z[row, t + k - left]
    exactly(mixer(x, MASK), mixer.out(y))


def scores(q: Tensor, k: Tensor, heads: int) -> Tensor:
    """All dot products (B, H, T, T)."""
    q, k = (part.unflatten(-1, (heads, -1)) for part in (q, k))
    return torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5


def weights(values: Tensor, seen: Tensor) -> Tensor:
    """The softmax of scores (B, H, T, T) over real keys that are seen, and oneself."""
    allowed = (seen & MASK[:, None, None, :]) | torch.eye(seen.shape[-1], dtype=torch.bool)
    return values.masked_fill(~allowed, float("-inf")).softmax(-1)


def mix(matrix: Tensor, v: Tensor) -> Tensor:
    """Each head's matrix (B, H, T, T) times its channels of v (B, T, D)."""
    return torch.einsum("bhqk,bkhd->bqhd", matrix, v.unflatten(-1, (matrix.shape[1], -1))).flatten(2)


def lines(length: int, width: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Return which positions share a row, and which share a column, one pair at a time."""
    row, column = torch.zeros(2, length, length, dtype=torch.bool)
    for q in range(length):
        for k in range(q + 1 if causal else length):
            row[q, k] = q // width == k // width
            column[q, k] = q % width == k % width
    return row, column


grids = pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 11])


@both_forms
@grids
def test_criss_cross_is_attention_under_a_mask(width, causal):
    mixer, x = made(CrissCross, causal=causal, num_heads=3, grid_width=width), sequences()
    q, k, v = mixer.qkv(x).chunk(3, -1)
    row, column = lines(x.shape[1], width, causal)
    exactly(mixer(x, MASK), mixer.out(mix(weights(scores(q, k, 3), row | column), v)))


@both_forms
@grids
def test_interlaced_is_the_product_of_two_masked_attentions(width, causal):
    mixer, x = made(Interlaced, causal=causal, num_heads=3, grid_width=width), sequences()
    q, k, row_q, row_k, v = mixer.inner(x).chunk(5, -1)
    row, column = lines(x.shape[1], width, causal)
    matrix = weights(scores(row_q, row_k, 3), row) @ weights(scores(q, k, 3), column)
    exactly(mixer(x, MASK), mixer.out(mix(matrix, v)))


@pytest.mark.parametrize("preset", ["criss_cross", "interlaced"])
def test_an_image_brings_its_own_columns(preset):
    """The encoder takes the grid of the patches, the decoder the grid of its settings."""
    patches = {"height": 6, "width": 10, "size": 2, "bits": 8}
    model = build_model(config(f"mixer={preset}", *TINY, "model.tie=target", patches=patches))
    assert {layer.self_mixer.grid_width for layer in model.encoder.layers} == {5}
    assert {layer.self_mixer.grid_width for layer in model.decoder.layers} == {8}


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [1, 2, 4], [9, 1, 1, 2, 3]])
def test_resolutions_by_hand(sizes):
    """One sentence, one head, one block after another."""
    mixer, x = made(Resolutions, causal=False, num_heads=3, resolutions=sizes), sequences()
    q, k, v = (part.unflatten(-1, (3, -1)) for part in mixer.qkv(x).chunk(3, -1))
    # Three heads: as torch.tensor_split divides them, the first ones go to the first resolutions
    of_head = {1: sizes * 3, 2: [sizes[0], sizes[0], sizes[-1]]}.get(len(sizes), sizes[:3])
    y = torch.zeros_like(q)
    for row, length in enumerate(LENGTHS):
        for head, size in enumerate(of_head):
            blocks = [range(first, min(first + size, length)) for first in range(0, length, size)]
            means = [torch.stack([part[row, list(block), head].mean(0) for block in blocks]) for part in (q, k, v)]
            mixed = (means[0] @ means[1].t() * q.shape[-1] ** -0.5).softmax(-1) @ means[2]
            for block, value in zip(blocks, mixed, strict=True):
                y[row, list(block), head] = value
    exactly(mixer(x, MASK), mixer.out(y.flatten(2)))


def test_resolutions_refuses_nothing_to_do():
    for sizes in ([], [2, 0]):
        with pytest.raises(ValueError, match="resolutions is"):
            Resolutions(dim=4, causal=False, num_heads=2, resolutions=sizes)


# ------------------------------------------------------------------ forms of the convolution


CONVOLUTIONS: list[dict[str, Any]] = [
    {"dilation": 2},
    {"groups": 3},
    {"groups": 6},
    {"hidden_dim": 4},
    {"hidden_dim": 4, "groups": 2, "dilation": 3},
    {"circular": True},
    {"circular": True, "dilation": 3, "groups": 2, "hidden_dim": 2},
]


def channel_matrix(mixer: Conv, tap: int) -> Tensor:
    """The C x C matrix of one tap, block diagonal over groups."""
    return torch.block_diag(*mixer.weight[:, :, tap].chunk(mixer.groups))


@both_forms
@pytest.mark.parametrize("taps", [1, 4, 5])
@pytest.mark.parametrize("given", CONVOLUTIONS, ids=str)
def test_forms_of_the_convolution_by_hand(given, taps, causal):
    """One position, one tap after another; the second matrix of a grouped convolution one channel after another."""
    if causal and given.get("circular"):
        return
    mixer, x = made(Conv, causal=causal, kernel_size=taps, **given), sequences()
    left, step = taps - 1 if causal else taps // 2, given.get("dilation", 1)
    z = mixer.inner(x) if mixer.inner else x
    y = torch.zeros_like(z)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for k in range(taps):
                s = t + step * (k - left)
                s = s % length if mixer.circular else s
                if 0 <= s < length:
                    y[row, t] += channel_matrix(mixer, k) @ z[row, s]
    if mixer.groups > 1:
        width = y.shape[-1] // mixer.groups
        mixed = torch.zeros_like(y)
        for n in range(width):
            for start in range(mixer.groups):
                for end in range(mixer.groups):
                    mixed[..., end * width + n] += mixer.interleave[n, start, end] * y[..., start * width + n]
        y = mixed
    exactly(mixer(x, MASK), (mixer.out(y) if mixer.out else y) + mixer.bias)


def test_impossible_convolutions_are_refused():
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"groups": 4}, "dim 6 is not divisible by groups 4"),
        ({"groups": 2, "hidden_dim": 3}, "hidden_dim 3 is not divisible by groups 2"),
        ({"dilation": 0}, "dilation is 0"),
        ({"hidden_dim": 0}, "hidden_dim is 0"),
    )
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            Conv(dim=6, causal=False, kernel_size=3, **given)
    with pytest.raises(ValueError, match="circular=true is encoder-only"):
        Conv(dim=6, causal=True, kernel_size=3, circular=True)


# ------------------------------------------------------------------ low rank


@both_forms
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_learned_reduction_by_hand(size, causal):
    """One block after another; in a causal mixer, one part of a block after another."""
    mixer, x = made(Pyramid, causal=causal, num_heads=2, reduction=size, learned=True), sequences()
    matrices = mixer.reduce.weight.unflatten(1, (size, -1))  # (D, r, D)

    def reduced(row: int, start: int, end: int) -> Tensor:
        total = mixer.reduce.bias.clone()
        for place, s in enumerate(range(start, end)):
            total += matrices[:, place] @ x[row, s]
        return mixer.key_value(mixer.norm(total))

    y = torch.zeros_like(x)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            last = t + 1 if causal else length
            blocks = [reduced(row, start, min(start + size, last)) for start in range(0, last, size)]
            k, v = (part.unflatten(-1, (2, -1)) for part in torch.stack(blocks).chunk(2, -1))  # (blocks, H, d)
            q = mixer.query(x[row, t]).unflatten(-1, (2, -1))  # (H, d)
            weights = (torch.einsum("hd,bhd->hb", q, k) * q.shape[-1] ** -0.5).softmax(-1)
            y[row, t] = torch.einsum("hb,bhd->hd", weights, v).flatten()
    exactly(mixer(x, MASK), mixer.out(y))


@pytest.mark.parametrize("given", [{"widths": [4, 2]}, {"widths": [5, 3], "kernel_size": 3}, {"kernel_size": 4}])
def test_resolutions_have_widths_and_convolutions_of_their_own(given):
    """One sentence, one resolution, one block after another."""
    mixer, x = made(Resolutions, causal=False, num_heads=3, resolutions=[1, 3], **given), sequences()
    widths = given.get("widths", [3, 3])
    inner = mixer.inner(x) if mixer.inner else mixer.qkv(x)
    parts = [part.split(widths, -1) for part in inner.chunk(1 if mixer.inner else 3, -1)]
    y = torch.zeros(*MASK.shape, sum(widths), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for number, size in enumerate((1, 3)):
            blocks = [list(range(first, min(first + size, length))) for first in range(0, length, size)]
            means = [torch.stack([part[number][row, block].mean(0) for block in blocks]) for part in parts]
            if mixer.inner:
                taps = given["kernel_size"]
                mixed = torch.zeros_like(means[0])
                for b in range(len(blocks)):
                    for k in range(taps):
                        if 0 <= b + k - taps // 2 < len(blocks):
                            mixed[b] += mixer.weights[number][:, :, k] @ means[0][b + k - taps // 2]
            else:
                q, k, v = (part.unflatten(-1, (-1, 2)).transpose(0, 1) for part in means)  # (h, blocks, d)
                mixed = ((q @ k.transpose(1, 2) * 2**-0.5).softmax(-1) @ v).transpose(0, 1).flatten(1)
            for block, value in zip(blocks, mixed, strict=True):
                y[row, block, sum(widths[:number]) : sum(widths[: number + 1])] = value
    exactly(mixer(x, MASK), mixer.out(y))


def test_widths_of_resolutions_are_checked():
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"widths": [4]}, r"widths is \[4\]; list 2 numbers"),
        ({"widths": [4, 3]}, "a multiple of dim / num_heads = 2"),
        ({"widths": [4, 0], "kernel_size": 3}, "each 1 or more"),
        ({"kernel_size": 0}, "kernel_size is 0"),
    )
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            Resolutions(dim=6, causal=False, num_heads=3, resolutions=[1, 2], **given)
    with pytest.raises(ValueError, match="dim 2 is less than 3 resolutions"):
        Resolutions(dim=2, causal=False, num_heads=1, resolutions=[1, 2, 3], kernel_size=3)


# ------------------------------------------------------------------ weights of a window


@both_forms
def test_multiplied_relative_positions_one_pair_after_another(causal):
    """One pair of positions after another: a diagonal matrix before each query's scores."""
    mixer, x = made(RelativeBias, causal=causal, num_heads=3, max_offset=2, multiplied=True), sequences()
    q, k, v = (part.unflatten(-1, (3, -1)) for part in mixer.qkv(x).chunk(3, -1))
    y = torch.zeros_like(v)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            seen = range(t + 1 if causal else length)
            for head in range(3):
                content = torch.stack([q[row, t, head] @ k[row, s, head] for s in seen]) * 2**-0.5
                diagonal = torch.stack([mixer.bias[max(-2, min(2, s - t)) + 2, head] for s in seen]).diag()
                y[row, t, head] = (diagonal @ content).softmax(0) @ v[row, list(seen), head]
    exactly(mixer(x, MASK), mixer.out(y.flatten(2)))


def test_multiplied_relative_positions_start_as_attention():
    mixer, x = RelativeBias(dim=DIM, causal=True, num_heads=3, multiplied=True).double(), sequences()
    plain = Attention(dim=DIM, causal=True, num_heads=3).double()
    plain.load_state_dict({key: value for key, value in mixer.state_dict().items() if key != "bias"})
    exactly(mixer(x, MASK), plain(x, MASK))


@pytest.mark.parametrize("sizes", [(4,), (4, 7)])
def test_batch_norm_is_torchs_over_real_positions(sizes):
    ours, theirs = BatchNorm(dim=DIM), nn.BatchNorm1d(DIM)
    with torch.no_grad():
        for mine, other in zip(jiggle(ours).parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
    for _ in range(3):
        x, mask = 3 * torch.randn(*sizes, DIM) + 2, torch.rand(*sizes) < 0.7
        mask.flatten()[:2] = True
        torch.testing.assert_close(ours.train()(x, mask)[mask], theirs.train()(x[mask]))
    torch.testing.assert_close(ours.variance, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x, mask)[mask], theirs.eval()(x[mask]))
    # Statistics of an update that is skipped are skipped, too
    before = ours.mean.clone(), ours.variance.clone()
    ours.train()(torch.full((*sizes, DIM), float("inf")), mask)
    assert ours.mean.equal(before[0])
    assert ours.variance.equal(before[1])


@both_forms
def test_dynamic_kernels_with_a_batch_norm_by_hand(causal):
    """One position, one tap after another: kernels V relu(BN(U p)) + w_0 from the mean p."""
    mixer, x = made(DynamicDepthwise, causal=causal, kernel_size=4, batch_norm=True), sequences()
    mixer.norm.mean += 0.3
    mixer.norm.variance *= 2.0
    z, norm, left = F.glu(mixer.inner(x), -1), mixer.norm, 3 if causal else 2
    y = torch.zeros_like(z)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            p = z[row, : t + 1 if causal else length].mean(0)
            squeezed = (mixer.squeeze(p) - norm.mean) / (norm.variance + 1e-5).sqrt() * norm.weight + norm.bias
            kernel = mixer.weight(squeezed.relu()).unflatten(0, (4, -1))
            for k in range(4):
                if 0 <= t + k - left < length:
                    y[row, t] += kernel[k] * z[row, t + k - left]
    exactly(mixer(x, MASK), mixer.out(y))
