"""Images as lines of text: a line is the base64 of a gray or color PNG, and each of its patches is one id."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from seq2seq.settings.tokenizer import PatchGrid, parts_of_patch
from seq2seq.system.errors import LineError
from seq2seq.system.files import atomic_file


def encode_images(lines: Sequence[str], grid: PatchGrid) -> list[list[int]]:
    """Encode each line's image as its patches, row by row.

    Returns:
        For each line, `grid.ids` ids.

    Raises:
        LineError: A line is not an image of this size; the error names the first such line.
    """
    rows = []
    for position, line in enumerate(lines):
        try:
            pixels = read_image(line, height=grid.height, width=grid.width, channels=grid.channels)
        except ValueError as error:
            raise LineError(position, line, str(error)) from None
        # One image at a time: packing takes many bytes for each pixel
        rows += pack(pixels[None], grid).tolist()
    return rows


def pack(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Pack the `bits` highest bits of each pixel value into ids.

    Shape:
        pixels: (N, height, width) uint8, in color (N, height, width, 3). Result: (N, rows * columns * parts) int64.
    """
    levels = (pixels >> (8 - grid.bits)).astype(np.int64)
    # (N, rows, size, columns, size * channels) -> (N, rows, columns, size, size * channels)
    cells = levels.reshape(-1, grid.rows, grid.size, grid.columns, grid.size * grid.channels).swapaxes(2, 3)
    values = cells.reshape(-1, grid.length, grid.values)
    # The last id of a patch may have room for more values
    values = np.pad(values, ((0, 0), (0, 0), (0, -grid.values % grid.parts)))
    return (values.reshape(len(values), grid.ids, -1) << _shifts(grid)).sum(-1)


def unpack(ids: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Unpack ids into pixels from 0 to 255.

    Shape:
        ids: (N, rows * columns * parts). Result: (N, height, width) uint8, in color (N, height, width, 3).
    """
    most = (1 << grid.bits) - 1
    # Bits of each value, spread over a last axis: (N, ids, values of an id) -> (N, rows * columns, size^2 * channels)
    levels = (np.asarray(ids)[..., None] >> _shifts(grid)) & most
    levels = levels.reshape(len(levels), grid.length, -1)[..., : grid.values]
    # (N, rows, columns, size, size * channels) -> (N, rows, size, columns, size * channels)
    cells = levels.reshape(-1, grid.rows, grid.columns, grid.size, grid.size * grid.channels).swapaxes(2, 3)
    shape = (-1, grid.height, grid.width, grid.channels)
    # The highest level becomes 255, so that white stays white
    pixels = (cells.reshape(shape) * 255 // most).astype(np.uint8)
    return pixels if grid.channels > 1 else pixels[..., 0]


def _shifts(grid: PatchGrid) -> np.ndarray:
    # Value i of an id begins at bit number `bits * i`
    return grid.bits * np.arange(parts_of_patch(grid.values, grid.bits)[1], dtype=np.int64)


def read_image(line: str, *, height: int, width: int, channels: int = 1) -> np.ndarray:
    """Read the image of a line.

    Args:
        channels: 1 for gray; 3 for red, green and blue, which are equal for a gray image.

    Returns:
        Its pixels (height, width), in color (height, width, 3), uint8, from 0 (black) to 255 (white).

    Raises:
        ValueError: The line is not a PNG of this size and these channels; the message has the reason and a remedy.
    """
    from PIL import Image

    try:
        # Without validate, other characters would be skipped silently
        data = base64.b64decode(line.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not base64; `base64 -w0 word.png` makes such a line") from None
    try:
        # Only PNG, to keep untrusted bytes from Pillow's many other readers
        image = Image.open(io.BytesIO(data), formats=("PNG",))
    except Exception:  # Pillow may raise anything for damaged or hostile bytes
        raise ValueError("its base64 holds no PNG; save the image as one") from None
    # Checked before the pixels are decoded: a few bytes may declare a billion pixels
    if image.size != (width, height):
        wrong = " x ".join(map(str, image.size))
        raise ValueError(f"it has {wrong} pixels instead of {width} x {height}; scale or crop it")
    # The 25th byte of a PNG is its bit depth, which Pillow's mode does not tell for colors
    if data[24] == 16:
        raise ValueError("it has 16 bits for each value, of which 8 would be lost: save it with 8")
    # Otherwise colors and transparency would be lost silently
    if image.mode not in (("1", "L", "RGB") if channels > 1 else ("1", "L")):
        remedy = "save it after convert('RGB')" if channels > 1 else "save it after convert('L')"
        if channels == 1 and image.mode in ("RGB", "P"):
            # A palette's numbers are not colors
            convert = "" if image.mode == "RGB" else "save it after convert('RGB') and "
            remedy += f", or {convert}train on colors (tokenizer.patches.channels=3)"
        raise ValueError(
            f"it is not 8-bit {'RGB' if channels > 1 else 'grey'} but of Pillow's mode {image.mode}; {remedy}"
        )
    if "transparency" in image.info:
        raise ValueError("one of its colors is transparent, which would be lost: paste it on a background")
    try:
        # Decodes the pixels, and so finds damage in them
        return np.asarray(image.convert("RGB" if channels > 1 else "L"), dtype=np.uint8)
    except Exception:
        raise ValueError("its PNG is damaged; save the image again") from None


def write_image(pixels: np.ndarray) -> str:
    """Encode an image (height, width), or in color (height, width, 3), uint8, as a line."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels, dtype=np.uint8)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def size_of(line: str) -> tuple[int, int]:
    """Return width and height of a line that `write_image` made, from the header of its PNG."""
    width, height = struct.unpack(">II", base64.b64decode(line[:32])[16:24])
    return width, height


def write_splits(folder: Path, splits: Mapping[str, Iterable[tuple[str, str]]]) -> dict[str, int]:
    """Write the images of each split (.png64) and their texts (.en), one a line; return the number of images."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = dict.fromkeys(splits, 0)
    # All files are put in place together, so that an interrupted call leaves none
    with contextlib.ExitStack() as stack:
        for split, examples in splits.items():
            files = [folder / f"{split}{suffix}" for suffix in (".png64", ".en")]
            drawn, words = (stack.enter_context(atomic_file(file)) for file in files)
            for image, text in examples:
                drawn.write(f"{image}\n".encode())
                words.write(f"{text}\n".encode())
                sizes[split] += 1
    return sizes
