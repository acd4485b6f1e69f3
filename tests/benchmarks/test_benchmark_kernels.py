"""The GPU benchmark on a CPU with tiny shapes: it runs, writes all outputs, and reports a wrong result."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from benchmarks.kernels import __main__ as bench
from benchmarks.kernels import ahead, convolutions, inputs, session, shapes, tables, tune
from seq2seq.kernels import launch_config


@pytest.fixture(autouse=True)
def _torch_path(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the interpreter takes too long for a smoke test


def _run(out: Path, *options: str) -> tuple[int, dict]:
    status = bench.main(["--device", "cpu", "--quick", "--out", str(out), *options])
    return status, json.loads((out / "kernels.json").read_text(encoding="utf-8"))


def test_whole_script(tmp_path, capsys):
    status, found = _run(tmp_path, "--tune")
    assert (status, found["errors"], found["left_out"]) == (0, [], [])
    assert set(found["seconds"]) == set(bench.SECTIONS)
    assert found["device"]["torch"] == torch.__version__
    assert found["device"]["copy_gb_s"] > 0
    timed = {(row["op"], row["direction"], row["way"]) for row in found["timings"] if row["us"]}
    assert {(op, way, "torch") for op in shapes.OPS for way in ("forward", "backward")} <= timed
    assert all(row["us"] or row["error"] for row in found["timings"])
    layers = {row["op"]: row["detail"] for row in found["layers"] if row["us"] and not row["error"]}
    assert {"dynamicconv", "lightconv", "attention", "attention, cuDNN allowed"} <= set(layers)
    assert layers["attention"] in torch.nn.attention.SDPBackend.__members__
    assert all(row["us"] > 0 for row in found["decode"])
    page = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    assert all(f"## {name.capitalize()}" in page for name in bench.SECTIONS)
    assert "| dynamicconv forward, B 1, T 20, C 32, H 2, K 7 |" in capsys.readouterr().out
    assert torch.backends.cuda.cudnn_sdp_enabled()  # for other tests in this process


def test_no_time_left_is_told(tmp_path):
    _, found = _run(tmp_path, "--budget", "0")
    assert found["timings"] == found["layers"] == []
    assert any("timings: lightconv, B 1" in line for line in found["left_out"])


def test_wrong_result_fails_but_is_timed(tmp_path, monkeypatch):
    right = inputs.dynamicconv
    signs = itertools.cycle((1, -1))

    # Without Triton, ours is the torch path: it must differ from itself
    def wrong(x, logits, **rest):
        return right(x, logits, **rest) * next(signs)

    monkeypatch.setattr(inputs, "dynamicconv", wrong)
    status, found = _run(tmp_path, "--sections", "timings")
    assert status == 1
    assert {row["op"] for row in found["timings"] if row["error"].startswith("differs")} == {"dynamicconv"}
    assert all(row["us"] for row in found["timings"] if row["error"] != "not importable")


def test_call_that_fails_is_a_row_with_its_reason(tmp_path, monkeypatch):
    def broken(x, weights, **rest):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(inputs, "lightconv", broken)
    status, found = _run(tmp_path, "--sections", "timings")
    assert status == 1
    assert any("timings: lightconv forward" in line for line in found["errors"])
    ours = [row for row in found["timings"] if row["way"] == "ours" and row["direction"] != "mask"]
    assert {row["op"] for row in ours if row["us"]} == {"dynamicconv"}
    assert {row["error"] for row in ours if row["op"] == "lightconv"} == {"RuntimeError: no such kernel"}


def test_relative_error():
    wanted = torch.tensor([3.0, 4.0])
    assert convolutions.relative_error(wanted + torch.tensor([0.3, 0.4]), wanted) == pytest.approx(0.1)
    assert not convolutions.relative_error(torch.tensor([float("nan"), 4.0]), wanted) < 1e9
    assert convolutions.relative_error(torch.full((4,), 1e-6), torch.full((4,), 1e-17)) == pytest.approx(1e-6)


def test_failing_section_does_not_stop_the_others(tmp_path, monkeypatch):
    def broken(session):
        raise RuntimeError("no such device")

    monkeypatch.setitem(bench.SECTIONS, "timings", bench.SECTIONS["timings"]._replace(work=broken))
    status, found = _run(tmp_path, "--sections", "timings", "decode")
    assert status == 1
    assert found["errors"] == ["timings: RuntimeError: no such device"]
    assert found["decode"]


def test_launch_settings_are_compiled_once_for_all_chunks_and_similar_widths():
    sizes = shapes.gpu_sizes(False, [31, 15, 7])
    run = session.Session(torch.device("cuda"), "triton", sizes, Path(), sections=["tune"])
    made = []
    for _, _, shape, settings, name in (job.args for job in ahead.jobs_ahead(run)):
        reach = launch_config.backs(shape.taps, settings.tile)
        made.append((name, settings._replace(chunk=1), reach, shape.taps > 16))
    assert len(made) == len(set(made))
    # Columns and warps of tiles of 16, 32 and 64, for K = 31 and for both others
    assert len([one for one in made if one[0] == "lightconv"]) == 2 * 4 * 3 * 2
    assert {one[1].tile for one in made if one[0] == "lightconv_one_tile"} == {32}


def test_tuned_are_both_lengths_and_all_tiles_and_columns():
    sizes = shapes.gpu_sizes(False, [])
    assert {(shape.taps, shape.length) for shape in sizes.tuned} == {
        (taps, length) for taps in (3, 7, 15, 31, 63) for length in (28, 1024)
    }
    assert all(0.99 < shape.tokens / shapes.MAIN.tokens <= 1 for shape in sizes.tuned)
    for shape in sizes.tuned:
        default = tune.default_settings("lightconv", "backward", shape)
        tried = tune.candidates(default, sizes)
        assert len(tried) == len(set(tried)) == 24
        assert {(one.tile, one.columns) for one in tried} == {(t, c) for t in (16, 32, 64) for c in (32, 64)}
        assert tried[0].tile == default.tile
        assert {one.chunk for one in tried} == {default.chunk}
        later = tune.variants(tried[5], sizes)
        assert {one.chunk for one in (tried[5], *later)} == {1, 2, 4, 8, 16, default.chunk}
        assert {one.num_stages for one in later} == {1, 2, 3}
        # At 60 ms a candidate, and a second for each of at most four that are compiled: under 7 minutes in all
        assert len(later) <= 10
        assert len({one._replace(chunk=1) for one in later} - {tried[5]._replace(chunk=1)}) <= 4
        assert {(one.tile, one.columns, one.num_warps) for one in later} == {
            (tried[5].tile, tried[5].columns, tried[5].num_warps)
        }


def test_second_round_starts_from_the_fastest(tmp_path, monkeypatch):
    """Times are made up: the fewer columns and the larger the tile, the faster."""
    shape = shapes.Shape(1, 20, 32, 2, 7)
    sizes = shapes.gpu_sizes(False, [7])._replace(tuned=[shape])
    run = session.Session(torch.device("cpu"), "torch", sizes, tmp_path)

    def pretend(row, name, calls, wanted, session):
        return row._replace(us=row.detail.columns / row.detail.tile + 1 / row.detail.chunk)

    monkeypatch.setattr(tune, "time_settings", pretend)
    monkeypatch.setattr(tune, "measure", lambda calls, session: {"us": 1.0})
    tune.tune_one("lightconv", "forward", shape, run)
    assert run.rows[0].way == "default"
    one_tile, rest = ([row for row in run.rows if row.way == way] for way in ("one tile", "candidate"))
    # 20 positions are a tile of 32, and no chunk
    assert {(row.detail.tile, row.detail.chunk) for row in one_tile} == {(32, 1)}
    assert {row.detail.columns for row in one_tile} == {32, 64}
    first, later = rest[:24], rest[24:]
    assert {row.detail.tile for row in first} == {16, 32, 64}
    assert {(row.detail.tile, row.detail.columns) for row in later} == {(64, 32)}
    assert min(rest, key=lambda row: row.us).detail.chunk == 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_a_clear_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--out", str(tmp_path)])
    assert "--device cpu" in capsys.readouterr().err


# 16k tokens of 512 channels in 8 heads at 4.3 TB/s, in microseconds, worked out by hand
@pytest.mark.parametrize(
    ("op", "taps", "glu", "forward", "backward"),
    [
        ("dynamicconv", 3, False, 8.1, 12.2),
        ("dynamicconv", 7, False, 8.4, 12.7),
        ("dynamicconv", 15, False, 8.8, 13.7),
        ("dynamicconv", 31, False, 9.8, 15.6),
        ("lightconv", 31, False, 7.8, 11.7),
        ("lightconv", 31, True, 11.7, 19.5),
        # 4 and 7 tensors of 16 MiB, and 8 float32 numbers a position
        ("attention", 0, False, 15.7, 27.4),
    ],
)
def test_minimal_bytes(op, taps, glu, forward, backward):
    shape = shapes.Shape(16, 1024, 512, 8, taps, glu=glu)
    for direction, wanted in (("forward", forward), ("backward", backward)):
        assert shapes.minimal_bytes(op, direction, shape) / 4.3e6 == pytest.approx(wanted, abs=0.05)


def test_tuned_settings_have_a_column_each():
    settings = launch_config.Config(16, 2, 4, 1)
    row = session.Row("lightconv", "forward", "default", shapes.MAIN, settings, us=12.5)
    head, _, line, _ = tables.tune_lines([row])
    cells = dict(zip(*([cell.strip() for cell in text.split("|")] for text in (head, line)), strict=True))
    assert (cells["us"], cells["tile"], cells["columns"]) == ("12.5", "16", "128")


def test_minimal_bytes_count_dropconnect_words():
    shape = shapes.Shape(2, 3, 4, 2, 33)
    more = shape._replace(drop=0.1)
    extra = 2 * 3 * 2 * 2 * 4  # sentences, positions, heads, words, bytes
    for direction in ("forward", "backward"):
        found = [shapes.minimal_bytes(op, direction, one) for op in shapes.OPS for one in (shape, more)]
        assert found[1] - found[0] == extra
        assert found[3] == found[2]
