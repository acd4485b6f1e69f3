"""Summarize a run in a few lines for the end of its log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from seq2seq.runs.folder import RunFolder, translate_command
from seq2seq.settings.values import clock


def summary(folder: RunFolder, results: Mapping[str, Any], *, trust: Sequence[str] = ()) -> str:
    """Return scores, training, time, model and the next commands of a finished run, from its results.json."""
    known = [(split, results[split]) for split in ("test", "valid") if "bleu" in results.get(split, {})]
    scores = [f"{split} BLEU {found['bleu']:.2f} chrF {found['chrf']:.2f}" for split, found in known]
    best = f"{folder.best.relative_to(folder.path)} of update {results['best_step']:,}"
    test = f", {clock(results['test_seconds'])} for the test" if "test_seconds" in results else ""
    rate = f"{results['target_tokens_per_second']:,.0f} target tokens/s on {results['accelerator']}"
    # A user's callback may have stopped the run
    ended = "callbacks" if results["ended_by"] == "callbacks" else f"trainer.{results['ended_by']}"
    translate = translate_command(folder.path, trust=trust)
    # A stream has no epochs
    epochs = f"{results['epochs']:.2f} epochs, " if results["epochs"] else ""
    lines = [
        ("scores", f"{', '.join(scores)} ({best})"),
        ("training", f"{results['steps']:,} updates, {epochs}ended by {ended}"),
        ("time", f"{clock(results['seconds'])} of training and validation{test}; {rate} ({results['precision']})"),
        ("model", f"{results['parameters']:,} parameters, {results['mixer']}"),
        ("next", translate),
        # Both have the same options
        ("", translate.replace("seq2seq.translate", "seq2seq.score", 1)),
        ("", shlex.join(["python", "-m", "seq2seq.compare", str(folder.path.parent)])),
    ]
    return "\n".join([f"results: {folder.results}", *(f"  {name:<9} {text}" for name, text in lines)])
