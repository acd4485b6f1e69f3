"""Words drawn as small gray images, and a corpus of them for learning to read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.images.lines import write_image, write_splits
from seq2seq.system.packages import require
from seq2seq.system.resources import data_dir

FONT_SIZES = (9, 10)  # in pixels
MARGIN = 3  # most pixels before the text
NOISE = 12.0  # largest standard deviation of a pixel, of 255
# Where the text of a moving drawing goes in each frame: pixels, and the axis of (height, width).
DIRECTIONS = {"left": (-2, 1), "right": (2, 1), "up": (-2, 0), "down": (2, 0)}
_WORD = re.compile(r"[A-Za-z']+")

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class WordImages:
    """Images of words, of height x width pixels; the seed decides letters, position, ink, paper and noise.

    Several frames are one image, each below the one before, so that its patches are read frame by frame, row by row.
    Their texts end with one of `DIRECTIONS`, in which the rest of the text moves.
    """

    height: int = 10
    width: int = 32
    seed: int = 1
    frames: int = 1

    def line(self, text: str, number: int) -> str:
        """Draw `text` as a line, the base64 of a PNG; a blank line stays blank.

        Args:
            number: The line's number from 0, a part of the image's seed.

        Raises:
            ValueError: The text does not fit, or the font lacks a letter.
        """
        if not text:
            return ""
        try:
            shown, direction = self._parts(text)
            still = draw(shown, height=self.height, width=self.width, seed=[self.seed, number])
            step, axis = DIRECTIONS.get(direction, (0, 0))
            # Text wraps around the frame
            return write_image(np.concatenate([np.roll(still, step * t, axis) for t in range(self.frames)]))
        except ValueError as error:
            raise ValueError(f"line {number + 1}: {error}") from None

    def texts(self, letters: int) -> list[str]:
        """List the texts of up to `letters` letters that have room, with each direction if there are several frames."""
        directions = [f" {name}" for name in DIRECTIONS] if self.frames > 1 else [""]
        texts = [f"{text}{direction}" for text in phrases(letters) for direction in directions]
        return [text for text in texts if _fitting(self._parts(text)[0], self.height, self.width)]

    def _parts(self, text: str) -> tuple[str, str]:
        """Divide the text of several frames into what is shown and its direction."""
        if self.frames == 1:
            return text, ""
        shown, _, direction = text.rpartition(" ")
        if direction not in DIRECTIONS or not shown:
            raise ValueError(f"{text!r} does not end in a direction; add one of {', '.join(DIRECTIONS)}")
        return shown, direction


def draw(text: str, *, height: int, width: int, seed: int | Sequence[int]) -> np.ndarray:
    """Draw an image of `text`, (height, width) uint8, by numpy's default_rng(seed).

    Raises:
        ValueError: The text does not fit in any size, or the font lacks a letter.
    """
    fitting = _fitting(text, height, width)
    from PIL import Image, ImageDraw  # `_fitting` reports a missing Pillow

    # Another order of these random draws would change the corpora of all seeds
    rng = np.random.default_rng(seed)
    if not fitting:
        raise ValueError(f"{text!r} has no room in {width} x {height} pixels: raise --width or --height, or shorten it")
    font, (left, top, right, bottom) = fitting[int(rng.integers(len(fitting)))]
    # Pixels by which the text may be moved, to the right at most MARGIN
    free_width = min(width - (right - left), MARGIN)
    free_height = height - (bottom - top)
    # The box of a text begins at (left, top), not at 0
    x = int(rng.integers(0, free_width + 1)) - left
    y = int(rng.integers(0, free_height + 1)) - top
    # Gray levels from 0 (black) to 255: dark ink on light paper
    ink = int(rng.integers(0, 90))
    paper = int(rng.integers(180, 256))
    canvas = Image.new("L", (width, height), paper)
    ImageDraw.Draw(canvas).text((x, y), text, fill=ink, font=font)
    noise = rng.normal(0.0, rng.uniform(0.0, NOISE), (height, width))
    return np.clip(np.asarray(canvas) + noise, 0, 255).astype(np.uint8)


def _fitting(text: str, height: int, width: int) -> list[tuple[Any, Box]]:
    """List the fonts in which `text` fits, with its box in each; raise ValueError for a letter that they lack."""
    if missing := [letter for letter in text if not has_letter(letter)]:
        raise ValueError(f"{text!r}: Pillow's own font, in which words are drawn, has no {missing[0]!r}; leave it out")
    fitting = []
    for size in FONT_SIZES:
        left, top, right, bottom = (int(edge) for edge in _font(size).getbbox(text))  # pixels
        if right - left <= width and bottom - top <= height:
            fitting.append((_font(size), (left, top, right, bottom)))
    return fitting


@lru_cache
def has_letter(letter: str) -> bool:
    """Return True if the font has a letter; for a missing letter, it draws a box."""
    # U+10FFFF is never a letter
    font = _font(FONT_SIZES[0])
    return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))


@lru_cache
def _font(size: int) -> Any:
    """Load the font that comes with Pillow."""
    return require("PIL.ImageFont", "drawing", extra="images").load_default(size)


def write_corpus(
    folder: Path, images: WordImages, *, letters: int, train: int, held_out: int
) -> tuple[dict[str, int], int]:
    """Write train, valid and test images (.png64) with their texts (.en); no text is in two splits.

    Args:
        letters: Most letters of a text.
        train: Number of training images; texts repeat if there are fewer texts.
        held_out: Number of images in each of validation and test.

    Returns:
        The number of images of each split, and of different training texts.
    """
    texts = images.texts(letters)
    # Splits are disjoint slices of a shuffled list
    np.random.default_rng(images.seed).shuffle(texts)
    if 2 * held_out >= len(texts):
        raise ValueError(
            f"--held-out {held_out} twice leaves nothing to train on: only {len(texts):,} texts of up to {letters} "
            f"letters fit in {images.width} x {images.height} pixels; lower it, or raise --letters, --height or --width"
        )
    splits = {"valid": texts[:held_out], "test": texts[held_out : 2 * held_out]}
    rest = texts[2 * held_out :]
    # Each text once before any is repeated
    splits["train"] = [rest[number % len(rest)] for number in range(train)]
    # Images are numbered across all splits, so that a repeated text gets another image
    numbers = itertools.count()
    drawn = {split: zip(map(images.line, lines, numbers), lines, strict=True) for split, lines in splits.items()}
    return write_splits(folder, drawn), len(set(splits["train"]))


def phrases(letters: int) -> list[str]:
    """List the English words of the embedded phrasebook, and all pairs of them, up to `letters` characters."""
    words: dict[str, None] = {}
    with (data_dir() / "phrasebook" / "train.jsonl").open(encoding="utf-8") as file:
        for line in file:
            # A dict keeps the order of occurrence
            words |= dict.fromkeys(_WORD.findall(json.loads(line)["translation"]["en"]))
    short = [word for word in words if len(word) <= letters]
    # `<`, since the space between them counts
    pairs = (f"{one} {two}" for one, two in itertools.product(short, short) if len(one) + len(two) < letters)
    return [*short, *pairs]
