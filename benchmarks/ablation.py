"""The ablations of Wu et al. 2019 (table 3): our rows in their order, next to the published figures.

    python -m seq2seq.train -m experiment=ablation_wu seed=1,2,3 ...
    python -m benchmarks.ablation runs/sweeps/<date> --out ablation

prints the table, and with --out writes ablation.md and ablation.json. If several sweeps have a row and seed, the last
one counts, so that a sweep can be repeated with resume=auto or row by row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import harness
from benchmarks.comparable import require_comparable
from seq2seq.comparison.estimates import fit
from seq2seq.comparison.table import mean_and_deviation
from seq2seq.runs.results import RunResult, Unusable, read_run
from seq2seq.settings.run import RunSettings
from seq2seq.sweeps.job_records import Job, is_sweep, read_jobs
from seq2seq.system.markdown import markdown_table

# The setting that chooses a row, and the default seed.
KEY = "experiment/wu_table3"
SEED = RunSettings().seed


class Score(NamedTuple):
    """Published mean of BLEU and its standard deviation over seeds, or the difference of two such means."""

    mean: float
    deviation: float

    def minus(self, other: Score) -> Score:
        """Return the difference of two independent means."""
        return Score(self.mean - other.mean, math.hypot(self.deviation, other.deviation))


class Row(NamedTuple):
    """A row of the paper's table.

    Attributes:
        name: Its file in conf/experiment/wu_table3.
        label: Its text in the paper, with K taps and H heads.
        against: The row from which it differs in one respect, "" for the first.
        millions: Published parameters; None for a row that the paper does not have.
        bleu: Published BLEU; None where training diverged or no score is published.
    """

    name: str
    label: str
    against: str
    millions: int | None
    bleu: Score | None


# Wu et al. 2019, table 3: WMT English-German, newstest2013, size big, a joint vocabulary of 32k pieces. Figures are
# quoted from a transcription of the table, except for the two AAN rows and all speeds, which are from memory.
ROWS = (
    Row("attention", "self-attention", "", 210, Score(26.9, 0.1)),
    Row("windows", "self-attention in windows 3, 7, 15, 31, ...", "attention", 210, Score(26.9, 0.3)),
    Row("cnn", "CNN, K = 3", "attention", 208, Score(25.9, 0.2)),
    Row("depthwise", "CNN depthwise, K = 3", "cnn", 195, Score(26.1, 0.2)),
    Row("growing", "+ growing kernels 3, 7, 15, 31, ...", "depthwise", 195, Score(26.4, 0.2)),
    Row("dropconnect", "+ DropConnect", "growing", 195, Score(26.5, 0.2)),
    Row("sharing", "+ weight sharing, H heads", "dropconnect", 195, Score(26.5, 0.1)),
    Row("lightconv", "+ softmax = LightConv", "sharing", 195, Score(26.6, 0.2)),
    Row("dynamicconv", "+ dynamic weights = DynamicConv", "lightconv", 200, Score(26.9, 0.2)),
    Row("unnormalized", "DynamicConv without softmax", "dynamicconv", 200, None),
    Row("aan_decoder", "AAN decoder, self-attention encoder", "attention", 260, Score(26.8, 0.1)),
    Row("aan", "AAN decoder, AAN encoder", "aan_decoder", 310, Score(22.5, 0.1)),
    Row("glu", "DynamicConv with GLU (not in their table)", "dynamicconv", None, None),
)
# The row whose training diverged in the paper.
DIVERGED = "unnormalized"
SIGNIFICANT = 0.05
NOTES = """\
Δ: BLEU against the row that a row changes in one respect: the row above, but for CNN and the AAN decoder
(self-attention). p: t test between the scores of both rows, paired if they have the same seeds, not adjusted for the
number of rows; it needs two seeds. Theirs: Wu et al. 2019, table 3, size big, newstest2013. Direction: of the two Δ,
where p is below 0.05 and theirs is larger than its standard deviation.
"""


class Outcome(NamedTuple):
    """A row's jobs, one for each seed.

    Attributes:
        bleu: Test BLEU of the finished runs, by seed.
        parameters: Parameters of the model; nan if no run finished.
        errors: Reasons of the failed jobs by seed.
    """

    bleu: dict[str, float]
    parameters: float
    errors: dict[str, str]

    @property
    def diverged(self) -> int:
        """The number of jobs that ended because weights, losses or gradients were not finite."""
        return sum("diverged" in error or "not finite" in error for error in self.errors.values())

    def text(self) -> str:
        """Format BLEU, and how many jobs diverged or failed."""
        parts = [mean_and_deviation(list(self.bleu.values()))] if self.bleu else []
        total = len(self.bleu) + len(self.errors)
        for count, word in ((self.diverged, "diverged"), (len(self.errors) - self.diverged, "failed")):
            if count:
                parts.append(word if count == total else f"{word}: {count} of {total}")
        return ", ".join(parts)


NOTHING = Outcome({}, math.nan, {})


def outcomes(sweeps: Sequence[Path]) -> dict[str, Outcome]:
    """Read the outcome of each row in the sweeps; the last sweep with a row and seed counts.

    Raises:
        ValueError: A folder is not a sweep, no sweep has a row of the table, or the rows are not comparable.
    """
    jobs: dict[tuple[str, str], Job] = {}
    for sweep in sweeps:
        if not is_sweep(sweep):
            raise ValueError(f"{sweep} is not a sweep's folder, as runs/sweeps/<date> is")
        for job in read_jobs(sweep):
            settings = dict(word.split("=", 1) for word in job.overrides if "=" in word)
            if KEY in settings:
                jobs[settings[KEY], settings.get("seed", str(SEED))] = job.checked()
    if not jobs:
        raise ValueError(f"no job sets {KEY}: start the sweep with experiment=ablation_wu")
    runs = {
        key: read_run(job.run, "test") if job.state == "finished" and job.run else None for key, job in jobs.items()
    }
    require_comparable([run for run in runs.values() if isinstance(run, RunResult)], "test")
    return {
        row.name: _outcome({seed: (job, runs[name, seed]) for (name, seed), job in jobs.items() if name == row.name})
        for row in ROWS
    }


def _outcome(jobs: dict[str, tuple[Job, RunResult | Unusable | None]]) -> Outcome:
    bleu: dict[str, float] = {}
    errors: dict[str, str] = {}
    parameters = math.nan
    for seed, (job, found) in jobs.items():
        if isinstance(found, RunResult):
            bleu[seed] = found.score("test", "bleu")
            parameters = found.number("parameters")
        elif found is not None:
            errors[seed] = found.reason
        elif job.state == "failed":
            errors[seed] = job.error or job.state
        # Waiting and running jobs have no outcome
    return Outcome(bleu, parameters, errors)


def direction(ours: float | None, p: float | None, theirs: Score | None) -> str:
    """Compare our difference, with its p value, to a published one; "" if one is missing."""
    if ours is None or p is None or theirs is None:
        return ""
    if p >= SIGNIFICANT or abs(theirs.mean) <= theirs.deviation:
        return "within noise"
    return "same" if ours * theirs.mean > 0 else "opposite"


def cells(row: Row, found: dict[str, Outcome]) -> dict[str, str]:
    """Format a row of the table, by column."""
    outcome = found[row.name]
    published = {each.name: each.bleu for each in ROWS}
    scores, base = (each.bleu for each in (outcome, found.get(row.against, NOTHING)))
    ours = statistics.fmean(scores.values()) - statistics.fmean(base.values()) if scores and base else None
    model = fit({"row": scores, "base": base}) if scores and base else None
    p = model.difference("row", "base").p_value if model else None
    base_bleu = published.get(row.against)
    theirs = row.bleu.minus(base_bleu) if row.bleu and base_bleu else None
    millions = outcome.parameters / 1e6
    published_bleu = f"{row.bleu.mean:.1f} ± {row.bleu.deviation:.1f}" if row.bleu else ""
    return {
        "row": row.label,
        "parameters": "" if math.isnan(millions) else f"{millions:.2f}M",
        "BLEU": outcome.text(),
        "Δ": "" if ours is None else f"{ours:+.2f}",
        "p": "" if p is None else f"{p:.3f}",
        "their parameters": f"{row.millions}M" if row.millions else "",
        "their BLEU": "diverged" if row.name == DIVERGED else published_bleu,
        "their Δ": f"{theirs.mean:+.1f}" if theirs else "",
        "direction": _same_end(outcome) if row.name == DIVERGED else direction(ours, p, theirs),
    }


def _same_end(outcome: Outcome) -> str:
    """Compare the row that diverged in the paper: "same" if all our runs diverged, "opposite" if none did."""
    total = len(outcome.bleu) + outcome.diverged
    return {0: "opposite", total: "same"}.get(outcome.diverged, "mixed") if total else ""


def markdown(found: dict[str, Outcome]) -> str:
    """Format the table in the paper's order, with notes on its columns."""
    rows = [cells(row, found) for row in ROWS]
    header = list(rows[0])
    right = [name for name in header if name not in ("row", "direction")]
    table = markdown_table(header, [list(each.values()) for each in rows], right=right, padded=True) + "\n"
    return f"{table}\n{NOTES}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the sweeps, print the table, and write it with its figures."""
    parser = harness.parser_for("ablation", __doc__)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP", help="a sweep's folder")
    options = parser.parse_args(arguments)
    try:
        found = outcomes(options.sweeps)
    except ValueError as error:
        parser.error(str(error))
    table = markdown(found)
    print(table, end="")
    # Rows without runs have no parameters, and JSON has no nan
    plain = {name: outcome._asdict() for name, outcome in found.items() if outcome.bleu or outcome.errors}
    for figures in plain.values():
        figures["parameters"] = None if math.isnan(figures["parameters"]) else figures["parameters"]
    harness.write(options.out, "ablation", plain, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
