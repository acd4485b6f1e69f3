"""Test comparisons of runs: numbers against sacreBLEU's command and by hand, refusals, and runs that are left out."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import yaml
from composed import resolved

from seq2seq import compare
from seq2seq.comparison.estimates import holm, p_text
from seq2seq.comparison.groups import group_runs
from seq2seq.comparison.score_plot import band
from seq2seq.comparison.scored_sets import scored_sets
from seq2seq.comparison.table import legend
from seq2seq.comparison.translations import scoring
from seq2seq.metrics.scorers import paired_bootstrap
from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import collect, read_curve
from seq2seq.sweeps.job_records import Job, Process

EXHAUSTIVE = {"test_figure_shows_every_group_and_is_reproducible"}

WORDS = ["the", "a", "dog", "cat", "house", "walks", "sees", "finds", "and", "or", "not", "today", "here", "small"]


def references(count: int = 60) -> list[str]:
    return [" ".join(random.choices(WORDS, k=random.randint(5, 12))) + "." for _ in range(count)]


def garbled(lines: list[str], rate: float) -> list[str]:
    """Replace every word with this probability."""
    return [
        " ".join(random.choice(WORDS) if random.random() < rate else word for word in line.split()) for line in lines
    ]


def write_run(path: Path, refs: list[str], *, mixer: str = "lightconv", seed: int = 1, rate: float = 0.3,
              **settings: Any) -> Path:  # fmt: skip
    """Write a finished run's folder with random translations."""
    folder, hypotheses = RunFolder(path), garbled(refs, rate)
    config = {"seed": seed, "data": {"name": "toy"}, "model": {"dim": 16}, "mixer": {"encoder": {"_target_": mixer}},
              "trainer": {"max_steps": 9, "log_steps": 5}, "run": None, **settings}  # fmt: skip
    folder.create(yaml.safe_dump(config))
    bleu, chrf = sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF()
    scores = {"bleu": bleu.corpus_score(hypotheses, [refs]).score, "chrf": chrf.corpus_score(hypotheses, [refs]).score}
    scores["signatures"] = [str(bleu.get_signature()), str(chrf.get_signature())]
    random_numbers = {"parameters": random.randint(10**4, 10**7), "seconds": random.uniform(1, 9999),
                      "target_tokens_per_second": random.uniform(9, 999), "best_step": 7}  # fmt: skip
    results = {"mixer": mixer, "run": path.name, "valid": scores, "test": scores, "steps": 99, **random_numbers}
    folder.results.write_text(json.dumps(results))
    # Sources in capitals, so that they differ from the references
    folder.save_test(src=[line.upper() for line in refs], ref=refs, hyp=hypotheses)
    return path


def translate(run: Path, hypotheses: list[str]) -> None:
    """Replace a run's translations and their BLEU."""
    (run / "test.hyp").write_text("".join(f"{line}\n" for line in hypotheses))
    score = sacrebleu.metrics.BLEU().corpus_score(hypotheses, [(run / "test.ref").read_text().splitlines()]).score
    rewrite(run, test=results_of(run)["test"] | {"bleu": score})


def results_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "results.json").read_text())


def cells(text: str) -> list[dict[str, str]]:
    """Parse the rows of the first Markdown table."""
    table = re.search(r"(^\|.*\n)+", text, re.MULTILINE)
    assert table
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def against(baseline: str, printed: str) -> dict[str, dict[str, str]]:
    """Parse the table of differences from a baseline, by the label of its rows."""
    rows = cells(printed[printed.index("| difference") :])
    return {row["difference"].removesuffix(f" - {baseline}"): row for row in rows}


def test_table_agrees_with_statistics(tmp_path, capsys):
    refs, seeds = references(), random.sample(range(100), 3)
    runs = {(m, s): write_run(tmp_path / f"{m}{s}", refs, mixer=m, seed=s, rate=r)
            for m, r in (("lightconv", 0.3), ("bahdanau", 0.36)) for s in seeds}  # fmt: skip
    out = tmp_path / "out"
    assert compare.main([str(tmp_path), "--baseline", "bahdanau", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = {row["mixer"]: row for row in cells(printed)}
    assert set(rows) == {"lightconv", "bahdanau"}
    (written,) = [r for r in csv.DictReader((out / "comparison.csv").open()) if r["mixer"] == "lightconv"]
    # By hand from results.json, in the order of the seeds
    ours = [results_of(runs["lightconv", s]) for s in sorted(seeds)]
    values = [r["test"]["bleu"] for r in ours]
    assert rows["lightconv"]["BLEU"] == f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert rows["lightconv"]["seeds"] == ", ".join(map(str, sorted(seeds)))
    assert float(written["chrf_mean"]) == pytest.approx(statistics.fmean(r["test"]["chrf"] for r in ours), abs=1e-4)
    assert float(written["parameters"]) == pytest.approx(statistics.fmean(r["parameters"] for r in ours), abs=0.01)
    theirs = [results_of(runs["bahdanau", s])["test"]["bleu"] for s in sorted(seeds)]
    assert set(against("bahdanau", printed)) == {"lightconv"}
    row = against("bahdanau", printed)["lightconv"]
    assert row["Δ BLEU"] == f"{statistics.fmean(values) - statistics.fmean(theirs):+.2f}"
    low, high = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    assert rows["lightconv"]["95% interval"] == f"{low:.2f} to {high:.2f}"
    (numbers,) = csv.DictReader((out / "comparison-differences.csv").open())
    test = scipy.stats.ttest_rel(values, theirs)
    low, high = test.confidence_interval()
    assert row["seeds interval"] == f"{low:+.2f} to {high:+.2f}"
    assert row["seeds p"] == p_text(test.pvalue)
    assert float(numbers["seeds_p"]) == pytest.approx(test.pvalue, rel=1e-3)
    assert float(numbers["seeds_low"]) == pytest.approx(low, abs=1e-4)
    assert (out / "comparison.md").read_text() in printed.replace("written: ", "")


def test_one_run_each_is_tested_by_paired_bootstrap(tmp_path, capsys):
    """With one run each there are no seeds to resample; all p values are adjusted together."""
    refs = references()
    paths = {m: write_run(tmp_path / m, refs, mixer=m, rate=r) for m, r in (("a", 0.3), ("b", 0.36), ("c", 0.32))}
    assert compare.main([str(tmp_path), "--baseline", "a", "--resamples", "700"]) == 0
    printed = capsys.readouterr().out
    # Verdicts, which need several seeds, are explained where there are some
    assert "with one seed" in printed
    assert "Equivalent" not in printed
    rows = against("a", printed)
    expected = holm([p_value(paths["a"], paths[mixer], samples=700) for mixer in "bc"])
    assert [rows[mixer]["bootstrap p"] for mixer in "bc"] == [p_text(p) for p in expected]
    assert not {"seeds p", "verdict"} & set(rows["b"])


def p_value(baseline: Path, system: Path, samples: int) -> float:
    texts = {run.name: (run / "test.hyp").read_text().splitlines() for run in (baseline, system)}
    lines = (system / "test.ref").read_text().splitlines()
    rows = paired_bootstrap(texts, lines, metrics=["bleu"], samples=samples)
    assert rows[1].p_value is not None
    return rows[1].p_value


def test_runs_that_repeat_a_seed_count_as_one(tmp_path, capsys):
    refs = references(20)
    for name in ("bahdanau", "gru"):
        for number, seed in enumerate((1, 1, 2)):
            write_run(tmp_path / f"{name}{number}", refs, mixer=name, seed=seed)
    assert compare.main([str(tmp_path), "--by-length", "20", "--by", "model.dim"]) == 0
    printed = capsys.readouterr().out
    first, second, third = (results_of(tmp_path / f"gru{k}")["test"]["bleu"] for k in range(3))
    scores = [(first + second) / 2, third]
    expected = f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}"
    assert cells(printed)[1]["BLEU"] == expected
    # All sentences are in one bucket, and all runs have one value
    assert cells(printed.partition("BLEU by length")[2])[2]["1-20"] == expected
    assert cells(printed.partition("BLEU by model.dim")[2])[1]["16"] == expected
    assert "Several runs of one seed are averaged: bahdanau, gru\n" in printed
    assert "with one seed" not in printed
    assert compare.main([str(tmp_path / f"{name}{number}") for name in ("bahdanau", "gru") for number in (0, 1)]) == 0
    assert "with one seed" in capsys.readouterr().out


def test_the_legend_tells_which_tables_have_blocks():
    def table(blocked: bool, bleu: float = 20.0) -> Any:
        return SimpleNamespace(
            letters={},
            model=SimpleNamespace(blocked=blocked),
            differences=[SimpleNamespace(bootstrap=None, verdict="")],
            groups=[SimpleNamespace(values=lambda split, metric: [bleu])],
            split="test",
        )

    texts = [legend([table(blocked) for blocked in each]) for each in ((True,), (False,), (True, False))]
    assert ["not blocks" in text for text in texts] == [False, True, False]
    assert "where all rows of a table" in texts[2]
    # Models that have learned nothing, also next to others
    assert ["hardly translate" in legend([table(True, bleu), table(True, 30)]) for bleu in (1.9, 2.0)] == [True, False]


def test_rows_are_compared_with_the_transformer(tmp_path, capsys):
    """Without one, with the first row."""
    refs = references(9)
    for mixer in ("gru", "lstm", "transformer"):
        write_run(tmp_path / mixer, refs, mixer=mixer)
    assert compare.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert set(against("transformer", said)) == {"gru", "lstm"}
    assert "over seeds and sentences" not in said
    assert "over sentences alone" in said
    assert compare.main([str(tmp_path / mixer) for mixer in ("gru", "lstm")]) == 0
    assert set(against("gru", capsys.readouterr().out)) == {"lstm"}


def test_of_several_transformers_the_one_with_most_seeds_is_the_baseline(tmp_path, capsys):
    """Not the first folder's; a note says which one."""
    refs = references(9)
    for name, dim, seed in (("a", 8, 1), ("b", 32, 1), ("c", 32, 2), ("d", 16, 1), ("e", 16, 2)):
        write_run(tmp_path / name, refs, mixer="transformer", seed=seed, model={"dim": dim})
    dims = [f"transformer model.dim={dim}" for dim in (16, 32, 8)]
    assert compare.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert set(against(dims[0], printed)) == {*dims[1:]}
    assert f"baseline is '{dims[0]}'" in printed
    assert f"--baseline chooses another: '{dims[1]}', '{dims[2]}'" in printed
    assert compare.main([str(tmp_path), "--baseline", dims[2]]) == 0
    printed = capsys.readouterr().out
    assert set(against(dims[2], printed)) == {*dims[:2]}
    assert "--baseline" not in printed


def test_runs_of_other_references_have_no_bootstrap(tmp_path, capsys):
    """Without sources both runs seem to have one test set."""
    for mixer in ("bahdanau", "gru"):
        (write_run(tmp_path / mixer, references(9), mixer=mixer) / "test.src").unlink()
    runs = collect([str(tmp_path)], "test").runs
    assert len(scored_sets(runs, "test")) == 1
    assert compare.main([str(tmp_path)]) == 0
    assert "bootstrap p" not in against("bahdanau", capsys.readouterr().out)["gru"]


def test_contrasts_are_compared_alone(tmp_path, capsys):
    refs = references(20)
    for mixer in ("gru", "lstm", "mlp"):
        for seed in (1, 2):
            write_run(tmp_path / mixer / str(seed), refs, mixer=mixer, seed=seed)
    paths = [str(tmp_path / mixer) for mixer in ("gru", "lstm", "mlp")]
    assert compare.main([*paths, "--contrast", "lstm", "gru", "--contrast", "mlp", "lstm"]) == 0
    printed = capsys.readouterr().out
    assert set(against("", printed)) == {"lstm - gru", "mlp - lstm"}
    scores = {m: [results_of(tmp_path / m / str(s))["test"]["bleu"] for s in (1, 2)] for m in ("gru", "lstm", "mlp")}
    # All rows show the noise, seeds are blocks: of two seeds, the halves of the differences without their mean
    halves = np.array([(one - other) / 2 for one, other in scores.values()])
    error = (2 * ((halves - halves.mean()) ** 2).sum() / 2) ** 0.5
    gru, lstm, mlp = (statistics.fmean(each) for each in scores.values())
    tests = [2 * scipy.stats.t.sf(abs(value) / error, 2) for value in (lstm - gru, mlp - lstm)]
    assert [row["seeds p"] for row in against("", printed).values()] == [p_text(p) for p in holm(tests)]
    assert compare.main([*paths, "--contrast", "lstm", "rnn"]) == 2
    assert "choose from 'gru', 'lstm', 'mlp'" in capsys.readouterr().err
    # Before the files of a further set are looked for
    assert compare.main([*paths, "--contrast", "lstm", "rnn", "--set", "web=missing"]) == 2
    assert "choose from" in capsys.readouterr().err
    assert compare.main([*paths, "--contrast", "lstm", str(tmp_path / "lstm" / "2")]) == 2
    assert "both are the row 'lstm'" in capsys.readouterr().err
    # Holm would count the difference twice
    assert compare.main([*paths, "--contrast", "lstm", "gru", "--contrast", "gru", str(tmp_path / "lstm" / "2")]) == 2
    assert "compared already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shift", "noise", "verdict"),
    [(0, 0.01, "equivalent"), (0.2, 0.01, "better but equivalent"), (-3, 0.01, "worse"), (0.2, 2, "open")],
)
def test_verdicts(tmp_path, capsys, shift, noise, verdict):
    refs = references(9)
    for mixer, score, sign in (("gru", 30, -1), ("lstm", 30 + shift, 1)):
        for seed in range(3):
            run = write_run(tmp_path / f"{mixer}{seed}", refs, mixer=mixer, seed=seed, rate=0)
            rewrite(run, test=results_of(run)["test"] | {"bleu": score + noise * (seed - 1) * sign})
            (run / "test.hyp").unlink()
    assert compare.main([str(tmp_path), "--margin", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert against("gru", printed)["lstm"]["verdict"] == verdict
    assert "with one seed" not in printed
    assert "Equivalent: less than 0.5 BLEU" in printed


def test_one_sentence_has_no_bootstrap(tmp_path, capsys):
    refs = references(1)
    for mixer in ("gru", "lstm"):
        write_run(tmp_path / mixer, refs, mixer=mixer)
    assert compare.main([str(tmp_path)]) == 0
    assert set(against("gru", capsys.readouterr().out)["lstm"]) == {"difference", "Δ BLEU"}


def test_a_difference_in_one_sentence_is_open(tmp_path, capsys):
    """The seeds agree, but a resample without the sentence has no difference."""
    refs = references(9)
    for mixer in ("gru", "lstm"):
        for seed in range(3):
            run = write_run(tmp_path / f"{mixer}{seed}", refs, mixer=mixer, seed=seed, rate=0)
            if mixer == "lstm":
                # A word fewer changes the length, and so the score, of each seed
                translate(run, [" ".join(["no"] * (9 - seed // 2)), *refs[1:]])
    assert compare.main([str(tmp_path)]) == 0
    row = against("gru", capsys.readouterr().out)["lstm"]
    assert float(row["seeds p"].removeprefix("< ")) < 0.05
    assert row["verdict"] == "open"


def test_translations_that_are_not_those_of_the_results_are_left_out(tmp_path, capsys):
    """No table uses translations of another search or with a line too few, and the run's own score stays."""
    refs = references(20)
    for mixer in ("gru", "lstm", "mlp"):
        (write_run(tmp_path / mixer, refs, mixer=mixer) / "checkpoints" / "best.safetensors").touch()
    (tmp_path / "lstm" / "test.hyp").write_text("".join(f"{line}\n" for line in refs))
    lines = (tmp_path / "mlp" / "test.hyp").read_text().splitlines(keepends=True)
    (tmp_path / "mlp" / "test.hyp").write_text("".join(lines[1:]))
    assert compare.main([str(tmp_path), "--by-length", "20"]) == 0
    printed = capsys.readouterr()
    score = results_of(tmp_path / "lstm")["test"]["bleu"]
    assert (
        f"left out: translations of lstm: test.hyp has 100.0000 BLEU, and results.json says {score:.4f}; "
        in printed.err
    )
    assert f"--ckpt {tmp_path}/lstm/checkpoints/best.safetensors --save {tmp_path}/lstm/test.hyp\n" in printed.err
    assert (
        "left out: translations of mlp: test.src has 20 lines, test.ref has 20 lines, test.hyp has 19 lines"
        in printed.err
    )
    assert [row["mixer"] for row in cells(printed.out)] == ["gru", "lstm", "mlp"]
    assert "bootstrap p" not in against("gru", printed.out)["lstm"]
    _, *by_length = cells(printed.out.partition("by length")[2])
    assert [row["source length (words)"] for row in by_length] == ["gru"]


def test_times_of_cpu_and_gpu_are_never_averaged(tmp_path, capsys):
    refs = references(9)
    for seed, (kind, seconds, speed) in enumerate((("cpu", 7200, 100), ("gpu", 60, 9000), ("gpu", 120, 8000))):
        run = write_run(tmp_path / "runs" / kind / str(seed), refs, seed=seed)
        rewrite(run, accelerator=kind, seconds=seconds, target_tokens_per_second=speed, parameters=700)
    paths = [str(tmp_path / "runs" / kind) for kind in ("cpu", "gpu")]
    assert compare.main([*paths, "--ignore", "trainer.accelerator", "--out", str(tmp_path / "out")]) == 0
    (row,) = cells(capsys.readouterr().out)
    assert row["time"] == "2:00:00 (cpu), 0:01:30 (gpu)"
    assert row["tokens/s"] == "100 (cpu), 8,500 (gpu)"
    (written,) = csv.DictReader((tmp_path / "out" / "comparison.csv").open())
    assert (written["seconds"], written["target_tokens_per_second"], written["parameters"]) == ("", "", "700.0")


def test_groups_are_named_by_the_settings_that_differ(tmp_path):
    refs = references(5)
    write_run(tmp_path / "a", refs, seed=1)
    write_run(tmp_path / "b", refs, seed=2, trainer={"max_steps": 9, "log_steps": 77}, run="b")  # harmless
    write_run(tmp_path / "c", refs, seed=1, model={"dim": 32})
    kernels = {"encoder": {"_target_": "lightconv", "kernel_size": 3}}
    write_run(tmp_path / "d", refs, seed=1, mixer="lightconv", **{"extra": 1})
    groups = group_runs(collect([str(tmp_path)], "test").runs)
    assert [(g.label, len(g.runs)) for g in groups] == [
        ("lightconv model.dim=16", 2), ("lightconv model.dim=32", 1), ("lightconv extra=1 model.dim=16", 1),
    ]  # fmt: skip
    # A setting of the mixer that copies a setting of the model is not shown
    for name, heads in (("two", 2), ("four", 4)):
        run = write_run(tmp_path / "refer" / name, refs, model={"num_heads": heads})
        config = yaml.safe_load((run / "config.yaml").read_text()) | {"mixer": {"encoder": {"num_heads": heads}}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    labels = {g.label for g in group_runs(collect([str(tmp_path / "refer")], "test").runs)}
    assert labels == {"lightconv model.num_heads=2", "lightconv model.num_heads=4"}
    # A setting that refers to another section is not shown, unless it varies differently
    for name, size, rate, lr in (("a", 100, 0.1, 0.1), ("b", 200, 0.2, 0.3)):
        optim = {"peak_lr": rate, "lr": lr}
        data = {"name": "toy", "vocab_size": size}
        write_run(tmp_path / "default" / name, refs, data=data, tokenizer={"vocab_size": size}, optim=optim)
    labels = {g.label for g in group_runs(collect([str(tmp_path / "default")], "test").runs)}
    shown = "lightconv data.vocab_size={} optim.lr={} optim.peak_lr={}"
    assert labels == {shown.format(100, 0.1, 0.1), shown.format(200, 0.3, 0.2)}
    # A setting of the mixer is shown only among groups of that mixer
    other = tmp_path / "other"
    write_run(other / "a", refs)
    write_run(other / "b", refs, mixer="bahdanau")
    labels = [g.label for g in group_runs(collect([str(other)], "test").runs)]
    assert labels == ["lightconv", "bahdanau"]  # different mixers have different settings anyway
    config = yaml.safe_load((other / "a" / "config.yaml").read_text()) | {"mixer": kernels}
    write_run(other / "c", refs)
    (other / "c" / "config.yaml").write_text(yaml.safe_dump(config))
    labels = {g.label for g in group_runs(collect([str(other)], "test").runs)}
    assert labels == {"lightconv", "lightconv mixer.encoder.kernel_size=3", "bahdanau"}


def test_the_same_corpus_under_two_paths_is_one_setting(tmp_path):
    refs = references()
    for number, place in enumerate(("/data/toy/train", "toy/train")):
        run = write_run(tmp_path / str(number), refs, seed=number, data={"name": "toy", "train": place})
        (run / "results.json").write_text(json.dumps(results_of(run) | {"whole_corpus": "abc"}))
    assert [len(group.runs) for group in group_runs(collect([str(tmp_path)], "test").runs)] == [2]
    # For another corpus, the path says more than a fingerprint
    (run / "results.json").write_text(json.dumps(results_of(run) | {"whole_corpus": "def"}))
    groups = group_runs(collect([str(tmp_path)], "test").runs)
    assert [group.settings["data.train"] for group in groups] == ["/data/toy/train", "toy/train"]
    # Another corpus says nothing about the paths of the first
    copied = write_run(tmp_path / "copied", refs, seed=2, data={"name": "toy", "train": "/copied/train"})
    rewrite(copied, whole_corpus="abc")
    assert [len(group.runs) for group in group_runs(collect([str(tmp_path)], "test").runs)] == [2, 1]


@pytest.mark.parametrize(
    ("settings", "entry", "shown"),
    [
        ({"tokenizer": {"model": "{}"}}, "tokenizer", "tokenizer.model"),
        ({"tokenizer": {"src_model": "{}", "tgt_model": "t"}}, "tokenizer", "tokenizer.src_model"),
        ({"init_from": "{}"}, "init_from", "init_from"),
    ],
)
def test_tokenizers_and_initial_weights_are_compared_by_content(tmp_path, settings, entry, shown):
    refs = references(5)

    def groups(name: str, *files: tuple[str, str | None]) -> list[tuple[str, int]]:
        for seed, (path, digest) in enumerate(files):
            own = json.loads(json.dumps(settings).replace("{}", path))
            rewrite(write_run(tmp_path / name / str(seed), refs, seed=seed, **own), **{entry: digest})
        return [(each.label, len(each.runs)) for each in group_runs(collect([str(tmp_path / name)], "test").runs)]

    assert groups("moved", ("/a", "abc"), ("/b", "abc")) == [("lightconv", 2)]
    assert [count for _, count in groups("changed", ("/a", "abc"), ("/a", "def"))] == [1, 1]
    found = groups("both", ("/a", "abc"), ("/b", "def"), ("/b", "def"))
    assert [(f"{shown}={path}" in label, count) for path, (label, count) in zip(("/a", "/b"), found, strict=True)] == [
        (True, 1), (True, 2),
    ]  # fmt: skip
    # A run of an earlier version has no digest
    assert groups("earlier", ("/a", None), ("/b", "abc"), ("/a", "abc")) == [
        (f"lightconv {shown}=/a", 2), (f"lightconv {shown}=/b", 1),
    ]  # fmt: skip


def test_an_extended_tokenizer_is_compared_by_its_path(tmp_path):
    """Its new pieces follow the corpus, whose part by data.limit depends on the seed."""
    for seed, digest in enumerate(("abc", "def")):
        run = write_run(tmp_path / str(seed), references(5), seed=seed, tokenizer={"model": "a", "extend": 5})
        rewrite(run, tokenizer=digest)
    assert len(group_runs(collect([str(tmp_path)], "test").runs)) == 1


def rewrite(run: Path, **results: Any) -> None:
    (run / "results.json").write_text(json.dumps(results_of(run) | results))


def test_groups_differ_by_the_values_that_auto_chose(tmp_path, capsys):
    """Ranks count as micro-batches; a mixer's setting that the command set is shown."""
    refs = references(5)

    def labels(name: str, *runs: tuple[dict[str, Any], dict[str, Any]]) -> list[tuple[str, int]]:
        for seed, (settings, results) in enumerate(runs):
            rewrite(write_run(tmp_path / name / str(seed), refs, seed=seed, **settings), **results)
        return [(g.label, len(g.runs)) for g in group_runs(collect([str(tmp_path / name)], "test").runs)]

    trainer = {"max_steps": 9, "accumulate": 1, "precision": "auto"}
    whole, parts = ({"trainer": trainer | {key: 8}} for key in ("devices", "accumulate"))
    assert labels("processes", (whole, {}), (parts, {})) == [("lightconv", 2)]
    assert len(labels("one", (whole, {}), ({"trainer": trainer}, {}))) == 2
    auto = {"data": {"name": "toy", "max_tokens": "auto"}}
    found = labels("auto", (auto, {"max_tokens": 64}), (auto, {"max_tokens": 16}), (auto, {"max_tokens": 64}))
    assert found == [("lightconv data.max_tokens=64", 2), ("lightconv data.max_tokens=16", 1)]
    found = labels(
        "precision", ({"trainer": trainer}, {"precision": "32"}), ({"trainer": trainer}, {"precision": "bf16"})
    )
    assert found == [("lightconv trainer.precision=32", 1), ("lightconv trainer.precision=bf16", 1)]
    assert len(labels("corpus", ({}, {"whole_corpus": "a"}), ({}, {"whole_corpus": "b"}))) == 2
    assert len(labels("device", *(({"trainer": trainer | {"accelerator": kind}}, {}) for kind in ("cpu", "gpu")))) == 2
    # The pairs that data.limit leaves depend on the seed, so the whole corpus counts
    limited = {"data": {"name": "toy", "limit": 5}}
    subsets = [(limited, {"corpus": name, "whole_corpus": whole}) for name, whole in ("aw", "bw", "cv")]
    assert [count for _, count in labels("limited", *subsets)] == [2, 1]
    # A setting that the command set is shown, even if the mixer has only one group
    own = {"command": "python -m seq2seq.train mixer=lightconv mixer.encoder.glu=false"}
    run = write_run(tmp_path / "typed" / "a", refs, trainer={"max_steps": 9, "accumulate": 8})
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"mixer": {"encoder": {"glu": False}}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    rewrite(run, git_revision="abc", threads=8, **own)
    eight = {"max_steps": 9, "accumulate": 1, "devices": 4, "nodes": 2}
    rewrite(write_run(tmp_path / "typed" / "b", refs, mixer="bahdanau", trainer=eight), threads=1)
    assert compare.main([str(tmp_path / "typed")]) == 0
    printed = capsys.readouterr().out
    assert [row["settings"] for row in cells(printed)] == ["mixer.encoder.glu=false", ""]
    assert "Several revisions of the code: abc (1 run), unknown (1 run)" in printed
    assert "Several numbers of threads, so times cannot be compared: 1 (1 run), 8 (1 run)" in printed
    assert "Several numbers of devices, so times cannot be compared: 1 (1 run), 8 (1 run)" in printed


def test_uncommitted_changes_of_the_code_are_named(tmp_path, capsys):
    """One revision is no news, unless changes that it does not name came with it."""
    refs = references(5)
    for seed in (1, 2):
        rewrite(write_run(tmp_path / str(seed), refs, seed=seed), git_revision="abc+")
    assert compare.main([str(tmp_path)]) == 0
    assert "One revision of the code: abc+ (2 runs); + marks uncommitted changes" in capsys.readouterr().out
    for seed in (1, 2):
        rewrite(tmp_path / str(seed), git_revision="abc")
    assert compare.main([str(tmp_path)]) == 0
    assert "of the code" not in capsys.readouterr().out


def test_runs_continued_under_other_settings_are_named(tmp_path, capsys):
    refs = references(20)
    changes = ["trainer.max_steps was 6 and is now 12", "seed was 1 and is now 2"]
    rewrite(write_run(tmp_path / "a", refs, mixer="gru"), continued=[{"update": 6, "changes": changes}])
    assert compare.main([str(tmp_path)]) == 0
    told = "Settings changed during training: a (at update 6: trainer.max_steps was 6 and is now 12; seed was 1"
    assert told in capsys.readouterr().out


def test_runs_that_the_clock_cut_short_are_named(tmp_path, capsys):
    """The end of a run by patience, or by time if nothing else bounds it, is as planned."""
    refs, both = references(20), {"max_steps": 3000, "max_time": 6}
    for seed, steps in ((1, 15), (2, 33)):
        run = write_run(tmp_path / "cut" / f"run{seed}", refs, seed=seed, trainer=both)
        rewrite(run, ended_by="max_time", steps=steps)
    for mixer, trainer, bound in (("gru", both, "patience"), ("lstm", {"max_time": 6}, "max_time")):
        rewrite(write_run(tmp_path / "planned" / mixer, refs, mixer=mixer, trainer=trainer), ended_by=bound)
    assert compare.main([str(tmp_path / "cut")]) == 0
    limit = "updates of trainer.max_steps=3000"
    assert f"by trainer.max_time, so scores depend on the machine: run1 (15 {limit}), run2 (33 {limit})" in (
        capsys.readouterr().out
    )
    assert compare.main([str(tmp_path / "planned")]) == 0
    assert "by trainer.max_time" not in capsys.readouterr().out


def test_groups_are_distinguished_by_whole_values(tmp_path, capsys):
    """Long lists of kernels are whole values, and 0 equals 0.0. Each group is tested by its own translations."""
    refs = references(20)
    kernels = ([3] * 7, [3, 7, 15, 31, 31, 31, 31], [3, 7, 15, 31, 31, 31, 3])
    for number, (sizes, rate) in enumerate(zip(kernels, (0.3, 0.3, 0.0), strict=True)):
        for dropout in (0, 0.0):
            name = f"{number}-{dropout}"
            run = write_run(tmp_path / name, refs, seed=1 + isinstance(dropout, float), rate=rate)
            config = yaml.safe_load((run / "config.yaml").read_text())
            config |= {"mixer": {"encoder": {"kernel_size": sizes}}, "model": {"dropout": dropout}}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert compare.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    rows = cells(printed)
    assert [row["settings"] for row in rows] == [
        f"mixer.encoder.kernel_size=[{','.join(map(str, sizes))}]" for sizes in kernels
    ]
    differences = [float(row["BLEU"].split()[0]) - float(rows[0]["BLEU"].split()[0]) for row in rows[1:]]
    assert deltas(rows, printed) == pytest.approx(differences, abs=0.011)
    assert compare.main([str(tmp_path), "--by", "model.dropout"]) == 0
    assert len(cells(capsys.readouterr().out.split("BLEU by")[1])) == 3
    # Numbers that differ in their last digit only
    for number, (dropout, rate) in enumerate(((0.2, 0.4), (0.1 + 0.2, 0.2), (0.3, 0.0))):
        write_run(tmp_path / "close" / str(number), refs, rate=rate, model={"dropout": dropout})
    assert compare.main([str(tmp_path / "close")]) == 0
    printed = capsys.readouterr().out
    rows = cells(printed)
    assert [row["settings"] for row in rows] == [f"model.dropout={x}" for x in ("0.2", "0.30000000000000004", "0.3")]
    # True is 1, as in the model
    for seed, value in enumerate((True, 1)):
        write_run(tmp_path / "flags" / str(seed), refs, seed=seed, model={"flag": value})
    assert len(group_runs(collect([str(tmp_path / "flags")], "test").runs)) == 1
    differences = [float(row["BLEU"]) - float(rows[0]["BLEU"]) for row in rows[1:]]
    assert deltas(rows, printed) == pytest.approx(differences, abs=0.011)


def deltas(rows: list[dict[str, str]], printed: str) -> list[float]:
    """The differences of all rows from the first."""
    baseline, *labels = [f"{row['mixer']} {row['settings']}" for row in rows]
    found = against(baseline, printed)
    return [float(found[label]["Δ BLEU"]) for label in labels]


def test_times_are_named_and_numbers_that_a_run_lacks_are_left_out(tmp_path, capsys):
    refs = references(5)
    for seed, lacking in ((1, "steps"), (2, "training_cpu_seconds")):
        run = write_run(tmp_path / str(seed), refs, seed=seed)
        times = {"seconds": 100, "training_seconds": 80, "training_cpu_seconds": 61}
        results = results_of(run) | {"parameters": 700} | times
        del results[lacking]
        (run / "results.json").write_text(json.dumps(results))
    assert compare.main([str(tmp_path)]) == 0
    (row, *_) = cells(capsys.readouterr().out)
    assert (row["updates"], row["parameters"]) == ("99", "700")
    # The scores of all runs with the time of some would mislead
    assert "training CPU time" not in row
    assert compare.main([str(tmp_path / "1")]) == 0
    printed = capsys.readouterr().out
    (row,) = cells(printed)
    assert (row["time"], row["training CPU time"]) == ("0:01:40", "0:01:01")
    assert "Scores of the test set, 1 run. BLEU:" in printed


def test_job_that_was_stopped_early_is_left_out_of_either_split(tmp_path):
    rewrite(write_run(tmp_path / "run", references(5)), stopped="BLEU 2 is below the other jobs' median")
    for split in ("test", "valid"):
        found = collect([str(tmp_path)], split)
        assert not found.runs
        assert "stopped early: BLEU 2" in found.unusable[0].reason


@pytest.mark.parametrize("change", ["fewer", "reference", "source", "signature"])
def test_different_test_sets_have_a_table_each(tmp_path, capsys, change):
    refs = references()
    write_run(tmp_path / "one", refs)
    other = write_run(tmp_path / "two", refs, mixer="bahdanau")
    write_run(tmp_path / "three", refs, mixer="gru")
    if change == "fewer":
        write_run(other, refs[:-1], mixer="bahdanau")
        expected = "one has 60 sentences, two 59"
    elif change == "signature":
        results = results_of(other)
        results["test"]["signatures"][0] = results["test"]["signatures"][0].replace("13a", "zh")
        (other / "results.json").write_text(json.dumps(results))
        expected = "toy, 60 sentences, nrefs:1|case:mixed|eff:no|tok:zh"
    else:
        path = other / f"test.{'src' if change == 'source' else 'ref'}"
        lines = path.read_text().splitlines()
        # Line 42 by the numbers of the message
        lines[41] += " too"
        path.write_text("\n".join(lines) + "\n")
        expected = f"differ, first in {change} 42"
    assert compare.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert expected in printed
    titles = [line for line in printed.splitlines() if line.startswith("## ")]
    assert len(set(titles)) == 2
    first, second = (cells(part) for part in printed.split("\n## ")[-2:])
    assert [[row["mixer"] for row in rows] for rows in (first, second)] == [["lightconv", "gru"], ["bahdanau"]]
    # Differences exist only within a table
    assert set(against("lightconv", printed)) == {"gru"}
    assert printed.count("| difference") == 1
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert len({row["set"] for row in rows}) == 2
    assert (tmp_path / "out" / "comparison.md").read_text().partition("\nleft out: ")[0] in printed


def corpus_run(path: Path, refs: list[str], name: str, **settings: Any) -> Path:
    return write_run(path, refs, data={"name": name, "src": "de", "tgt": "en"}, **settings)


def test_a_folder_with_runs_of_several_corpora(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr("seq2seq.comparison.compare_runs.draw", lambda *given, **more: drawn.append((given, more)))
    first, second = references(30), references(20)
    for name, refs in (("multi30k", first), ("iwslt", second)):
        for mixer in ("lightconv", "bahdanau") if name == "iwslt" else ("lightconv", "transformer"):
            run = corpus_run(tmp_path / "runs" / f"{name}-{mixer}", refs, name, mixer=mixer)
            (run / "metrics.csv").write_text("step,train/seconds,val/bleu\n1,1,1\n")
    (tmp_path / "runs" / "sweeps" / "today" / "0").mkdir(parents=True)
    (tmp_path / "runs" / "sweeps" / "today" / "multirun.yaml").write_text("")
    (tmp_path / "runs" / "figures").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    out = tmp_path / "out"
    assert compare.main([str(tmp_path / "runs"), "--baseline", "transformer", "--out", str(out), "--figure"]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"left out: {tmp_path}/runs/figures: holds no run\n"
    # As a shell expands runs/*
    compare.main([str(path) for path in sorted((tmp_path / "runs").iterdir()) if path.is_dir()])
    assert f"{tmp_path}/runs/sweeps: has records of sweeps" in capsys.readouterr().err
    assert "## iwslt de-en, 20 sentences\n" in captured.out
    assert "## multi30k de-en, 30 sentences\n" in captured.out
    assert captured.out.count("No run here is the baseline transformer") == 1
    found = [[row["mixer"] for row in cells(part)] for part in captured.out.split("\n## ")]
    assert found == [["bahdanau", "lightconv"], ["lightconv", "transformer"]]
    assert {path.name for path in out.iterdir()} == {"comparison.csv", "comparison-differences.csv", "comparison.md"}
    assert [(given[3].name, more["title"]) for given, more in drawn] == [
        ("comparison-1", "iwslt de-en, 20 sentences"), ("comparison-2", "multi30k de-en, 30 sentences"),
    ]  # fmt: skip
    assert f"{out}/comparison-2.svg" in captured.out
    # No table has it
    assert compare.main([str(tmp_path / "runs"), "--baseline", "gru"]) == 2
    assert capsys.readouterr().err.count("'lightconv'") == 1


def test_figures_of_an_earlier_comparison_are_deleted(tmp_path, monkeypatch):
    """A file of another name, which the command does not write, stays."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("seq2seq.comparison.compare_runs.draw", lambda *_, **__: None)
    run = write_run(tmp_path / "run", references(9))
    stale = ["comparison-1.png", "comparison-2.svg", "comparison-2-length.svg", "comparison-optim.peak_lr.png"]
    kept = ["comparison-old.png", "comparison.png.bak", "other.svg"]
    out = tmp_path / "out"
    out.mkdir()
    for name in (*stale, *kept):
        (out / name).touch()
    assert compare.main([str(run), "--out", str(out)]) == 0
    assert {*stale, *kept} < {path.name for path in out.iterdir()}
    assert compare.main([str(run), "--out", str(out), "--figure"]) == 0
    tables = {"comparison.csv", "comparison-differences.csv", "comparison.md"}
    assert {path.name for path in out.iterdir()} == {*kept, *tables}


def test_further_sets_have_a_table_each_and_one_together(tmp_path, capsys):
    """A run without translations is left out of the set and of all sets together; a message names the command."""
    refs, more = references(30), references(20)
    for side, lines in (("de", map(str.upper, more)), ("en", more)):
        (tmp_path / f"web.{side}").write_text("".join(f"{line}\n" for line in lines))
    texts = {}
    for mixer in ("gru", "lstm"):
        for seed in (1, 2):
            run = corpus_run(tmp_path / "runs" / f"{mixer}{seed}", refs, "toy", mixer=mixer, seed=seed)
            texts[mixer, seed] = garbled(more, 0.3)
            (run / "web.hyp").write_text("".join(f"{line}\n" for line in texts[mixer, seed]))
    (run / "web.hyp").unlink()
    best = RunFolder(run).best
    best.touch()
    command = [str(tmp_path / "runs"), "--set", f"web={tmp_path / 'web'}", "--out", str(tmp_path / "out")]
    assert compare.main(command) == 0
    printed = capsys.readouterr()
    own, web, together = printed.out.split("## ")[1:]
    titles = [part.splitlines()[0] for part in (own, web, together)]
    assert titles == ["toy de-en, 30 sentences", "web de-en, 20 sentences", "toy + web de-en, 50 sentences"]
    bleu = sacrebleu.metrics.BLEU()
    values = {"web": [], "together": []}
    for seed in (1, 2):
        first = (tmp_path / "runs" / f"gru{seed}" / "test.hyp").read_text().splitlines()
        values["web"].append(bleu.corpus_score(texts["gru", seed], [more]).score)
        values["together"].append(bleu.corpus_score([*first, *texts["gru", seed]], [[*refs, *more]]).score)
    for part, name in ((web, "web"), (together, "together")):
        expected = f"{statistics.fmean(values[name]):.2f} ± {statistics.stdev(values[name]):.2f}"
        assert cells(part)[0]["BLEU"] == expected
        assert [row["seeds"] for row in cells(part)] == ["1, 2", "1"]
        assert "bootstrap p" in against("gru", part)["lstm"]
    assert [row["seeds"] for row in cells(own)] == ["1, 2", "1, 2"]
    assert f"left out: lstm2, set web: has no web.hyp; python -m seq2seq.score --ckpt {run}/" in printed.err
    assert f"src=de tgt=en test={tmp_path}/web --save {run}/web.hyp" in printed.err
    runs = {row["runs"] for row in csv.DictReader((tmp_path / "out" / "comparison.csv").open())}
    assert f"{tmp_path}/runs/gru1 {tmp_path}/runs/gru2" in runs
    # Files that do not fit, and no checkpoint
    best.unlink()
    (run / "web.hyp").write_text("one line\n")
    assert compare.main(command) == 0
    printed = capsys.readouterr()
    assert [row["seeds"] for row in cells(printed.out.split("## ")[2])] == ["1, 2", "1"]
    assert "left out: lstm2, set web: web.hyp has 1 lines, and the set 20; its folder has no checkpoint" in printed.err
    (tmp_path / "web.de").unlink()
    assert compare.main(command) == 2
    assert f"--set web={tmp_path}/web: the file {tmp_path}/web.de" in capsys.readouterr().err


@pytest.mark.parametrize(("start", "other"), [(0, "the test set of gru"), (1, "web")])
def test_a_set_that_has_a_table_already_is_refused(tmp_path, capsys, start, other):
    """Its copy would count as further runs of that table."""
    refs = references(9)
    run = corpus_run(tmp_path / "runs" / "gru", refs, "toy", mixer="gru")
    for name, lines in (("web", refs[1:]), ("copy", refs[start:])):
        for file, text in ((f"{name}.de", map(str.upper, lines)), (f"{name}.en", lines), (run / f"{name}.hyp", lines)):
            (tmp_path / file).write_text("".join(f"{line}\n" for line in text))
    sets = [word for name in ("web", "copy") for word in ("--set", f"{name}={tmp_path / name}")]
    assert compare.main([str(run), *sets]) == 2
    assert f"--set copy={tmp_path}/copy has the sentences of {other}: leave" in capsys.readouterr().err


@pytest.mark.parametrize("blocked", [True, False])
def test_power_of_a_planned_number_of_seeds(tmp_path, capsys, blocked):
    """Seeds are blocks if rows have common seeds."""
    refs, seeds = references(9), 5
    ours, theirs = [30.0, 30.5, 30.2], [31.0, 30.7, 31.9]
    for mixer, first, scores in (("gru", 0, ours), ("lstm", 0 if blocked else 7, theirs)):
        for seed, score in enumerate(scores, first):
            run = write_run(tmp_path / mixer / str(seed), refs, mixer=mixer, seed=seed)
            rewrite(run, test=results_of(run)["test"] | {"bleu": score})
    variance = (statistics.variance(ours) + statistics.variance(theirs)) / 2
    freedom, name = 2 * (seeds - 1), "Scores"
    if blocked:
        # A difference has twice the variance of a score
        variance = statistics.variance(np.subtract(ours, theirs).tolist()) / 2
        freedom, name = seeds - 1, "Scores without effects of seeds"
    error = (variance * 2 / seeds) ** 0.5
    shift, critical = 0.5 / error, scipy.stats.t.ppf(0.975, freedom)
    power = scipy.stats.nct.sf(critical, freedom, shift) + scipy.stats.nct.cdf(-critical, freedom, shift)
    assert compare.main([str(tmp_path / "gru"), str(tmp_path / "lstm"), "--plan", str(seeds)]) == 0
    pattern = f"{name} have a standard deviation of {variance**0.5:.2f} BLEU .*, and a difference of 0.5 in {power:.0%}"
    assert re.search(pattern, capsys.readouterr().out, re.DOTALL)


def test_validation_sets_are_told_apart_by_their_settings(tmp_path, capsys):
    refs = references(20)
    for name in ("one", "two"):
        corpus_run(tmp_path / name, refs, name)
    corpus_run(tmp_path / "three", refs, "one", seed=2)
    corpus_run(tmp_path / "four", refs, "one", seed=3, trainer={"max_steps": 9, "val_sentences": 5})
    # Without the test set's text, as with trainer.test=false
    for side in ("src", "ref", "hyp"):
        (tmp_path / "three" / f"test.{side}").unlink()
    assert compare.main([str(tmp_path), "--split", "valid"]) == 0
    tables = capsys.readouterr().out.split("\n## ")
    assert [[row["seeds"] for row in cells(each)] for each in tables] == [["3"], ["1, 2"], ["1"]]
    headings = [each.splitlines()[0].removeprefix("## ") for each in tables]
    assert headings == ["one de-en, trainer.val_sentences=5", "one de-en, trainer.val_sentences=null", "two de-en"]
    # Held out of the training text that cleaning leaves
    for name, size in (("nine", 9), ("five", 5)):
        write_run(tmp_path / "sizes" / name, refs, data={"name": "held", "train": "all", "holdout": size})
    assert len(scored_sets(collect([str(tmp_path / "sizes")], "valid").runs, "valid")) == 2
    for name, clean in (("five", {"duplicates": True}), ("six", {"duplicates": False})):
        data = {"name": "held", "train": "all", "holdout": 9, "clean": clean}
        write_run(tmp_path / "held" / name, refs, data=data)
    assert compare.main([str(tmp_path / "held"), "--split", "valid"]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("## ")]
    assert headings == [f"## held, data.clean.duplicates={x}" for x in ("true", "false")]
    # Rules on lengths come after
    data = {"name": "held", "train": "all", "holdout": 9, "clean": {"duplicates": True, "max_length": 9}}
    write_run(tmp_path / "held" / "seven", refs, data=data, seed=2)
    mixed = data | {"corpora": {"web": {"train": "web", "valid": "w"}}}
    write_run(tmp_path / "held" / "eight", refs, data=mixed)
    assert compare.main([str(tmp_path / "held"), "--split", "valid"]) == 0
    tables = capsys.readouterr().out.split("## ")[1:]
    assert {each.splitlines()[0].removeprefix("held, data."): len(cells(each)) for each in tables} == {
        "clean.duplicates=true": 2,
        "clean.duplicates=false": 1,
        "clean.duplicates=true, data.corpora.web.valid=w": 1,
    }
    # The test set is the same text under both names, which a run without it cannot show
    assert compare.main([str(tmp_path / name) for name in ("one", "two", "three", "four")]) == 0
    one, other = capsys.readouterr().out.split("## ")[1:]
    assert one.startswith("one de-en = two de-en, 20 sentences\n")
    assert "No test translations, so no bootstrap: three" in other


def test_significance_is_computed_as_the_scores_were(tmp_path):
    run = write_run(tmp_path / "a", references(9))
    for signature, tokenize, lowercase in (
        ("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.4", "13a", True),
        ("nrefs:1|case:mixed|eff:no|tok:ja-mecab-0.996-IPA|smooth:exp|version:2.4", "ja-mecab", False),
        ("nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:2.4", "zh", False),
    ):
        results = results_of(run)
        results["test"]["signatures"][0] = signature
        rewrite(run, test=results["test"])
        (found,) = collect([str(run)], "test").runs
        assert scoring(found) == {"tokenize": tokenize, "lowercase": lowercase}


def test_runs_with_and_without_newer_settings_are_one_group(tmp_path):
    """A setting that is newer than a run has its default there."""
    old = resolved()
    del old["mixer"]
    write_run(tmp_path / "new", references(9), **{**old, "seed": 2})
    del old["callbacks"], old["trainer"]["lightning"], old["data"]["clean"]["same"], old["search"]["n_best"]
    write_run(tmp_path / "old", references(9), **old)
    (group,) = group_runs(collect([str(tmp_path)], "test").runs)
    assert (group.label, [run.seed for run in group.runs]) == ("lightconv", [1, 2])


def test_unreadable_runs_are_listed(tmp_path, capsys):
    refs = references(20)
    write_run(tmp_path / "good runs", refs)
    for name in ("unfinished", "damaged", "untested", "odd", "diverged", "scoreless"):
        write_run(tmp_path / name, refs)
    (tmp_path / "diverged" / "results.json").unlink()
    (tmp_path / "diverged" / "fault-0.json").write_text('{"fault": "11 updates had no finite gradient"}')
    rewrite(tmp_path / "scoreless", test={"chrf": 5.0})
    (tmp_path / "unfinished" / "results.json").unlink()
    (tmp_path / "damaged" / "results.json").write_text('{"test": {"bl')
    results = results_of(tmp_path / "untested")
    del results["test"]
    (tmp_path / "untested" / "results.json").write_text(json.dumps(results))
    (tmp_path / "odd" / "config.yaml").write_text("a: [")
    out = tmp_path.with_name(f"{tmp_path.name}-out")
    patterns = [str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "good runs")]
    assert compare.main([*patterns, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert len(cells(captured.out)) == 1
    said, reported = (
        re.findall(r"^left out: ([^:]*):", text, re.MULTILINE)
        for text in (captured.err, (out / "comparison.md").read_text())
    )
    assert said == reported
    assert len(said) == 7
    (row,) = csv.DictReader((out / "comparison.csv").open())
    assert shlex.split(row["runs"]) == [str(tmp_path / "good runs")]
    left_out = {line.split(": ")[1]: line for line in captured.err.splitlines()}
    assert "still runs" not in left_out[str(tmp_path / "diverged")]
    for name, reason in (("unfinished", "resume=auto"), ("damaged", "is damaged"), ("untested", "--split valid"),
                         ("odd", "not YAML"), ("nowhere", "no such folder"), ("scoreless", "'bleu'"),
                         ("diverged", "fault-0.json: 11 updates had no finite gradient")):  # fmt: skip
        assert reason in left_out[str(tmp_path / name)]
    assert compare.main([str(tmp_path / "unfinished")]) == 1
    assert "no finished run" in capsys.readouterr().err
    assert compare.main([str(tmp_path / "*"), "--split", "valid"]) == 0
    # Also the untested run, and the one without a test score
    assert cells(capsys.readouterr().out)[0]["seeds"] == "1, 1, 1"


def test_runs_of_a_sweep_are_found_by_its_jobs(tmp_path, capsys):
    refs, sweep = references(20), tmp_path / "runs" / "sweeps" / "today"
    for number, (mixer, state) in enumerate((("bahdanau", "finished"), ("lightconv", "failed"), ("gru", "running"))):
        run = write_run(tmp_path / "runs" / f"run{number}", refs, mixer=mixer)
        error = "ValueError: too wide" if state == "failed" else ""
        Job(sweep / str(number), (f"mixer={mixer}",), state, run, error, process=Process(host="elsewhere")).write()
    # Marks the folder as a sweep; the runs' tree is moved afterwards
    (sweep / "multirun.yaml").write_text("")
    moved = tmp_path / "moved"
    (tmp_path / "runs").rename(moved)
    assert compare.main([str(moved / "sweeps" / "*")]) == 0
    captured = capsys.readouterr()
    assert [row["mixer"] for row in cells(captured.out)] == ["bahdanau"]
    assert "job 1 (mixer=lightconv)" in captured.err
    assert "failed: ValueError: too wide" in captured.err
    assert f"job 2 (mixer=gru) ({moved / 'run2'}): running" in captured.err


def test_a_baseline_is_one_group_however_it_is_named(tmp_path, capsys, monkeypatch):
    refs = references(20)
    write_run(tmp_path / "a", refs)
    write_run(tmp_path / "b", refs, model={"dim": 32})
    for name, expected in (("gru", "choose from 'lightconv model.dim=16'"), ("lightconv", "several rows")):
        assert compare.main([str(tmp_path), "--baseline", name]) == 2
        assert expected in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    for name in ("b", str(tmp_path / "b"), "./b/", "a/../b", "lightconv model.dim=32"):
        assert compare.main([str(tmp_path), "--baseline", name]) == 0
        assert set(against("lightconv model.dim=32", capsys.readouterr().out)) == {"lightconv model.dim=16"}


def test_runs_without_translations_have_no_significance(tmp_path, capsys):
    for mixer in ("lightconv", "gru"):
        run = write_run(tmp_path / mixer, references(20), mixer=mixer)
        for side in ("src", "ref", "hyp"):
            (run / f"test.{side}").unlink()
    assert compare.main([str(tmp_path), "--baseline", "lightconv"]) == 0
    printed = capsys.readouterr().out
    assert list(against("lightconv", printed)["gru"]) == ["difference", "Δ BLEU"]
    assert "no bootstrap: gru, lightconv" in printed
    # The legend explains no column that is not there
    assert printed.count("bootstrap") == 1
    # The bootstrap of a row is over all its seeds, or is not made
    refs = references(20)
    for mixer in ("lstm", "mlp"):
        for seed in (1, 2):
            write_run(tmp_path / "some" / f"{mixer}{seed}", refs, mixer=mixer, seed=seed)
    (tmp_path / "some" / "mlp2" / "test.hyp").write_bytes(b"\xe9\n")
    assert compare.main([str(tmp_path / "some"), "--baseline", "lstm"]) == 0
    printed = capsys.readouterr()
    assert "bootstrap p" not in against("lstm", printed.out)["mlp"]
    assert "no bootstrap: mlp2" in printed.out
    assert "mlp2/test.hyp is not UTF-8" in printed.err


def test_lines_of_the_test_set_end_at_newlines_only(tmp_path):
    folder = RunFolder(write_run(tmp_path / "a", references(3)))
    folder.save_test(src=["a\rb", "", "\u2028c\x0b"], ref=["x\ny", "z\r", ""], hyp=["", "", "ü"])
    (run,) = collect([str(folder.path)], "test").runs
    assert run.test_lines("src") == ["a\rb", "", "\u2028c\x0b"]
    assert run.test_lines("ref") == ["x y", "z\r", ""]
    assert run.test_lines("hyp") == ["", "", "ü"]


def test_curve_joins_scores_and_times(tmp_path):
    path = tmp_path / "metrics.csv"
    # The last row is not complete
    path.write_text("step,train/seconds,val/bleu\n5,3.5,\n10,8,\n10,,1.5\n15,12,\n20,16,\n20,,2.5\n25,\n")
    assert read_curve(path, "train/seconds") == [(8, 1.5), (16, 2.5)]
    assert read_curve(path, "step") == [(10, 1.5), (20, 2.5)]
    assert read_curve(tmp_path / "none.csv", "step") == []


def test_band_is_the_mean_and_range_where_all_curves_overlap():
    slopes = np.random.rand(4) * 10
    # A first point below 3 and a last above 7: all overlap, whatever is drawn
    times = [[*np.random.uniform(1, 3, 2), *np.random.uniform(1, 9, 4), *np.random.uniform(7, 9, 2)] for _ in slopes]
    curves = [[(t, slope * t) for t in sorted(row)] for slope, row in zip(slopes, times, strict=True)]
    found = band(curves)
    assert found is not None
    low, high = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    assert found.axis.min() >= low
    assert found.axis.max() <= high
    np.testing.assert_allclose(found.mean, slopes.mean() * found.axis)
    np.testing.assert_allclose(found.low, slopes.min() * found.axis)
    np.testing.assert_allclose(found.high, slopes.max() * found.axis)
    assert band([[], []]) is None
    assert band([[(1.0, 2.0)], [(3.0, 2.0)]]) is None


def test_figure_shows_every_group_and_is_reproducible(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    refs = references(20)
    for mixer in ("lightconv", "bahdanau"):
        for seed in (1, 2):
            run = write_run(tmp_path / f"{mixer}{seed}", refs, mixer=mixer, seed=seed)
            rows = [f"{step},{step * random.uniform(0.9, 1.1)},{step},{random.random()}" for step in range(1, 9)]
            columns = "step,train/seconds,train/cpu_seconds,val/bleu"
            (run / "metrics.csv").write_text("\n".join([columns, *rows]) + "\n")
    out = tmp_path / "out"
    assert compare.main([str(tmp_path), "--out", str(out), "--figure"]) == 0
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    svg = (out / "comparison.svg").read_text()
    assert svg.count("<!-- lightconv -->") == svg.count("<!-- bahdanau -->") == 1
    assert "<!-- training time (seconds) -->" in svg
    assert "<!-- updates -->" not in svg
    assert compare.main([str(tmp_path), "--out", str(out), "--figure", "--against", "updates"]) == 0
    assert "<!-- updates -->" in (out / "comparison.svg").read_text()
    assert compare.main([str(tmp_path), "--out", str(out), "--figure", "--against", "cpu"]) == 0
    assert "<!-- CPU time (seconds) -->" in (out / "comparison.svg").read_text()
    assert compare.main([str(tmp_path), "--out", str(out), "--figure"]) == 0
    assert (out / "comparison.svg").read_text() == svg  # the same runs give the same file
    results = json.loads((tmp_path / "bahdanau1" / "results.json").read_text())
    (tmp_path / "bahdanau1" / "results.json").write_text(json.dumps({**results, "accelerator": "gpu"}))
    assert compare.main([str(tmp_path), "--out", str(out), "--figure", "--against", "cpu"]) == 0
    assert "no curve of bahdanau" in capsys.readouterr().err


def test_runs_without_a_curve_are_told(tmp_path, capsys, monkeypatch):
    """Runs lack a curve, or the curves of a row do not overlap."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("seq2seq.comparison.compare_runs.draw", lambda *_, **__: None)
    refs = references(9)
    for seed, name in enumerate(("a", "b", "c")):
        write_run(tmp_path / "runs" / name, refs, seed=seed)
    (tmp_path / "runs" / "a" / "metrics.csv").write_text("step,train/seconds,val/bleu\n1,1,1\n2,2,2\n")
    command = [str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--figure"]
    assert compare.main(command) == 0
    assert capsys.readouterr().err == "comparison: no curve of b, c (no scores by time in metrics.csv)\n"
    for seconds, name in ((10, "a"), (12, "b"), (14, "c")):
        (tmp_path / "runs" / name / "metrics.csv").write_text(f"step,train/seconds,val/bleu\n1,{seconds},1\n")
    assert compare.main(command) == 0
    reason = "the scores of its runs by time have no range in common; try --against updates"
    assert capsys.readouterr().err == f"comparison: no curve of lightconv ({reason})\n"
    assert compare.main([*command, "--against", "updates"]) == 0
    assert capsys.readouterr().err == ""


def test_bleu_by_source_length_is_sacrebleus_on_each_part(tmp_path, capsys):
    """Parts of 4 words; fewer than 20 longer sentences join the last, and a run without its sources has no row."""
    refs = [" ".join(random.choices(WORDS, k=length)) for length in [2, 4] * 15 + [5, 8] * 20 + [9, 30] * 4]
    random.shuffle(refs)
    paths = [write_run(tmp_path / f"a{seed}", refs, seed=seed) for seed in (1, 2)]
    write_run(tmp_path / "b", refs, mixer="bahdanau")
    RunFolder(tmp_path / "b").test_file("src").unlink()
    assert compare.main([str(tmp_path), "--by-length", "4"]) == 0
    table = capsys.readouterr().out.partition("by length of the source")[2]
    counts, row = cells(table)
    assert [counts[part] for part in ("1-4", "5-30")] == ["30", "48"]
    assert row["source length (words)"] == "lightconv"
    for part, (least, most) in {"1-4": (1, 4), "5-30": (5, 30)}.items():
        rows = [i for i, ref in enumerate(refs) if least <= len(ref.split()) <= most]
        values = []
        for path in paths:
            hypotheses = (path / "test.hyp").read_text().splitlines()
            chosen = [[lines[i] for i in rows] for lines in (hypotheses, refs)]
            values.append(sacrebleu.metrics.BLEU().corpus_score(chosen[0], [chosen[1]]).score)
        assert row[part] == f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--figure"], "--figure needs --out"),
        (["runs", "--by-length", "10", "--split", "valid"], "--by-length needs translations"),
        (["runs", "--contrast", "a", "b", "--baseline", "b"], "--contrast names its own baseline"),
        (["runs", "--set", "a=b", "--split", "valid"], "--set needs translations"),
        (["runs", "--set", "a/b=c"], "is not NAME=PREFIX"),
        (["runs", "--set", "a=b", "--set", "a=c"], "--set a is given twice"),
        (["runs", "--comet-model", "a"], "--comet-model needs --comet-python"),
        (["runs", "--against", "cpu"], "--against needs --figure"),
        (["runs", "--interval", "5"], "--interval needs --watch"),
        ([], "required"),
        (["runs", "--resamples", "0"], "whole number"),
    ],
)
def test_wrong_options_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        compare.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_watching_needs_a_sweep(tmp_path, capsys):
    assert compare.main([str(write_run(tmp_path / "a", references(3))), "--watch"]) == 2
    assert "--watch" in capsys.readouterr().err


def sweep(folder: Path, refs: list[str]) -> dict[tuple[str, str, int], Path]:
    """Write runs of two mixers, three rates and two seeds; the last rate of one of them is missing."""
    grid = [(m, r, s) for m in ("lightconv", "bahdanau") for r in ("0.001", "0.01", "2") for s in (1, 2)]
    return {
        (mixer, rate, seed): write_run(
            folder / f"{mixer}{rate}-{seed}", refs, mixer=mixer, seed=seed, optim={"peak_lr": float(rate)}
        )
        for mixer, rate, seed in grid
        if (mixer, rate) != ("bahdanau", "2")
    }


def test_bleu_by_a_setting_has_a_row_for_each_mixer_and_its_best_value(tmp_path, capsys):
    runs = sweep(tmp_path, references(20))
    assert compare.main([str(tmp_path), "--by", "optim.peak_lr"]) == 0
    printed = capsys.readouterr().out
    assert "--split valid" in printed
    rows = {row["optim.peak_lr"]: row for row in cells(printed.partition("BLEU by optim.peak_lr")[2])}
    assert set(rows) == {"lightconv", "bahdanau"}
    for mixer, row in rows.items():
        means = {}
        for rate in ("0.001", "0.01", "2"):
            paths = [runs.get((mixer, rate, seed)) for seed in (1, 2)]
            values = [results_of(path)["test"]["bleu"] for path in paths if path]
            if not values:
                assert row[rate] == ""
                continue
            means[rate] = statistics.fmean(values)
            assert row[rate] == f"{means[rate]:.2f} ± {statistics.stdev(values):.2f}"
        assert row["best"] == max(means, key=lambda rate: means[rate])
    for by, split in (("optim.peak_lr", "valid"), ("seed", "test")):
        assert compare.main([str(tmp_path), "--by", by, "--split", split]) == 0
        printed = capsys.readouterr().out.partition("BLEU by")[2]
        assert ("best" in printed, "--split valid" in printed) == (by != "seed", False)


def test_a_row_is_one_model_in_an_unfinished_sweep(tmp_path, capsys):
    """In an unfinished sweep of widths and rates, each row has one width; copies of the rate do not split it."""
    refs = references(20)
    for dim, rate in ((16, 0.1), (32, 0.1), (32, 0.2), (8, 0.2), (8, 2.0), (16, 2)):
        settings = {"model": {"dim": dim}, "optim": {"peak_lr": rate, "lr": rate}}
        write_run(tmp_path / f"{dim}-{rate}", refs, **settings)
    # A corpus of its own, whose runs have no such setting
    write_run(tmp_path / "other", references(30), data={"name": "another"})
    assert compare.main([str(tmp_path), "--by", "optim.peak_lr"]) == 0
    table = capsys.readouterr().out.partition("BLEU by optim.peak_lr")[2].partition("##")[0]
    rows = {row["optim.peak_lr"]: row for row in cells(table)}
    scored = {label: {rate for rate in ("0.1", "0.2", "2") if row[rate]} for label, row in rows.items()}
    assert scored == {
        "lightconv model.dim=16": {"0.1", "2"},
        "lightconv model.dim=32": {"0.1", "0.2"},
        "lightconv model.dim=8": {"0.2", "2"},
    }


@pytest.mark.parametrize("option", ["--by", "--ignore"])
def test_an_unknown_setting_is_named_with_similar_ones(tmp_path, capsys, option):
    write_run(tmp_path / "a", references(20), optim={"peak_lr": 0.1})
    assert compare.main([str(tmp_path), option, "peak_lr"]) == 2
    assert f"{option} peak_lr: no run has this setting; did you mean optim.peak_lr?" in capsys.readouterr().err


def test_runs_of_one_row_differ_in_what_is_ignored(tmp_path, capsys):
    refs = references(20)
    for seed, precision in ((1, "32-true"), (2, "32-true"), (2, "bf16-mixed"), (3, "bf16-mixed")):
        trainer = {"precision": precision, "max_steps": 5}
        write_run(tmp_path / f"{seed}-{precision}", refs, seed=seed, trainer=trainer)
    assert compare.main([str(tmp_path)]) == 0
    assert [row["seeds"] for row in cells(capsys.readouterr().out)] == ["1, 2", "2, 3"]
    assert compare.main([str(tmp_path), "--ignore", "trainer.precision", "--by", "trainer.max_steps"]) == 0
    printed = capsys.readouterr().out
    table, _, by = printed.partition("BLEU by")
    (row,) = cells(table)
    assert row["seeds"] == "1, 2, 2, 3"
    assert "settings" not in row
    assert len(cells(by)) == 1
    assert "Runs of one row may differ in trainer.precision." in printed


def test_a_row_without_a_setting_lacks_its_copy(tmp_path, capsys):
    """`optim.lr` follows `optim.peak_lr` unless a command sets it."""
    refs = references(20)
    for seed, mixer, peak, rate in ((1, "gru", 1, 1), (1, "lstm", 2, 2), (2, "gru", 1, 3)):
        write_run(tmp_path / f"{mixer}{seed}", refs, seed=seed, mixer=mixer, optim={"peak_lr": peak, "lr": rate})
    runs = [str(tmp_path / name) for name in ("gru1", "lstm1", "gru2")]
    assert compare.main([*runs[:2], "--ignore", "optim.peak_lr", "--contrast", "lstm", "gru"]) == 0
    assert [row["mixer"] for row in cells(capsys.readouterr().out)] == ["gru", "lstm"]
    assert compare.main([*runs, "--ignore", "optim.peak_lr"]) == 0
    assert "optim.lr=3" in capsys.readouterr().out


def test_figures_of_bleu_by_a_setting_and_by_source_length(tmp_path):
    pytest.importorskip("matplotlib")
    sweep(tmp_path, [" ".join(random.choices(WORDS, k=length)) for length in [4, 8] * 20])
    out = tmp_path / "out"
    options = ["--by", "optim.peak_lr", "--by-length", "4", "--out", str(out), "--figure"]
    assert compare.main([str(tmp_path), *options]) == 0
    svg = (out / "comparison-optim.peak_lr.svg").read_text()
    for text in ("optim.peak_lr", "0.001", "lightconv", "bahdanau"):
        assert f"<!-- {text} -->" in svg
    assert "<!-- lightconv" in (out / "comparison-length.svg").read_text()
    assert "BLEU by length of the source" in (out / "comparison.md").read_text()
