"""Kept runs of a question of docs/benchmark.md on Multi30k: scores, contrasts by the protocol's rules, and tables."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.cells import MARGIN, PairDifference, compare_pairs, flops, interval, millions, spread
from seq2seq.comparison.bootstrap import resample_seeds, resample_sentences
from seq2seq.comparison.estimates import LEVEL, fit, holm, mean, p_text
from seq2seq.comparison.letters import letters
from seq2seq.data.text_files import read_lines
from seq2seq.evaluation.scoring import read_text
from seq2seq.metrics.moses_bleu import convention_bleu
from seq2seq.metrics.scorers import bleu_counts, bleu_of_counts
from seq2seq.runs.results import RunResult, collect, read_metrics
from seq2seq.system.markdown import markdown_table

RESULTS = Path(__file__).resolve().parent / "results"
SETS = ("test2016", "test2017", "test2017mscoco")
# All test sets as one corpus
ALL = "all"
# Tokenized lower-cased BLEU of test2016, for comparison with papers
TOKENIZED = "tokenized, test2016"
# Ten times those of `seq2seq.compare`: the ends of an interval vary by 0.003 BLEU with the random numbers
_SAMPLES = 100_000

Pair = tuple[str, str]


class Contrast(NamedTuple):
    """A contrast of the protocol.

    Attributes:
        tested: The t tests over seeds.
        paired: p value of the paired t test of the two systems alone, adjusted like that of `tested`.
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


class Family(NamedTuple):
    """Contrasts that are corrected together.

    Attributes:
        pairs: The contrasts: of each pair the first minus the second.
        systems: The systems that estimate the noise; all of the question if empty.
        name: What the first column of the table has in place of a number.
    """

    pairs: Sequence[Pair]
    systems: Sequence[str] = ()
    name: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Kept runs of a task, whose names are `<task>-<system>-...`.

    Attributes:
        task: Folder of the runs in `benchmarks/results`. `scores.csv` has BLEU of each run, and `bootstrap.csv` the
            intervals of the contrasts: `write` makes both.
        language: The target language.
        systems: Names of the systems, in the order of the tables.
        families: The contrasts. A pair is in one family.
        file: Name of a file of translations, without ".hyp", by test set.
    """

    task: str
    language: str
    systems: Sequence[str]
    families: Sequence[Family]
    file: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """The folder of the kept runs."""
        return RESULTS / self.task

    @cached_property
    def runs(self) -> dict[str, list[RunResult]]:
        """The runs of each system, by seed."""
        found = sorted(collect([str(self.folder)], "test").runs, key=lambda run: run.seed)
        return {name: [run for run in found if run.name.split("-")[1] == name] for name in self.systems}

    def rows(self, name: str) -> list[dict[str, str]]:
        """Read a table of the folder."""
        with open(self.folder / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @property
    def _pairs(self) -> list[tuple[Family, Pair]]:
        return [(family, pair) for family in self.families for pair in family.pairs]

    @cached_property
    def _scores(self) -> list[dict[str, str]]:
        return self.rows("scores.csv")

    def scores(self, name: str = ALL) -> dict[str, dict[int, float]]:
        """Return BLEU by seed of each system on a test set, or on all of them as one corpus."""
        return {
            each: {int(row["seed"]): float(row[name]) for row in self._scores if row["system"] == each}
            for each in self.systems
        }

    def _scores_for(self, family: Family, name: str = ALL) -> dict[str, dict[int, float]]:
        """Return the scores of the systems that estimate the noise of a family."""
        return {each: self.scores(name)[each] for each in family.systems or self.systems}

    @cached_property
    def contrasts(self) -> dict[Pair, Contrast]:
        """The contrasts of all families."""
        resampled = {(row["system"], row["baseline"]): row for row in self.rows("bootstrap.csv")}
        found = {}
        for family in self.families:
            scores = self._scores_for(family)
            alone = [compare_pairs({name: scores[name] for name in pair}, [pair])[pair] for pair in family.pairs]
            paired = holm([each.estimate.p_value for each in alone])
            for (pair, tested), p_value in zip(compare_pairs(scores, family.pairs).items(), paired, strict=True):
                ends = float(resampled[pair]["low"]), float(resampled[pair]["high"])
                found[pair] = Contrast(tested, p_value, ends)
        return found

    def system_table(self) -> str:
        """Write the table of the systems, the best score first."""
        same = letters(fit(self.scores()))
        rows = []
        for name in sorted(self.runs, key=lambda name: -statistics.fmean(self.scores()[name].values())):
            group = self.runs[name]
            cells = [spread(list(self.scores()[name].values())), self.mean_interval(name), same.get(name, "")]
            cells += [f"{statistics.fmean(self.scores(each)[name].values()):.2f}" for each in (*SETS, TOKENIZED)]
            cells += [spread([run.results["valid"]["perplexity"] for run in group])]
            cells += [millions(group), f"{flops(group) / flops(self.runs['transformer']):.2f}"]
            cells += [f"{statistics.fmean(run.number('training_cpu_seconds') for run in group) / 60:.0f}"]
            rows.append([f"`{name}`", *cells])
        header = ["system", "BLEU", "95% interval", "letters", *SETS, TOKENIZED]
        header += ["validation perplexity", "parameters", "FLOPs of a token", "CPU minutes"]
        return markdown_table(header, rows, right=[name for name in header[1:] if name != "letters"])

    def contrast_table(self) -> str:
        """Write the table of the contrasts."""
        rows = []
        for family, pair in self._pairs:
            found = self.contrasts[pair]
            tested = found.tested
            cells = [f"{tested.estimate.value:+.2f}", interval(tested.estimate.interval), p_text(tested.p_value)]
            cells += [interval(found.bootstrap), p_text(tested.outside), p_text(found.paired), found.verdict]
            rows.append([family.name or str(len(rows) + 1), "`{}` - `{}`".format(*pair), *cells])
        header = ["", "contrast", "Δ BLEU", "95% interval", "p", "bootstrap interval", f"equivalence p (± {MARGIN})"]
        header += ["paired t test, p", "verdict"]
        return markdown_table(header, rows, right=header[2:-1])

    def set_table(self) -> str:
        """Write the contrasts on each test set."""
        rows = []
        for family, pair in self._pairs:
            cells = ["`{}` - `{}`".format(*pair)]
            for name in (*SETS, ALL):
                model = fit(self._scores_for(family, name))
                assert model is not None
                found = model.difference(*pair)
                cells.append(f"{found.value:+.2f} ({interval(found.interval)})")
            rows.append(cells)
        header = ["Δ BLEU", *SETS, ALL]
        return markdown_table(header, rows, right=header[1:])

    def seed_table(self) -> str:
        """Write BLEU of each run, on all test sets as one corpus."""
        seeds = sorted(self.scores()["transformer"])
        rows = [[f"`{name}`", *(f"{found[seed]:.2f}" for seed in seeds)] for name, found in self.scores().items()]
        header = ["BLEU", *(f"seed {seed}" for seed in seeds)]
        return markdown_table(header, rows, right=header[1:])

    def curve_table(self, updates: Sequence[int]) -> str:
        """Write the validation perplexity of each system as it trains, mean over seeds."""
        rows = []
        for name, group in self.runs.items():
            curves = [_curve(run) for run in group]
            means = (statistics.fmean(curve[step] for curve in curves) for step in updates)
            rows.append([f"`{name}`", *(f"{value:.3f}" for value in means)])
        header = ["validation perplexity after", *(f"{step:,}" for step in updates)]
        return markdown_table(header, rows, right=header[1:])

    def mean_interval(self, name: str) -> str:
        """Write the 95% interval of a system's mean on all test sets, from its own seeds; empty for one seed."""
        estimate = mean(list(self.scores()[name].values()))
        return "{:.2f} to {:.2f}".format(*estimate.interval) if estimate else ""

    def references(self, text: Path) -> dict[str, list[str]]:
        """Read the references of each test set from a folder with the text of Multi30k."""
        return {name: read_text(str(text / f"{name}.{self.language}"), warn=print) for name in SETS}

    def translations(self, run: RunResult, name: str) -> list[str]:
        """Read a run's translations of a test set."""
        return list(read_lines(run.folder.path / f"{self.file[name]}.hyp"))

    def write(self, text: Path) -> None:
        """Score the translations of all runs against the references in a folder, and resample them.

        Raises:
            ValueError: The score of a run's own test set is not the run's.
        """
        references = self.references(text)
        rows, counts = [], {}
        for name, group in self.runs.items():
            counts[name] = {}
            for run in group:
                found = {each: self.translations(run, each) for each in SETS}
                counted = {each: bleu_counts(found[each], references[each]) for each in SETS}
                counted[ALL] = np.concatenate(list(counted.values()))
                bleu = {each: float(bleu_of_counts(table.sum(0))) for each, table in counted.items()}
                if "test" in self.file.values() and abs(bleu[SETS[0]] - run.score("test", "bleu")) > 1e-6:
                    raise ValueError(f"{run.name}: BLEU is {bleu[SETS[0]]}, not {run.score('test', 'bleu')}")
                bleu[TOKENIZED] = convention_bleu(
                    found[SETS[0]], references[SETS[0]], convention="tokenized", lang=self.language, lowercase=True
                ).value
                counts[name][run.seed] = [counted[ALL]]
                rows.append([name, run.seed, *(f"{score:.4f}" for score in bleu.values())])
        self.write_rows("scores.csv", [["system", "seed", *SETS, ALL, TOKENIZED], *rows])
        pairs = [pair for _, pair in self._pairs]
        resampled = resample_sentences(counts, _SAMPLES) if pairs else {}
        ends = [resample_seeds(*(resampled[name] for name in pair)).interval for pair in pairs]
        rows = [[*pair, *(f"{end:.5f}" for end in both)] for pair, both in zip(pairs, ends, strict=True)]
        self.write_rows("bootstrap.csv", [["system", "baseline", "low", "high"], *rows])

    def write_rows(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        """Write a table of the folder."""
        with open(self.folder / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def command(
    name: str, doc: str | None, writes: Sequence[Callable[[Path], None]], argv: Sequence[str] | None = None
) -> int:
    """Run the command of a question's module: write its tables from the text of Multi30k."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="folder with the text of Multi30k in the target language")
    text = parser.parse_args(argv).text
    for write in writes:
        write(text)
    return 0


def _curve(run: RunResult) -> dict[int, float]:
    rows = read_metrics(run.folder.path / "metrics.csv")[1]
    return {int(row["step"]): float(row["val/perplexity"]) for row in rows if row["val/perplexity"]}
