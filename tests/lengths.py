"""Print the longest functions, classes and files of the package: a report for the eye, not a limit.

    python tests/lengths.py

Lengths of other well-read projects are printed for comparison.
"""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent / "seq2seq"
# Median, ninth decile and longest function of other projects, counted in November 2026
ANCHORS = {
    "nanochat": (9, 41, 147),
    "joeynmt": (16, 67, 481),
    "litgpt": (11, 77, 203),
    "torchtune": (20, 74, 303),
    "x-transformers": (7, 72, 512),
    "equinox": (7, 40, 428),
}
SHOWN = 5


def main() -> None:
    """Print the report."""
    files: list[tuple[int, str]] = []
    classes: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        name = str(path.relative_to(ROOT))
        files.append((len(text.splitlines()), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                kind = classes if isinstance(node, ast.ClassDef) else functions
                kind.append((length, f"{name}: {node.name}"))
    lengths = sorted(length for length, _ in functions)
    median = round(statistics.median(lengths))
    print(f"{sum(length for length, _ in files):,} lines in {len(files)} files")
    print("functions: median / ninth decile / longest")
    print(f"  here {median} / {lengths[len(lengths) * 9 // 10]} / {lengths[-1]}")
    print("  " + ", ".join(f"{name} {a} / {b} / {c}" for name, (a, b, c) in ANCHORS.items()))
    for kind, found in (("functions", functions), ("classes", classes), ("files", files)):
        longest = sorted(found, reverse=True)[:SHOWN]
        print(f"longest {kind}: " + ", ".join(f"{name} {length}" for length, name in longest))


if __name__ == "__main__":
    main()
