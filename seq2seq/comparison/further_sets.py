"""Score further test sets that runs have translated, each by itself and all together as one corpus."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from seq2seq.comparison.significance import scoring
from seq2seq.data.readers import text_pairs
from seq2seq.data.split_files import find_files
from seq2seq.data.text_files import read_lines
from seq2seq.metrics import scorers
from seq2seq.runs.folder import SIDES
from seq2seq.runs.results import CollectedRuns, RunResult, Unusable
from seq2seq.settings.data import CorpusSettings

# Lines by side: sources, references and translations.
Text = Mapping[str, list[str]]


def further_sets(runs: Sequence[RunResult], sets: Mapping[str, str]) -> CollectedRuns:
    """Score the translations of further test sets, and of all test sets of a run joined into one.

    Args:
        runs: Runs with scores of their own test sets.
        sets: Prefix of each set's two files, as in `data.test`, by the set's name. A run's folder has the translations
            in `<name>.hyp`.

    Returns:
        A result for each run and set, a result for each run on all its sets together, and the missing translations.

    Raises:
        ValueError: A set has no files in the languages of a run, or their numbers of lines differ.
    """
    # Keep the order of the sets
    found: dict[str, list[RunResult]] = {name: [] for name in (*sets, "")}
    missing = []
    for run in runs:
        texts = {name: text for name, prefix in sets.items() if (text := _text(run, name, prefix))}
        lacking = [name for name in sets if name not in texts]
        missing += [Unusable(f"{run.name}, set {name}", _remedy(run, name, sets[name])) for name in lacking]
        for name, text in texts.items():
            found[name].append(_scored(run, name, text))
        own = {side: run.test_lines(side) for side in SIDES}
        if len(texts) == len(sets) and all(own.values()):
            together = {side: [line for text in (own, *texts.values()) for line in text[side]] for side in SIDES}
            found[""].append(_scored(run, " + ".join([run.config["data"]["name"], *texts]), together))
    return CollectedRuns([run for each in found.values() for run in each], missing)


def _text(run: RunResult, name: str, prefix: str) -> Text | None:
    """Read a set and a run's translations of it; None without translations."""
    path = run.folder.path / f"{name}.hyp"
    if not path.is_file():
        return None
    data = run.config["data"]
    settings = CorpusSettings(src=str(data.get("src")), tgt=str(data.get("tgt")), test=prefix)
    try:
        source, target = map(Path, find_files("test", settings)[1])
    except ValueError as error:
        raise ValueError(f"--set {name}={prefix}: {str(error).removeprefix(f'data.test={prefix}: ')}") from None
    blocks = list(text_pairs(source, target))
    text = {side: [line for block in blocks for line in block[number]] for number, side in enumerate(("src", "ref"))}
    text["hyp"] = list(read_lines(path))
    if len(text["hyp"]) != len(text["ref"]):
        raise ValueError(f"{path} has {len(text['hyp']):,} lines, but {target} has {len(text['ref']):,}")
    return text


def _remedy(run: RunResult, name: str, prefix: str) -> str:
    data = [f"{side}={run.config['data'].get(side)}" for side in ("src", "tgt")]
    words = ["--ckpt", str(run.folder.best), "--data", "files", *data, f"test={prefix}"]
    save = ["--save", str(run.folder.path / f"{name}.hyp")]
    return f"has no {name}.hyp: python -m seq2seq.score {shlex.join([*words, *save])}"


def _scored(run: RunResult, name: str, text: Text) -> RunResult:
    """Return the run with another test set, scored with the settings of the run's own set."""
    scores = {
        "bleu": scorers.bleu(text["hyp"], text["ref"], **scoring(run)).value,
        "chrf": scorers.chrf(text["hyp"], text["ref"]).value,
        "signatures": run.signatures("test"),
    }
    # The table is named after the set
    data = run.config["data"] | {"name": name}
    results = run.results | {"test": scores}
    return dataclasses.replace(run, config=run.config | {"data": data}, results=results, texts=text)
