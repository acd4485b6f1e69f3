"""Score further test sets that runs have translated, each by itself and all together as one corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from seq2seq.comparison.translations import bleu, translate_again
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
        A result for each run and set, a result for each run on all its sets together, and the translations that are
        missing or do not fit.

    Raises:
        ValueError: A set has no files in the languages of a run, or is the run's own test set or another set.
    """
    # Keep the order of the sets
    found: dict[str, list[RunResult]] = {name: [] for name in (*sets, "")}
    unusable = []
    for run in runs:
        own = {side: run.test_lines(side) for side in SIDES}
        texts: dict[str, Text] = {}
        for name, prefix in sets.items():
            text = _text(run, name, prefix)
            if problem := _problem(name, text):
                unusable.append(Unusable(f"{run.name}, set {name}", f"{problem}; {_remedy(run, name, prefix)}"))
                continue
            # Tables are made by text: a copy of a set would be further rows of its table
            for other, theirs in {f"the test set of {run.name}": own, **texts}.items():
                if all(text[side] == theirs[side] for side in ("src", "ref")):
                    raise ValueError(f"--set {name}={prefix} has the sentences of {other}: leave --set {name} out")
            texts[name] = text
            found[name].append(_scored(run, name, text))
        if len(texts) == len(sets) and all(own.values()):
            together = {side: [line for text in (own, *texts.values()) for line in text[side]] for side in SIDES}
            found[""].append(_scored(run, " + ".join([run.config["data"]["name"], *texts]), together))
    return CollectedRuns([run for each in found.values() for run in each], unusable)


def _text(run: RunResult, name: str, prefix: str) -> Text:
    """Read a set and a run's translations of it; empty without translations."""
    path = run.folder.path / f"{name}.hyp"
    if not path.is_file():
        return {}
    data = run.config["data"]
    settings = CorpusSettings(src=str(data.get("src")), tgt=str(data.get("tgt")), test=prefix)
    try:
        source, target = map(Path, find_files("test", settings)[1])
    except ValueError as error:
        raise ValueError(f"--set {name}={prefix}: {str(error).removeprefix(f'data.test={prefix}: ')}") from None
    blocks = list(text_pairs(source, target))
    text = {side: [line for block in blocks for line in block[number]] for number, side in enumerate(("src", "ref"))}
    return text | {"hyp": list(read_lines(path))}


def _problem(name: str, text: Text) -> str:
    """Return what is wrong with the translations of a set; "" if they can be scored."""
    if not text:
        return f"has no {name}.hyp"
    lines, wanted = len(text["hyp"]), len(text["ref"])
    return "" if lines == wanted else f"{name}.hyp has {lines:,} lines, and the set {wanted:,}"


def _remedy(run: RunResult, name: str, prefix: str) -> str:
    languages = [f"{side}={run.config['data'].get(side)}" for side in ("src", "tgt")]
    return translate_again(run, name, "--data", "files", *languages, f"test={prefix}")


def _scored(run: RunResult, name: str, text: Text) -> RunResult:
    """Return the run with another test set, scored with the settings of the run's own set."""
    # The table is named after the set
    data = run.config["data"] | {"name": name}
    scored = dataclasses.replace(run, config=run.config | {"data": data}, texts=text)
    chrf = scorers.chrf(text["hyp"], text["ref"]).value
    scores = {"bleu": bleu(scored), "chrf": chrf, "signatures": run.signatures("test")}
    return dataclasses.replace(scored, results=run.results | {"test": scores})
