"""Draw the weights of each decoder layer over the source as one small picture, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from seq2seq.images.words import has_letter
from seq2seq.inference.forced import SourceAttention

_CELL = 12  # pixels of a weight and of a line of text
_MOST = 64  # pieces of a side; further ones are left out
_PAPER = 255


def attention_image(attention: SourceAttention) -> np.ndarray:
    """Draw a matrix for each layer, from left to right: the mean of its heads, dark where the weight is near 1.

    Columns are pieces of the source, rows pieces of the translation. Needs Pillow.

    Returns:
        Gray levels (height, width) uint8.
    """
    from PIL import Image

    weights = attention.weights[:, :, :_MOST, :_MOST].float().abs().mean(1).clamp(max=1)  # (layers, T, S)
    rows = _names(attention.target[:_MOST], right=True)
    columns = _names(attention.source[:_MOST], right=False).rotate(90, expand=True)
    cells = np.kron(_PAPER * (1 - weights.numpy()), np.ones((1, _CELL, _CELL))).astype(np.uint8)
    width = columns.width + _CELL
    picture = Image.new("L", (rows.width + width * len(cells), rows.height + columns.height), _PAPER)
    picture.paste(rows, (0, columns.height))
    for layer, matrix in enumerate(cells):
        picture.paste(columns, (rows.width + layer * width, 0))
        picture.paste(Image.fromarray(matrix), (rows.width + layer * width, columns.height))
    return np.asarray(picture)


def _names(names: Sequence[str], *, right: bool) -> Any:
    """Draw a line for each name, aligned to the right or left; a name that the font lacks is its number."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_CELL - 2)
    # The font lacks SentencePiece's mark of a space
    plain = [name.replace("\u2581", "_") for name in names]
    shown = [name if all(map(has_letter, name)) else str(number) for number, name in enumerate(plain, 1)]
    widths = [math.ceil(font.getlength(name)) for name in shown]
    image = Image.new("L", (max(widths) + 4, _CELL * len(shown)), _PAPER)
    for line, (name, width) in enumerate(zip(shown, widths, strict=True)):
        x = image.width - width - 2 if right else 2
        ImageDraw.Draw(image).text((x, line * _CELL), name, fill=0, font=font)
    return image
