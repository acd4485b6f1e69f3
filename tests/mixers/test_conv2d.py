"""The convolution on a grid: its equation in loops."""

from __future__ import annotations

import pytest
import torch

from seq2seq.mixers.conv2d import Conv2d

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


def test_it_has_no_past():
    with pytest.raises(ValueError, match="grid_width is encoder-only"):
        Conv2d(dim=DIM, causal=True, kernel_side=3, grid_width=COLUMNS)
