"""Test runs of several processes: the same weights, one writer, one decision; and resuming with other numbers."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import toycorpus
from conftest import PATIENCE

from seq2seq import checkpoint
from seq2seq.runs.folder import config_hash
from seq2seq.runs.training_state import read_state
from seq2seq.system import ranks
from seq2seq.system.ranks import Agreement
from seq2seq.training import make_trainer
from seq2seq.training.callbacks.signals import TrainingInterrupt
from seq2seq.training.lightning_parts import checkpoint_io
from seq2seq.training.lightning_parts.task import rescale
from seq2seq.training.plan import make_plan
from seq2seq.training.run import process_for, train

GIVEN = ("trainer.max_steps=9", "optim.schedule=constant", "trainer.val_steps=4", "trainer.log_steps=1")


def start(corpus: Path, folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start training with two processes, as a user does."""
    words = toycorpus.words(corpus, folder, "trainer.devices=2", *overrides)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "seq2seq.train", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def state(folder: Path, run: str) -> dict[str, Any]:
    return read_state(folder / "runs" / run / "checkpoints" / "last.ckpt")


def accumulated(processes: int, growing: bool) -> tuple[str, ...]:
    """Settings of two micro-batches an update over all processes, or of two that grow to four.

    They grow after the fourth of six updates and of nine, since a larger window cannot begin at half of one.
    """
    if growing:
        window = f"trainer.accumulate={4 // processes}", f"trainer.accumulate_start={2 // processes}"
        return (*window, "trainer.accumulate_share=0.4")
    return (f"trainer.accumulate={2 // processes}",)


@pytest.mark.slow
@pytest.mark.parametrize("growing", [False, True])
def test_two_processes_equal_one_that_accumulates(corpus, tmp_path, growing):
    """Weights, sums and scores are equal; then one process continues the run of two."""
    process = start(corpus, tmp_path, "run=two", "trainer.max_steps=6", *accumulated(2, growing), *GIVEN[1:])
    one_process = accumulated(1, growing)
    budget = ("run=one", *one_process, *GIVEN)
    train(make_plan(toycorpus.settings(corpus, tmp_path, *budget), mixer="transformer"))
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown
    assert shown.count("validation at update 4") == 1  # one process speaks
    assert shown.count("references are longer than a translation may be") == 2  # of validation and test
    budget = ("run=two", "resume=auto", *one_process, *GIVEN)
    train(make_plan(toycorpus.settings(corpus, tmp_path, *budget), mixer="transformer"))
    one, two = state(tmp_path, "one"), state(tmp_path, "two")
    for name, weights in one["state_dict"].items():
        torch.testing.assert_close(
            two["state_dict"][name], weights, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert two["train_sums"] == pytest.approx(one["train_sums"], rel=1e-5)
    results = [json.loads((tmp_path / "runs" / run / "results.json").read_text()) for run in ("one", "two")]
    assert results[1]["test"]["nll"] == pytest.approx(results[0]["test"]["nll"], rel=1e-5)
    rows = list(csv.DictReader((tmp_path / "runs" / "two" / "metrics.csv").open()))
    assert [int(row["step"]) for row in rows if row["lr"]] == list(range(1, 10))


@pytest.mark.slow
def test_two_processes_share_the_tokens_of_an_update(corpus, tmp_path):
    """One process makes the same updates, and continues the run of two."""
    update = ("data.batch_tokens=600", "model.dropout=0", "model.attention_dropout=0", *GIVEN[1:])
    process = start(corpus, tmp_path, "run=two", "trainer.max_steps=6", "data.max_tokens=300", *update)
    given = (GIVEN[0], *update)
    train(make_plan(toycorpus.settings(corpus, tmp_path, "run=one", "data.max_tokens=600", *given), mixer="x"))
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown
    assert state(tmp_path, "two")["global_step"] == 6
    on = ("run=two", "resume=auto", "data.max_tokens=auto", *given)
    train(make_plan(toycorpus.settings(corpus, tmp_path, *on), mixer="x"))
    one, two = state(tmp_path, "one"), state(tmp_path, "two")
    torch.testing.assert_close(two["state_dict"], one["state_dict"], atol=1e-5, rtol=1e-4)
    assert two["train_sums"] == pytest.approx(one["train_sums"], rel=1e-5)


@pytest.mark.parametrize(
    ("environment", "rank", "local_rank"),
    [
        ({}, 0, 0),
        ({"LOCAL_RANK": "1"}, 1, 1),  # started by Lightning
        ({"RANK": "9", "LOCAL_RANK": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, 9, 1),  # torchrun, under srun
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, 0, 0),
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, 1, 1),  # by Lightning, in a task of SLURM
        # A wrapper that sets LOCAL_RANK for each task, on the second machine
        ({"LOCAL_RANK": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}, 2, 0),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "2"}, 5, 2),
        ({"RANK": "", "SLURM_PROCID": "0"}, 0, 0),
    ],
)
def test_a_process_knows_its_number(monkeypatch, environment, rank, local_rank):
    by(monkeypatch, **environment)
    assert (ranks.rank(), ranks.local_rank(), ranks.is_first_process()) == (rank, local_rank, rank == 0)


@pytest.mark.exhaustive  # tests/training/test_fsdp.py has quick tests
def test_a_sharded_model_equals_a_whole_one(corpus, tmp_path):
    """Two processes with a part each begin, one continues, two end: weights, averages and optimizer agree."""
    more = (*GIVEN[1:], "trainer.ema=0.9", "optim=anneal", "optim.clip_norm=0.5")
    parts = ("run=parts", "trainer.strategy=fsdp", *more)
    begin = start(corpus, tmp_path, *parts, "trainer.max_steps=6", "trainer.test=false")
    train(
        make_plan(toycorpus.settings(corpus, tmp_path, "run=whole", "trainer.accumulate=2", GIVEN[0], *more), mixer="x")
    )
    shown, _ = begin.communicate(timeout=PATIENCE)
    assert begin.returncode == 0, shown
    assert "fsdp" not in shown.lower()  # nor its warnings
    checkpoint.load(tmp_path / "runs" / "parts" / "checkpoints" / "best.safetensors")
    budget = ("run=parts", "resume=auto", "trainer.accumulate=2", "trainer.max_steps=8", "trainer.test=false", *more)
    train(make_plan(toycorpus.settings(corpus, tmp_path, *budget), mixer="x"))
    end = start(corpus, tmp_path, *parts, "resume=auto", GIVEN[0])
    shown, _ = end.communicate(timeout=PATIENCE)
    assert end.returncode == 0, shown
    whole, found = state(tmp_path, "whole"), state(tmp_path, "parts")
    assert whole["state_dict"].keys() == found["state_dict"].keys()
    one, two = (each["state_dict"] | weights(each["optimizer_states"] + average(each)) for each in (whole, found))
    torch.testing.assert_close(two, one, atol=1e-6, rtol=1e-4)
    assert found["train_sums"] == pytest.approx(whole["train_sums"], rel=1e-5)
    results = [json.loads((tmp_path / "runs" / run / "results.json").read_text()) for run in ("whole", "parts")]
    assert results[1]["test"]["nll"] == pytest.approx(results[0]["test"]["nll"], rel=1e-5)


def average(kept: dict[str, Any]) -> list[Any]:
    """The averaged weights in a training checkpoint."""
    return [each["average"]["averages"] for each in kept["callbacks"].values() if "average" in each]


def weights(nested: Any, name: str = "") -> dict[str, Any]:
    """Return the tensors in nested lists and dicts by their place."""
    if isinstance(nested, torch.Tensor):
        return {name: nested}
    pairs = nested.items() if isinstance(nested, dict) else enumerate(nested) if isinstance(nested, list) else ()
    return {key: value for part, each in pairs for key, value in weights(each, f"{name}.{part}").items()}


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_at_the_same_update(corpus, tmp_path):
    process = start(corpus, tmp_path, "run=two", "trainer.max_steps=100000", "trainer.val_steps=100000",
                    "trainer.line_time=0.1s", "optim.schedule=constant")  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "step 1" in line:
            break
    process.send_signal(signal.SIGUSR1)
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGUSR1, shown
    assert "continue with resume=auto" in shown
    assert state(tmp_path, "two")["global_step"] > 0


class SignalInTest(L.Callback):
    """Callback that sends SIGTERM to the first process at its second test batch."""

    def on_test_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        if batch_idx == 1 and ranks.is_first_process():
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_the_test_of_both(corpus, tmp_path):
    process = start(corpus, tmp_path, "run=two", "trainer.max_steps=1", "data.max_tokens=40",
                    "+callbacks.signal._target_=test_distributed.SignalInTest")  # fmt: skip
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, shown
    assert "continues with the test" in shown


def meet(rank: int, folder: str) -> None:
    """Agree with another process on the larger numbers."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = Agreement().maxima([rank, 0, 15 * (1 - rank), 0.25])
    assert found == [1, 0, 15, 0.25], found
    dist.destroy_process_group()


def test_processes_agree_on_the_largest(tmp_path):
    # Forked, which is quicker than two processes that import torch
    mp.start_processes(meet, (str(tmp_path),), nprocs=2, start_method="fork")
    assert Agreement().maxima([3, 0.5]) == [3, 0.5]


def by(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """Pretend that the process was started with these variables of torchrun and SLURM, and no others."""
    torchrun = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    tasks = ("STEP_ID", "STEP_NUM_TASKS", "NTASKS", "JOB_NAME", "PROCID", "LOCALID")
    for name in (*torchrun, *(f"SLURM_{task}" for task in tasks)):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
# A shell of `srun --ntasks=2 --pty bash`, and one of salloc where it starts a step for it
SHELLS = [SRUN | {"SLURM_JOB_NAME": "bash"}, SRUN | {"SLURM_JOB_NAME": "interactive", "SLURM_STEP_NUM_TASKS": "1"}]


def test_a_sweep_starts_no_processes(monkeypatch):
    by(monkeypatch)
    with pytest.raises(ValueError, match=r"trainer\.devices=2 in a sweep.*hydra/launcher=slurm"):
        ranks.require_startable(2, 1, sweep=True)
    ranks.require_startable(1, 1, sweep=True)
    ranks.require_startable(2, 1, sweep=False)
    by(monkeypatch, **SRUN)
    ranks.require_startable(2, 1, sweep=True)


@pytest.mark.parametrize(
    ("launcher", "environment"), [("torchrun", TORCHRUN), ("torchrun", TORCHRUN | SRUN), ("srun", SRUN)]
)
def test_the_number_of_processes_is_checked(monkeypatch, launcher, environment):
    """Without this check, each process would train alone, or on a part of the text."""
    by(monkeypatch, **environment)
    ranks.require_startable(2, 1, sweep=False)
    ranks.require_startable(1, 2, sweep=False)
    for wrong in ((1, 1), (2, 2)):
        with pytest.raises(ValueError, match=rf"{launcher} started 2 processes, and trainer\.devices={wrong[0]}"):
            ranks.require_startable(*wrong, sweep=False)


def test_processes_of_other_machines_are_missing(monkeypatch):
    for batch_script in ({}, {"SLURM_NTASKS": "2"}, *SHELLS):
        by(monkeypatch, **batch_script)
        ranks.require_startable(1, 1, sweep=False)
        ranks.require_startable(2, 1, sweep=False)
        with pytest.raises(ValueError, match=r"trainer\.nodes=2.*put srun before the command"):
            ranks.require_startable(1, 2, sweep=False)


@pytest.mark.parametrize(
    ("environment", "finds"),
    [
        ({}, None),
        (TORCHRUN, None),
        (TORCHRUN | SRUN, None),  # Lightning asks for torchrun first
        (SRUN, "SLURMEnvironment"),
        # One task, or a batch script: it starts its processes itself
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}, "LightningEnvironment"),
        ({"SLURM_NTASKS": "2"}, "LightningEnvironment"),
        *((shell, "LightningEnvironment") for shell in SHELLS),
    ],
)
def test_the_environment_by_which_processes_meet(monkeypatch, environment, finds):
    by(monkeypatch, **environment)
    found = [type(plugin).__name__ for plugin in checkpoint_io.plugins()]
    assert found == ["AtomicCheckpointIO", *([finds] if finds else [])]


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_the_first_process(monkeypatch, variable):
    assert ranks.is_first_process()
    monkeypatch.setenv(variable, "1")
    assert not ranks.is_first_process()


def test_a_job_is_queued_again_once_and_only_after_its_warning(tmp_path, monkeypatch, caplog):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        asked.append(command)
        if len(asked) == 2:
            raise subprocess.CalledProcessError(1, command, stderr="no such job")
        if len(asked) == 3:
            raise FileNotFoundError("no scontrol")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    assert ranks.requeue(signal.SIGUSR1) is None  # no SLURM
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert ranks.requeue(signal.SIGTERM) is None
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert ranks.requeue(signal.SIGUSR1) is None
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert ranks.requeue(signal.SIGUSR2) == "17"
    # The number of an array's last task is the number of the whole array, which would be requeued with it
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(RuntimeError, match=r"no such job.*resume=auto"):
        ranks.requeue(signal.SIGUSR1)
    assert asked == [["scontrol", "requeue", "17"], ["scontrol", "requeue", "17_3"]]
    # The run has been saved, and ends as it does otherwise
    with pytest.raises(SystemExit) as stop, process_for(make_plan(toycorpus.settings(tmp_path, tmp_path), mixer="x")):
        raise TrainingInterrupt(signal.SIGUSR1)
    assert stop.value.code == 128 + signal.SIGUSR1
    assert "no scontrol" in caplog.text


@pytest.mark.parametrize(("rank", "status"), [("0", 128 + signal.SIGUSR1), ("1", 0)])
def test_a_second_signal_does_not_stop_a_requeue(tmp_path, monkeypatch, caplog, rank, status):
    """A launcher would kill rank 0 before it has requeued the job if another rank failed."""
    caplog.set_level("INFO")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_PROCID", rank)
    with pytest.raises(SystemExit) as stop, process_for(make_plan(toycorpus.settings(tmp_path, tmp_path), mixer="x")):
        raise TrainingInterrupt(signal.SIGUSR1)
    assert stop.value.code == status
    assert "SIGTERM" not in caplog.text
    assert ("job 17 is queued again" in caplog.text) == (rank == "0")


def test_ranks_that_wait_for_the_first_one_are_killed():
    waiting = subprocess.Popen(["sleep", str(PATIENCE)])
    launcher: Any = SimpleNamespace(procs=[waiting])
    make_trainer._end_ranks(launcher, seconds=0.0)
    assert waiting.wait(PATIENCE) == -signal.SIGKILL


def test_runs_with_equal_updates_have_one_name():
    def settings(**trainer: int) -> dict[str, Any]:
        return {"trainer": {"accumulate": 1, "devices": 1, "nodes": 1, **trainer}}

    assert config_hash(settings(accumulate=4)) == config_hash(settings(accumulate=2, devices=2))
    assert config_hash(settings(accumulate=4)) == config_hash(settings(nodes=2, devices=2))
    assert config_hash(settings(accumulate=4)) != config_hash(settings(accumulate=4, devices=2))
    growing = settings(accumulate=4, accumulate_start=2)
    assert config_hash(growing) == config_hash(settings(accumulate=2, accumulate_start=1, devices=2))
    assert config_hash(growing) != config_hash(settings(accumulate=4, accumulate_start=4))


def test_counts_of_batches_for_other_processes():
    counts = {"ready": 6, "started": 6, "processed": 6, "completed": 5}
    progress = {"current": dict(counts), "total": dict(counts)}
    rescale(progress, (2, 1), 2)
    assert progress["current"] == {"ready": 12, "started": 12, "processed": 12, "completed": 11}
    rescale(progress, (1, 8), 1)
    assert progress["current"]["processed"] == 1
