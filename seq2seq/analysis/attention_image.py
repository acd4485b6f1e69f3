"""Draw the weights of each decoder layer over the source as one small picture, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seq2seq.images.words import has_letter
from seq2seq.inference.forced import SourceAttention

_CELL, _LABEL = 12, 72  # pixels of a weight and of a line of text; pixels of a name
_MOST = 64  # pieces of a side; further ones are left out


def attention_image(attention: SourceAttention) -> np.ndarray:
    """Draw a matrix for each layer, from left to right: the mean of its heads, dark where the weight is near 1.

    Columns are pieces of the source, rows pieces of the translation: gray levels (height, width) uint8. Needs Pillow.
    """
    weights = attention.weights[:, :, :_MOST, :_MOST].float().abs().mean(1).clamp(max=1)  # (layers, T, S)
    cells = np.kron(255 * (1 - weights.numpy()), np.ones((1, _CELL, _CELL))).astype(np.uint8)
    rows, columns = (_names(side[:_MOST]) for side in (attention.target, attention.source))
    left = np.vstack([np.full((_LABEL, _LABEL), 255, np.uint8), rows])
    return np.hstack([np.hstack([left, np.vstack([np.rot90(columns), cell])]) for cell in cells])


def _names(names: Sequence[str]) -> Any:
    """Draw a line for each name, (lines, width) uint8; a name that the font lacks is its number."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (_LABEL, _CELL * len(names)), 255)
    for number, name in enumerate(names):
        shown = name.replace("\u2581", "_")  # the font lacks SentencePiece's mark of a space
        shown = shown if all(map(has_letter, shown)) else str(number + 1)
        ImageDraw.Draw(image).text((4, number * _CELL), shown, fill=0, font=ImageFont.load_default(_CELL - 2))
    return np.asarray(image)
