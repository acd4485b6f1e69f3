"""Draw words as small gray images, one line out for every line in, or write a corpus of images: words or classes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    positive,
    require_folder,
    run_command,
    seed,
    whole_number,
)
from seq2seq.system.stdio import print_error, standard_input

# Larger numbers are typing errors: an image shows a word, and some thousands of images are drawn per second.
MOST_PIXELS = 4096
MOST_IMAGES = 10**7
MOST_FRAMES = 64

EPILOG = """\
Size of the letters, place, ink, paper and noise are random, by --seed and the number of the line. A line of the
output is the base64 of a PNG, as `base64 -w0 word.png` makes it; a blank line stays blank. Examples:
  python -m seq2seq.draw --height 10 --width 32 < words.txt > words.png64
  python -m seq2seq.draw --corpus .cache/drawn_words       # train, valid and test, of .png64 and .en
  python -m seq2seq.draw --digits .cache/digits
  echo 'we left' | python -m seq2seq.draw --frames 3       # "we", moving left in three frames
  python -m seq2seq.draw --cifar10 cifar10 .cache/cifar10 --held-out 5000

--digits writes scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, with their names as texts.

--cifar10 writes CIFAR-10's color images with the names of their classes, from a folder with the parquet files of
uoft-cs/cifar10 on the Hugging Face Hub. --held-out training images become the validation images, unless there are
files val*.parquet.

--corpus takes words, and pairs of words, of up to 6 letters from the English side of the embedded phrasebook; no text
is in two of the three parts.

Exit status: 0 done; 2 wrong options or files, or a text that does not fit; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.draw", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    pixels = whole_number(1, MOST_PIXELS)
    add("--height", type=pixels, default=10, metavar="N", help="pixels from top to bottom (10)")
    add("--width", type=pixels, default=32, metavar="N", help="pixels from left to right (32)")
    text = "frames of a moving text, one below another; texts end with left, right, up or down (1)"
    add("--frames", type=whole_number(1, MOST_FRAMES), default=1, metavar="N", help=text)
    add("--seed", type=seed, default=1, metavar="N", help="another number, other images (1)")
    corpus = parser.add_mutually_exclusive_group()
    corpus.add_argument("--corpus", type=nonempty, metavar="DIR", help="write a corpus here instead of reading lines")
    corpus.add_argument("--digits", type=nonempty, metavar="DIR", help="write scikit-learn's digits to this folder")
    text = "write CIFAR-10, which FILES holds, to the folder DIR"
    corpus.add_argument("--cifar10", nargs=2, type=nonempty, metavar=("FILES", "DIR"), help=text)
    text = "longest text of --corpus, in letters (6)"
    add("--letters", type=whole_number(1, 100), default=6, metavar="N", help=text)
    text = "training images of --corpus (8000)"
    add("--train", type=whole_number(1, MOST_IMAGES), default=8000, metavar="N", help=text)
    text = "images for validation, and as many for the test (200; also of --digits and --cifar10)"
    add("--held-out", type=positive, default=200, metavar="N", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.digits or options.cifar10:
        given = "--digits" if options.digits else "--cifar10"
        of_words = ("height", "width", "frames", "letters", "train")
        parser.refuse(options, of_words, f"has no effect with {given}: leave it out")
    elif not options.corpus:
        parser.refuse(options, ("letters", "train", "held_out"), "has no effect without --corpus: leave it out")
    return exit_status(lambda: _draw(options))


def _draw(options: argparse.Namespace) -> int:
    """Draw the lines of standard input, or write a corpus with --corpus, --digits or --cifar10."""
    files = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("png64", "en")]
    if options.digits:
        folder = require_folder(Path(options.digits), "--digits", files=files)
        from seq2seq.images import digits

        sizes = digits.write_corpus(folder, held_out=options.held_out, seed=options.seed)
    elif options.cifar10:
        source, target = map(Path, options.cifar10)
        folder = require_folder(target, "--cifar10", files=files)
        from seq2seq.images import cifar10

        sizes = cifar10.write_corpus(source, folder, held_out=options.held_out, seed=options.seed)
    else:
        from seq2seq.images.words import WordImages, write_corpus

        images = WordImages(height=options.height, width=options.width, seed=options.seed, frames=options.frames)
        if not options.corpus:
            # Read bytes, because text mode also ends lines at \r. The number of a line seeds its image
            for number, line in enumerate(standard_input()):
                text = line.decode("utf-8", "replace").strip()
                sys.stdout.write(f"{images.line(text, number)}\n")
            return 0
        folder = require_folder(Path(options.corpus), "--corpus", files=files)
        counts = {"train": options.train, "held_out": options.held_out}
        sizes, different = write_corpus(folder, images, letters=options.letters, **counts)
    print(f"{', '.join(f'{size:,} {split}' for split, size in sizes.items())} images in {folder}")
    # There may be fewer short texts than images
    if options.corpus and different < options.train:
        print_error(f"the training images repeat {different:,} texts: there are no more")
    return 0


if __name__ == "__main__":
    run_command(main)
