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
    # The matrices are at the bottom, 2 columns of 12 pixels and a gap of 12 each
    bottom = image[-36:, -72:].reshape(3, 12, 6, 12)
    cells = bottom[:, 6, :, 6]
    assert (bottom[:, :, [0, 1, 3, 4]] == cells[:, None, [0, 1, 3, 4], None]).all()
    assert cells[:, :2].tolist() == [[0, 255], [191, 63], [255, 255]]
    assert cells[:, 3:5].tolist() == [[255, 0], [63, 191], [0, 0]]
    # Names on the left and above both matrices
    assert (image[-36:, :-72] < 128).any()
    assert (image[:-36, -72:-36] == image[:-36, -36:]).all()
    assert (image[:-36, -72:-60] < 128).any()


def test_long_sentences_are_cut():
    pytest.importorskip("PIL")
    image = attention_image(SourceAttention(["x"] * 200, ["y"] * 100, torch.ones(1, 1, 100, 200)))
    assert max(image.shape) < 65 * 12 + 40
