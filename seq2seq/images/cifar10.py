"""CIFAR-10 as images with the names of their classes, from the hub's parquet files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from seq2seq.images.lines import size_of, write_image, write_splits
from seq2seq.system.packages import require

# Names of images and labels in data sets of the hub.
_IMAGES = ("img", "image")
_LABELS = ("label", "labels", "fine_label")

Example = tuple[str, str]  # an image as a line, and the name of its class


def write_corpus(source: Path, folder: Path, *, held_out: int, seed: int) -> dict[str, int]:
    """Write train, valid and test images (.png64) with the names of their classes (.en).

    Args:
        source: A folder with parquet files whose names begin with train, test and perhaps val, each with a column of
            images and one of labels.
        held_out: Number of training images that become the validation images, if `source` has none.
        seed: Seed of their choice.

    Returns:
        The number of images of each split.

    Raises:
        ValueError: `source` has no such files, or they are damaged, or its images differ in size.
    """
    train, valid, test = (
        [example for table in sorted(source.rglob(f"{split}*.parquet")) for example in _of_parquet(table)]
        for split in ("train", "val", "test")
    )
    if not train or not test:
        raise ValueError(
            f"--cifar10 {source}: give a folder with files train-*.parquet and test-*.parquet of images, as the hub "
            "has CIFAR-10 in uoft-cs/cifar10"
        )
    splits = {"train": train, "valid": valid, "test": test}
    _require_one_size(splits, source)
    if not valid:
        if held_out >= len(train):
            raise ValueError(f"--held-out {held_out} leaves none of {len(train):,} images to train on; lower it")
        order = np.random.default_rng(seed).permutation(len(train))
        splits["train"] = [train[row] for row in order[held_out:]]
        splits["valid"] = [train[row] for row in order[:held_out]]
    return write_splits(folder, splits)


def _require_one_size(splits: Mapping[str, Sequence[Example]], source: Path) -> None:
    sizes: dict[tuple[int, int], str] = {}
    for split, examples in splits.items():
        for row, (line, _) in enumerate(examples, 1):
            sizes.setdefault(size_of(line), f"{split} image {row:,}")
            if len(sizes) > 1:
                found = " and ".join(f"{name} has {width} x {height}" for (width, height), name in sizes.items())
                raise ValueError(f"--cifar10 {source}: {found} pixels: scale or crop all images to one size")


def _of_parquet(path: Path) -> Iterator[Example]:
    pa = require("pyarrow", "a parquet file", extra="train")
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            schema = table.schema_arrow
            image = next((name for name in _IMAGES if name in schema.names), None)
            label = next((name for name in _LABELS if name in schema.names), None)
            if image is None or label is None:
                raise ValueError(
                    f"{path}: has the columns {', '.join(schema.names)}; it needs {' or '.join(_IMAGES)}, and "
                    f"{' or '.join(_LABELS)}"
                )
            names = _names_of(schema.metadata or {}, label)
            for batch in table.iter_batches(1000, columns=[image, label]):
                for cell, number in zip(*(batch[each].to_pylist() for each in (image, label)), strict=True):
                    line = _as_line(cell["bytes"] if isinstance(cell, dict) else cell, path)
                    if number < 0:
                        raise ValueError(f"{path}: an image has the label {number}: leave images without a class out")
                    yield line, names[number] if names else _as_word(str(number))
    except (pa.ArrowException, OSError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is not a parquet file of images and classes ({error}): download it again") from None


def _as_line(data: bytes, path: Path) -> str:
    """Convert an image from the hub, a PNG or a JPEG in the file `path`, to a line; a gray image stays gray."""
    from PIL import Image, ImageOps

    try:
        # Only two formats, to keep untrusted bytes from Pillow's many other readers
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data), formats=("PNG", "JPEG")))
        plain = image.mode in ("1", "L", "P", "RGB") and "transparency" not in image.info
        line = write_image(np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))) if plain else ""
    except Exception as error:  # Pillow may raise anything for damaged or hostile bytes
        raise OSError(f"an image of {len(data):,} bytes is neither PNG nor JPEG, or is damaged") from error
    if not line:
        kind = "transparent" if "transparency" in image.info else f"of Pillow's mode {image.mode}"
        raise ValueError(f"{path}: an image is {kind}: convert the images to RGB of 8 bits")
    return line


def _names_of(metadata: dict[bytes, bytes], label: str) -> list[str]:
    """Return the class names in the metadata of a parquet file from the hub, or an empty list if it has none."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
        return [_as_word(name) for name in names or ()]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _as_word(name: str) -> str:
    """Return the name of a class as one word, as tokenizer.type=word needs it."""
    return "_".join(name.split())
