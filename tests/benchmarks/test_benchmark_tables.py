"""The tables of README.md and docs/results.md are those of the kept runs, and no other figure stands beside them."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from benchmarks import tables


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
    # And the command puts it right
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


def test_no_row_pools_two_initializations():
    for corpus in (tables.FRENCH, tables.GERMAN, tables.TATOEBA):
        for name, runs in corpus.comparable().items():
            assert len({run.seed for run in runs}) == len(runs), f"{corpus.title}: {name} has a seed twice"
            if name == "bahdanau":
                assert {run.results["git_revision"] for run in runs} == {"2a8feec7c58f"}


@pytest.mark.parametrize("name", tables.PAGES)
def test_scores_stand_between_markers_alone(name):
    page = (tables.ROOT / name).read_text("utf-8")
    outside = re.sub(r"<!-- table \S+ -->.*?<!-- end -->", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?<![\d.])\d\d\.\d\d(?![\d.])", outside)
