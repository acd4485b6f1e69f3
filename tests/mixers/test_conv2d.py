"""The convolution on a grid: its equation in loops, and the attention that equals it."""

from __future__ import annotations

import pytest
import torch

from seq2seq.mixers.conv2d import Conv2d
from seq2seq.mixers.quadratic import Quadratic

DIM, ROWS, COLUMNS = 3, 4, 5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_conv2d_by_hand(size):
    """Zeros outside the grid, and at the padding of a sentence that ends within a row."""
    mixer = Conv2d(dim=DIM, causal=False, kernel_side=size, grid_width=COLUMNS).double()
    x = torch.randn(1, ROWS * COLUMNS, DIM, dtype=torch.float64)
    mask = torch.arange(ROWS * COLUMNS)[None] < 18
    y = mixer(x, mask)
    for p in range(18):
        expected = mixer.bias.clone()
        for a in range(size):
            for b in range(size):
                i, j = p // COLUMNS + a - size // 2, p % COLUMNS + b - size // 2
                if 0 <= i < ROWS and 0 <= j < COLUMNS and i * COLUMNS + j < 18:
                    expected = expected + mixer.weight[:, :, a, b] @ x[0, i * COLUMNS + j]
        torch.testing.assert_close(y[0, p], expected, rtol=1e-12, atol=1e-12)


def test_attention_with_a_head_for_each_tap_is_this_layer_inside_the_grid():
    """The theorem of Cordonnier et al. 2020, with the published sharpness 46."""
    conv = Conv2d(dim=DIM, causal=False, kernel_side=3, grid_width=COLUMNS).double()
    attention = Quadratic(
        dim=DIM, causal=False, num_heads=9, head_dim=DIM, center_std=None, grid_width=COLUMNS
    ).double()
    with torch.no_grad():
        attention.log_sharpness.fill_(46.0).log_()
        attention.inner.weight.copy_(torch.eye(DIM).repeat(9, 1))
        # Head a * 3 + b writes W_{a, b} x
        attention.out.weight.copy_(conv.weight.permute(0, 2, 3, 1).reshape(DIM, -1))
    x = torch.randn(2, ROWS * COLUMNS, DIM, dtype=torch.float64)
    ours, theirs = (y.unflatten(1, (ROWS, COLUMNS))[:, 1:-1, 1:-1] for y in (attention(x), conv(x)))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_it_has_no_past():
    with pytest.raises(ValueError, match="grid_width is encoder-only"):
        Conv2d(dim=DIM, causal=True, kernel_side=3, grid_width=COLUMNS)
