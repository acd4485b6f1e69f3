"""Question 1 of docs/benchmark.md: the tables of its runs, for `benchmarks.tables`.

    python -m benchmarks.question_one multi30k

The command scores the kept translations against the references in that folder. It writes the tables of which pages are
made: scores.csv, bootstrap.csv, and F1 of words by their frequency in train.fr, words.csv.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from pathlib import Path

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from benchmarks.question import SETS, Family, Question, command
from seq2seq.evaluation.scoring import read_text
from seq2seq.system.markdown import markdown_table

# The systems, and their labels in the tables of `seq2seq.compare`
LABELS = {
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
    "lightconv": "convolution, learned kernels, one more encoder layer",
    "lightconv_shallow": "the same at the Transformer's depth",
}
PRIMARY = Family(
    [
        ("rotary", "transformer"),
        ("transformer_deep", "transformer"),
        ("lightconv_shallow", "transformer"),
        ("rotary", "lightconv"),
    ]
)
QUESTION = Question(
    task="q1_en_fr",
    language="fr",
    systems=list(LABELS),
    families=[PRIMARY, Family([("lightconv", "transformer_deep")], name="secondary")],
    file={"test2016": "test", "test2017": "test2017", "test2017mscoco": "test2017mscoco"},
)
# How often training has a word: the lowest frequency of each class
_FREQUENCIES = {"unseen": 0, "1 to 5": 1, "6 to 100": 6, "more": 101}
# Updates whose validation the table of convergence shows
_UPDATES = (256, 512, 1024, 1280, 1408, 1536, 1600)


def length_table() -> str:
    """Write BLEU by the length of the source, on all test sets, from comparison.md."""
    text = (QUESTION.folder / "comparison.md").read_text("utf-8").rpartition("BLEU by length of the source:")[2]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = {label: f"`{name}`" for name, label in LABELS.items()}
    return markdown_table(header, [[names.get(first, first), *rest] for first, *rest in rows], right=header[1:])


def word_table() -> str:
    """Write F1 of words by their frequency in training, over all seeds."""
    rows = QUESTION.rows("words.csv")
    cells = {(row["system"], row["set"], row["frequency"]): f"{float(row['f1']):.1f}" for row in rows}
    columns = [(name, frequency) for name in SETS for frequency in _FREQUENCIES]
    header = ["F1 of words", *(f"{name}: {frequency}" for name, frequency in columns)]
    table = [[f"`{name}`", *(cells[name, *each] for each in columns)] for name in LABELS]
    return markdown_table(header, table, right=header[1:])


def curve_table() -> str:
    """Write the validation perplexity of each system as it trains, mean over seeds."""
    return QUESTION.curve_table(_UPDATES)


def of_system(name: str) -> str:
    """Write the mean of a system on all test sets, with its interval, for its mixer's card."""
    bleu = QUESTION.scores()[name].values()
    found = f"{statistics.fmean(bleu):.2f}, {QUESTION.mean_interval(name)}"
    return f"{found} (question 1 of the benchmark, {len(bleu)} seeds)"


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
    for name, lines in QUESTION.references(text).items():
        references = list(map(counted, lines))
        for each, group in QUESTION.runs.items():
            matched, of_both = Counter[int](), Counter[int]()
            for run in group:
                for found, reference in zip(map(counted, QUESTION.translations(run, name)), references, strict=True):
                    for words, counts in ((found & reference, matched), (found, of_both), (reference, of_both)):
                        for word, number in words.items():
                            counts[bisect.bisect(lowest, trained[word]) - 1] += number
            f1 = [200 * matched[place] / of_both[place] for place in range(len(lowest))]
            rows += [[each, name, *row] for row in zip(_FREQUENCIES, (f"{value:.4f}" for value in f1), strict=True)]
    QUESTION.write_rows("words.csv", [["system", "set", "frequency", "f1"], *rows])


if __name__ == "__main__":
    raise SystemExit(command("question_one", __doc__, [QUESTION.write, write_words]))
