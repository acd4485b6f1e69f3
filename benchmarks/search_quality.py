"""Score ways to translate with a trained model: number formats, beams, and minimum Bayes risk over samples.

    python -m benchmarks.search_quality --ckpt runs/a runs/b \\
        --src test.de --ref test.en --lines 1000

Each row has BLEU and chrF, how many lines differ from the first way's, and the CPU seconds, one thread. int8
and onnx are exports that ONNX Runtime runs; mbr draws samples and ranks them by chrF.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from seq2seq.inference.export.card import Origin
from seq2seq.inference.export.formats import export_model
from seq2seq.inference.translator import Translator
from seq2seq.metrics.scorers import bleu, chrf
from seq2seq.runs.results import read_origin
from seq2seq.settings.search import SamplingSettings
from seq2seq.system.markdown import markdown_table

WAYS = ("float32", "bfloat16", "onnx", "int8", "greedy", "sample", "mbr")


def load(ckpt: Path, way: str, folder: Path) -> Translator:
    """Load a model for one of WAYS, exported to `folder` where the way needs it."""
    if way in ("onnx", "int8"):
        dtype = "int8" if way == "int8" else "float32"
        export_model(str(ckpt), folder, format="onnx", origin=Origin(*read_origin(ckpt)), trust=(), dtype=dtype)
        return Translator.load(folder, device="cpu")
    return Translator.load(ckpt, device="cpu", dtype="bfloat16" if way == "bfloat16" else "float32")


def translations(translator: Translator, way: str, lines: list[str], *, samples: int, temperature: float) -> list[str]:
    """Translate lines in one of WAYS."""
    # These settings have the run's own length limits
    usual = dataclasses.replace(translator.settings, beam_groups=1, n_best=1)
    if way == "greedy":
        return _best(translator, lines, settings=dataclasses.replace(usual, beam_size=1))
    if way in ("sample", "mbr"):
        drawn = {
            "settings": dataclasses.replace(usual, beam_size=1 if way == "sample" else samples),
            "sampling": SamplingSettings(temperature=temperature),
        }
        return _best(translator, lines, **drawn, mbr="chrf" if way == "mbr" else None)
    return _best(translator, lines)


def _best(translator: Translator, lines: list[str], **options: Any) -> list[str]:
    return [candidates[0].text for candidates in translator.translate(lines, **options)]


def measure(
    translate: Callable[[], list[str]], references: list[str], tokenize: str
) -> tuple[list[str], dict[str, Any]]:
    """Return the translations with their scores and CPU seconds."""
    began = time.process_time()
    found = translate()
    seconds = time.process_time() - began
    return found, {
        "bleu": bleu(found, references, tokenize=tokenize).value,
        "chrf": chrf(found, references).value,
        "cpu_seconds": seconds,
    }


def main() -> int:
    """Print a row for each model and way."""
    parser = harness.parser_for("search_quality", __doc__)
    parser.add_argument("--ckpt", required=True, type=Path, nargs="+")
    parser.add_argument("--src", required=True, type=Path)
    parser.add_argument("--ref", required=True, type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--samples", type=int, default=32, help="samples of mbr for each line (32)")
    parser.add_argument("--temperature", type=float, default=0.6, help="of the samples (0.6)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = (path.read_text("utf-8").removesuffix("\n") for path in (options.src, options.ref))
    lines, references = (text.split("\n")[: options.lines] for text in texts)
    drawn = {"samples": options.samples, "temperature": options.temperature}
    rows: list[dict[str, Any]] = []
    for ckpt in options.ckpt:
        model = ckpt.parent.parent.name or ckpt.name
        usual: list[str] = []
        for way in options.ways:
            with tempfile.TemporaryDirectory() as folder:
                translator = load(ckpt, way, Path(folder) / "export")
                work = functools.partial(translations, translator, way, lines, **drawn)
                found, row = measure(work, references, translator.meta["tokenize"])
            usual = usual or found
            row |= {"model": model, "way": way, "different": sum(a != b for a, b in zip(found, usual, strict=True))}
            rows.append(row)
            print(row, flush=True)
    header = ["model", "way", "BLEU", "chrF", "other lines", "CPU s"]
    cells = [
        [row["model"], row["way"], f"{row['bleu']:.2f}", f"{row['chrf']:.2f}", str(row["different"]),
         f"{row['cpu_seconds']:.0f}"]
        for row in rows
    ]  # fmt: skip
    table = markdown_table(header, cells, right=header[2:])
    print(table)
    result = {"machine": harness.machine(), "lines": len(lines), **drawn, "rows": rows}
    harness.write(options.out, "search_quality", result, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
