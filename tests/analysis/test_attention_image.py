"""The picture of a decoder's weights over the source."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seq2seq.analysis.attention_image import attention_image
from seq2seq.inference.forced import SourceAttention


def test_cells_are_the_mean_of_heads_by_layer():
    pytest.importorskip("PIL")
    weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # (H, T, S)
    layers = torch.stack([weights, 1 - weights])  # (2, H, T, S)
    image = attention_image(SourceAttention(["ein", "漢"], ["a", "", "end"], layers))
    assert image.dtype == np.uint8
    assert image.shape == (72 + 36, 2 * (72 + 24))
    # A panel for each layer: names on the left and above, then cells of 12 pixels
    panels = image.reshape(108, 2, 96).transpose(1, 0, 2)
    cells = panels[:, 72:, 72:].reshape(2, 3, 12, 2, 12)
    assert (cells == cells[:, :, :1, :, :1]).all()
    assert cells[0, :, 0, :, 0].tolist() == [[0, 255], [191, 63], [255, 255]]
    assert cells[1, :, 0, :, 0].tolist() == [[255, 0], [63, 191], [0, 0]]
    for names in (panels[:, 72:84, :72], panels[:, :72, 72:84], panels[:, :72, 84:]):
        assert (names < 128).any()


def test_long_sentences_are_cut():
    pytest.importorskip("PIL")
    image = attention_image(SourceAttention(["x"] * 200, ["y"] * 100, torch.ones(1, 1, 100, 200)))
    assert image.shape == (72 + 64 * 12, 72 + 64 * 12)
