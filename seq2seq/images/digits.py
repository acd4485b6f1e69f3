"""Handwritten digits of scikit-learn as gray images with their names, for classification as translation."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from seq2seq.images.lines import write_image, write_splits
from seq2seq.system.packages import require

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Highest level of ink in scikit-learn's copy.
_LEVELS = 16


class Digits(NamedTuple):
    """Images (N, 8, 8), uint8, with white ink on black, and their digits (N,)."""

    pixels: np.ndarray
    labels: np.ndarray


def splits(*, held_out: int, seed: int) -> dict[str, Digits]:
    """Divide the 1,797 images at random into train, valid and test.

    Args:
        held_out: Number of images in each of validation and test.
        seed: Seed of the division.

    Raises:
        ValueError: scikit-learn is missing, or too few images are left.
    """
    found = require("sklearn.datasets", "a corpus of digits", extra="digits").load_digits()
    labels = found.target
    if 2 * held_out >= len(labels):
        raise ValueError(f"--held-out {held_out} twice leaves none of {len(labels):,} digits to train on; lower it")
    pixels = np.rint(found.images * 255 / _LEVELS).astype(np.uint8)  # (N, 8, 8)
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = {"valid": order[:held_out], "test": order[held_out : 2 * held_out], "train": order[2 * held_out :]}
    return {split: Digits(pixels[rows], labels[rows]) for split, rows in parts.items()}


def write_corpus(folder: Path, *, held_out: int, seed: int) -> dict[str, int]:
    """Write train, valid and test images (.png64) with the names of their digits (.en).

    Returns:
        The number of images of each split.
    """
    examples = {
        split: [(write_image(image), NAMES[label]) for image, label in zip(*digits, strict=True)]
        for split, digits in splits(held_out=held_out, seed=seed).items()
    }
    return write_splits(folder, examples)
