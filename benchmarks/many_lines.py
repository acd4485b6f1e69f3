"""Translate a million lines with `python -m seq2seq.translate`: peak memory by their number, order, and nothing lost.

    python -m benchmarks.many_lines --ckpt runs/demo --lines 10000 1000000

Each file is a prefix of the next one, of sentences of the embedded corpus and blank lines. Lines here and there are
translated again by themselves, which shows that every translation stands in its line. Translations have few tokens, so
that a small model on one core is done within minutes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from seq2seq.system.markdown import markdown_table
from seq2seq.system.resources import data_dir

# Short translations: the reading, batching and writing are what is measured.
OPTIONS = ("--beam-size", "1", "--max-len-ratio", "0", "--max-len-extra", "6", "--threads", "1", "--device", "cpu")


def write_lines(path: Path, count: int) -> None:
    """Write sentences in random order, one line in fifty blank; the same first lines for any count."""
    sources = (data_dir() / "phrasebook/train.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["translation"]["de"] for line in sources]
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write("\n" if rng.random() < 0.02 else f"{rng.choice(texts)}\n")


def translate(ckpt: str, source: Path, sink: Path) -> dict[str, Any]:
    """Run the command; return its seconds, CPU seconds and peak memory in MiB."""
    command = [sys.executable, "-m", "seq2seq.translate", "--ckpt", ckpt, "--input", str(source), "--output", str(sink)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *OPTIONS])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"translate ended with status {process.returncode}")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,  # Linux counts in KiB
    }


def misplaced(ckpt: str, source: Path, sink: Path, folder: Path, count: int = 500) -> int:
    """Count lines, of some at random, whose translation alone is not that of their place; all if lines are missing."""
    lines, found = (path.read_text("utf-8").split("\n")[:-1] for path in (source, sink))
    if len(found) != len(lines):
        return len(lines)
    chosen = sorted(random.Random(2).sample(range(len(lines)), min(count, len(lines))))
    (folder / "some").write_text("".join(f"{lines[i]}\n" for i in chosen), "utf-8")
    translate(ckpt, folder / "some", folder / "again")
    again = (folder / "again").read_text("utf-8").split("\n")[:-1]
    return sum(found[i] != text for i, text in zip(chosen, again, strict=True))


def main() -> int:
    """Print a row for each number of lines; exit status 1 if a line is missing or not in its place."""
    parser = harness.parser_for("many_lines", __doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 1_000_000])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in options.lines:
            source, sink = folder / "in", folder / "out"
            write_lines(source, count)
            row = {"lines": count, **translate(options.ckpt, source, sink)}
            row |= {"distinct": len(set(sink.read_text("utf-8").split("\n")))}
            row["misplaced"] = misplaced(options.ckpt, source, sink, folder)
            rows.append(row)
            print(json.dumps(row), flush=True)
    header = ["lines", "lines/s", "CPU s", "peak MiB", "misplaced of 500"]
    cells = [
        [f"{row['lines']:,}", f"{row['lines'] / row['seconds']:,.0f}", f"{row['cpu_seconds']:,.0f}",
         f"{row['peak_mib']:,.0f}", str(row["misplaced"])]
        for row in rows
    ]  # fmt: skip
    table = markdown_table(header, cells, right=header)
    print(table)
    harness.write(options.out, "many_lines", {"machine": harness.machine(), "rows": rows}, table)
    return int(any(row["misplaced"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
