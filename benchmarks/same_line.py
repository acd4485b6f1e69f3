"""Count lines whose translation depends on the lines beside it: in order, shuffled, in other batches and alone.

    python -m benchmarks.same_line --ckpt runs/demo --input test.de --lines 2000
    python -m benchmarks.same_line --ckpt runs/demo --input test.de --dtype bfloat16 --alone 200

In float32 a text may differ only where the two are so close that rounding decides, and no score may differ by more:
texts that differ are listed with both scores.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from benchmarks import harness
from seq2seq.inference.translator import TranslatedText, Translator

# Scores closer than this are equal but for rounding.
CLOSE = 1e-5


def compare(name: str, lines: list[str], one: list[TranslatedText], other: list[TranslatedText]) -> dict[str, object]:
    """Report how two translations of the same lines differ."""
    differing = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a.text != b.text]
    gaps = [abs(a.score - b.score) for a, b in zip(one, other, strict=True) if a.text == b.text]
    unexplained = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if not abs(a.score - b.score) <= CLOSE]
    print(
        f"{name}: {len(differing)} of {len(one)} texts differ, {len(unexplained)} scores by more than {CLOSE:g}; "
        f"those of equal texts by {max(gaps, default=0.0):.2g} at most",
        flush=True,
    )
    for i in differing:
        print(f"  {lines[i]!r}\n    {one[i].score:.7f} {one[i].text!r}\n    {other[i].score:.7f} {other[i].text!r}")
    return {"differing": len(differing), "unexplained": len(unexplained), "largest_gap": max(gaps, default=0.0)}


def main() -> int:
    """Print the comparisons; exit status 1 where a difference in float32 is not explained by rounding."""
    parser = harness.parser_for("same_line", __doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--input", required=True, type=Path)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--alone", type=int, default=2000, help="lines that are also translated one by one")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    lines = options.input.read_text("utf-8").split("\n")[: options.lines]
    translator = Translator.load(options.ckpt, device="cpu", dtype=options.dtype)

    def best(given: list[str], max_tokens: int = 2048) -> list[TranslatedText]:
        translator.max_tokens = max_tokens
        return [candidates[0] for candidates in translator.translate(given)]

    first = best(lines)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = best([lines[i] for i in order])
    back = [candidate for _, candidate in sorted(zip(order, shuffled, strict=True), key=lambda pair: pair[0])]
    part = lines[: options.alone]
    results = {
        "shuffled": compare("shuffled", lines, first, back),
        "small batches": compare("batches of 200 pieces", lines, first, best(lines, 200)),
        "alone": compare("alone", part, first[: len(part)], [best([line])[0] for line in part]),
    }
    harness.write(options.out, "same_line", {"machine": harness.machine(), "dtype": options.dtype, **results})
    return int(options.dtype == "float32" and any(result["unexplained"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
