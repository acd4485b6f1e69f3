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

from benchmarks import cards, question_one, question_two
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
    "transformer": "attention, absolute positions alone",
    "rotary": "attention, also rotated by positions",
    "relative_bias": "attention, also a bias for each distance",
    "lightconv": "convolution, learned kernels",
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
    first = question_one.QUESTION.contrasts
    positions, depth, convolution, between_them = (first[pair] for pair in question_one.PRIMARY.pairs)
    if [each.verdict for each in first.values()] != ["better", "equal", "better", "better", "better"]:
        raise ValueError("the first sentences of the README are not true of the runs of question 1")
    french, tatoeba, german = leads(FRENCH), leads(TATOEBA), leads(GERMAN)
    mixers = ("lightconv", "dynamicconv", "multiscale", "separable")
    firm = [*tatoeba.values(), *(french[name] for name in mixers)]
    if any(each.verdict != "differ" or each.estimate.value < 0 for each in firm):
        raise ValueError("the fourth sentence of the README is not true: a lead is not significant")
    if any(found.verdict != "open" for (_, other), found in differences(TATOEBA).items() if other != BASELINE):
        raise ValueError("the fourth sentence of the README is not true: mixers differ on Tatoeba")
    if any(each.verdict == "differ" for each in german.values()):
        raise ValueError("the fourth sentence of the README is not true: a lead into German is significant")
    longer = question_two.OURS
    if [each.verdict for each in longer.contrasts.values()] != ["open", "open", "open"]:
        raise ValueError("the last sentence of the README is not true of the runs of question 2")
    called = {"transformer": "the Transformer", "lightconv": "LightConv", "rotary": "rotary attention"}
    order = "; ".join(
        f"{called[one]} against {called[other]} {found.tested.estimate.value:+.1f} BLEU, interval over seeds and "
        f"sentences {interval(found.bootstrap)}, adjusted p = {p_text(found.tested.p_value)}"
        for (one, other), found in longer.contrasts.items()
    )
    runs = question_one.QUESTION.runs
    steps, seeds = runs[BASELINE][0].results["steps"], len(runs[BASELINE])
    largest = max(run.results["parameters"] for corpus in (FRENCH, GERMAN, TATOEBA, RECIPE) for run in corpus.runs)
    lead, third, over = (each.tested for each in (positions, convolution, between_them))
    earlier = [each.estimate.value for each in tatoeba.values()]
    scores = question_one.QUESTION.scores()
    same = letters(estimates.fit(scores))
    behind = statistics.fmean(scores["rotary"].values()) - statistics.fmean(scores["relative_bias"].values())
    if behind < 0 or not set(same["rotary"]) & set(same["relative_bias"]):
        raise ValueError("the first sentence of the README is not true: a bias for each distance differs")
    sentences = [
        "**Rotary attention is better than attention with absolute positions alone**, by "
        f"{lead.estimate.value:.1f} BLEU (95% interval over seeds and sentences {interval(positions.bootstrap)}; "
        f"adjusted p {_at_most(lead.p_value)}). A bias for each distance scores {behind:.1f} less than rotary "
        f"attention: no significant difference. English-French captions of Multi30k, {millions(runs['rotary'])} "
        f"parameters, {steps:,} updates, {seeds} seeds, [rules written before the runs](docs/benchmark.md).",
        "**LightConv is better than absolute positions, too.** At equal depth it leads the Transformer by "
        f"{third.estimate.value:.1f} BLEU (adjusted p {_at_most(third.p_value)}). Rotary attention leads LightConv, "
        f"which has its usual extra layer, by {over.estimate.value:.1f}, at the edge of the rules: adjusted p = "
        f"{p_text(over.p_value)}, but the interval over seeds and sentences begins at "
        f"{between_them.bootstrap[0]:+.2f}, and a paired t test of these two systems alone gives adjusted p = "
        f"{between_them.paired:.2f}. [Another dropout](docs/benchmark.md#the-grid) may change their order.",
        "**An extra encoder layer, which LightConv usually has, does not explain its lead.** Without it, LightConv "
        f"leads by those {third.estimate.value:.1f}. The layer changes the Transformer's score by "
        f"{depth.tested.estimate.value:+.2f} BLEU: equal within ± {MARGIN} over seeds, also at the edge (adjusted p = "
        f"{p_text(depth.tested.outside)}; interval over seeds and sentences {interval(depth.bootstrap)}).",
        "[Earlier runs](docs/results.md#multi30k), one to three seeds: on German-English sentences (Tatoeba), rotary "
        "attention, a bias for each distance, LightConv and DynamicConv each lead the Transformer by "
        f"{_range(earlier)} BLEU (p {_at_most(max(each.p_value for each in tatoeba.values()))}). These four do not "
        "differ significantly from each other. On English-French captions, with an earlier recipe, LightConv, "
        f"DynamicConv, `multiscale` and `separable` ({millions(FRENCH.comparable()['separable'])} parameters) lead by "
        f"{_range(french[name].estimate.value for name in mixers)}; on English-German captions no lead is significant.",
        "**Open**: what makes the difference. None of [the answers listed before the "
        "runs](docs/benchmark.md#question-1-position-depth-gate-or-convolution) fits this outcome: relative positions "
        "help, and so does a convolution. Why LightConv leads (its kernels, gate or DropConnect) was not "
        "tested. Also open: [the order after longer "
        "training](docs/results.md#question-2-of-the-benchmark-first-two-stages) (English-German captions, "
        f"{longer.runs[BASELINE][0].results['steps']:,} updates, {len(longer.runs[BASELINE])} seeds: {order}), models "
        f"of more than {largest / 1e6:.0f} million parameters, and long text. [The benchmark](docs/benchmark.md) asks "
        "these next, with more mixers.",
    ]
    names = [*question_one.QUESTION.systems, "dynamicconv"]
    other = letters(estimates.fit(TATOEBA.groups()))
    own = TATOEBA.comparable()
    rows = []
    for name in names:
        cells = [f"`{name}`: {(_KINDS | question_one.KINDS)[name]}", "", ""]
        if name in runs:
            cells[1] = f"{spread(list(scores[name].values()))} {same[name]}"
        if name in own:
            cells[2] = f"{spread([_score(run, 'bleu') for run in own[name]])} {other[name]}"
        sizes = [millions(group[name]) for group in (runs, own) if name in group]
        rows.append([*cells, ", ".join(dict.fromkeys(sizes))])
    header = ["system", FRENCH.label, TATOEBA.label, "parameters"]
    table = markdown_table(header, rows, right=header[1:])
    note = (
        "sacreBLEU of the test sets (English-French: test2016, test2017 and MSCOCO together), mean ± standard "
        f"deviation of {seeds} and of 3 seeds. Rows of a column that share a letter do not differ significantly (t "
        "tests over seeds). All systems add sinusoidal positions to the embeddings, also those whose papers do without "
        "them. test2016 and the German-English test set were scored many times while the recipe was found. "
        f"{_other_precision(TATOEBA)} Dropout in bf16 had a small error then. [Results](docs/results.md) has all "
        "tables, and the scores of further mixers."
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
    found = " and ".join(f"{count} of {len(of[name])} runs of `{name}`" for name, count in odd.items() if count)
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
    found = [question_one.of_system(name)] if name in question_one.QUESTION.systems else []
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
    first = (
        f"## Question 1 of the benchmark\n\n`benchmarks/results/q1_en_fr`\n\n{question_one.QUESTION.system_table()}\n\n"
        f"## Question 2 of the benchmark\n\n`benchmarks/results/q2_ours`\n\n{question_two.OURS.system_table()}\n"
    )
    return "\n".join([first, *(f"## {each.title}\n\n`{KEPT}/{each.folder}`\n\n{board(each)}\n" for each in tasks())])


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
    "question-one": question_one.QUESTION.system_table,
    "question-one-contrasts": question_one.QUESTION.contrast_table,
    "question-one-sets": question_one.QUESTION.set_table,
    "question-one-seeds": question_one.QUESTION.seed_table,
    "question-one-lengths": question_one.length_table,
    "question-one-words": question_one.word_table,
    "question-one-curves": question_one.curve_table,
    "question-two": question_two.OURS.system_table,
    "question-two-contrasts": question_two.OURS.contrast_table,
    "question-two-sets": question_two.OURS.set_table,
    "question-two-seeds": question_two.OURS.seed_table,
    "question-two-curves": lambda: question_two.OURS.curve_table([640, 1280, 2560, 3840, 5120, 6400]),
    "question-two-authors": question_two.AUTHORS.system_table,
    "question-two-authors-curves": lambda: question_two.AUTHORS.curve_table([992, 1984, 2976, 3968, 5952, 7936]),
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
