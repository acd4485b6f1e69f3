"""Check and time the GPU kernels of LightConv and DynamicConv, and compare them with other implementations.

    python -m benchmarks.kernels --out DIR [--quick] [--sections device timings] [--tune --taps 31]

Writes DIR/kernels.json (all numbers) and DIR/kernels.md (the tables), both again after every section. The exit status
is 1 if a result is wrong or a section failed. Needs torch and seq2seq alone; fairseq's two CUDA extensions
(lightconv_cuda, dynamicconv_cuda) are timed as well where they can be imported. `--device cpu` runs everything on tiny
shapes, to try the script: through Triton's interpreter with TRITON_INTERPRET=1, else on the torch path.

Timing: a round makes one call per buffer; buffers rotate so that inputs together exceed three L2 caches,
and outputs are kept until the round ends, so they rotate too. The GPU first spins until the host has queued the whole
round, so the events around it see no launch gaps. A time is the median over rounds of the time per call.

Bandwidth: bytes are minimal, every input read once, every output written once. "roofline" is the time those bytes would
take at the copy bandwidth measured in the same run, over the time taken. Attention runs as seq2seq sets it up, without
cuDNN; "attention, cuDNN allowed" is torch's own choice.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.kernels import tables
from benchmarks.kernels.ahead import compile_ahead
from benchmarks.kernels.convolutions import decode_section, timings_section
from benchmarks.kernels.device import device_section
from benchmarks.kernels.layers import WITH_CUDNN, layers_section
from benchmarks.kernels.session import Session, reason
from benchmarks.kernels.shapes import cpu_sizes, gpu_sizes
from benchmarks.kernels.tune import tune_section

# Prefixes of the ways that are our own code. An error in one of their rows is a failure; other ways may fail.
OURS = ("ours", "default")


class Measurement(NamedTuple):
    """Section of the report.

    Attributes:
        work: Function that measures and fills in the session's rows.
        share: Share of the time budget, relative to the shares of the other sections.
        lines: Function that formats the rows as Markdown.
    """

    work: Callable[[Session], None]
    share: int
    lines: Callable[[Any], list[str]]


SECTIONS = {
    "device": Measurement(device_section, 1, tables.device_lines),
    "timings": Measurement(timings_section, 8, tables.timing_lines),
    "layers": Measurement(layers_section, 4, tables.layer_lines),
    "decode": Measurement(
        decode_section, 1, functools.partial(tables.timing_lines, title="bf16, B hypotheses, T slots")
    ),
    "tune": Measurement(tune_section, 10, tables.tune_lines),
}


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.kernels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, help="folder for kernels.json and kernels.md")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny shapes, to try the script")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), help="default: all but tune")
    parser.add_argument("--tune", action="store_true", help="also sweep launch settings")
    parser.add_argument("--taps", type=int, nargs="+", default=[], help="kernel widths that --tune sweeps")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds after which nothing new starts")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; run this on a machine with one, or try the script with --device cpu")
    if min(options.taps, default=1) < 1:
        parser.error(f"--taps {options.taps}: choose widths of 1 or more")
    chosen = options.sections or [name for name in SECTIONS if name != "tune"]
    # The device's peak rates are always measured, since every section compares with them
    chosen += ["device"] + ["tune"] * options.tune
    options.sections = [name for name in SECTIONS if name in chosen]
    return options


def run_sections(session: Session, budget: float) -> None:
    """Run the sections in order, each within its share of the budget; record failures and continue.

    Args:
        budget: Seconds after which nothing new starts.
    """
    finish = time.perf_counter() + budget
    # Compilation may take 40% of the budget; the rest is for measurements
    if session.device.type == "cuda":
        session.deadline = finish - 0.6 * budget
        attempt("compilation ahead", compile_ahead, session)
    for number, name in enumerate(session.sections):
        begin = time.perf_counter()
        # The remaining sections share the unused time of earlier ones
        shares = [SECTIONS[later].share for later in session.sections[number:]]
        session.deadline = begin + (finish - begin) * shares[0] / sum(shares)
        session.rows = session.result[name] = []
        attempt(name, SECTIONS[name].work, session)
        session.result["seconds"][name] = round(time.perf_counter() - begin, 1)
        # Saved after every section, since a later one may crash the device
        session.save()
        page = tables.report(session.result, {known: section.lines for known, section in SECTIONS.items()})
        (session.out / "kernels.md").write_text("\n".join(page) + "\n", encoding="utf-8")
        print(f"\n## {name.capitalize()}, {session.result['seconds'][name]} s\n")
        print(*SECTIONS[name].lines(session.result[name]), sep="\n", flush=True)


def attempt(name: str, work: Callable[[Session], None], session: Session) -> None:
    """Run one part, and turn its failure into an entry of result["errors"]."""
    try:
        work(session)
    except Exception as error:
        session.result["errors"].append(f"{name}: {reason(error)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections, print and write the tables, and return the exit status, 1 if anything was wrong."""
    options = options_of(argv)
    on_gpu = options.device == "cuda"
    ours = "triton" if on_gpu or os.environ.get("TRITON_INTERPRET") == "1" else "torch"
    session = Session(
        device=torch.device(options.device, 0) if on_gpu else torch.device("cpu"),
        ours=ours,
        sizes=gpu_sizes(options.quick, options.taps) if on_gpu else cpu_sizes(options.taps),
        out=options.out,
        sections=options.sections,
        result={"date": datetime.date.today().isoformat(), "seconds": {}, "errors": [], "left_out": [], "log": []},
    )
    run_sections(session, options.budget)
    session.result["errors"] = failures(session.result)
    session.save()
    for title in ("errors", "left_out", "log"):
        print(*(f"{title}: {line}" for line in session.result[title]), sep="\n")
    return 1 if session.result["errors"] else 0


def failures(result: dict[str, Any]) -> list[str]:
    """List the reasons for exit status 1: sections that failed, wrong results, and rows of our code with an error."""
    found = list(result["errors"])
    for name in ("timings", "layers", "decode", "tune"):
        ours = [row for row in result.get(name, []) if row.way.startswith(OURS) and row.op != WITH_CUDNN]
        found += [f"{name}: {row.op} {row.direction}, {row.shape}: {row.error}" for row in ours if row.error]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
