"""Test that text in the files of others reaches terminals, tables and pages without control characters or markup."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import tiny

from seq2seq import checkpoint, compare, export, inspect, score, serve, translate
from seq2seq.inference.export.card import Origin, model_card
from seq2seq.runs.results import read_metrics
from seq2seq.system.errors import one_line, visible
from seq2seq.system.json_file import read_json
from seq2seq.system.markdown import markdown_table
from seq2seq.system.yaml_file import read_yaml

HOSTILE = "x\x1b]0;OWNED\x07\nforged\x9b2J\u202ey"
MARKUP = HOSTILE + '|<img src="http://host/a">![](http://host/b)'
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def require_harmless(text: str) -> None:
    assert not CONTROLS.search(text)
    assert not re.search(r"^\W*forged", text, re.MULTILINE)


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    """Write the checkpoint of a stranger, whose languages, data and versions have control characters."""
    meta, weights = tiny.payload()
    named = {"src_lang": HOSTILE, "tgt_lang": MARKUP, "data": MARKUP, "versions": {HOSTILE: MARKUP}}
    path = tmp_path_factory.mktemp("stranger") / "x.safetensors"
    checkpoint.save(path, checkpoint.Stored(meta | named, weights))
    return path


@pytest.mark.parametrize(
    ("main", "options"),
    [
        (translate.main, ["--tgt-lang", "xx", "--input", "a.txt"]),
        (translate.main, ["--input", "a.txt"]),
        (inspect.main, ["--text", "der Hund", "--tgt-lang", "xx"]),
        (score.main, []),
        (score.main, ["--data", "files", "test=a", "src=de", "tgt=en"]),
        (score.main, ["--data", "phrasebook", "--limit", "2"]),
        (score.main, ["--forced-decoding", "a.txt", "a.txt"]),
        (export.main, ["--format", "huggingface", "--out", "folder"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.__module__,
)
def test_commands_show_the_names_of_a_checkpoint_in_visible_characters(
    tmp_path, monkeypatch, ckpt, capsys, main, options
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", f"a.{visible(HOSTILE)}"):
        Path(name).write_text("der Hund\n")
    main(["--ckpt", str(ckpt), *options])
    printed = capsys.readouterr()
    require_harmless(printed.out + printed.err)
    for page in tmp_path.rglob("*.md"):
        require_harmless(page.read_text())
        assert not re.search(r"(?<!\\)<img|\]\(http", page.read_text())


def test_the_service_says_the_languages_in_one_line(ckpt, monkeypatch, capsys):
    pytest.importorskip("uvicorn")
    from seq2seq.inference.service import server

    async def run(service, bound, *, ready, **_):
        ready()
        return 0

    monkeypatch.setattr(server, "run", run)
    serve.main(["--ckpt", str(ckpt), "--port", "0"])
    error = capsys.readouterr().err
    require_harmless(error)
    assert error.startswith(r"translating x\x1b]0;OWNED\x07\nforged\x9b2J\u202ey to x")


def test_a_name_without_end_is_refused(tmp_path):
    meta, weights = tiny.payload()
    with pytest.raises(checkpoint.CheckpointError, match=r"seq2seq\.data' has more than 4,096 characters"):
        checkpoint.save(tmp_path / "x.safetensors", checkpoint.Stored(meta | {"data": "x" * 5000}, weights))


def test_names_of_weights_are_visible_in_errors(tmp_path, capsys):
    meta, weights = tiny.payload()
    checkpoint.save(
        tmp_path / "x.safetensors", checkpoint.Stored(meta, weights | {HOSTILE: next(iter(weights.values())) + 1})
    )
    for main in (translate.main, inspect.main):
        assert (
            main(["--ckpt", str(tmp_path / "x.safetensors"), *(["--text", "a"] if main is inspect.main else [])]) == 2
        )
        error = capsys.readouterr().err
        assert r"x\x1b]0;OWNED\x07 forged\x9b2J\u202ey" in error
        require_harmless(error)


def write_run(folder: Path, bleu: float, **results: object) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"seed": 1, "data": {"name": MARKUP}, "mixer": {"encoder": {}}}))
    scores = {"bleu": bleu, "chrf": bleu, "signatures": [MARKUP, MARKUP]}
    known = {"mixer": MARKUP, "git_revision": MARKUP + folder.name, "test": scores}
    (folder / "results.json").write_text(json.dumps(known | results))


def test_a_comparison_shows_results_of_others_as_text(tmp_path, capsys):
    runs = tmp_path / "runs"
    runs.mkdir()
    write_run(runs / "a", 3.0, continued=[{"update": 1, "changes": [MARKUP]}])
    write_run(runs / "b", 4.0, mixer="=cmd|' /C calc'!A0\n| forged | 99.99 |")
    write_run(runs / "c\x1b[2J", 5.0, mixer="plain")
    (runs / "d").mkdir()
    (runs / "d" / "config.yaml").write_text('"\\e[2J": *none')
    (runs / "d" / "results.json").write_text("{}")
    assert compare.main([str(runs), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    page = (tmp_path / "out" / "comparison.md").read_text()
    require_harmless(printed.out + printed.err + page)
    assert not re.search(r"(?<!\\)<img|\]\(http", page)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[:4]}) == 1
    with open(tmp_path / "out" / "comparison.csv", newline="", encoding="utf-8") as file:
        cells = [row["mixer"] for row in csv.DictReader(file)]
    assert sorted(cells)[0].startswith("'=cmd|")


def test_a_run_with_results_of_other_types_is_left_out(tmp_path, capsys):
    wrong = [{"test": 5}, {"test": {"bleu": ""}}, {"test": {"bleu": 1.0, "signatures": [7]}}, {"whole_corpus": []}]
    write_run(tmp_path / "right", 3.0, steps=[], seconds=float("inf"), parameters=10**400)
    for number, results in enumerate(wrong):
        write_run(tmp_path / f"run{number}", 4.0, **results)
    assert compare.main([str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("results.json is damaged (") == len(wrong)


def test_text_of_people_is_unchanged():
    """Direction marks, joiners, and spaces of any width belong to text; control characters do not."""
    for text in ("naïve café", "שָׁלוֹם\u200f", "می\u200cخواهم", "a\u00a0b\u3000c", "👩\u200d💻", "de_DE", "C:\\x"):
        assert visible(text) == text
    assert visible({"a\n": ["\t", 1, None]}) == {r"a\n": [r"\t", 1, None]}
    assert len(one_line("x" * 10**6)) < 11_000


def test_a_cell_ends_at_no_bar_of_its_own():
    row = markdown_table(["a|b"], [["c\\|d"]], right=["a|b"]).splitlines()
    assert row == [r"| a\|b |", "| ---: |", r"| c\\\|d |"]


def test_a_model_card_has_no_markup_of_others():
    meta, _ = tiny.payload()
    origin = Origin({"test": {"bleu": 1.0, "signatures": [7]}}, {})
    page = model_card(meta | {"data": visible(MARKUP)}, origin, parameters=1, marian=False)
    assert r"\<img" in page
    assert "](http" not in page
    assert "| test  | bleu" not in page
    assert "| test | bleu | 1.00 |  | `7` |" in page


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "[" * 500 + "]" * 500])
def test_yaml_without_end_is_one_line(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"^config\.yaml is not YAML: [^\n]*$"):
        read_yaml(tmp_path / "config.yaml")


def test_deep_json_is_one_line(tmp_path):
    (tmp_path / "results.json").write_text('{"a":' * 5000 + "1" + "}" * 5000)
    with pytest.raises(ValueError, match=r"^results\.json is damaged"):
        read_json(tmp_path / "results.json")


@pytest.mark.parametrize("content", [b"step,x\n1,\xff\n", b"step,x\n1," + b"9" * 200_000 + b"\n"])
def test_a_damaged_table_of_metrics_is_named(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged .*move it away"):
        read_metrics(tmp_path / "metrics.csv")
