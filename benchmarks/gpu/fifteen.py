"""Train fifteen small models of Multi30k side by side by `benchmarks.runs_together`, for a share of their 25 epochs."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.pack import SMALL_TEXT
from benchmarks.gpu.records import ROOT
from benchmarks.runs_together import LEFT

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# The mixers of docs/speed.md, three seeds each.
MIXERS = ("transformer", "lightconv", "dynamicconv", "multiscale", "bahdanau")
# Epochs of the goal, and epochs that are trained; the seconds of training are scaled to the goal.
EPOCHS, _TRAINED = 25, 2


def run(job: PartJob) -> None:
    """Train the runs within the part's time, and save the minutes that all epochs would take."""
    corpus = job.data / SMALL_TEXT
    if job.on_gpu and not list(corpus.glob("train.en*")):
        raise SystemExit(f"ValueError: there is no {corpus}/train.en; make the folder with --pack")
    lines = [" ".join(words) for words in runs(corpus)] if job.on_gpu else _TINY
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "runs.txt").write_text("\n".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.runs_together", str(out / "runs.txt"), f"--out={out}"]
        mps = job.on_gpu and shutil.which("nvidia-cuda-mps-control") is not None
        # Without the service, kernels take turns
        for service in (["--mps"], []) if mps else ([],):
            limits = [f"--budget={max(40.0, job.left(reserve=10.0)):.0f}", f"--slots={len(lines)}"]
            status = subprocess.run([*command, *limits, *service], cwd=ROOT).returncode
            if (out / "runs_together.json").is_file():
                job.save(status=status, mps=bool(service), **minutes(out, len(lines)))
                break
    if status not in (0, LEFT):
        raise SystemExit("RuntimeError: runs failed; the log names them")


def runs(corpus: Path) -> list[list[str]]:
    """Return the settings of each run, in float32 as in docs/speed.md."""
    data = [
        f"data.{split}={corpus / name}"
        for split, name in (("train", "train"), ("valid", "valid"), ("test", "test2016"))
    ]
    shared = [
        "experiment=multi30k_en_de",
        "data=files",
        *data,
        "trainer.precision=32",
        f"trainer.max_epochs={_TRAINED}",
    ]
    pairs = itertools.product((1, 2, 3), MIXERS)
    return [[*shared, f"mixer={mixer}", f"seed={seed}"] for seed, mixer in pairs]


_TINY = [
    f"mixer={mixer} model=tiny model.dim=16 model.ffn_dim=32 model.num_heads=2 trainer.max_steps=3 trainer.test=false"
    for mixer in ("transformer", "lightconv")
]


def minutes(out: Path, count: int) -> dict[str, Any]:
    """Return the minutes of the slowest run, measured and scaled to all epochs (None unless all runs have ended).

    Only the time of the epochs is scaled, not the time of start and test.
    """
    records = json.loads((out / "runs_together.json").read_text(encoding="utf-8"))["records"]
    walls = {record["settings"]: record["seconds"] for record in records if record["status"] == 0}
    found: dict[str, Any] = {"runs": count, "ended": len(walls), "epochs": _TRAINED}
    scaled: dict[str, list[float]] = {}
    for path in sorted((out / "runs").glob("*/results.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        wall = next((seconds for line, seconds in walls.items() if _same(result, line)), None)
        if wall is not None:
            whole = wall + result["seconds"] * (EPOCHS / _TRAINED - 1)
            scaled.setdefault(result["mixer"], []).append(round(whole / 60, 2))
    every = [one for mine in scaled.values() for one in mine]
    found |= {"measured minutes": round(max(walls.values(), default=0.0) / 60, 2), "minutes by mixer": scaled}
    return found | {"minutes": max(every) if len(every) == count else None}


def _same(result: dict[str, Any], line: str) -> bool:
    """Return True for the result of the run with these settings."""
    words = str(result["command"]).split()
    return all(word in words for word in line.split())
