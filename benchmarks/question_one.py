"""Question 1 of docs/benchmark.md: the tables of its runs, for `benchmarks.tables`.

    python -m benchmarks.question_one multi30k

The command scores the kept translations against the references in that folder. It writes scores.csv and words.csv, from
which the tables are computed: BLEU of each run on each test set and on all sets as one corpus, and F1 of words by their
frequency in train.fr. Intervals of the bootstrap are read from comparison-differences.csv and
secondary-differences.csv, which `seq2seq.compare` wrote.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import sacrebleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from benchmarks.cells import MARGIN, PairDifference, compare_pairs, flops, interval, millions, spread
from seq2seq.comparison.estimates import LEVEL, fit, mean, p_text
from seq2seq.comparison.letters import letters
from seq2seq.data.text_files import read_lines
from seq2seq.evaluation.scoring import read_text
from seq2seq.runs.results import RunResult, collect, read_metrics
from seq2seq.system.markdown import markdown_table

FOLDER = Path(__file__).resolve().parent / "results/q1_en_fr"
# The systems, and their labels in the tables of `seq2seq.compare`
SYSTEMS = {
    "transformer": "transformer",
    "transformer_deep": "transformer mixer.extra_encoder_layers=1",
    "rotary": "rotary",
    "relative_bias": "relative_bias",
    "lightconv": "lightconv mixer.extra_encoder_layers=1",
    "lightconv_shallow": "lightconv mixer.extra_encoder_layers=0",
}
# Descriptions of the systems whose depth is the subject
KINDS = {
    "transformer_deep": "the same, one more encoder layer",
    "lightconv": "convolution, fixed kernels, one more encoder layer",
    "lightconv_shallow": "the same at the Transformer's depth",
}
PRIMARY = [
    ("rotary", "transformer"),
    ("transformer_deep", "transformer"),
    ("lightconv_shallow", "transformer"),
    ("rotary", "lightconv"),
]
SECONDARY = [("lightconv", "transformer_deep")]
# Test sets by the names of their translations, and all of them as one corpus
SETS = {"test": "test2016", "test2017": "test2017", "test2017mscoco": "test2017mscoco"}
ALL = "all"
# How often training has a word: the lowest frequency of each class
_FREQUENCIES = {"unseen": 0, "1 to 5": 1, "6 to 100": 6, "more": 101}
# Updates whose validation the table of convergence shows
_UPDATES = (256, 512, 1024, 1280, 1408, 1536, 1600)


class Contrast(NamedTuple):
    """A contrast of the protocol.

    Attributes:
        tested: The t tests over seeds.
        paired: p value of the paired t test of the two systems alone.
        bootstrap: 95% interval of the bootstrap over seeds and sentences.
    """

    tested: PairDifference
    paired: float
    bootstrap: tuple[float, float]

    @property
    def verdict(self) -> str:
        """ "better", "worse", "equal" or "open", by the rules of the protocol."""
        low, high = self.bootstrap
        if self.tested.p_value < LEVEL and (low > 0 or high < 0):
            return "better" if low > 0 else "worse"
        return "equal" if self.tested.outside < LEVEL else "open"


@cache
def runs() -> dict[str, list[RunResult]]:
    """Return the kept runs of each system, by seed."""
    found = sorted(collect([str(FOLDER)], "test").runs, key=lambda run: run.seed)
    # The second word of a run's name is its system
    return {name: [run for run in found if run.name.split("-")[1] == name] for name in SYSTEMS}


def _rows(name: str) -> list[dict[str, str]]:
    """Read a table of the folder."""
    with open(FOLDER / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def scores(name: str) -> dict[str, dict[int, float]]:
    """Return BLEU by seed of each system on a test set, or on all of them."""
    rows = _rows("scores.csv")
    return {each: {int(row["seed"]): float(row[name]) for row in rows if row["system"] == each} for each in SYSTEMS}


@cache
def contrasts() -> dict[tuple[str, str], Contrast]:
    """Test the primary contrasts, corrected together, and the secondary one."""
    found = {}
    for pairs, path in ((PRIMARY, "comparison-differences.csv"), (SECONDARY, "secondary-differences.csv")):
        pooled = [row for row in _rows(path) if row["set"].count("+") == len(SETS) - 1]
        resampled = {(row["group"], row["baseline"]): row for row in pooled}
        for pair, tested in compare_pairs(scores(ALL), pairs).items():
            two = fit({name: scores(ALL)[name] for name in pair})
            assert two is not None
            row = resampled[SYSTEMS[pair[0]], SYSTEMS[pair[1]]]
            ends = float(row["bootstrap_low"]), float(row["bootstrap_high"])
            found[pair] = Contrast(tested, two.difference(*pair).p_value, ends)
    return found


def system_table() -> str:
    """Write the table of the systems."""
    same = letters(fit(scores(ALL)))
    rows = []
    for name, group in runs().items():
        cells = [spread(list(scores(ALL)[name].values())), _mean_interval(name), same[name]]
        cells += [f"{statistics.fmean(scores(each)[name].values()):.2f}" for each in SETS.values()]
        tests = [run.results["test"] for run in group]
        cells += [f"{statistics.fmean(test['convention']['value'] for test in tests):.2f}"]
        cells += [spread([run.results["valid"]["perplexity"] for run in group])]
        cells += [millions(group), f"{flops(group) / flops(runs()['transformer']):.2f}"]
        cells += [f"{statistics.fmean(run.number('training_cpu_seconds') for run in group) / 60:.0f}"]
        rows.append([f"`{name}`", *cells])
    header = ["system", "BLEU", "95% interval", "letters", *SETS.values(), "tokenized, test2016"]
    header += ["validation perplexity", "parameters", "FLOPs of a token", "CPU minutes"]
    return markdown_table(header, rows, right=[name for name in header[1:] if name != "letters"])


def contrast_table() -> str:
    """Write the table of the contrasts."""
    rows = []
    for number, ((one, other), found) in enumerate(contrasts().items(), 1):
        tested = found.tested
        cells = [f"{tested.estimate.value:+.2f}", interval(tested.estimate.interval), p_text(tested.p_value)]
        cells += [interval(found.bootstrap), p_text(tested.outside), p_text(found.paired), found.verdict]
        which = str(number) if (one, other) in PRIMARY else "secondary"
        rows.append([which, f"`{one}` - `{other}`", *cells])
    header = ["", "contrast", "Δ BLEU", "95% interval", "p", "bootstrap interval", f"equivalence p (± {MARGIN})"]
    header += ["paired t test, p", "verdict"]
    return markdown_table(header, rows, right=header[2:-1])


def set_table() -> str:
    """Write the contrasts on each test set."""
    rows = []
    for pair in contrasts():
        cells = [f"`{pair[0]}` - `{pair[1]}`"]
        for name in (*SETS.values(), ALL):
            model = fit(scores(name))
            assert model is not None
            found = model.difference(*pair)
            cells.append(f"{found.value:+.2f} ({interval(found.interval)})")
        rows.append(cells)
    header = ["Δ BLEU", *SETS.values(), "all"]
    return markdown_table(header, rows, right=header[1:])


def length_table() -> str:
    """Write BLEU by the length of the source, on all test sets, from comparison.md."""
    text = (FOLDER / "comparison.md").read_text("utf-8").rpartition("BLEU by length of the source:")[2]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = {label: f"`{name}`" for name, label in SYSTEMS.items()}
    return markdown_table(header, [[names.get(first, first), *rest] for first, *rest in rows], right=header[1:])


def word_table() -> str:
    """Write F1 of words by their frequency in training, over all seeds."""
    cells = {(row["system"], row["set"], row["frequency"]): f"{float(row['f1']):.1f}" for row in _rows("words.csv")}
    columns = [(name, frequency) for name in SETS.values() for frequency in _FREQUENCIES]
    header = ["F1 of words", *(f"{name}: {frequency}" for name, frequency in columns)]
    return markdown_table(
        header, [[f"`{name}`", *(cells[name, *each] for each in columns)] for name in SYSTEMS], right=header[1:]
    )


def seed_table() -> str:
    """Write BLEU of each run, on all test sets as one corpus."""
    seeds = sorted(scores(ALL)["transformer"])
    rows = [[f"`{name}`", *(f"{found[seed]:.2f}" for seed in seeds)] for name, found in scores(ALL).items()]
    header = ["BLEU", *(f"seed {seed}" for seed in seeds)]
    return markdown_table(header, rows, right=header[1:])


def curve_table() -> str:
    """Write the validation perplexity of each system as it trains, mean over seeds."""
    rows = []
    for name, group in runs().items():
        curves = [_curve(run) for run in group]
        rows.append([f"`{name}`", *(f"{statistics.fmean(curve[step] for curve in curves):.3f}" for step in _UPDATES)])
    header = ["validation perplexity after", *(f"{step:,}" for step in _UPDATES)]
    return markdown_table(header, rows, right=header[1:])


def _curve(run: RunResult) -> dict[int, float]:
    rows = read_metrics(run.folder.path / "metrics.csv")[1]
    return {int(row["step"]): float(row["val/perplexity"]) for row in rows if row["val/perplexity"]}


def of_system(name: str) -> str:
    """Write the mean of a system on all test sets, with its interval, for its mixer's card."""
    bleu = scores(ALL)[name].values()
    found = f"{statistics.fmean(bleu):.2f}, {_mean_interval(name)}"
    return f"{found} (question 1 of the benchmark, {len(bleu)} seeds)"


def _mean_interval(name: str) -> str:
    """Write the 95% interval of a system's mean on all test sets, from its own seeds."""
    estimate = mean(list(scores(ALL)[name].values()))
    assert estimate is not None
    low, high = estimate.interval
    return f"{low:.2f} to {high:.2f}"


def _translations(run: RunResult, file: str) -> list[str]:
    return list(read_lines(run.folder.path / f"{file}.hyp"))


def write_words(text: Path) -> None:
    """Write words.csv: F1 of words by frequency in training, seeds together.

    Words are those of sacreBLEU's 13a in lower case, counted sentence by sentence.

    Reference: Neubig et al. 2019, compare-mt, A Tool for Holistic Comparison of Language Generation Systems.
    """
    cut = Tokenizer13a()

    def counted(line: str) -> Counter[str]:
        return Counter(cut(line).lower().split())

    trained = sum(map(counted, read_text(str(text / "train.fr"), warn=print)), Counter[str]())
    lowest = list(_FREQUENCIES.values())
    rows = []
    for file, name in SETS.items():
        references = list(map(counted, read_text(str(text / f"{name}.fr"), warn=print)))
        for each, group in runs().items():
            matched, of_both = Counter[int](), Counter[int]()
            for run in group:
                for found, reference in zip(map(counted, _translations(run, file)), references, strict=True):
                    for words, counts in ((found & reference, matched), (found, of_both), (reference, of_both)):
                        for word, number in words.items():
                            counts[bisect.bisect(lowest, trained[word]) - 1] += number
            f1 = [200 * matched[place] / of_both[place] for place in range(len(lowest))]
            rows += [[each, name, *row] for row in zip(_FREQUENCIES, (f"{value:.4f}" for value in f1), strict=True)]
    _write("words.csv", [["system", "set", "frequency", "f1"], *rows])


def write_scores(text: Path) -> None:
    """Score the translations of all runs against the references in a folder, and write scores.csv.

    Raises:
        ValueError: The score of test2016 is not the run's own.
    """
    references = {name: read_text(str(text / f"{name}.fr"), warn=print) for name in SETS.values()}
    references[ALL] = [line for name in SETS.values() for line in references[name]]
    rows = []
    for name, group in runs().items():
        for run in group:
            found = {each: _translations(run, file) for file, each in SETS.items()}
            found[ALL] = [line for each in SETS.values() for line in found[each]]
            bleu = {each: sacrebleu.corpus_bleu(found[each], [references[each]]).score for each in references}
            if abs(bleu["test2016"] - run.score("test", "bleu")) > 1e-6:
                raise ValueError(f"{run.name}: BLEU is {bleu['test2016']}, not {run.score('test', 'bleu')}")
            rows.append([name, run.seed, *(f"{score:.4f}" for score in bleu.values())])
    _write("scores.csv", [["system", "seed", *references], *rows])


def _write(name: str, rows: Sequence[Sequence[object]]) -> None:
    with open(FOLDER / name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Write scores.csv and words.csv."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.question_one",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", type=Path, help="folder with the French text of train and of the test sets")
    text = parser.parse_args(argv).text
    write_scores(text)
    write_words(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
