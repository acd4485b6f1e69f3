"""The ablations of Wu et al. 2019: every row composes at the published size, and the table of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from composed import config

from benchmarks import ablation
from benchmarks.ablation import ROWS, Outcome, Score, direction
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.network.model import Seq2Seq
from seq2seq.runs.folder import RunFolder
from seq2seq.sweeps.job_records import Job, write_sweep
from seq2seq.system.resources import conf_dir
from seq2seq.system.yaml_file import read_yaml

NAMES = [row.name for row in ROWS]
# A joint vocabulary of 32k pieces, one table for source, target and output
JOINT = {"src_vocab_size": 32768, "tgt_vocab_size": 32768, "joint": True}
EXHAUSTIVE = ("test_rows_differ_as_described",)
REPRESENTATIVE = {"test_sizes_are_as_published": {"cnn", "dynamic"}}


def model_of(row: str, size: str = "big") -> Seq2Seq:
    with on_meta_device():
        return build_model(config("experiment=ablation_wu", f"{ablation.KEY}={row}", f"model={size}", **JOINT))


def test_one_command_runs_every_row_in_the_papers_order():
    experiment = conf_dir() / "experiment"
    swept = read_yaml(experiment / "ablation_wu.yaml")["hydra"]["sweeper"]["params"][ablation.KEY]
    assert swept.split(",") == NAMES
    assert {path.stem for path in (experiment / "wu_table3").glob("*.yaml")} == set(NAMES)
    assert {row.against for row in ROWS} <= {"", *NAMES}


@pytest.mark.parametrize("row", [row for row in ROWS if row.millions], ids=lambda row: row.name)
def test_sizes_are_as_published(row):
    """Millions of parameters of table 3, some of which are rounded (199.6 to 200) and others cut (208.8 to 208)."""
    count = sum(parameter.numel() for parameter in model_of(row.name).parameters())
    assert abs(count / 1e6 - row.millions) < 1, f"{count:,} parameters, published {row.millions}M"


def test_rows_differ_as_described():
    """Depth, kernels, windows and switches of each row, base size."""
    models = {name: model_of(name, "base") for name in NAMES}
    depths = {name: len(model.encoder.layers) for name, model in models.items()}
    assert {name for name, depth in depths.items() if depth == 6} == {"attention", "windows", "aan_decoder", "aan"}
    assert set(depths.values()) == {6, 7}
    for side in ("encoder", "decoder"):
        found: dict[str, Any] = {name: [m.self_mixer for m in getattr(models[name], side).layers] for name in NAMES}
        assert [mixer.window for mixer in found["windows"]] == [3, 7, 15, 31, 31, 31]
        assert {mixer.kernel_size for name in ("cnn", "depthwise") for mixer in found[name]} == {3}
        first = {name: mixers[0] for name, mixers in found.items()}
        convolutions = NAMES[NAMES.index("depthwise") : NAMES.index("aan_decoder")]
        assert not any(first[name].glu for name in convolutions)
        assert first["glu"].glu
        assert [first[name].weight_dropout for name in convolutions] == [0, 0, *[0.1] * 5]
        assert {name for name in NAMES if not getattr(first[name], "softmax", True)} == {"sharing", "unnormalized"}
        for name in convolutions[1:]:
            assert [mixer.kernel_size for mixer in found[name]][:6] == [3, 7, 15, 31, 31, 31]


def write_job(sweep: Path, row: str, seed: int | None, *, bleu: float | None = None, error: str = "") -> None:
    """Write a job's record, without a seed if it is None, and its run if there is a score."""
    number = len(list(sweep.glob("*"))) - 1
    run = RunFolder(sweep.parent / f"{sweep.name}-{number}")
    if bleu is not None:
        run.create(yaml.safe_dump({"seed": seed or 1, "data": {"name": "toy"}, "mixer": {}}))
        score = {"bleu": bleu, "chrf": 50.0}
        run.results.write_text(json.dumps({"mixer": row, "test": score, "valid": score, "parameters": 2_345_678}))
    overrides = (f"{ablation.KEY}={row}", "experiment=ablation_wu", *([f"seed={seed}"] if seed else []))
    Job(sweep / str(number), overrides, "failed" if error else "finished", run.path, error).write()


def test_the_table_of_two_sweeps(tmp_path, capsys):
    """Means over seeds, differences from each row's base, diverged and failed jobs; the last sweep counts."""
    first, second = tmp_path / "a", tmp_path / "b"
    for sweep in (first, second):
        write_sweep(sweep, ended=True)
    for seed in (1, 2):
        write_job(first, "attention", seed, bleu=30.0 + seed)
        write_job(first, "windows", seed, bleu=20.0)
        write_job(first, "cnn", seed, bleu=11.0 + 1.2 * seed)
        write_job(first, "unnormalized", seed, error="the run has diverged: at update 7 the loss is nan")
    write_job(first, "lightconv", 1, error="out of memory")
    write_job(first, "lightconv", 2, bleu=40.0)
    write_job(first, "dynamicconv", 1, error="3 updates had a gradient that is not finite, more than")
    write_job(first, "dynamicconv", 2, bleu=5.0)
    write_job(second, "windows", None, bleu=31.0)  # the seed that a command without one has
    write_job(second, "windows", 2, bleu=31.4)
    out = tmp_path / "out"
    assert ablation.main([str(first), str(second), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    rows = {NAMES[at]: [cell.strip() for cell in line.split("|")[1:-1]] for at, line in enumerate(lines[2:15])}
    assert rows["attention"] == ["self-attention", "2.35M", "31.50 ± 0.71", "", "", "210M", "26.9 ± 0.1", "", ""]
    assert rows["windows"][2:8] == ["31.20 ± 0.28", "-0.30", "0.500", "210M", "26.9 ± 0.3", "+0.0"]
    assert rows["windows"][8] == "within noise"
    assert rows["cnn"][2:] == ["12.80 ± 0.85", "-18.70", "0.003", "208M", "25.9 ± 0.2", "-1.0", "same"]
    assert rows["unnormalized"][2] == rows["unnormalized"][6] == "diverged"
    assert rows["unnormalized"][8] == "same"
    assert rows["lightconv"][2] == "40.00, failed: 1 of 2"
    assert rows["dynamicconv"][2:5] == ["5.00, diverged: 1 of 2", "-35.00", ""]  # one seed has no p
    assert rows["aan"][1:4] == ["", "", ""]
    assert (out / "ablation.md").read_text("utf-8") == printed
    plain = json.loads((out / "ablation.json").read_text("utf-8"))
    assert plain["windows"]["bleu"] == {"1": 31.0, "2": 31.4}
    assert plain["unnormalized"]["parameters"] is None
    assert "aan" not in plain


@pytest.mark.parametrize(
    ("ours", "p", "theirs", "expected"),
    [
        (2.0, 0.04, Score(0.3, 0.1), "same"),
        (-2.0, 0.04, Score(0.3, 0.1), "opposite"),
        (-2.0, 0.06, Score(0.3, 0.1), "within noise"),
        (-2.0, 0.04, Score(0.3, 0.3), "within noise"),
        (None, None, Score(0.3, 0.1), ""),
        (2.0, None, Score(0.3, 0.1), ""),
        (2.0, 0.04, None, ""),
    ],
)
def test_direction(ours, p, theirs, expected):
    assert direction(ours, p, theirs) == expected


def test_missing_divergence_is_reported():
    row = next(row for row in ROWS if row.name == ablation.DIVERGED)
    nothing = {name: Outcome({}, float("nan"), {}) for name in NAMES}
    assert ablation.cells(row, nothing)["direction"] == ""
    failed = nothing | {row.name: Outcome({}, float("nan"), {"1": "out of memory"})}
    assert ablation.cells(row, failed)["direction"] == ""
    for errors, expected in (({}, "opposite"), ({"2": "weights are not finite"}, "mixed")):
        found = nothing | {row.name: Outcome({"1": 3.0}, 1e6, errors)}
        assert ablation.cells(row, found)["direction"] == expected


def test_folders_without_a_sweep_of_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a sweep's folder"):
        ablation.outcomes([tmp_path])
    write_sweep(tmp_path, ended=True)
    Job(tmp_path / "0", ("mixer=gru",), "finished", tmp_path).write()
    with pytest.raises(ValueError, match="no job sets experiment/wu_table3"):
        ablation.outcomes([tmp_path])


def test_rows_of_unlike_runs_make_no_table(tmp_path):
    sweep = tmp_path / "sweep"
    write_sweep(sweep, ended=True)
    for seed in (1, 2):
        write_job(sweep, "attention", seed, bleu=30.0)
    config = next(tmp_path.glob("sweep-*")) / "config.yaml"
    config.write_text(config.read_text() + "trainer: {max_steps: 7}\n")
    with pytest.raises(ValueError, match=r"need one budget, not .*max_steps=7"):
        ablation.outcomes([sweep])
