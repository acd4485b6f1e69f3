"""The command for a visit to a GPU: time limits, kills and resumption with parts that are seconds of sleep, the page of
verdicts, and the pack; the whole rehearsal on a CPU, killed and resumed, is marked slow."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fuzz
import pytest
import tiny

from benchmarks.gpu import command, fifteen, norms, pack, runner, suites, translating, verdicts
from benchmarks.gpu.__main__ import chosen, main
from benchmarks.gpu.part import PartJob
from benchmarks.gpu.plan import Part, parts_of
from benchmarks.gpu.records import DONE, FAILED, INTERRUPTED, LEFT_OUT, ROOT, STOPPED, Results
from benchmarks.gpu.runner import Runner
from seq2seq import checkpoint
from seq2seq.settings.compose import resolved_settings
from seq2seq.training.lightning_parts import kernel_warm_up

EXHAUSTIVE = {
    "test_the_budget_is_kept_and_the_part_repeated",
    "test_a_part_is_stopped_at_its_limit_with_its_children",
    "test_norms_are_timed_both_ways_and_compared",
}
# Each part is a program of a line; "save" writes what a part has so far.
PROGRAMS = {
    "quick": "print('fine'); save(number=3)",
    "broken": "save(number=4); print('before'); raise RuntimeError('no such kernel\\nread the manual')",
    "sparing": "print('no time was left for 2 rows'); sys.exit(3)",
    # A child process, which would outlive its parent
    "endless": "import subprocess; subprocess.run(['sleep', '1001.5'])",
}
SAVE = (
    "import json, sys\n"
    "def save(**values):\n"
    "    with open(sys.argv[1], 'w') as file: json.dump({'part': sys.argv[2], **values}, file)\n"
)


class Programs(Runner):
    """Runner of PROGRAMS."""

    def _command(self, part: Part, limit: float) -> list[str]:
        path = self.results.unfinished(part.name)
        # Written here, since on a busy machine a process may be stopped before it can write
        path.write_text(json.dumps({"part": part.name, "number": 5}))
        return [sys.executable, "-S", "-c", SAVE + PROGRAMS[part.name], str(path), part.name]


def run(folder: Path, *names: str, limit: float = 60.0, budget: float = 60.0) -> tuple[bool, Results]:
    results = Results(folder)
    parts = [Part(name, limit, 0.1) for name in names]
    programs = Programs(results, device="cpu", data=folder, budget=budget, began=time.monotonic())
    complete = programs.run(parts)
    results.release()
    found = Results(folder)
    found.release()
    return complete, found


@pytest.fixture(autouse=True)
def _own_signals():
    """Restore the signal handlers: the runner sets them for a whole process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def sleepers() -> str:
    return subprocess.run(["pgrep", "-f", "^sleep 1001.5"], capture_output=True, text=True).stdout


def test_results_errors_and_times_are_recorded(tmp_path):
    complete, results = run(tmp_path, "quick", "broken")
    assert complete
    assert [results.state(name) for name in ("quick", "broken")] == [DONE, FAILED]
    assert results.result("quick")["number"] == 3
    assert results.result("broken")["number"] == 4
    assert results.parts["broken"]["error"] == "RuntimeError: no such kernel"
    assert "before" in (tmp_path / "log.txt").read_text()
    assert not list((tmp_path / "parts").iterdir())
    assert "did not run" in (tmp_path / "verdicts.md").read_text()


def test_a_later_visit_runs_what_is_missing_and_failures_last(tmp_path, monkeypatch):
    run(tmp_path, "quick", "broken")
    monkeypatch.setitem(PROGRAMS, "broken", "save(number=6)")
    monkeypatch.setitem(PROGRAMS, "quick", "raise RuntimeError('again')")
    monkeypatch.setitem(PROGRAMS, "new", "save(number=7)")
    _, results = run(tmp_path, "broken", "quick", "new")
    assert results.result("broken")["number"] == 6
    assert results.state("quick") == DONE
    assert results.parts["broken"]["attempts"] == 2
    assert list(results.parts) == ["quick", "broken", "new"]
    assert len(results.data["visits"]) == 2
    log = (tmp_path / "log.txt").read_text()
    assert log.index("new: done") < log.index("broken: done")


def test_a_part_is_stopped_at_its_limit_with_its_children(tmp_path):
    complete, results = run(tmp_path, "endless", "quick", limit=2.0)
    assert not complete
    assert results.state("endless") == STOPPED
    assert results.result("endless")["number"] == 5
    assert results.parts["endless"]["error"] == "not finished in 2 s"
    assert results.state("quick") == DONE
    assert not sleepers()


def test_the_budget_is_kept_and_the_part_repeated(tmp_path, monkeypatch):
    began = time.monotonic()
    complete, results = run(tmp_path, "endless", "quick", budget=runner._RESERVE + 2)
    assert time.monotonic() - began < runner._RESERVE + 2
    assert not complete
    assert results.state("endless") == INTERRUPTED
    assert results.state("quick") is None  # too late to start
    monkeypatch.setitem(PROGRAMS, "endless", "save(number=8)")
    complete, results = run(tmp_path, "endless", "quick")
    assert complete
    assert results.result("endless")["number"] == 8


def test_results_of_a_killed_command_are_kept(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "pytest-kernels.json").write_text('{"part": "pytest/kernels", "failed": 0}')
    (tmp_path / "parts" / "norm.json").write_text('{"part": "no')
    results = Results(tmp_path)
    assert results.state("pytest/kernels") == INTERRUPTED
    assert results.result("pytest/kernels")["failed"] == 0
    assert results.state("norm") is None


def test_two_commands_do_not_share_a_folder(tmp_path, capsys):
    (tmp_path / "results.json").write_text('{"began": "", "visits": [], "parts": {}}')
    first = Results(tmp_path)
    assert main([f"--resume={tmp_path}", "--device=cpu"]) == 2
    assert "another command" in capsys.readouterr().err
    first.release()
    assert Results(tmp_path).parts == {}


def test_outcomes_of_tests_survive_a_cut_line(tmp_path):
    lines = [
        {"test": "a", "outcome": "failed", "why": "too large"},
        {"test": "b", "outcome": "failed", "why": "NaN"},
        {"test": "a", "outcome": "passed", "why": ""},
    ]
    record = tmp_path / "record.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"test": "c", "outc')
    found = suites.counts(record)
    assert found == {"passed": 1, "failed": 1, "skipped": 0, "failures": ["b: NaN"]}
    assert suites.counts(tmp_path / "none.jsonl")["passed"] == 0


def test_an_incomplete_part_is_repeated_and_keeps_better_results(tmp_path):
    """A part that had less than its time is repeated; a part that had all its time is not, even if incomplete."""
    results = Results(tmp_path)
    for state, whole, rows, kept in ((INTERRUPTED, False, 5, 5), (INTERRUPTED, False, 2, 5), (DONE, True, 1, 1)):
        path = results.unfinished("kernels")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"part": "kernels", "timings": list(range(rows)), "layers": []}))
        results.close("kernels", state, 1.0, whole=whole)
        assert len(results.result("kernels")["timings"]) == kept
    results.release()
    for limit, budget, state in ((20.0, 60.0, DONE), (60.0, 40.0, INTERRUPTED)):
        folder = tmp_path / state
        _, found = run(folder, "sparing", limit=limit, budget=budget)
        assert (found.state("sparing"), found.parts["sparing"]["error"]) == (state, "no time was left for 2 rows")


def test_kernels_are_right_only_if_all_were_checked(tmp_path):
    found = {
        "kernels": {},
        "pytest__kernels": {"passed": 7, "failed": 0, "skipped": 0, "failures": []},
    }
    goal = "all kernels right"
    assert verdict(verdicts.page(recorded(tmp_path, **found)), goal) == ["0 of 7 wrong", "met so far"]
    whole = found | {"pytest__gpu": {"passed": 4, "failed": 0, "skipped": 0, "failures": []}}
    assert verdict(verdicts.page(recorded(tmp_path, **whole)), goal) == ["0 of 11 wrong", "met"]
    whole["kernels"]["timings"] = [timing(1, 1.0) | {"error": "differs from the torch path by 3.0e-01"}]
    assert verdict(verdicts.page(recorded(tmp_path, **whole)), goal) == ["1 of 12 wrong", "**missed**"]
    # A visit may time the kernels and not reach the tests
    timed = {"kernels": whole["kernels"]}
    assert verdict(verdicts.page(recorded(tmp_path, **timed)), goal) == ["1 of 1 wrong", "**missed**"]
    results = recorded(tmp_path, command__dynamicconv__auto={})
    results.parts["command/dynamicconv/auto"] |= {
        "state": FAILED,
        "error": "ModuleNotFoundError: No module named 'lightning'",
    }
    assert verdict(verdicts.page(results), "a run with max_tokens=auto ends well")[1] == "unmeasured"


# ---- the page


def shape(**values: Any) -> dict[str, Any]:
    return {"batch": 64, "length": 1024, "channels": 1024, "heads": 16, "taps": 31, "drop": 0.0, "glu": False, **values}


def timing(us: float, roofline: float, *, op: str = "dynamicconv", direction: str = "forward", **values: Any) -> Any:
    row = {"op": op, "direction": direction, "way": "ours", "us": us, "roofline": roofline, "error": ""}
    return row | {key: values.pop(key) for key in ("way",) if key in values} | {"shape": shape(**values)}


def recorded(folder: Path, **found: dict[str, Any]) -> Results:
    """Results of parts that are done; `__` stands for a stroke."""
    results = Results(folder)
    results.release()
    for name, result in found.items():
        results.parts[name.replace("__", "/")] = {"state": DONE, "seconds": 1.0, "error": "", "result": result}
    return results


def verdict(page: str, goal: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {goal}"))
    return [cell.strip() for cell in line.split("|")[2:4]]


def test_a_page_without_results_says_so(tmp_path):
    page = verdicts.page(Results(tmp_path))
    assert page.count("unmeasured") == len([line for line in page.splitlines() if "unmeasured" in line]) > 10
    for part in parts_of("cuda"):
        assert part.name in page


def test_goals_are_judged_by_measurements(tmp_path):
    timings = [
        timing(150, 75.0),
        timing(400, 44.0, direction="backward"),
        timing(120, 90.0, drop=0.1),
        timing(250, 56.0, length=27),
        timing(600, float("nan"), way="fairseq kernel"),
    ]
    layers = [timing(64 * us, 0, op=op, direction="causal", length=length, batch=64)
              for op, length, us in (("dynamicconv", 1024, 100.0), ("attention", 1024, 150.0))]  # fmt: skip
    kernels = {"errors": [], "timings": timings, "layers": layers}
    results = recorded(
        tmp_path,
        kernels=kernels,
    )
    page = verdicts.page(results)
    assert verdict(page, "DynamicConv forward, T 1024") == ["75", "met"]
    assert verdict(page, "DynamicConv backward, T 1024") == ["44", "**missed**"]
    assert verdict(page, "DynamicConv forward, T 27") == ["56", "met"]
    assert verdict(page, "DynamicConv backward, T 27") == ["-", "unmeasured"]
    assert verdict(page, "5 times as fast as fairseq") == ["4.0", "**missed**"]
    assert verdict(page, "attention layer over DynamicConv") == ["1.50", "met"]


def test_wrong_kernels_miss_their_goal(tmp_path):
    results = recorded(
        tmp_path,
        pytest__kernels={"passed": 5, "failed": 1, "skipped": 2, "failures": ["test_x: AssertionError | no"]},
    )
    page = verdicts.page(results)
    assert verdict(page, "all kernels right") == ["1 of 6 wrong", "**missed**"]
    assert "test_x: AssertionError / no" in page


def test_norms_are_timed_both_ways_and_compared(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(norms, "TYPES", norms.TYPES[1:])
    (tmp_path / "parts").mkdir()
    job = PartJob("norm", tmp_path, data=tmp_path, device="cpu", limit=60)
    norms.run(job)
    assert list(job.result) == [f"{kind}, 8 x 40, stream float32" for kind in ("post", "pre")]
    page = verdicts.page(recorded(tmp_path / "page", norm=job.result))
    assert "- post, 8 x 40, stream float32, us forward, both: torch " in page
    assert "WRONG" not in page
    for row, rate in zip(job.result.values(), (3200.0, 3600.0), strict=True):
        row["kernel"] |= {"forward GB/s": rate, "both GB/s": 2900.0}
    bandwidth = {"device": {"copy_gb_s": 4000.0}}
    page = verdicts.page(recorded(tmp_path / "judged", norm=job.result, kernels=bandwidth))
    assert verdict(page, "residual_norm, forward") == ["80", "met"]
    assert verdict(page, "residual_norm, both passes") == ["72", "**missed**"]
    job.result["pre, 8 x 40, stream float32"]["error"] = 0.5
    assert "WRONG: 0.5" in verdicts.page(recorded(tmp_path / "wrong", norm=job.result))


def test_runs_of_the_command_are_judged_by_their_rates_updates_start_and_limit(tmp_path):
    def run_of(updates: int, *, over: float | None = 0.0, tokens: float = 450_000, **more: Any) -> dict[str, Any]:
        shown = {"rates": [[1.0, 5]], "later tokens/s": 500_000, "updates so far": 40, **more}
        ended = {"steps": 40, "max_time": 200.0, "seconds_over_budget": over, "target_tokens_per_second": tokens}
        return shown | {"updates in 60 s": updates, "of which measured": 0.5} | ({} if over is None else ended)

    found = {
        "command__transformer__16384": run_of(600, over=5.9, **{"update 100 s": 6.5, "compiled s": 2.0}),
        "command__transformer__16384__eager": run_of(302),
        "command__dynamicconv__16384": run_of(80, over=6.1, tokens=430_000),
        "command__dynamicconv__16384__eager": run_of(100),
        # Stopped before its end
        "command__lightconv__16384": run_of(90, over=None),
    }
    page = verdicts.page(recorded(tmp_path, **found))
    assert verdict(page, "command transformer/16384: ") == ["450,000 (later half 500,000)", "met"]
    assert verdict(page, "command dynamicconv/16384: ")[1] == "met, stretch too"
    assert "400,000; 427,500" in page
    assert verdict(page, "command lightconv/16384: ") == ["-", "unmeasured"]
    assert verdict(page, "base transformer, cold") == ["8.5 (kernels 2.0)", "met"]
    updates = "updates in 60 s over trainer.graphs=false"
    assert verdict(page, f"{updates}: transformer") == [
        "1.99 (600, 50% measured : 302, 50% measured)",
        "met, stretch too",
    ]
    assert verdict(page, f"{updates}: dynamicconv")[1] == "**missed**"
    assert verdict(page, f"{updates}: lightconv")[1].startswith("unmeasured: 90")
    assert verdict(page, "the limit of time is kept") == ["command/dynamicconv/16384: 6.1 s over", "**missed**"]
    assert "| lightconv 16384 | 40 |" in page


def test_comparisons_are_judged_by_the_best_way_of_the_peer(tmp_path):
    ours = {"rates": [], "steps": 9, "max_time": 9, "seconds_over_budget": 0, "later tokens/s": 9}
    ours |= {"target_tokens_per_second": 300_000, "updates so far": 9}
    marian = {
        "sdpa": {"target_tokens_per_second": 150_000},
        "flash_attention_2": {"error": "ImportError: no | package"},
    }
    found: dict[str, Any] = {
        "command__transformer__16384": ours,
        "marian": {"eager": {"target_tokens_per_second": 90_000}, **marian},
        "translate": {"first s": 1.5, "again s": 0.9},
        "fifteen": {"runs": 15, "ended": 14, "epochs": 5, "minutes": None},
        "pytest__replay": {"passed": 9, "failed": 1, "skipped": 0, "failures": ["test_x: no"]},
        "attention": {
            "B 585 T 28 S 28": {
                "one tile, mask": {"forward us": 9, "both us": 80},
                "ours, causal": {"forward us": 5, "both us": 7},
            }
        },
    }
    page = verdicts.page(recorded(tmp_path, **found))
    assert verdict(page, "command transformer/16384 over Marian") == ["2.00 (sdpa 150,000)", "met"]
    assert verdict(page, "translate") == ["1.50 (again 0.90)", "met"]
    assert verdict(page, "fifteen") == ["-", "unmeasured: 14 of 15 ended, 5 epochs, scaled"]
    assert verdict(page, "tests of replay") == ["1 of 10 failed", "**missed**"]
    assert verdict(page, "attention, both passes") == ["80", "met, stretch too"]
    page = verdicts.page(recorded(tmp_path, marian={"missing": "transformers"}))
    assert verdict(page, "command transformer/16384 over Marian") == ["-", "unmeasured: transformers missing"]


def test_the_start_counts_update_100_and_compilation(tmp_path):
    lines = ["step,train/seconds,train/tokens_per_second", "80,3.0,100", "100,4.25,100", "120,5.0,100"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines))
    assert command.measured(tmp_path)["update 100 s"] == 4.2
    # The words of the training command
    (words,) = (word for word in inspect.getsource(kernel_warm_up).split('"') if "kernels compiled on" in word)
    found = command._COMPILED.search(words % (20, 16, 1.8))
    assert found
    assert found[1] == "1.8"


def test_a_short_run_is_extrapolated_from_its_later_half():
    assert command.in_a_minute([(10, 10.0), (20, 15.0), (60, 20.0)]) == {
        "updates in 60 s": 380,
        "of which measured": 0.33,
    }
    assert command.in_a_minute([(10, 10.0), (70, 60.0), (90, 80.0)]) == {"updates in 60 s": 70, "of which measured": 1}


def test_minutes_of_all_epochs_are_scaled_by_the_seconds_of_training(tmp_path):
    (tmp_path / "runs").mkdir()
    lines = ["mixer=lightconv seed=1", "mixer=lightconv seed=2"]
    for seed, line in enumerate(lines):
        (tmp_path / "runs" / str(seed)).mkdir()
        result = {"mixer": "lightconv", "seconds": 10.0 + seed, "command": f"python -m seq2seq.train runs=x {line}"}
        (tmp_path / "runs" / str(seed) / "results.json").write_text(json.dumps(result))
    records = [{"settings": line, "status": 0, "seconds": 40.0} for line in lines]
    (tmp_path / "runs_together.json").write_text(json.dumps({"records": records}))
    found = fifteen.minutes(tmp_path, 2)
    assert found["minutes"] == round((40 + (25 / found["epochs"] - 1) * 11) / 60, 2)
    assert found["measured minutes"] == 0.67
    assert fifteen.minutes(tmp_path, 3)["minutes"] is None


def test_rates_of_a_table_whose_last_line_is_cut(tmp_path):
    lines = ["step,train/seconds,train/tokens_per_second,val/bleu", "10,2.0,100,", "10,,,7.5", "20,3.0,300,", "30,4."]
    (tmp_path / "metrics.csv").write_text("\n".join(lines))
    found = command.measured(tmp_path)
    rates = {"updates so far": 20, "rates": [[2.0, 100], [3.0, 300]], "later tokens/s": 300}
    assert found == rates | {"updates in 60 s": 590, "of which measured": 0.05}
    assert command.measured(tmp_path / "none") == {}


def test_models_without_time_are_left_out(tmp_path, capsys):
    job = PartJob("replay", tmp_path, data=tmp_path, device="cpu", limit=0.0)
    begun = []
    with pytest.raises(SystemExit) as ended:
        begun.extend(job.while_time(["a", "b", "c"], 1.0))
    assert (begun, ended.value.code) == (["a"], LEFT_OUT)
    assert "2 of 3, the first: b" in capsys.readouterr().out


def test_the_page_stays_short(tmp_path):
    many = [f"tests/a.py::test_{number}: {'x' * 300}" for number in range(60)]
    timings = [timing(number, 50.0, length=number) for number in range(1, 400)]
    results = recorded(
        tmp_path,
        kernels={"errors": many, "timings": timings},
        pytest__kernels={"passed": 5, "failed": 60, "skipped": 2, "failures": many},
    )
    for part in parts_of("cuda"):
        results.parts.setdefault(part.name, {"state": FAILED, "error": "y" * 400})
    page = verdicts.page(results)
    assert 5_000 < len(page) < 10_000
    assert "## Goals" in page
    assert "## Launch settings" in page


# ---- the pack


def test_the_pack_has_the_wheels(tmp_path, monkeypatch, capsys):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "one-1.0-py3-none-any.whl").write_bytes(b"x" * 100)
    folder = tmp_path / "pack"
    given = [f"--wheels={tmp_path / 'wheels'}"]
    assert main([f"--pack={folder}", *given]) == 0
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["wheels/one-1.0-py3-none-any.whl"]
    assert "MiB" in capsys.readouterr().out
    assert main([f"--pack={folder}", *given]) == 2
    assert "not empty" in capsys.readouterr().err
    monkeypatch.setattr(pack, "LIMIT_MIB", 0)
    assert main([f"--pack={tmp_path / 'other'}", *given]) == 2
    assert "more than 0" in capsys.readouterr().err


def test_the_pack_has_the_text_of_the_command_and_of_small_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pack, "_PIECES", 290)
    for name in ("train", "valid", "test"):
        for code in ("it", "en"):
            path = tmp_path / "corpora" / "europarl-it-en" / f"{name}.{code}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                "".join(
                    f"una casa {code} {number} bella vista da lontano, con il suo giardino\n" for number in range(40)
                )
            )
    (tmp_path / "wheels").mkdir()
    given = [f"--wheels={tmp_path / 'wheels'}", f"--corpora={tmp_path / 'corpora'}"]
    assert main([f"--pack={tmp_path / 'pack'}", *given]) == 0
    found = sorted(path.name for path in (tmp_path / "pack" / "europarl-it-en").iterdir())
    assert found == ["joint.model", "test.en", "test.it", "train.en", "train.it", "valid.en", "valid.it"]
    assert "multi30k" in capsys.readouterr().err


def test_wrong_options_are_refused_in_a_line(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    for given, message in (
        ([f"--out={tmp_path}"], "--resume"),
        ([f"--resume={tmp_path / 'none'}"], "begin with --out"),
        ([f"--out={tmp_path / 'new'}", "--parts", "speed"], "norm"),
    ):
        with pytest.raises(SystemExit):
            main(given)
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_whole_name_chooses_one_part_and_a_beginning_several():
    names = [part.name for part in chosen(["command/transformer/16384", "pytest"], "cuda")]
    assert [name for name in names if not name.startswith("pytest/")] == ["command/transformer/16384"]
    assert len(names) > 2
    names = [part.name for part in chosen(["open", "tune"], "cuda")]
    assert names[-2:] == ["fifteen", "tune"]
    assert [part.name for part in chosen([], "cpu")] == [part.name for part in parts_of("cpu")]


# ---- the rehearsal


def wait_for(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


@pytest.mark.slow
def test_rehearsal_with_the_packed_folder_killed_and_resumed(tmp_path):
    """Every part runs on a CPU; kill -9 in the middle loses one part, which is repeated."""
    (tmp_path / "wheels").mkdir()
    folder, out = tmp_path / "pack", tmp_path / "out"
    assert main([f"--pack={folder}", f"--wheels={tmp_path / 'wheels'}"]) == 0
    # The training command does the same with every mixer
    names = [part.name for part in parts_of("cpu") if part.kind != "command" or "dynamicconv" in part.name]
    command = [sys.executable, "-m", "benchmarks.gpu", f"--data={folder}", "--device=cpu", "--budget=1500"]
    command += ["--parts", *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    results = out / "results.json"
    with subprocess.Popen([*command, f"--out={out}"], env=environment, cwd=ROOT) as first:
        wait_for(lambda: (out / "parts" / "command-dynamicconv-16384.json").is_file(), 600)
        first.kill()
    before = json.loads(results.read_text())["parts"]
    assert before["kernels"]["state"] == DONE
    # The part's own process notices within a second
    wait_for(lambda: str(out) not in processes(), 60)
    done = subprocess.run([*command, f"--resume={out}"], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())
    states = {name: part["state"] for name, part in found["parts"].items()}
    assert states == dict.fromkeys(names, DONE), done.stdout
    assert found["parts"]["kernels"] == before["kernels"]
    assert found["parts"]["command/dynamicconv/16384"]["attempts"] == 2
    assert found["parts"]["pytest/kernels"]["result"]["passed"] > 3
    assert found["parts"]["pytest/kernels"]["result"]["failed"] == 0
    page = (out / "verdicts.md").read_text()
    assert len(page) < 10_000
    assert "A rehearsal on a CPU" in page
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == [
        *(".lock", "log.txt", "pytest-fused.jsonl", "pytest-gpu.jsonl", "pytest-kernels.jsonl", "pytest-replay.jsonl"),
        *("results.json", "verdicts.md"),
    ]


def processes() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


@pytest.mark.exhaustive
def test_tests_with_missing_packages_are_skipped(tmp_path):
    """Without Hydra the convolutions' tests are collected; in CI a missing package is an error."""
    (tmp_path / "blocked.py").write_text("import sys\nsys.modules.update(hydra=None, omegaconf=None)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    files = ["tests/mixers/test_conformance.py", "tests/kernels/test_convolutions.py"]
    command = [sys.executable, "-m", "pytest", "-p", "blocked", "-q", "--collect-only", "-rs", *files]
    # Hydra has a plugin of pytest, which could not be loaded here
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for ci, status in (("", 0), ("true", 2)):
        given = environment | {"CI": ci}
        done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)
        assert done.returncode == status, done.stdout
        assert ("needs hydra" in done.stdout) == (status == 0), done.stdout


def test_suites_name_tests_that_exist():
    root = Path(__file__).resolve().parents[2]
    named = {word for suite in (suites._ARGUMENTS, suites._TINY) for words in suite.values() for word in words}
    named |= {f"tests/{name.split('::')[0]}" for name in fuzz.TESTS}
    paths = {name.removeprefix("--ignore=") for name in named if "tests/" in name and "*" not in name}
    assert paths
    assert [path for path in paths if not (root / path).exists()] == []


def test_a_random_checkpoint_translates(tmp_path):
    config = resolved_settings(["mixer=transformer", "model=tiny", "model.encoder_layers=1", "model.decoder_layers=1"])
    path = tmp_path / "random.safetensors"
    translating.write_checkpoint(path, config, tiny.tokenizer())
    assert checkpoint.load(path).meta["src_lang"] == "de"
