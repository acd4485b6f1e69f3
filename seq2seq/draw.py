"""Draw words as small grey pictures, one line out for every line in; or a corpus of them, to learn reading from."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.cli import Parser, UsageError, exit_status, fail, positive, require_folder, seed

if TYPE_CHECKING:
    import numpy as np

SIZES = (9, 10)  # of the letters, in pixels
MARGIN = 3  # pixels at most before the text
NOISE = 12.0  # largest standard deviation of a pixel, of 255
_WORD = re.compile(r"[A-Za-z']+")

EPILOG = """\
Size of the letters, place, ink, paper and noise are random: a function of --seed and the line's number. A line of the
output is the base64 of a PNG, as `base64 -w0 word.png` makes it; a blank line stays blank. Examples:
  python -m seq2seq.draw --height 10 --width 32 < words.txt > words.png64
  python -m seq2seq.draw --corpus .cache/drawn_words       # train, valid and test, of .png64 and .en

--corpus takes words, and pairs of words, of up to 6 letters from the English side of the embedded phrasebook; no text
is in two of the three parts.

Exit status: 0 done; 2 wrong options, files, or text that has no room; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.draw", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--height", type=positive, default=10, metavar="N", help="pixels from top to bottom (10)")
    add("--width", type=positive, default=32, metavar="N", help="pixels from left to right (32)")
    add("--seed", type=seed, default=1, metavar="N", help="another number, other pictures (1)")
    add("--corpus", metavar="DIR", help="write a corpus to this folder instead of reading lines")
    add("--letters", type=positive, default=6, metavar="N", help="at most so many in a text of --corpus (6)")
    add("--train", type=positive, default=8000, metavar="N", help="pictures to train on, of --corpus (8000)")
    add("--held-out", type=positive, default=200, metavar="N", help="... for each of validation and test (200)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    try:
        return exit_status(lambda: _corpus(options) if options.corpus else _lines(options))
    except ValueError as error:
        return fail(error)


def _lines(options: argparse.Namespace) -> int:
    for number, line in enumerate(sys.stdin.buffer):
        text = line.decode("utf-8", "replace").strip()
        sys.stdout.write(_line(text, number, options) + "\n")
    sys.stdout.flush()
    return 0


def _line(text: str, number: int, options: argparse.Namespace) -> str:
    from seq2seq.data.images import write_picture

    try:
        return text and write_picture(
            draw(text, height=options.height, width=options.width, seed=[options.seed, number])
        )
    except ValueError as error:
        raise UsageError(f"line {number + 1}: {error}") from None


def draw(text: str, *, height: int, width: int, seed: Any) -> np.ndarray:
    """A picture of `text`, (height, width) uint8; seed: of numpy's default_rng.

    ValueError if it has no room in letters of any size, or a letter that the font has not.
    """
    import numpy as np

    fitting = _fitting(text, height, width)
    from PIL import Image, ImageDraw  # which `_fitting` has asked for

    rng = np.random.default_rng(seed)
    if not fitting:
        raise ValueError(f"{text!r} has no room in {width} x {height} pixels: raise --width or --height, or shorten it")
    font, (left, top, right, bottom) = fitting[int(rng.integers(len(fitting)))]
    room = min(width - (right - left), MARGIN), height - (bottom - top)
    place = (rng.integers(0, room[0] + 1) - left, rng.integers(0, room[1] + 1) - top)
    ink, paper = int(rng.integers(0, 90)), int(rng.integers(180, 256))
    canvas = Image.new("L", (width, height), paper)
    ImageDraw.Draw(canvas).text((int(place[0]), int(place[1])), text, fill=ink, font=font)
    noise = rng.normal(0.0, rng.uniform(0.0, NOISE), (height, width))
    return np.clip(np.asarray(canvas) + noise, 0, 255).astype(np.uint8)


def _fitting(text: str, height: int, width: int) -> list[tuple[Any, tuple[int, int, int, int]]]:
    """The fonts in which `text` has room, and its box in each; ValueError for a letter that they have not."""
    if strange := [letter for letter in text if not _has(letter)]:
        raise ValueError(f"{text!r}: Pillow's own font, in which words are drawn, has no {strange[0]!r}; leave it out")
    fitting = []
    for size in SIZES:
        left, top, right, bottom = (int(edge) for edge in _font(size).getbbox(text))
        if right - left <= width and bottom - top <= height:
            fitting.append((_font(size), (left, top, right, bottom)))
    return fitting


@lru_cache
def _has(letter: str) -> bool:
    """Whether the font draws anything else than the box that stands for what it has not."""
    font = _font(SIZES[0])
    return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))


@lru_cache
def _font(size: int) -> Any:
    """The letters that Pillow brings."""
    try:
        from PIL import ImageFont
    except ImportError:
        raise UsageError("drawing needs the package pillow: pip install 'seq2seq-mixers[images]'") from None
    return ImageFont.load_default(size)


def _corpus(options: argparse.Namespace) -> int:
    import numpy as np

    from seq2seq.files import atomic_file

    held, folder = options.held_out, require_folder(Path(options.corpus), "--corpus")
    texts = [text for text in phrases(options.letters) if _fitting(text, options.height, options.width)]
    np.random.default_rng(options.seed).shuffle(texts)
    if 2 * held >= len(texts):
        raise UsageError(
            f"--held-out {held} twice leaves nothing to train on: of up to {options.letters} letters {len(texts):,} "
            f"texts have room in {options.width} x {options.height} pixels; lower it, or raise --letters, --height or "
            "--width"
        )
    parts = {"valid": texts[:held], "test": texts[held : 2 * held], "train": texts[2 * held :]}
    parts["train"] = list(_repeated(parts["train"], options.train))
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for split, lines in parts.items():
        with atomic_file(folder / f"{split}.png64") as pictures, atomic_file(folder / f"{split}.en") as words:
            for text in lines:
                pictures.write(f"{_line(text, number, options)}\n".encode())
                words.write(f"{text}\n".encode())
                number += 1
    print(f"{', '.join(f'{len(lines):,} {split}' for split, lines in parts.items())} pictures in {folder}")
    if (different := len(set(parts["train"]))) < options.train:
        print(f"the training pictures repeat {different:,} texts, for there are no more", file=sys.stderr)
    return 0


def _repeated(texts: list[str], count: int) -> Iterator[str]:
    for number in range(count):
        yield texts[number % len(texts)]


def phrases(letters: int) -> list[str]:
    """The words of the embedded phrasebook's English, and all pairs of them, of at most `letters` characters."""
    from seq2seq.resources import data_dir

    words: dict[str, None] = {}
    with (data_dir() / "phrasebook" / "train.jsonl").open(encoding="utf-8") as file:
        for line in file:
            words |= dict.fromkeys(_WORD.findall(json.loads(line)["translation"]["en"]))
    short = [word for word in words if len(word) <= letters]
    pairs = (f"{one} {two}" for one, two in product(short, short) if len(one) + len(two) < letters)
    return [*short, *pairs]


if __name__ == "__main__":
    sys.exit(main())
