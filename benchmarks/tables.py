"""Write the tables of README.md and docs from the runs in benchmarks/results/kept, and docs/atlas/mixers.md.

    python -m benchmarks.tables            # rewrite the tables between the markers
    python -m benchmarks.tables --check    # exit status 1 if a byte differs

A table stands between `<!-- table NAME -->` and `<!-- end -->`. Only this program computes its figures and the figures
in the sentences next to it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import cards
from benchmarks.cells import MARGIN, PairDifference, compare_pairs, flops, interval, millions, spread
from seq2seq.comparison import estimates
from seq2seq.comparison.estimates import p_text
from seq2seq.comparison.groups import Group, group_runs, seed_means
from seq2seq.comparison.letters import letters
from seq2seq.runs.results import RunResult, collect
from seq2seq.system.files import write_text
from seq2seq.system.markdown import markdown_table

ROOT = Path(__file__).resolve().parent.parent
KEPT = "benchmarks/results/kept"
PAGES = ("README.md", "docs/results.md", "docs/cards.md", "docs/leaderboard.md")
BASELINE = "transformer"
# Revisions in which models of `bahdanau` had another initialization: before biases started at zero (76304ee)
_OTHER_BIASES = ("57cbd51f4b50", "7a508376cc88", "b8c784dd2508")
_KINDS = {
    "transformer": "attention, absolute positions",
    "rotary": "attention, rotated by positions",
    "relative_bias": "attention, a bias for each distance",
    "lightconv": "convolution, fixed kernels",
    "dynamicconv": "convolution, kernels made from the input",
    "multiscale": "convolutions of several widths",
    "separable": "learned matrices over positions",
    "bahdanau": "attention inside a recurrence",
}
_BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Corpus(NamedTuple):
    """Kept runs of one corpus.

    Attributes:
        folder: Their folder in `KEPT`.
        title: The corpus and its languages, as tables name them.
        label: Languages, as the table of the README names them.
    """

    folder: str
    title: str
    label: str

    @property
    def runs(self) -> list[RunResult]:
        """All kept runs, sorted by mixer and seed."""
        return _kept(self.folder)

    def groups(self) -> dict[str, dict[int, float]]:
        """Return BLEU by seed of each mixer of `_KINDS`, from runs with the settings of its preset."""
        runs = self.comparable().items()
        return {name: seed_means((run.seed, _score(run, "bleu")) for run in each) for name, each in runs}

    def comparable(self) -> dict[str, list[RunResult]]:
        """Return the runs that tables compare: with the experiment's settings and the present initialization."""
        found: dict[str, list[RunResult]] = {}
        for name in _KINDS:
            runs = [run for run in self.runs if run.mixer == name and not _variant(run)]
            if runs:
                found[name] = runs
        return found


FRENCH = Corpus("multi30k_en_fr", "Multi30k English-French", "English-French")
GERMAN = Corpus("multi30k", "Multi30k English-German", "English-German")
TATOEBA = Corpus("tatoeba", "Tatoeba German-English", "German-English")
RECIPE = Corpus("recipe", "Tatoeba German-English, how the recipe was found", "German-English")
TASKS = (FRENCH, GERMAN, TATOEBA)


@cache
def _kept(folder: str) -> list[RunResult]:
    collected = collect([str(ROOT / KEPT / folder)], "test")
    if collected.unusable:
        raise ValueError(f"{collected.unusable[0].name}: {collected.unusable[0].reason}")
    return sorted(collected.runs, key=lambda run: (run.mixer, run.seed, run.name))


def _variant(run: RunResult) -> str:
    """Describe how a run differs from its experiment and preset, or return ""."""
    parts = []
    if run.config["mixer"].get("extra_encoder_layers") == 0:
        parts.append("`mixer.extra_encoder_layers=0`")
    if run.config["model"]["dim"] != 128:
        parts.append(f"`model.dim={run.config['model']['dim']}`")
    if run.config["model"]["weight_dropout"] == 0:
        parts.append("`model.weight_dropout=0`")
    if run.config["optim"]["decay_share"] != 0.2:
        parts.append(f"`optim.decay_share={run.config['optim']['decay_share']}`")
    if run.mixer == "bahdanau" and run.results["git_revision"] in _OTHER_BIASES:
        parts.append("biases not started at zero")
    return ", ".join(parts)


def _score(run: RunResult, metric: str) -> float:
    """Return `bleu` or `chrf` of the test set, its `tokenized` BLEU, or the `perplexity` of the validation set."""
    if metric == "tokenized":
        return float(run.results["test"]["convention"]["value"])
    if metric == "perplexity":
        return float(run.results["valid"]["perplexity"])
    return run.score("test", metric)


def differences(corpus: Corpus) -> dict[tuple[str, str], PairDifference]:
    """Compare all pairs of mixers by t tests over seeds, as `letters` does."""
    return compare_pairs(corpus.groups(), [(one, other) for other, one in itertools.combinations(corpus.groups(), 2)])


def leads(corpus: Corpus) -> dict[str, PairDifference]:
    """Return the differences from the Transformer, by mixer."""
    return {one: found for (one, other), found in differences(corpus).items() if other == BASELINE}


def scores(corpus: Corpus) -> str:
    """Write the table of a corpus: scores of each mixer, and its difference from the Transformer."""
    against, same = leads(corpus), letters(estimates.fit(corpus.groups()))
    runs = corpus.comparable()
    tokenized = ["tokenized"] if "convention" in runs[BASELINE][0].results["test"] else []
    header = ["mixer", "seeds", "BLEU", "letters", *tokenized, "chrF", "validation perplexity"]
    header += ["Δ BLEU", "95% interval", "p, adjusted", "parameters", "FLOPs of a token"]
    rows = []
    for name, group in runs.items():
        bleu, *others = [spread([_score(run, m) for run in group]) for m in ("bleu", *tokenized, "chrf", "perplexity")]
        lead = against.get(name)
        shown = (
            [f"{lead.estimate.value:+.2f}", interval(lead.estimate.interval), p_text(lead.p_value)]
            if lead
            else ["", "", ""]
        )
        cells = [f"`{name}`", ", ".join(str(run.seed) for run in group), bleu, same.get(name, ""), *others, *shown]
        rows.append([*cells, millions(group), f"{flops(group) / flops(runs[BASELINE]):.2f}"])
    return markdown_table(header, rows, right=[name for name in header[2:] if name != "letters"])


def between(corpus: Corpus) -> str:
    """Write the differences between mixers other than the Transformer, with verdicts."""
    rows = []
    for (one, other), found in differences(corpus).items():
        if other != BASELINE:
            value = [f"{found.estimate.value:+.2f}", interval(found.estimate.interval)]
            tests = [p_text(found.p_value), p_text(found.outside), found.verdict]
            rows.append([f"`{one}` - `{other}`", *value, *tests])
    header = ["difference", "BLEU", "95% interval", "p, adjusted", f"equivalence p (± {MARGIN})", "verdict"]
    return markdown_table(header, rows, right=header[1:5])


def every_run(corpus: Corpus) -> str:
    """Write a line for each kept run of a corpus."""
    header = ["mixer", "differs in", "seed", "revision", "precision", "device", "updates"]
    header += ["BLEU", "chrF", "validation perplexity", "run"]
    rows = []
    for run in corpus.runs:
        results = run.results
        precision = results["precision"].removesuffix("-true").removesuffix("-mixed")
        where = [results["git_revision"][:7], precision, results["accelerator"], f"{results['steps']:,}"]
        differs = _command(run) if corpus == RECIPE else _variant(run)
        found = [f"{_score(run, metric):.2f}" for metric in ("bleu", "chrf", "perplexity")]
        rows.append([f"`{run.mixer}`", differs, str(run.seed), *where, *found, f"`{run.name.rpartition('-')[2]}`"])
    return markdown_table(header, rows, right=[header[2], *header[6:10]])


def _command(run: RunResult) -> str:
    """Return the settings of a run's command without its mixer, seed, text, validation and threads."""
    words = [word for word in shlex.split(run.results["command"])[3:] if "=" in word]
    left_out = re.compile(
        r"mixer|seed|data=|data\.(train|valid|test)|experiment|resume|trainer\.(val_|threads|max_steps)"
    )
    return ", ".join(f"`{word}`" for word in words if not left_out.match(word))


def _range(values: Iterable[float]) -> str:
    values = list(values)
    ends = dict.fromkeys(f"{end:.1f}" for end in (min(values), max(values)))
    return " to ".join(ends)


def _at_most(p_value: float) -> str:
    return p_text(p_value) if p_value < 0.001 else f"≤ {p_value:.3f}"


def answer() -> str:
    """Write the first answer of the README: five sentences and a table of four columns.

    Raises:
        ValueError: A sentence no longer holds for the kept runs.
    """
    french, tatoeba, german = leads(FRENCH), leads(TATOEBA), leads(GERMAN)
    firm = [lead for name, lead in french.items() if name != "bahdanau"] + list(tatoeba.values())
    if any(lead.verdict != "differ" or lead.estimate.value < 0 for lead in firm):
        raise ValueError("the first sentence of the README is not true of the kept runs: a lead is not significant")
    if any(lead.verdict == "differ" for lead in german.values()):
        raise ValueError("the fourth sentence of the README is not true: a lead into German is significant")
    for corpus in (FRENCH, TATOEBA):
        if not all("a" in letters(estimates.fit(corpus.groups()))[name] for name in ("lightconv", "dynamicconv")):
            raise ValueError(f"the second sentence of the README is not true of {corpus.title}")
    pairs = [differences(corpus)["dynamicconv", "lightconv"].estimate.interval for corpus in (FRENCH, TATOEBA)]
    error = [(high - low) / 2 for low, high in pairs]
    largest = max(run.results["parameters"] for corpus in (FRENCH, GERMAN, TATOEBA, RECIPE) for run in corpus.runs)
    leading = _range(lead.estimate.value for lead in firm)
    sentences = [
        "**No single one. In small models, convolutions, learned matrices over positions, and attention with relative "
        f"positions all translate better than attention with absolute positions**, by {leading} BLEU "
        f"([English-French captions]({KEPT}/{FRENCH.folder}), [German-English sentences]({KEPT}/{TATOEBA.folder}); "
        f"adjusted p {_at_most(max(lead.p_value for lead in firm))}).",
        "Which of them is best is open: LightConv and DynamicConv do not differ significantly from the best mixer of "
        f"either corpus. With three seeds, the 95% interval of a difference is ± {error[0]:.1f} BLEU (English-French) "
        f"or ± {error[1]:.1f} (German-English; [tables](docs/results.md)).",
        "Is it the convolution, or knowing relative positions? That is open, too: rotary and relative positions were "
        "trained on the German-English corpus only, and [the benchmark](docs/benchmark.md) that is to decide has not "
        "ended.",
        "On English-German captions these mixers lead the Transformer by "
        f"{_range(lead.estimate.value for lead in german.values())} BLEU, which is not significant with one to three "
        f"seeds ([runs]({KEPT}/{GERMAN.folder})).",
        f"Not tried: models of more than {largest / 1e6:.0f} million parameters, training to convergence with several "
        "seeds, long text, a learning rate and dropout chosen for each mixer at these budgets.",
    ]
    rows = []
    same = {corpus: letters(estimates.fit(corpus.groups())) for corpus in (FRENCH, TATOEBA)}
    runs = {corpus: corpus.comparable() for corpus in (FRENCH, TATOEBA)}
    for name, kind in _KINDS.items():
        groups = [runs[corpus].get(name, []) for corpus in (FRENCH, TATOEBA)]
        if not any(groups):
            continue
        cells = [f"`{name}`: {kind}"]
        for corpus, group in zip((FRENCH, TATOEBA), groups, strict=True):
            text = f"{spread([_score(run, 'bleu') for run in group])} {same[corpus][name]}" if group else ""
            cells.append(f"{text} ({len(group)} seeds)" if 0 < len(group) < 3 else text)
        sizes = sorted({millions(group) for group in groups if group})
        rows.append([*cells, ", ".join(reversed(sizes))])
    header = ["mixer", FRENCH.label, TATOEBA.label, "parameters"]
    table = markdown_table(header, rows, right=header[1:])
    note = (
        "sacreBLEU of the test set, mean ± standard deviation of three seeds. Rows of a column that share a letter do "
        "not differ significantly. The test sets were scored many times while the recipe was found. "
        f"{_other_precision(TATOEBA)}"
    )
    return "\n".join(f"{number}. {text}" for number, text in enumerate(sentences, 1)) + f"\n\n{table}\n\n{note}\n"


def _other_precision(corpus: Corpus) -> str:
    """Name the runs of a corpus whose precision differs from most."""
    groups = corpus.comparable()
    names = {"32-true": "float32", "bf16-mixed": "bf16"}
    of = {mixer: [names[run.results["precision"]] for run in group] for mixer, group in groups.items()}
    precisions = list(itertools.chain(*of.values()))
    usual = max(set(precisions), key=precisions.count)
    odd = {mixer: sum(each != usual for each in found) for mixer, found in of.items()}
    found = " and ".join(f"{count} of `{name}`" for name, count in odd.items() if count)
    other = ", ".join(sorted({*precisions} - {usual}))
    return f"{corpus.label}: {found} were trained in {other}, the others in {usual}." if found else ""


def by_seed(corpus: Corpus) -> str:
    """Write the differences of runs with one seed, and those of single runs of LightConv at equal depth."""
    by = corpus.groups()
    base = by.pop(BASELINE)
    rows = [[f"`{name}`", *_leads_by_seed(found, base)] for name, found in by.items()]
    for run in corpus.runs:
        if run.mixer == "lightconv" and "extra" in _variant(run):
            rows.append([f"`lightconv`, {_variant(run)}", *_leads_by_seed({run.seed: _score(run, "bleu")}, base)])
    header = ["Δ BLEU against the Transformer of the same seed", *(f"seed {seed}" for seed in sorted(base))]
    return markdown_table(header, rows, right=header[1:])


def _leads_by_seed(scores: Mapping[int, float], base: Mapping[int, float]) -> list[str]:
    return [f"{scores[seed] - base[seed]:+.2f}" if seed in scores else "" for seed in sorted(base)]


_PRESETS = {
    "depthwise convolutions": (
        "lightconv dynamicconv multiscale depthwise dynamic_depthwise inhomogeneous_depthwise talk"
    ),
    "attention with relative positions": "relative_bias relative local_bias quadratic rotary swin",
    "recurrences, with attention to the source": "gru lstm gated_delta",
    "MLPs over positions": "separable mlp lowrank_mlp gmlp local_mlp full_mlp",
    "attention with absolute positions": (
        "transformer qk_norm nonlocal grouped_query linear_attention relu_attention pyramid"
    ),
    "windows, a full kernel, retention": "local local_blocks conv retention",
    "additive attention inside a recurrence": "bahdanau coverage",
    "attention by products inside a recurrence": "luong luong_local",
    "cross mixers that read the source by position": "cross_lightconv cross_dynamicconv fixed_gaussian",
    "no mixing but attention to the source": "identity",
    "no attention at all": "encoder_decoder",
}


def presets() -> str:
    """Write the ranges of groups of presets, from the table of docs/atlas/mixers.md."""
    lines = (ROOT / "docs/atlas/mixers.md").read_text("utf-8").splitlines()[2:]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = {name: (float(bleu), float(perplexity)) for name, bleu, _, perplexity, *_ in cells}
    rows = []
    for title, names in _PRESETS.items():
        scored = [found[name] for name in names.split()]
        ranges = [_range(values) for values in zip(*scored, strict=True)]
        rows.append([title, ", ".join(f"`{name}`" for name in names.split()), *ranges])
    header = ["group", "presets", "BLEU", "perplexity"]
    return markdown_table(header, rows, right=header[2:])


def _mean_interval(values: Sequence[float], groups: Sequence[Sequence[float]]) -> str:
    """Write the 95% interval of a mean, from the standard deviation pooled over all groups of a task."""
    several = [each for each in groups if len(each) > 1]
    freedom = sum(len(each) - 1 for each in several)
    if not freedom:
        return ""
    variance = sum(statistics.variance(each) * (len(each) - 1) for each in several) / freedom
    error = math.sqrt(variance / len(values))
    interval = estimates.Estimate(statistics.fmean(values), error, freedom).interval
    return " to ".join(f"{value:.2f}" for value in interval)


def tasks() -> list[Corpus]:
    """Return all folders of kept runs except the recipe's, whose runs have no common task."""
    known = {corpus.folder for corpus in (*TASKS, RECIPE)}
    others = sorted(path.name for path in (ROOT / KEPT).iterdir() if path.is_dir() and path.name not in known)
    return [*TASKS, *(Corpus(name, name, "") for name in others)]


@cache
def listed(corpus: Corpus) -> list[Group]:
    """Return the groups of a task's runs, which may differ in seed, precision and device."""
    # For a known task, only the runs of its experiment
    runs = [run for run in corpus.runs if corpus not in TASKS or not _variant(run)]
    return group_runs(runs, ignore=["trainer.precision", "trainer.accelerator"])


def of_mixer(name: str) -> str:
    """Write the means of a mixer on the tasks where it has kept runs, with their intervals."""
    found = []
    for corpus in tasks():
        scored = [_bleu(group) for group in listed(corpus)]
        for group, bleu in zip(listed(corpus), scored, strict=True):
            if group.mixer == name:
                seeds = "1 seed" if len(bleu) == 1 else f"{len(bleu)} seeds"
                where = " ".join(filter(None, [corpus.title, group.settings_text]))
                found.append(f"{statistics.fmean(bleu):.2f}, {_mean_interval(bleu, scored)} ({where}, {seeds})")
    return "; ".join(found)


def _bleu(group: Group) -> list[float]:
    return group.values("test", "bleu")


def leaderboard() -> str:
    """Write a table for each task with kept runs, the mixer with the best score first."""
    return "\n".join(f"## {each.title}\n\n`{KEPT}/{each.folder}`\n\n{board(each)}\n" for each in tasks())


def board(corpus: Corpus) -> str:
    """Write the table of a task."""
    scored = [_bleu(group) for group in listed(corpus)]
    same = letters(estimates.fit({group.label: group.by_seed("test", "bleu") for group in listed(corpus)}))
    rows = []
    for group in sorted(listed(corpus), key=lambda group: -statistics.fmean(_bleu(group))):
        bleu, seeds = _bleu(group), ", ".join(str(seed) for seed in group.by_seed("test", "bleu"))
        cells = [f"{statistics.fmean(bleu):.2f}", _mean_interval(bleu, scored), same.get(group.label, "")]
        cells += [f"{statistics.fmean(group.values('test', 'chrf')):.2f}", millions(group.runs)]
        revisions = sorted({str(run.results.get("git_revision"))[:7] for run in group.runs})
        rows.append([f"`{group.label}`", seeds, *cells, f"{group.mean('steps'):,.0f}", ", ".join(revisions)])
    header = ["mixer", "seeds", "BLEU", "95% interval", "letters", "chrF", "parameters", "updates", "revision"]
    return markdown_table(header, rows, right=[*header[2:4], *header[5:8]])


TABLES: Mapping[str, Callable[[], str]] = {
    "answer": answer,
    "french": lambda: scores(FRENCH),
    "french-differences": lambda: between(FRENCH),
    "tatoeba": lambda: scores(TATOEBA),
    "tatoeba-differences": lambda: between(TATOEBA),
    "tatoeba-seeds": lambda: by_seed(TATOEBA),
    "german": lambda: scores(GERMAN),
    "german-seeds": lambda: by_seed(GERMAN),
    "presets": presets,
    "runs-french": lambda: every_run(FRENCH),
    "runs-german": lambda: every_run(GERMAN),
    "runs-tatoeba": lambda: every_run(TATOEBA),
    "runs-recipe": lambda: every_run(RECIPE),
    "cards": lambda: cards.cards(of_mixer),
    "leaderboard": leaderboard,
}


def filled(text: str) -> str:
    """Return a page's text with each table as it is computed now.

    Raises:
        ValueError: A marker names no table.
    """

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in TABLES:
            raise ValueError(f"there is no table {name}; there are {', '.join(TABLES)}")
        return f"{begin}{TABLES[name]().rstrip()}\n{end}"

    return _BLOCK.sub(fill, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the tables, or compare them; exit status 1 if --check found a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a byte differs")
    options = parser.parse_args(argv)
    differing = False
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8")
        found = filled(text)
        if found == text:
            continue
        differing = True
        print(f"{name}: {'differs' if options.check else 'written'}")
        if not options.check:
            write_text(ROOT / name, found)
    return int(options.check and differing)


if __name__ == "__main__":
    raise SystemExit(main())
