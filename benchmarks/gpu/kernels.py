"""Check and time the kernels at the shapes of the goals, or sweep launch settings, by `benchmarks.kernels`."""

from __future__ import annotations

import datetime
import shutil
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.records import LEFT_OUT
from benchmarks.kernels.__main__ import failures, run_sections
from benchmarks.kernels.session import Session, plain
from benchmarks.kernels.shapes import MAIN, Shape, Sizes, cpu_sizes, gpu_sizes

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# As many tokens as MAIN has, in sentences of the trained length.
SHORT = MAIN._replace(batch=MAIN.tokens // 27, length=27)
SECTIONS = {"kernels": ("device", "timings", "layers"), "tune": ("device", "tune")}


def run(job: PartJob) -> None:
    """Run the sections within the part's time; the content of the kernels.json that they write is the result."""
    # Folder for the tables that the sections write
    out = job.folder / "parts" / f"{job.name}-tables"
    out.mkdir(exist_ok=True)
    session = _Saved(
        device=torch.device("cuda", 0) if job.on_gpu else torch.device("cpu"),
        ours="triton",
        sizes=sizes_of(job),
        out=out,
        sections=SECTIONS[job.name],
        result={"date": datetime.date.today().isoformat(), "seconds": {}, "errors": [], "left_out": [], "log": []},
    )
    session.job = job
    run_sections(session, job.left(reserve=10.0))
    session.result["errors"] = failures(session.result)
    session.save()
    shutil.rmtree(out)
    if left_out := session.result["left_out"]:
        print(f"no time was left for {len(left_out)} rows, the first: {left_out[0]}")
        raise SystemExit(LEFT_OUT)


class _Saved(Session):
    """Session that saves its results as the results of the part."""

    job: PartJob

    def save(self) -> None:
        """Write the results so far, without the ways that are not importable."""
        found = plain(self.result)
        for name in ("timings", "layers", "tune"):
            found[name] = [row for row in found.get(name, []) if row["error"] != "not importable"]
        self.job.save(**found)


def sizes_of(job: PartJob) -> Sizes:
    """Return the sizes of a part: the sizes of the goals, or all sizes that benchmarks.kernels tunes."""
    if not job.on_gpu:
        return tiny_sizes()
    return goal_sizes() if job.name == "kernels" else gpu_sizes(False, [])


def goal_sizes() -> Sizes:
    """Return the shapes of the goals: 64k tokens of 1,024 channels, in sentences of 1,024 and of 27 tokens."""
    sizes = gpu_sizes(True, [])
    shapes: list[Shape] = [
        *(shape._replace(drop=drop) for drop in (0.0, 0.1) for shape in (MAIN, SHORT)),
        MAIN._replace(taps=7),
        SHORT._replace(taps=7),
        MAIN._replace(glu=True),
        SHORT._replace(glu=True),
    ]
    lengths = (64, 1024, 4096, 16384)
    return sizes._replace(shapes=shapes, layer_lengths=lengths)


def tiny_sizes() -> Sizes:
    """Return sizes for Triton's interpreter in a rehearsal."""
    sizes = cpu_sizes([])
    # The default and one candidate
    sweep = (*((values[0],) for values in sizes.sweep),)
    return sizes._replace(shapes=sizes.shapes[:1], layer_lengths=(4,), sweep=sweep)
