"""Score runs with COMET, in a separate Python environment."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from seq2seq.comparison import comet_worker
from seq2seq.runs.folder import SIDES
from seq2seq.runs.results import RunResult

# Source, reference and translation, in the order of SIDES.
Row = tuple[str, str, str]


def with_comet(runs: Sequence[RunResult], python: str, model: str) -> list[RunResult]:
    """Add COMET, times 100, to the test scores of the runs that saved their translations.

    Args:
        python: The interpreter of an environment with COMET.
        model: Name of a model, or path of its checkpoint.

    Raises:
        ValueError: There is no such interpreter, it has no COMET, or COMET fails.
    """
    sides = [[run.test_lines(side) for side in SIDES] for run in runs]
    texts: list[list[Row]] = [list(zip(*each, strict=True)) if all(each) else [] for each in sides]
    # Score equal rows once; pooled sets repeat rows
    rows = list(dict.fromkeys(row for text in texts for row in text))
    scores = dict(zip(rows, _scores(rows, python, model), strict=True))
    scored = []
    for run, text in zip(runs, texts, strict=True):
        test = dict(run.results["test"])
        if text:
            test["comet"] = 100 * statistics.fmean(scores[row] for row in text)
        scored.append(dataclasses.replace(run, results=run.results | {"test": test}))
    return scored


def _scores(rows: Sequence[Row], python: str, model: str) -> list[float]:
    """Score rows with `comet_worker`, in a process of the other interpreter."""
    if not rows:
        return []
    named = [{"src": src, "mt": translation, "ref": ref} for src, ref, translation in rows]
    # -I: import only from the interpreter's environment, not from the worker's folder
    command = [python, "-I", str(Path(comet_worker.__file__))]
    try:
        done = subprocess.run(
            command, input=json.dumps({"model": model, "rows": named}), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ValueError(f"--comet-python {python} cannot be run: {error.strerror}") from None
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == comet_worker.NO_COMET:
        # COMET pins an old torchmetrics, which needs pkg_resources
        remedy = f"{python} -m pip install unbabel-comet 'setuptools<81'"
        raise ValueError(f"--comet-python {python} has no COMET ({last}): {remedy}")
    if done.returncode:
        raise ValueError(f"COMET failed with exit status {done.returncode}: {last}")
    return json.loads(done.stdout)["scores"]
