"""The tables of README.md and docs follow from the kept runs, and no other figure stands next to them."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import statistics

import pytest
import sacrebleu

from benchmarks import cards, question, question_one, tables
from seq2seq.comparison import estimates
from seq2seq.settings.compose import presets
from seq2seq.training.machine.flops import training_flops

EXHAUSTIVE = {
    "test_flops_of_a_card_agree_with_training",
    "test_a_planted_figure_is_found",
    "test_a_question_is_scored_by_its_translations",
}


@pytest.mark.slow
def test_the_pages_are_what_the_command_writes(capsys):
    assert tables.main(["--check"]) == 0, f"run: python -m benchmarks.tables ({capsys.readouterr().out})"


def test_a_planted_figure_is_found(tmp_path, monkeypatch, capsys):
    readme = (tables.ROOT / "README.md").read_text("utf-8")
    (figure,) = set(re.findall(r"`transformer`:.*? \| ([\d.]+) ±", readme))
    page = tmp_path / "page.md"
    page.write_text(readme.replace(figure, f"{float(figure) + 1:.2f}"), encoding="utf-8")
    monkeypatch.setattr(tables, "PAGES", (str(page),))
    assert tables.main(["--check"]) == 1
    assert "differs" in capsys.readouterr().out
    # The command corrects the tables
    assert tables.main([]) == 0
    assert page.read_text("utf-8") == readme


def test_a_marker_without_a_table_is_refused():
    with pytest.raises(ValueError, match="no table planted"):
        tables.filled("<!-- table planted -->\n<!-- end -->\n")


def test_a_mean_by_hand():
    folder = tables.ROOT / tables.KEPT / "multi30k_en_fr"
    scores = [
        json.loads(path.read_text("utf-8"))["test"]["bleu"] for path in folder.glob("*-transformer-*/results.json")
    ]
    assert len(scores) == 3
    written = f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}"
    assert f"| `transformer` | 1, 2, 3 | {written} |" in tables.scores(tables.FRENCH)


def test_contrasts_of_question_one_are_the_comparisons():
    """The tables are computed from scores.csv, and `compare` computed the same from the translations."""
    found = dict(question_one.QUESTION.contrasts)
    for path in ("comparison-differences.csv", "secondary-differences.csv"):
        with open(question_one.QUESTION.folder / path, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["set"].startswith("multi30k + ")]
        names = {label: name for name, label in question_one.LABELS.items()}
        for row in rows:
            contrast = found.pop((names[row["group"]], names[row["baseline"]]))
            tested = contrast.tested
            numbers = [tested.estimate.value, *tested.estimate.interval, tested.p_value, tested.outside]
            columns = ("bleu_difference", "seeds_low", "seeds_high", "seeds_p", "equivalence_p")
            assert numbers == [pytest.approx(float(row[name]), rel=1e-2, abs=2e-4) for name in columns]
            assert {"equal": "equivalent"}.get(contrast.verdict, contrast.verdict) == row["verdict"]
    assert not found


def test_scores_of_question_one_are_the_runs_own():
    of_test2016 = question_one.QUESTION.scores("test2016")
    for name, runs in question_one.QUESTION.runs.items():
        assert [run.seed for run in runs] == [1, 2, 3, 4, 5]
        assert list(of_test2016[name].values()) == [pytest.approx(run.score("test", "bleu"), abs=1e-4) for run in runs]


def test_a_question_is_scored_by_its_translations(tmp_path, monkeypatch):
    """Seed 5 of the Transformer is the reference of seeds 1 and 2 of three systems, two of which estimate the noise."""
    kept = question_one.QUESTION.runs
    files = question_one.QUESTION.file
    for name, file in files.items():
        shutil.copyfile(kept["transformer"][4].folder.path / f"{file}.hyp", tmp_path / f"{name}.fr")
    systems = ["transformer", "rotary", "lightconv"]
    for run in (run for name in systems for run in kept[name][:2]):
        shutil.copytree(run.folder.path, tmp_path / "asked" / run.name)
    monkeypatch.setattr(question, "RESULTS", tmp_path)
    monkeypatch.setattr(question, "_SAMPLES", 200)
    family = question.Family([("rotary", "transformer")], systems[:2])
    asked = dataclasses.replace(question_one.QUESTION, task="asked", systems=systems, families=[family])
    with pytest.raises(ValueError, match=r"transformer-.*-s1: BLEU is"):
        asked.write(tmp_path)
    # The translations of another checkpoint have scores of their own
    for run in (tmp_path / "asked").iterdir():
        (run / "test.hyp").rename(run / "average.hyp")
    asked = dataclasses.replace(asked, file={**files, "test2016": "average"})
    asked.write(tmp_path)
    lines = {name: asked.translations(asked.runs["rotary"][1], name) for name in files}
    references = asked.references(tmp_path)
    assert asked.scores("test2017")["rotary"][2] == pytest.approx(
        sacrebleu.corpus_bleu(lines["test2017"], [references["test2017"]]).score, abs=1e-4
    )
    contrast = asked.contrasts["rotary", "transformer"]
    low, high = contrast.bootstrap
    assert low < contrast.tested.estimate.value < high
    assert contrast.tested.p_value == pytest.approx(contrast.paired)
    assert f"{contrast.tested.estimate.value:+.2f}" in asked.contrast_table()


def test_no_row_pools_two_initializations():
    for corpus in (tables.FRENCH, tables.GERMAN, tables.TATOEBA):
        for name, runs in corpus.comparable().items():
            assert len({run.seed for run in runs}) == len(runs), f"{corpus.title}: {name} has a seed twice"
            if name == "bahdanau":
                assert {run.results["git_revision"] for run in runs} == {"2a8feec7c58f"}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        # Counts the FLOPs of every preset
        pytest.param("docs/cards.md", r"([\d.]+)M FLOPs a token, 1\.00 of", marks=pytest.mark.exhaustive),
        ("docs/leaderboard.md", r"`transformer` \|.*? \| ([\d.]+) "),
    ],
)
def test_a_planted_figure_of_a_card_or_the_leaderboard_is_found(name, pattern):
    page = (tables.ROOT / name).read_text("utf-8")
    figure = re.search(pattern, page)
    assert figure
    planted = page[: figure.start(1)] + str(float(figure[1]) + 1) + page[figure.end(1) :]
    assert tables.filled(planted) == page != planted


def test_every_preset_has_a_card_with_its_checks():
    page = (tables.ROOT / "docs/cards.md").read_text("utf-8")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(presets())
    assert page.count("- **Checked by**: `tests/mixers/test_") == len(presets())


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        # Presets of one class: its equation states their choice
        ("relu_attention", "Equation", "relu"),
        ("rotary", "Equation", "rotary"),
        ("grouped_query", "Equation", "G < H"),
        ("cross_dynamicconv", "Equation", "predicted"),
        ("coverage", "Equation", "coverage"),
        ("luong_local", "Equation", "window"),
        # Code that differs from its paper
        ("linear_attention", "Compared", "published"),
        ("lowrank", "Compared", "ours"),
        ("gmlp", "Compared", "published"),
        ("relative_bias", "Compared", "Published"),
        ("swin", "Compared", "ours"),
        ("qk_norm", "Compared", "Published with"),
        ("talk", "Compared", "Published with"),
        ("coverage", "Compared", "published in"),
    ],
)
def test_a_card_tells_a_preset_from_its_class_and_paper(name, line, words):
    page = (tables.ROOT / "docs/cards.md").read_text("utf-8")
    card = re.search(rf"^## {name}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert card
    text = re.search(rf"^- \*\*{line}.*$", card[0], re.MULTILINE)
    assert text
    assert words in text[0]


@pytest.mark.parametrize("name", ["transformer", pytest.param("lightconv", marks=pytest.mark.exhaustive)])
def test_flops_of_a_card_agree_with_training(name):
    count = training_flops({**cards._composed()[name], **cards.VOCABULARY})
    assert count
    rows, tokens = cards._ROWS, cards._ROWS * cards._TGT
    assert cards.size(name)[1] * tokens == count(rows, cards._SRC, cards._TGT)


def test_an_interval_of_the_leaderboard_by_hand():
    groups = {group.mixer: group.values("test", "bleu") for group in tables.listed(tables.FRENCH)}
    squares = sum((score - statistics.fmean(scores)) ** 2 for scores in groups.values() for score in scores)
    freedom = sum(len(scores) - 1 for scores in groups.values())
    half = estimates.quantile(0.975, freedom) * (squares / freedom / len(groups["bahdanau"])) ** 0.5
    mean = statistics.fmean(groups["bahdanau"])
    assert len(groups["bahdanau"]) == 2
    written = f"{mean:.2f} | {mean - half:.2f} to {mean + half:.2f} |"
    assert f"| `bahdanau` | 2, 3 | {written}" in tables.board(tables.FRENCH)


def test_another_task_and_another_mixer_are_listed(tmp_path, monkeypatch):
    kept = tables.ROOT / tables.KEPT
    for number, run in enumerate(sorted((kept / "tatoeba").glob("*-rotary-*"))):
        folder = tmp_path / "kept/mine" / f"mine-{number}"
        shutil.copytree(run, folder)
        results = json.loads((folder / "results.json").read_text("utf-8"))
        (folder / "results.json").write_text(json.dumps(results | {"mixer": "planted"}))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "KEPT", "kept")
    monkeypatch.setattr(tables, "TASKS", ())
    assert [corpus.folder for corpus in tables.tasks()] == ["mine"]
    assert re.search(r"## mine\n\n`kept/mine`\n\n.*\n.*\n\| `planted` \| 1, 2, 3 \| 46\.70 \|", tables.leaderboard())
    assert tables.of_mixer("planted").startswith("46.70, ")


@pytest.mark.parametrize("name", tables.PAGES)
def test_scores_stand_between_markers_alone(name):
    page = (tables.ROOT / name).read_text("utf-8")
    outside = re.sub(r"<!-- table \S+ -->.*?<!-- end -->", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?<![\d.])\d\d\.\d\d(?![\d.])", outside)
