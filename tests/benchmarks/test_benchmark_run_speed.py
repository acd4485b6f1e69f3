"""The benchmark of finished runs: each gets its rates, in turns, and runs of different test sets are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import toycorpus

from benchmarks import run_speed
from seq2seq.data.text_files import read_lines
from seq2seq.inference.translator import Translator
from seq2seq.metrics.scorers import bleu
from seq2seq.runs.results import collect
from seq2seq.search import search
from seq2seq.training import run
from seq2seq.training.plan import make_plan

EXHAUSTIVE = {"test_every_run_gets_a_row"}


def test_all_take_turns():
    order: list[str] = []
    # CPU seconds of calls, in turns: a round that warms up, then three
    seconds = iter([9, 9, 1, 2, 4, 4, 2, 3])
    now = [0.0]

    def work(name: str, amount: int) -> int:
        order.append(name)
        now[0] += next(seconds)
        return amount

    contestants = {(Path("a"), "greedy"): lambda: work("a", 8), (Path("b"), "greedy"): lambda: work("b", 12)}
    rates = run_speed.measure(contestants, rounds=3, clock=lambda: now[0])
    assert order == ["a", "b"] * 4
    assert rates == {(Path("a"), "greedy"): 4.0, (Path("b"), "greedy"): 4.0}  # the medians of 8, 2, 4 and of 6, 3, 4


@pytest.mark.slow
def test_every_run_gets_a_row(tmp_path, monkeypatch, capsys):
    corpus = toycorpus.write(tmp_path / "toy")
    for mixer in ("transformer", "lightconv"):
        name = f"run={mixer}"
        more = ["optim.r_drop=5"] if mixer == "lightconv" else []
        run.train(make_plan(toycorpus.settings(corpus, tmp_path, "trainer.max_steps=1", name, *more), mixer=mixer))
    runs = tmp_path / "runs"
    options = ["--sentences", "6", "--updates", "2", "--rounds", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["run_speed", str(runs / "*"), *options, "--int8"])
    assert run_speed.main() == 0
    rows = json.loads((tmp_path / "out" / "run_speed.json").read_text())["runs"]
    assert [row["run"] for row in rows] == ["lightconv", "transformer"]
    for row in rows:
        results = json.loads((runs / row["run"] / "results.json").read_text())
        (kept,) = collect([str(runs / row["run"])], "test").runs
        found = read_lines(runs / row["run"] / "test.hyp")
        assert row["bleu_beam"] == bleu(list(found)[:6], kept.test_lines("ref")[:6]).value
        assert row["parameters"] == results["parameters"]
        rates = [value for key, value in row.items() if "per_cpu_second" in key]
        assert len(rates) == 5
        assert min(rates) > 0
    # With given lengths, BLEU of the translations is meaningless
    monkeypatch.setattr("sys.argv", ["run_speed", str(runs / "*"), *options, "--tokens", "3", "--updates", "0"])
    assert run_speed.main() == 0
    rows = json.loads((tmp_path / "out" / "run_speed.json").read_text())["runs"]
    names = {"run", "mixer", "parameters", "sentences_per_cpu_second_greedy", "sentences_per_cpu_second_beam"}
    assert all(set(row) == names for row in rows)
    (found,) = collect([str(runs / "lightconv")], "test").runs
    settings = run_speed.search_settings(found, beam_size=2, tokens=3)
    translator = Translator.load(found.folder.best, device="cpu", settings=settings)
    ids = torch.tensor([translator.tokenizer.encode_src(["a b"])[0]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    (beams,) = search(translator.model, ids, mask, settings=settings, special=translator.special)
    assert {len(hypothesis.ids) for hypothesis in beams} == {3}
    # Another test set
    shutil.copytree(runs / "lightconv", runs / "other")
    source = runs / "other" / "test.src"
    source.write_text(source.read_text().replace("a", "b", 1))
    with pytest.raises(SystemExit):
        run_speed.main()
    assert "theirs differ" in capsys.readouterr().err
    # No test set at all
    for name in ("lightconv", "transformer", "other"):
        for side in ("src", "ref", "hyp"):
            (runs / name / f"test.{side}").unlink()
    with pytest.raises(SystemExit):
        run_speed.main()
    assert "one has not saved its text" in capsys.readouterr().err
