"""Statistics of the translations of runs, and a check that they belong to the scores of the run."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from seq2seq.metrics.scorers import TOKENIZERS, bleu_counts, bleu_of_counts
from seq2seq.runs.folder import SIDES
from seq2seq.runs.results import CollectedRuns, RunResult, Unusable

# Scores are compared to two decimal places, as they are printed.
TOLERANCE = 0.005


def own_translations(runs: Sequence[RunResult]) -> CollectedRuns:
    """Leave out the test translations that do not belong to the scores of their runs.

    Another program may have replaced them.

    Returns:
        All runs, some without translations, and the reasons.
    """
    checked, reasons = [], []
    for run in runs:
        texts: dict[str, list[str]] = {side: [] for side in SIDES}
        read = dataclasses.replace(run, texts=texts)
        try:
            # Each file is read once, and each table takes the lines from here
            for side in SIDES:
                texts[side] = run.test_lines(side)
            if read.translated:
                check_translations(read)
        except ValueError as error:
            reasons.append(Unusable(f"translations of {run.name}", f"{error}; {translate_again(run, 'test')}"))
            texts["hyp"] = []
        checked.append(read)
    return CollectedRuns(checked, reasons)


def check_translations(run: RunResult) -> None:
    """Raise ValueError unless a run's translations fit its test set and have the BLEU of its results."""
    counts = {side: len(lines) for side in SIDES if (lines := run.test_lines(side))}
    if len(set(counts.values())) > 1:
        raise ValueError(", ".join(f"test.{side} has {count:,} lines" for side, count in counts.items()))
    found, recorded = bleu(run), run.score("test", "bleu")
    if abs(found - recorded) > TOLERANCE:
        raise ValueError(f"test.hyp has {found:.4f} BLEU, and results.json says {recorded:.4f}")


def translate_again(run: RunResult, name: str, *data: str) -> str:
    """Return the command that writes `<name>.hyp`, or say that the run has no checkpoint to translate with.

    Args:
        data: Options of the data set; none for the run's own.
    """
    if not run.folder.best.is_file():
        return "its folder has no checkpoint that could translate"
    words = ["--ckpt", str(run.folder.best), *data, "--save", str(run.folder.path / f"{name}.hyp")]
    return f"python -m seq2seq.score {shlex.join(words)}"


def bleu(run: RunResult) -> float:
    """Return the BLEU of a run's translations."""
    return float(bleu_of_counts(sentence_counts(run).sum(0)))


def sentence_counts(run: RunResult) -> np.ndarray:
    """Return the `bleu_counts` of a run's translations, which are computed once."""
    return _counts(tuple(run.test_lines("hyp")), tuple(run.test_lines("ref")), **scoring(run))


@functools.cache
def _counts(hypotheses: tuple[str, ...], references: tuple[str, ...], **settings: Any) -> np.ndarray:
    return bleu_counts(hypotheses, references, **settings)


def scoring(run: RunResult) -> dict[str, Any]:
    """Return the tokenizer and the case of a run's BLEU, as keyword arguments of `scorers.bleu`."""
    # sacreBLEU's signature reads `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...`
    words = (run.signatures("test") or [""])[0].split("|")
    values = dict(word.split(":", 1) for word in words if ":" in word)
    named = values.get("tok", "13a")
    # Some tokenizers have a version in the signature: ja-mecab-0.996-IPA
    fitting = [name for name in TOKENIZERS if named == name or named.startswith(f"{name}-")]
    return {"tokenize": max(fitting, key=len, default=named), "lowercase": values.get("case") == "lc"}
