"""Test sweeps: records of jobs, watching them, launchers, median stopping, and failures that do not end the rest."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cloudpickle
import numpy as np
import pytest
import torch
import toycorpus
from conftest import PATIENCE
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydra_plugins.seq2seq_sweeps import launchers
from seq2seq.runs.training_state import read_state
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.sweeps import job_records, sweep_watch
from seq2seq.sweeps.hydra_callback import JobRecords, _end, _split, end_grids_by_count
from seq2seq.sweeps.job_records import Job, Process, launcher, read_jobs, write_sweep
from seq2seq.sweeps.sweep_watch import describe, watch
from seq2seq.training import run
from seq2seq.training.callbacks.median_stopping import MedianStop, median_at
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.plan import make_plan

EXHAUSTIVE = {
    "test_sweeps_of_one_second_have_separate_folders",
    "test_run_that_is_stopped_early_is_not_scored",
    "test_loggers_are_chosen_by_name",
}

ROOT = Path(__file__).resolve().parents[2]
needs_slurm = pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs a SLURM cluster")


def sweep_command(corpus: Path, *overrides: str) -> list[str]:
    files = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    # Optuna does not search for a setting that is also given
    keys = {word.partition("=")[0] for word in overrides}
    tiny = [word for word in toycorpus.TINY if word.partition("=")[0] not in keys]
    given = ["data=files", "data.name=toy", *files, f"cache={corpus / 'cache'}", *tiny]
    return [sys.executable, "-m", "seq2seq.train", "-m", *given, *overrides]


def start(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


# Trains with a constant clock for names.
AT_ONE_SECOND = """
import datetime, hydra.core.utils
class Clock(datetime.datetime):
    now = classmethod(lambda cls, tz=None: cls(2026, 1, 2, 3, 4, 5))
hydra.core.utils.datetime = Clock
from seq2seq.train import main
main()
"""


@pytest.mark.slow
def test_sweeps_of_one_second_have_separate_folders(corpus, tmp_path):
    """This holds also in a path with special characters of Hydra's grammar."""
    runs = tmp_path / "it's {mine}, x=1"
    for seed in ("1", "2", "3"):
        command = sweep_command(corpus, f"seed={seed}", "mixer=transformer", "trainer.max_steps=1")
        quoted = str(runs).replace("'", "\\'")
        command = [command[0], "-c", AT_ONE_SECOND, *command[3:], f"runs='{quoted}'"]
        process = start(tmp_path, command)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, out
    folders = [runs / "sweeps" / f"2026-01-02_03-04-05{tail}" for tail in ("", "_2", "_3")]
    assert sorted(folders) == sorted((runs / "sweeps").iterdir())
    for seed, sweep in enumerate(folders, 1):
        (job,) = read_jobs(sweep)
        assert f"seed={seed}" in job.overrides
        assert job.state == "finished"
        assert (sweep / "multirun.yaml").is_file()


def call(folder: Path, command: list[str], timeout: float = PATIENCE) -> tuple[int, str]:
    process = start(folder, command)
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def only_sweep(folder: Path) -> Path:
    (sweep,) = (folder / "runs" / "sweeps").iterdir()
    return sweep


def test_record_survives_moving_the_tree_of_runs(tmp_path):
    run_folder = tmp_path / "runs" / "one"
    job = Job(tmp_path / "runs" / "sweeps" / "today" / "7", ("mixer=gru", "seed=3"), "failed", run_folder, "too wide",
              "log.out", Process("here", 12, "4_2"))  # fmt: skip
    job.write()
    assert read_jobs(job.folder.parent) == [job]
    (tmp_path / "runs").rename(tmp_path / "moved")
    (moved,) = read_jobs(tmp_path / "moved" / "sweeps" / "today")
    assert moved.run == tmp_path / "moved" / "one"
    assert moved.number == 7


def test_a_damaged_record_is_a_failed_job(tmp_path):
    Job(tmp_path / "3", ("seed=1",), "running").write()
    (tmp_path / "3" / "job.json").write_text('{"overr')
    # A folder that looks like a number to `str.isdigit`
    (tmp_path / "\u00b2").mkdir()
    (tmp_path / "\u00b2" / "job.json").write_text("{}")
    (job,) = read_jobs(tmp_path)
    assert (job.state, job.number) == ("failed", 3)
    assert job.error.startswith("its record job.json is damaged (")
    assert Job.read(tmp_path / "4") is None


def test_job_without_its_process_has_failed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = Process.here(process.pid)
    job = Job(tmp_path / "0", (), "running", process=here)
    job.write()
    assert job.checked() == job
    # The process ends, and its record does not
    process.communicate(b"\n")
    assert job.checked().state == "failed"
    elsewhere = dataclasses.replace(job, process=dataclasses.replace(here, host="elsewhere"))
    assert elsewhere.checked() == elsewhere  # a process of another host cannot be checked
    dataclasses.replace(job, state="finished").write()
    assert job.checked().state == "finished"  # it ended after its record was read


def queue(folder: Path, monkeypatch: pytest.MonkeyPatch, *states: str, status: int = 0) -> None:
    """Replace `squeue` by a program that records its calls and prints the states of jobs."""
    script = folder / "squeue"
    answers = "".join(f"echo '{state}'\n" for state in states)
    script.write_text(f'#!/bin/sh\necho "$@" >> "$0.asked"\n{answers}exit {status}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    job_records._array_states.cache_clear()


def test_states_of_a_slurm_array_are_asked_for_once(tmp_path, monkeypatch):
    # One moment for the whole test
    monkeypatch.setattr(job_records, "ASK_SECONDS", 1e9)
    # 7_2 waits in the queue, and 7_3 is unknown to it
    queue(tmp_path, monkeypatch, "7_0 RUNNING", "7_1 NODE_FAIL", "7_2 PENDING")
    alive = [Process("node1", 1, f"7_{index}").alive() for index in range(4)]
    assert alive == [True, False, True, False]
    assert len((tmp_path / "squeue.asked").read_text().splitlines()) == 1
    # A process of this machine inside an allocation may end before it
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setenv("SLURM_JOB_ID", "7_0")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    assert Process.here().alive()
    assert not dataclasses.replace(Process.here(), pid=ended.pid).alive()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    assert dataclasses.replace(Process.here(), pid=ended.pid).alive()
    # Without an answer a job counts as alive
    queue(tmp_path, monkeypatch, status=1)
    assert Process("node1", 1, "7_3").alive()
    job_records._array_states.cache_clear()


def test_job_that_was_canceled_before_it_started_is_reported(tmp_path, monkeypatch, capsys):
    """A watch reports the job after the launcher has ended; SLURM forgets jobs after some minutes."""
    sweep = tmp_path / "sweep"
    for number in range(4):
        job = Job(sweep / str(number), (f"seed={number}",), "waiting")
        job.write()
        job.submitted(Process(slurm=f"9_{number}"))
    write_sweep(sweep, ended=True)
    (first, *_) = read_jobs(sweep)
    assert first.process == Process(slurm="9_0")
    queue(tmp_path, monkeypatch, *(f"9_{number} PENDING" for number in range(4)))
    assert [job.checked().state for job in read_jobs(sweep)] == ["waiting"] * 4
    queue(tmp_path, monkeypatch, "9_1 CANCELLED", "9_2 NODE_FAIL", "9_3 PENDING")
    # SLURM has forgotten job 0
    assert [job.checked().error for job in read_jobs(sweep)] == [
        "cancelled before it started", "cancelled before it started", "ended before it started (SLURM: NODE_FAIL)", "",
    ]  # fmt: skip
    queue(tmp_path, monkeypatch)
    assert watch([sweep], interval=0.01) == 4
    assert "FAILED    job 3 (seed=3): cancelled before it started" in capsys.readouterr().out
    # A job that has started meanwhile is not canceled
    dataclasses.replace(first, state="finished", run=tmp_path).write()
    assert first.checked().state == "finished"


def test_local_job_that_is_killed_before_it_starts_is_reported(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    job = Job(tmp_path / "0", (), "waiting")
    job.write()
    job.submitted(Process.here(process.pid))
    assert [each.checked().state for each in read_jobs(tmp_path)] == ["waiting"]
    process.communicate(b"\n")
    assert [each.checked().error for each in read_jobs(tmp_path)] == ["ended before it started (its process is gone)"]


def test_job_without_a_launcher_is_reported(tmp_path):
    job = Job(tmp_path / "0", (), "waiting")
    job.write()
    write_sweep(tmp_path, ended=False)
    assert job.checked().state == "waiting"
    write_sweep(tmp_path, ended=True)
    assert job.checked().error == "never started: the process that launches the sweep has ended"


def test_watch_reports_every_change_and_ends_with_the_sweep(tmp_path, capsys, monkeypatch):
    write_sweep(tmp_path, ended=False)
    first = Job(tmp_path / "0", ("seed=1", "mixer=gru"), "running", tmp_path / "run", process=Process.here())
    second = Job(tmp_path / "1", ("seed=2", "mixer=gru"), "waiting")
    for job in (first, second):
        job.write()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps({"valid": {"bleu": 1}, "test": {"bleu": 12.345}}))
    events = iter(
        (
            lambda: None,
            lambda: dataclasses.replace(first, state="failed", error="ValueError: too wide", log="log.out").write(),
            lambda: dataclasses.replace(second, state="running", process=Process.here()).write(),
            lambda: dataclasses.replace(second, state="finished", run=first.run).write(),
            lambda: None,
            lambda: write_sweep(tmp_path, ended=True),
        )
    )
    # One event between two rounds, in place of the pause
    clock = SimpleNamespace(sleep=lambda seconds: next(events)(), monotonic=time.monotonic, strftime=time.strftime)
    monkeypatch.setattr(sweep_watch, "time", clock)
    assert watch([tmp_path], interval=9) == 1
    assert not list(events)
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "running   job 0 (seed=1)",
        "waiting   job 1 (seed=2)",
        "FAILED    job 0 (seed=1): ValueError: too wide; see log.out",
        "running   job 1 (seed=2)",
        f"finished  job 1 (seed=2): test BLEU 12.35 ({tmp_path / 'run'})",
    ]


def test_watch_gives_up_on_a_launcher_elsewhere_that_is_silent(tmp_path, monkeypatch):
    """A process of another host cannot be checked; here nothing has changed for SILENT_SECONDS."""
    write_sweep(tmp_path, ended=False)
    monkeypatch.setattr(sweep_watch, "launcher", lambda sweep: Process(host="elsewhere", pid=1))
    moments = iter(range(0, 1000, 25))
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(moments))
    monkeypatch.setattr(sweep_watch, "time", clock)
    assert watch([tmp_path], interval=9) == 0
    assert next(moments) > sweep_watch.SILENT_SECONDS


def test_finished_job_without_results_is_described(tmp_path):
    assert "no results" in describe(Job(tmp_path / "0", (), "finished", tmp_path / "nowhere"))


def test_median_is_of_jobs_that_reached_the_step():
    # Five jobs; the first is too short to have a score at 7
    curves = [[(float(x), float(np.random.rand())) for x in range(1, length)] for length in (3, 9, 9, 12, 12)]
    best = [max(score for x, score in curve if x <= 7) for curve in curves[1:]]
    assert median_at(7, curves, peers=4) == pytest.approx(statistics.median(best))
    assert median_at(7, curves, peers=5) is None
    assert median_at(0.5, curves, peers=1) is None
    assert median_at(1, [*curves, []], peers=5) == pytest.approx(np.median([curve[0][1] for curve in curves]))


def write_peers(sweep: Path, scores: list[float]) -> None:
    """Write the records of other jobs, with these scores at steps 2, 4, 6 and 8."""
    for number, score in enumerate(scores, 1):
        run_folder = sweep / f"run{number}"
        run_folder.mkdir(parents=True)
        rows = [f"{step},{score}\n" for step in (2, 4, 6, 8)]
        (run_folder / "metrics.csv").write_text("step,val/bleu\n" + "".join(rows))
        Job(sweep / str(number), (), "finished", run_folder).write()


def stopped(sweep: Path, best: float, *, step: int = 4, count: int = 3) -> str | None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"), should_stop=False, global_step=step,
                                   strategy=SimpleNamespace(broadcast=lambda value: value))  # fmt: skip
    state = RunState(TrainerSettings(max_steps=9, median_stop=count))
    state.best.bleu = best
    callback = MedianStop(state, sweep / "0")
    callback.on_validation_end(trainer, SimpleNamespace())  # type: ignore[arg-type]
    assert trainer.should_stop == (state.stopped is not None)
    return state.stopped


def test_job_below_the_median_stops(tmp_path):
    write_peers(tmp_path, [10.0, 20.0, 30.0])
    # Its own scores are not among the others'
    own = tmp_path / "own"
    own.mkdir()
    (own / "metrics.csv").write_text("step,val/bleu\n2,1.0\n4,1.0\n6,1.0\n")
    Job(tmp_path / "0", (), "running", own).write()
    # A repeated job counts once
    Job(tmp_path / "4", (), "finished", tmp_path / "run1").write()
    assert stopped(tmp_path, 19.9) == "BLEU 19.90 is below the other jobs' median, 20.00, at this point"
    assert stopped(tmp_path, 20.0) is None
    assert stopped(tmp_path, 1.0, count=4) is None
    assert stopped(tmp_path, 1.0, step=9) is None  # no other job has a score at step 9


def test_run_that_is_stopped_early_is_not_scored(corpus, tmp_path):
    sweep = tmp_path / "sweep"
    # Two other jobs: enough for median_stop=2, not for 3
    write_peers(sweep, [99.0, 99.0])
    given = ("trainer.max_steps=8", "trainer.val_steps=2", "trainer.keep_last=2")
    for name, least, steps in (("stops", 2, 2), ("goes", 3, 8)):
        config = toycorpus.settings(corpus, tmp_path, *given, f"run={name}", f"trainer.median_stop={least}")
        run.train(make_plan(config, mixer="transformer", job=sweep / "0"))
        results = json.loads((tmp_path / "runs" / name / "results.json").read_text())
        assert results["steps"] == steps
        assert ("stopped" in results, "test" in results) == (name == "stops", name == "goes")
    # The same job again, with resume=auto, does not train on; without the rule it does
    before = (tmp_path / "runs" / "stops" / "results.json").read_bytes()
    for least, steps in (("2", 2), ("null", 8)):
        again = (*given, "run=stops", "resume=auto", f"trainer.median_stop={least}")
        run.train(make_plan(toycorpus.settings(corpus, tmp_path, *again), mixer="transformer", job=sweep / "0"))
        after = (tmp_path / "runs" / "stops" / "results.json").read_bytes()
        assert (json.loads(after)["steps"], after == before) == (steps, least == "2")
    kept = {path.name for path in (tmp_path / "runs" / "goes" / "checkpoints").iterdir()}
    assert kept == {"best.safetensors", "last.ckpt", "previous.ckpt", "step-6.safetensors", "step-8.safetensors"}


@pytest.mark.slow
def test_a_repeated_job_has_the_score_of_the_finished_run(corpus, tmp_path):
    def train(*given: str, job: Path | None = tmp_path / "sweep" / "1") -> float:
        config = toycorpus.settings(corpus, tmp_path, "trainer.max_steps=2", "trainer.test=false", *given)
        return run.train(make_plan(config, mixer="transformer", job=job))

    first = train(job=None)
    (folder,) = (tmp_path / "runs").iterdir()
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    # Harmless settings do not make it another run
    assert train("trainer.log_steps=7") == first
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    # A single run is refused, and so is a job with another budget in the same folder
    with pytest.raises(ValueError, match="resume=auto"):
        train(job=None)
    with pytest.raises(ValueError, match="resume=auto"):
        train("trainer.max_steps=3", f"run={folder.name}")
    # An unfinished run
    (folder / "results.json").unlink()
    with pytest.raises(ValueError, match="resume=auto"):
        train()


def test_missing_logger_is_named_before_anything_is_written(corpus, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(ValueError, match=r"'wandb' needs wandb: pip install wandb, or use logger=default"):
        run.train(make_plan(toycorpus.settings(corpus, tmp_path, "logger=wandb"), mixer="transformer"))
    assert not (tmp_path / "runs").exists()


def test_loggers_are_chosen_by_name(corpus, tmp_path):
    config = toycorpus.settings(corpus, tmp_path, "logger=tensorboard", "trainer.test=false", "run=it")
    run.train(make_plan(config, mixer="transformer"))
    assert list((tmp_path / "runs" / "it" / "tensorboard").glob("events*"))
    assert not (tmp_path / "runs" / "it" / "metrics.csv").exists()
    assert toycorpus.settings(corpus, tmp_path, "logger=wandb")["logger"].keys() == {"csv", "wandb"}


@pytest.mark.slow
def test_failed_job_is_one_line_and_the_others_continue(corpus, tmp_path):
    # YAML reads 1e3 as a float; the setting is the integer 1000
    given = ("mixer=transformer", "model.num_heads=2,3,4", "seed=5", "data.limit=1e3")
    status, output = call(tmp_path, sweep_command(corpus, *given))
    assert status == 1
    assert "Traceback" not in output
    (failed,) = [line for line in output.splitlines() if "FAILED" in line]
    assert "model.num_heads=3" in failed
    assert "dim 16 is not divisible by num_heads 3" in failed
    sweep = only_sweep(tmp_path)
    assert [job.state for job in read_jobs(sweep)] == ["finished", "failed", "finished"]
    assert launcher(sweep) is None
    assert "1 of 3 jobs failed; compare the others with: python -m seq2seq.compare" in output
    # The watch reports the failure and then compares the other two
    status, compared = call(tmp_path, [sys.executable, "-m", "seq2seq.compare", str(sweep), "--watch"])
    assert status == 1
    assert "FAILED    job 1 (model.num_heads=3)" in compared
    assert "| transformer | model.num_heads=2 | 5" in compared


@pytest.mark.slow
def test_an_interrupted_sweep_says_how_to_continue(corpus, tmp_path):
    """The record of a job says that a signal stopped it."""
    process = start(tmp_path, sweep_command(corpus, "mixer=transformer,gru", "trainer.max_steps=100000"))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "step " in line:
            process.send_signal(signal.SIGINT)
            break
    lines += process.stdout.readlines()
    assert process.wait(PATIENCE) == 130, lines
    job, other = (job.checked() for job in read_jobs(only_sweep(tmp_path)))
    assert (job.state, job.error) == ("failed", "stopped (SIGINT); continue with resume=auto")
    assert other.error.startswith("never started")
    assert lines[-1] == "2 of 2 jobs failed\n"


def test_an_interrupted_sweep_knows_the_jobs_that_waited(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launchers.BasicLauncher, "launch", lambda *_: _end(tmp_path))
    launcher = launchers.SequentialLauncher()
    launcher.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    write_sweep(tmp_path, ended=False)
    launcher.launch([["seed=1"], ["seed=2"]], 0)
    assert capsys.readouterr().out == "2 of 2 jobs failed\n"
    dataclasses.replace(read_jobs(tmp_path)[0], state="finished").write()
    _end(tmp_path, *_split(OmegaConf.create({"trainer": {"test": False}})))
    told = capsys.readouterr().out
    assert told.startswith("1 of 2 jobs failed; compare the others with: ")
    assert told.endswith(" --split valid\n")


def test_a_sweep_forgets_the_jobs_of_an_earlier_one_in_its_folder(tmp_path):
    for number in (0, 1):
        earlier = Job(tmp_path / str(number), ("seed=1",), "failed")
        earlier.write()
        earlier.submitted(Process("here", 12))
    overrides = {"hydra": [f"hydra.sweep.dir={tmp_path}"]}
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "overrides": overrides}})
    records = JobRecords()
    records.on_multirun_start(config)
    launchers._record_jobs(config, [["seed=1"]], 0)
    assert read_jobs(tmp_path) == [Job(tmp_path / "0", ("seed=1",), "waiting")]
    # Jobs that never started have failed
    with pytest.raises(SystemExit, match="1"):
        records.on_multirun_end(config)
    Job(tmp_path / "0", (), "finished").write()
    records.on_multirun_end(config)


def test_a_failed_job_fails_its_process(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    failed = JobReturn(status=JobStatus.FAILED, _return_value=ValueError("no device"))
    monkeypatch.setattr(launchers._Base, "__call__", lambda *_: failed)
    with pytest.raises(ValueError, match="no device"):
        launchers.LocalLauncher(submitit_folder="")()


def test_kill_interrupts_a_sweep_of_local_jobs(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launchers._ReportingLauncher, "_run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        launchers.LocalLauncher(submitit_folder="", gpus_per_node=0)._run([], [], [])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_result_may_appear_late(tmp_path, monkeypatch):
    """NFS shows a result 50 s after the job's end, to a reader that changes its folder; an earlier doubt is over."""
    now = [0.0]
    shown: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += 10

    paths = SimpleNamespace(
        folder=SimpleNamespace(stat=tmp_path.stat, chmod=lambda mode: shown.append(now[0])),
        result_pickle=SimpleNamespace(exists=lambda: shown[-1] >= 150),
    )
    returned = JobReturn(status=JobStatus.COMPLETED)
    job = SimpleNamespace(paths=paths, num_tasks=1, exception=lambda: None, result=lambda: returned)
    job.task = lambda number: job
    launcher = launchers.SlurmLauncher(submitit_folder="")
    monkeypatch.setattr(launcher, "_executor", lambda: None)
    monkeypatch.setattr(launcher, "_gone", lambda job: "" if 0 < now[0] < 100 else "it has left the queue")
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, strftime=time.strftime)
    monkeypatch.setattr(launchers, "time", clock)
    assert launcher._run([Job(tmp_path / "0", (), "running")], [()], [job]) == [returned]
    assert now[0] == 150


@pytest.mark.slow
def test_local_processes_run_side_by_side(corpus, tmp_path):
    pytest.importorskip("submitit")
    given = ("mixer=transformer", "seed=1,2", "model.num_heads=2,3", "hydra/launcher=submitit_local",
             "hydra.launcher.array_parallelism=3")  # fmt: skip
    status, output = call(tmp_path, sweep_command(corpus, *given))
    assert status == 1
    assert "2 of 4 jobs failed" in output
    assert sorted(job.state for job in read_jobs(only_sweep(tmp_path))) == ["failed", "failed", "finished", "finished"]


@pytest.mark.parametrize(("most", "together"), [(None, 5), (2, 2), (1, 1)])
def test_number_of_local_jobs_at_a_time(tmp_path, monkeypatch, most, together):
    """Each simulated job ends when it is polled for the third time."""
    pytest.importorskip("submitit")
    running, seen = [], []

    # Starts nothing: jobs are counted
    class Executor:
        def map_array(self, function: Any, *arguments: Any) -> list[Any]:
            started = [SimpleNamespace(job_id=str(number), looks=0) for number in arguments[0]]
            running.extend(started)
            return started

    def outcome(record: Job, job: Any) -> JobReturn | None:
        seen.append(len(running))
        job.looks += 1
        if job.looks < 3:
            return None
        running.remove(job)
        return JobReturn(status=JobStatus.COMPLETED, _return_value=int(job.job_id))

    launcher = launchers.LocalLauncher(submitit_folder="", array_parallelism=most)
    monkeypatch.setattr(launcher, "_executor", Executor)
    monkeypatch.setattr(launcher, "_gone", lambda job: "")
    monkeypatch.setattr(launchers, "_outcome", outcome)
    monkeypatch.setattr(launchers, "_conclude", lambda record, found, job: record)
    monkeypatch.setattr(launchers, "POLL_SECONDS", 0)
    records = [Job(tmp_path / str(number), (), "waiting") for number in range(5)]
    for record in records:
        record.write()
    submitted: list[Any] = []
    results = launcher._run(records, [(number,) for number in range(5)], submitted)
    assert [each.return_value for each in results] == list(range(5))
    assert max(seen) == together
    assert len(submitted) == 5


class Simulated:
    """Executor that starts nothing: it copies the launcher for each job, as submitit does, and records its GPU."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.jobs: list[Any] = []

    def map_array(self, function: Any, *arguments: Any) -> list[Any]:
        for number in arguments[0]:
            # As a separate process would, with the environment that submitit sets
            with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
                self.seen.append(cloudpickle.loads(cloudpickle.dumps(function))(number))
            paths = SimpleNamespace(result_pickle=SimpleNamespace(exists=lambda: False))
            self.jobs.append(SimpleNamespace(job_id=str(number), done=lambda: False, paths=paths))
        return self.jobs[-len(arguments[0]) :]


def gpus_of_jobs(monkeypatch: Any, folder: Path, count: int, numbers: Sequence[int], **settings: Any) -> Simulated:
    """Launch jobs on a machine with `count` visible GPUs; jobs 1 and 3 have results once four are there."""
    pytest.importorskip("submitit")
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    executor = Simulated()
    base = launchers._ReportingLauncher
    monkeypatch.setattr(base, "_executor", lambda self: executor)
    monkeypatch.setattr(base, "__call__", lambda *_: os.environ["CUDA_VISIBLE_DEVICES"], raising=False)

    def run(self: Any, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[Any]:
        for part in [part for part in (slice(0, 4), slice(4, None)) if records[part]]:
            self._submit(self._executor(), records[part], arguments[part], set())
            for job in executor.jobs[1:4:2]:
                job.paths.result_pickle.exists = lambda: True
        return []

    monkeypatch.setattr(base, "_run", run)
    records = [Job(folder / str(number), (), "waiting") for number in numbers]
    for record in records:
        record.write()
    launchers.LocalLauncher(submitit_folder="", **settings)._run(records, [(number,) for number in numbers], [])
    return executor


@pytest.mark.parametrize("names", ["2,5", "GPU-8932f937, GPU-02", None])
def test_local_jobs_share_the_gpus(tmp_path, monkeypatch, names):
    """A job gets the GPU with the fewest jobs that have no result yet."""
    if names is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    first, second = (names or "0,1").replace(" ", "").split(",")
    seen = gpus_of_jobs(monkeypatch, tmp_path, 2, range(7)).seen
    assert seen == [first, second, first, second, second, second, first]


@pytest.mark.parametrize(("count", "settings"), [(0, {}), (4, {"gpus_per_node": 2})])
def test_submitit_decides_without_gpus_or_with_a_set_number(tmp_path, monkeypatch, count, settings):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1" if count == 0 else "0,1,2,3")
    assert gpus_of_jobs(monkeypatch, tmp_path, count, range(2), **settings).seen == ["", ""]


def test_zero_local_jobs_at_a_time_is_refused():
    with pytest.raises(ValueError, match=r"array_parallelism=0: a whole number"):
        launchers.LocalLauncher(submitit_folder="", array_parallelism=0)._room(0)


@pytest.mark.slow
def test_optuna_finds_the_better_of_two(corpus, tmp_path):
    pytest.importorskip("optuna")
    given = ("mixer=transformer", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "optim.lr=choice(0.02,1e-9)",
             "hydra.sweeper.sampler.seed=1", "optim.warmup_init_lr=1e-9", "trainer.max_steps=150",
             "trainer.test=false")  # fmt: skip
    # Both points in four trials: repeated points have the score of the finished run
    status, output = call(tmp_path, sweep_command(corpus, *given))
    assert status == 0, output
    best = (only_sweep(tmp_path) / "optimization_results.yaml").read_text()
    scores = {job.number: _valid(job) for job in read_jobs(only_sweep(tmp_path))}
    assert (len(scores), len(set(scores.values()))) == (4, 2)
    assert f"best_value: {max(scores.values())}" in best
    assert "optim.lr: 0.02" in best


# The first draws 3, 3, 2
@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "failed"),
    [(["hydra.sweeper.sampler.seed=1"], "2 of 3"), (["hydra/sweeper/sampler=grid"], "1 of 2")],
    ids=["tpe", "grid"],
)
def test_a_failed_trial_does_not_end_a_search(corpus, tmp_path, search, failed):
    pytest.importorskip("optuna")
    given = ("mixer=transformer", "hydra/sweeper=optuna", *search, "hydra.sweeper.n_trials=3",
             "model.num_heads=choice(2,3)", "trainer.test=false")  # fmt: skip
    status, output = call(tmp_path, sweep_command(corpus, *given))
    assert status == 1
    assert f"{failed} jobs failed" in output
    assert "model.num_heads: 2" in (only_sweep(tmp_path) / "optimization_results.yaml").read_text()


def test_the_last_trial_of_a_grid_may_fail(monkeypatch):
    samplers = pytest.importorskip("optuna.samplers")
    from optuna import create_study
    from optuna.trial import TrialState

    monkeypatch.setattr(samplers.GridSampler, "after_trial", samplers.GridSampler.after_trial)
    end_grids_by_count()
    study = create_study(sampler=samplers.GridSampler({"x": [1, 2]}))
    for state, values in ((TrialState.COMPLETE, [0.5]), (TrialState.FAIL, None)):
        trial = study.ask()
        trial.suggest_categorical("x", [1, 2])
        study.tell(trial, state=state, values=values)
    assert study.best_value == 0.5


def _valid(job: Job) -> float:
    assert job.run
    return json.loads((job.run / "results.json").read_text())["valid"]["bleu"]


def slurm_command(corpus: Path, *overrides: str) -> list[str]:
    small = ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=5")
    return sweep_command(corpus, *small, *overrides)


@pytest.mark.slurm
@needs_slurm
def test_slurm_array_of_four_mixers(corpus, tmp_path):
    pytest.importorskip("submitit")
    layers = ("model.encoder_layers=4", "model.decoder_layers=4")
    given = ("mixer=bahdanau,transformer,lightconv,dynamicconv", *layers)
    status, output = call(tmp_path, slurm_command(corpus, *given), timeout=PATIENCE)
    assert status == 0, output
    jobs = read_jobs(only_sweep(tmp_path))
    assert [job.state for job in jobs] == ["finished"] * 4
    arrays = {job.process.slurm.split("_")[0] for job in jobs}
    assert len(arrays) == 1
    assert sorted(job.process.slurm.split("_")[1] for job in jobs) == ["0", "1", "2", "3"]
    # The settings of conf/hydra/launcher/slurm.yaml reach sbatch
    (script,) = only_sweep(tmp_path).glob(".submitit/*/*_submission.sh")
    for expected in ("--array=0-3%4", "--signal=USR1@120", "--requeue", "HF_HUB_OFFLINE=1", "--ntasks-per-node=1"):
        assert expected in script.read_text()
    status, output = call(tmp_path, [sys.executable, "-m", "seq2seq.compare", str(only_sweep(tmp_path))])
    assert len(re.findall(r"^\| (bahdanau|transformer|lightconv|dynamicconv) +\|", output, flags=re.MULTILINE)) == 4


@pytest.mark.slurm
@needs_slurm
def test_slurm_failures_are_reported_at_once(corpus, tmp_path):
    """One job has a wrong setting and one is killed; both are reported while job 0 still runs."""
    pytest.importorskip("submitit")
    given = ("mixer=transformer", "model.num_heads=2,3,4", "trainer.max_steps=100000", "trainer.val_steps=200")
    process = start(tmp_path, slurm_command(corpus, *given, "hydra.launcher.array_parallelism=2"))
    assert process.stdout is not None
    failed = []
    for line in process.stdout:
        if "FAILED" in line:
            failed.append(line)
            sweep = only_sweep(tmp_path)
            if len(failed) == 1:
                kill_when_running(sweep, 2)
            if len(failed) == 2:
                states = [job.state for job in read_jobs(sweep)]
                subprocess.run(["scancel", read_jobs(sweep)[0].process.slurm], check=True)
    # Job 0 was still running when both failures had been reported
    assert process.wait(timeout=PATIENCE) == 1
    assert "job 1" in failed[0]
    assert "not divisible by num_heads 3" in failed[0]
    assert "job 2" in failed[1]
    assert "SLURM ended it (FAILED)" in failed[1]
    assert states == ["running", "failed", "failed"]


def kill_when_running(sweep: Path, number: int) -> None:
    wait_for(lambda: (job := Job.read(sweep / str(number))) is not None and job.state == "running")
    job = Job.read(sweep / str(number))
    assert job
    os.kill(job.process.pid, signal.SIGKILL)


@pytest.mark.slurm
@needs_slurm
def test_slurm_job_of_two_processes(corpus, tmp_path):
    """Two processes that SLURM starts train the same weights as one process that accumulates."""
    pytest.importorskip("submitit")
    given = ("mixer=transformer", "seed=1,2", "trainer.max_steps=6", "trainer.keep_last=1")
    status, output = call(
        tmp_path, slurm_command(corpus, *given, "trainer.devices=2", "run=both-${seed}"), timeout=PATIENCE
    )
    assert status == 0, output
    sweep = only_sweep(tmp_path)
    assert [job.state for job in read_jobs(sweep)] == ["finished"] * 2
    logs = sorted(path.name.split("_", 1)[1] for path in sweep.glob(".submitit/*/*_log.out"))
    assert logs == ["0_0_log.out", "0_1_log.out", "1_0_log.out", "1_1_log.out"]
    # One process with two micro-batches makes the same updates as two processes
    one = toycorpus.settings(corpus, tmp_path, "trainer.max_steps=6", "trainer.accumulate=2", "seed=2", "run=one")
    run.train(make_plan(one, mixer="transformer"))
    names = ("both-2", "one")
    weights = [read_state(tmp_path / "runs" / name / "checkpoints" / "last.ckpt")["state_dict"] for name in names]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-5, rtol=1e-4)


@pytest.mark.slurm
@needs_slurm
def test_preempted_slurm_job_resumes(corpus, tmp_path):
    """On SIGUSR1, before the time limit, the run saves and SLURM requeues the job, with the same final weights."""
    pytest.importorskip("submitit")
    given = ("trainer.max_steps=400", "trainer.val_steps=40", "trainer.test=false")
    process = start(tmp_path, slurm_command(corpus, "mixer=transformer", "seed=1,2", *given, "run=it-${seed}"))
    last = tmp_path / "runs" / "it-2" / "checkpoints" / "last.ckpt"
    wait_for(last.exists)
    job = Job.read(only_sweep(tmp_path) / "1")
    assert job
    subprocess.run(["scancel", "--signal=USR1", job.process.slurm], check=True)
    # SLURM delays a requeued job by two minutes: start it at once
    ask = ["scontrol", "update", f"JobId={job.process.slurm}", "StartTime=now"]
    wait_for(lambda: job_records.slurm_state(job.process.slurm) == "PENDING")
    subprocess.run(ask, check=True)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert [each.state for each in read_jobs(only_sweep(tmp_path))] == ["finished"] * 2
    (log,) = only_sweep(tmp_path).glob(".submitit/*_1/*_0_log.out")
    # One log has both starts
    for expected in ("stopped (SIGUSR1", "is queued again", "resuming from"):
        assert expected in log.read_text()
    # The other job of the array is not put back
    (other,) = only_sweep(tmp_path).glob(".submitit/*_0/*_0_log.out")
    assert "REQUEUE" not in other.read_text()
    run.train(make_plan(toycorpus.settings(corpus, tmp_path, *given, "seed=2", "run=whole"), mixer="transformer"))
    whole, parts = (read_state(tmp_path / "runs" / name / "checkpoints" / "last.ckpt") for name in ("whole", "it-2"))
    assert whole["global_step"] == parts["global_step"] == 400
    for name, weight in whole["state_dict"].items():
        assert weight.equal(parts["state_dict"][name])


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


@pytest.mark.parametrize("own_cause", [False, True])  # as of `raise error from error`
def test_the_error_of_a_failed_job_keeps_no_tensors(tmp_path, capsys, own_cause):
    """Hydra keeps errors until the sweep ends."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def job() -> None:
        weights = torch.ones(2)
        kept.append(weakref.ref(weights))
        try:
            inner(weights * 2)
        except ValueError as error:
            raise RuntimeError("outer") from error

    def inner(values: torch.Tensor) -> None:
        kept.append(weakref.ref(values))
        raise ValueError("inner")

    folder = tmp_path / "0"
    folder.mkdir()
    config = OmegaConf.create(
        {"hydra": {"mode": "MULTIRUN", "runtime": {"output_dir": str(folder)}, "overrides": {"task": []}}}
    )
    config.hydra.mode = RunMode.MULTIRUN
    returned = JobReturn(status=JobStatus.FAILED)
    try:
        job()
    except RuntimeError as error:
        error.__cause__ = error if own_cause else error.__cause__
        returned.return_value = error
    assert kept[0]() is not None
    JobRecords().on_job_end(config, returned)
    assert "FAILED: RuntimeError: outer" in capsys.readouterr().err
    assert kept[0]() is None
    assert own_cause or kept[1]() is None
    assert read_jobs(tmp_path)[0].state == "failed"
    with pytest.raises(RuntimeError, match="outer") as found:
        _ = returned.return_value
    assert [entry.name for entry in found.traceback][-1] == "job"
