"""Count the instructions of the compiled kernels, and estimate their share of the roofline, without a GPU.

    python -m benchmarks.roofline [--out DIR]

It compiles each call for sm_90 with the installed Triton, reads its machine code, and estimates its time on an H100 and
an H200 (benchmarks/roofline/estimate.py explains how; nothing is measured). --out writes DIR/triton-VERSION.json and
DIR/roofline.md, a table of all such files in DIR. `make aot` does this for two compilers.

All calls are in bfloat16 with 1,024 channels in 16 heads, causal, with ends of sentences and 65,536 tokens, in
sentences of 1,024 tokens and of 27, the mean of the training data. "drop" is DropConnect.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.kernels.shapes import FLOORS, MAIN, PASSES, Shape
from benchmarks.kernels.tables import table
from benchmarks.roofline.estimate import BANDWIDTH, Work, estimate, tile_instructions, trips
from benchmarks.roofline.launches import Compiler, record
from benchmarks.roofline.machine_code import executed
from seq2seq.kernels.launch_config import ONE_TILE

LENGTHS = (1024, 27)
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "dynamicconv": [{}, {"drop": 0.1}, {"drop": 0.1, "taps": 15}, {"drop": 0.1, "taps": 3}, {"drop": 0.1, "taps": 63}],
    "lightconv": [{}, {"glu": True}, {"glu": True, "taps": 15}, {"glu": True, "taps": 3}, {"glu": True, "taps": 63}],
}
Row = dict[str, Any]


def calls() -> Iterator[tuple[str, str, Shape]]:
    """Yield the counted calls: operator, direction and shape."""
    for length in LENGTHS:
        shape = MAIN._replace(batch=round(MAIN.tokens / length), length=length)
        for op, variants in VARIANTS.items():
            for variant in variants:
                for direction in PASSES:
                    yield op, direction, shape._replace(**variant)
        if length <= ONE_TILE:
            for direction in PASSES:
                yield "attention", direction, shape._replace(taps=0)


def count(op: str, direction: str, shape: Shape, compiler: Compiler) -> Row:
    """Compile a call, and return its counts and estimates."""
    row: Row = {"op": op, "direction": direction, "T": shape.length, "K": shape.taps}
    row |= {"with": "drop" if shape.drop else "GLU" if shape.glu else "", "kernels": []}
    works = []
    for launch in record(op, direction, shape):
        needs, path = compiler(launch)
        turns, warps = trips(path, shape, launch.programs, launch.values), launch.values["num_warps"]
        works.append(Work(path, turns, launch.programs, warps, needs.warps))
        names = ("registers", "shared", "spills", "warps", "instructions")
        facts = {name: getattr(needs, name) for name in names} | {
            "tile": launch.values.get("TILE", launch.values.get("QUERIES")),
            "warps a program": warps,
        }
        facts |= {"programs": launch.programs, "instructions a tile": tile_instructions(path)}
        facts |= {"instructions a program": round(executed(path, turns))}
        row["kernels"].append({"name": launch.kernel.__name__, **facts})
    for gpu in BANDWIDTH:
        found = estimate(op, direction, shape, works, gpu)
        row[gpu] = {name: round(value, 3 if name == "share" else 1) for name, value in found._asdict().items()}
    return row


def page(results: dict[str, list[Row]]) -> str:
    """Format the table of all results: rows by version of Triton."""
    lines = [
        "# Kernels by their machine code, and the share of the roofline that it allows: an estimate",
        "",
        "Written by `make aot` (`python -m benchmarks.roofline`, whose --help says what is counted). Counts are",
        "of sm_90's machine code, read with the disassembler in Triton's own wheel. **Shares are estimated from",
        "them, not measured** (`benchmarks/roofline/estimate.py`): on an H100 at 3.0 TB/s, an H200 at 4.3 TB/s.",
        "",
        "Instructions are a warp's: of the loop from tile to tile (of the whole kernel where it has no loop), and",
        "of a whole program. 'warps' are those that fit on a multiprocessor.",
        "",
    ]
    for length in LENGTHS:
        lines += [f"## Sentences of {length:,} tokens", "", *_section(results, length)]
    missed = sorted({text for rows in results.items() for text in _missed(*rows)})
    wanted = ", ".join(f"{way} at T = {length:,} {floor:.0%}" for (way, length), floor in FLOORS.items())
    lines += ["## Floors", "", f"Wanted of an H200: {wanted}. Estimated to be missed:", ""]
    return "\n".join([*lines, *(missed or ["none"])])


def _section(results: dict[str, list[Row]], length: int) -> list[str]:
    """Format one line for each call and compiler."""
    body: dict[str, list[tuple[str, ...]]] = {}
    for version, rows in results.items():
        for row in rows:
            if row["T"] == length:
                about = f"{row['op']} {row['direction']}"
                about += (f", K {row['K']}" if row["K"] else "") + (f", {row['with']}" if row["with"] else "")
                body.setdefault(about, []).append((about, version, *_cells(row)))
    return table(HEAD, itertools.chain.from_iterable(body.values()))


HEAD = ("call", "Triton", "a tile", "a program", "registers", "spills", "shared KB", "warps", "H100 %", "H200 %")


def _cells(row: Row) -> list[str]:
    """Format the counts of a call; counts of several kernels are joined by +."""
    names = ("instructions a tile", "instructions a program", "registers", "spills")
    cells = [" + ".join(f"{kernel[name]:,}" for kernel in row["kernels"]) for name in names]
    cells.append(" + ".join(f"{kernel['shared'] / 1024:.1f}" for kernel in row["kernels"]))
    cells.append(" + ".join(str(kernel["warps"]) for kernel in row["kernels"]))
    return cells + [f"{100 * row[gpu]['share']:.0f}" for gpu in BANDWIDTH]


def _missed(version: str, rows: list[Row]) -> Iterator[str]:
    """Yield a line for each call that is below its floor."""
    for row in rows:
        floor, share = FLOORS[row["direction"], row["T"]], row["H200"]["share"]
        if share < floor:
            given = f"{row['op']} {row['direction']}, T {row['T']:,}, K {row['K']} {row['with']}".strip()
            yield f"- Triton {version}, {given}: {share:.0%} of {floor:.0%}"


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows of every file in a folder, by version of Triton."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return {result["triton"]: result["rows"] for result in results}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count everything, write the file and the table, and print the table."""
    parser = harness.parser_for("roofline", __doc__, "folder for the counts and the table")
    options = parser.parse_args(arguments)
    compiler = Compiler()
    rows = [count(*call, compiler) for call in calls()]
    import triton

    results = {triton.__version__: rows}
    if options.out:
        harness.write(options.out, f"triton-{triton.__version__}", {"triton": triton.__version__, "rows": rows})
        results = read(options.out)
        (options.out / "roofline.md").write_text(page(results) + "\n", encoding="utf-8")
    print(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
