"""Points of the relation graph against plain loops and against neighboring mixers, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config, lengths_mask
from exact import DIM, LENGTHS, MASK, both_forms, exactly, made, sequences
from torch import Tensor

from seq2seq.mixers.attention import Attention
from seq2seq.mixers.criss_cross import CrissCross
from seq2seq.mixers.depthwise import Depthwise
from seq2seq.mixers.inhomogeneous_depthwise import InhomogeneousDepthwise
from seq2seq.mixers.interlaced import Interlaced
from seq2seq.mixers.resolutions import Resolutions
from seq2seq.network.build import build_model


@both_forms
@pytest.mark.parametrize("taps", [1, 4, 11])
def test_inhomogeneous_kernels_by_hand(taps, causal):
    """One position, one tap after another."""
    mixer, x = made(InhomogeneousDepthwise, causal=causal, kernel_size=taps, rank=3), sequences()
    z = F.glu(mixer.inner(x), -1)
    kernels = mixer.weight(F.gelu(mixer.squeeze(z))).unflatten(-1, (taps, -1))  # (B, T, K, D)
    left = taps - 1 if causal else taps // 2
    y = torch.zeros_like(z)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for k in range(taps):
                if 0 <= t + k - left < length:
                    y[row, t] += kernels[row, t, k] * z[row, t + k - left]
    exactly(mixer(x, MASK), mixer.out(y))


@both_forms
@pytest.mark.parametrize("glu", [True, False])
def test_inhomogeneous_kernels_of_a_constant_prediction_are_depthwise(glu, causal):
    """V = 0 leaves w_0 for every position."""
    mixer = made(InhomogeneousDepthwise, causal=causal, kernel_size=5, glu=glu)
    plain = made(Depthwise, causal=causal, kernel_size=5, glu=glu)
    plain.inner.load_state_dict(mixer.inner.state_dict())
    plain.out.load_state_dict(mixer.out.state_dict())
    with torch.no_grad():
        mixer.weight.weight.zero_()
        plain.weight.copy_(mixer.weight.bias.unflatten(0, (5, -1)).t())
    x = sequences()
    exactly(mixer(x, MASK), plain(x, MASK))


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
@pytest.mark.parametrize("width", [1, 7, 11])
def test_criss_cross_of_one_line_is_attention(width, causal):
    """On a single row or a single column, criss-cross attention is attention."""
    mixer, x = made(CrissCross, causal=causal, num_heads=2, grid_width=width), sequences()
    plain = made(Attention, causal=causal, num_heads=2)
    plain.load_state_dict(mixer.state_dict())
    exactly(mixer(x, MASK), plain(x, MASK))


@both_forms
@grids
def test_interlaced_is_the_product_of_two_masked_attentions(width, causal):
    mixer, x = made(Interlaced, causal=causal, num_heads=3, grid_width=width), sequences()
    q, k, row_q, row_k, v = mixer.inner(x).chunk(5, -1)
    row, column = lines(x.shape[1], width, causal)
    matrix = weights(scores(row_q, row_k, 3), row) @ weights(scores(q, k, 3), column)
    exactly(mixer(x, MASK), mixer.out(mix(matrix, v)))


def test_interlaced_with_even_weights_is_a_kronecker_product():
    """Without queries M = R C = (I x A_w)(A_h x I) = A_h x A_w, A_n the n x n matrix of 1 / n."""
    rows, width = 2, 3
    mixer = made(Interlaced, causal=False, num_heads=2, grid_width=width)
    with torch.no_grad():
        mixer.inner.weight[: 4 * DIM] = 0.0
    x = torch.randn(1, rows * width, DIM, dtype=torch.float64)
    even = [torch.full((n, n), 1 / n, dtype=torch.float64) for n in (rows, width)]
    block_diagonal = torch.kron(torch.eye(rows).double(), even[1])
    strided = torch.kron(even[0], torch.eye(width).double())
    matrix = torch.kron(*even)
    torch.testing.assert_close(block_diagonal @ strided, matrix)
    v = x @ mixer.inner.weight[4 * DIM :].t()
    torch.testing.assert_close(mixer(x, lengths_mask([rows * width])), mixer.out(matrix @ v))


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
