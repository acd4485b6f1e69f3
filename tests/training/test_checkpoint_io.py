"""A run continues from its state, bit for bit, and refuses a state that does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import toycorpus
import yaml
from toycorpus import execute

from seq2seq.comparison.groups import group_runs
from seq2seq.runs.folder import ORIGIN, RunFolder
from seq2seq.runs.results import collect
from seq2seq.runs.training_state import read_state
from seq2seq.system.yaml_file import read_yaml
from seq2seq.training.bounds.faults import TrainingFault
from seq2seq.training.lightning_parts.checkpoint_io import AtomicCheckpointIO
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

REPRESENTATIVE = {"test_a_run_in_two_parts_is_the_run_in_one": {"transformer"}}

KEPT = ("trainer.val_steps=2", "trainer.ema=0.9", "trainer.keep_best=1")
GIVEN = ("run=it", "trainer.test=false", "optim=anneal", *KEPT)
SHORT, LONG = ("trainer.max_steps=2", "optim.schedule=constant"), ("trainer.max_steps=4", "optim.schedule=constant")


@pytest.fixture(scope="module")
def stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two updates."""
    return execute(toycorpus.settings(corpus, tmp_path_factory.mktemp("stopped"), *GIVEN, *SHORT)).folder


def with_state(stopped: RunFolder, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy a run, and change its state."""
    copied = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    payload = read_state(RunFolder(copied).last)
    change(payload)
    torch.save(payload, RunFolder(copied).last)
    return copied


def test_a_copied_folder_continues(corpus, stopped, tmp_path):
    copied = with_state(stopped, tmp_path, lambda payload: None)
    run = execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={copied}"))
    assert run.folder.path == copied
    assert read_state(run.folder.last)["global_step"] == 4
    assert read_state(stopped.last)["global_step"] == 2


def test_a_run_with_a_removed_setting_continues_and_is_compared(corpus, stopped, tmp_path):
    """A run of an earlier version, whose trainer could be compiled."""

    def add(config: dict[str, Any]) -> None:
        config["trainer"]["compile"] = "auto"

    old = RunFolder(with_state(stopped, tmp_path, lambda payload: add(payload[ORIGIN]["settings"])))
    config = read_yaml(old.config)
    add(config)
    old.config.write_text(yaml.safe_dump(config))
    (group,) = group_runs(collect([str(stopped.path), str(old.path)], "valid").runs)
    assert len(group.runs) == 2
    words = toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={old.path}")
    run = TrainingRun(make_plan(words, mixer="transformer"))
    assert run.resumed
    assert run.resumed.step == 2


@pytest.mark.parametrize("mixer", ["transformer", "lightconv"])
def test_a_run_in_two_parts_is_the_run_in_one(corpus, tmp_path, mixer):
    """Weights, moments, averages and scores agree bit for bit."""
    kernels = [f"mixer.{side}.per_layer.kernel_size=[3]" for side in ("encoder", "decoder") if mixer == "lightconv"]
    given = (*GIVEN[1:], f"mixer={mixer}", *kernels, "optim.schedule=constant")
    whole = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given, "trainer.max_steps=4"))
    execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=2"))
    again = execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=4", "resume=auto"))
    one, other = (read_state(run.folder.last) for run in (whole, again))
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(one[key], other[key], atol=0, rtol=0)
    averages = [each["callbacks"]["AverageWeights"]["average"]["averages"] for each in (one, other)]
    torch.testing.assert_close(*averages, atol=0, rtol=0)
    assert one["callbacks"]["RecordScores"] == other["callbacks"]["RecordScores"]
    assert whole.folder.best.read_bytes() == again.folder.best.read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("model.ffn_dim=64",), r"has shape \(32, 16\), the model needs \(64, 16\)"),
        (("mixer/cross=additive",), "weights are missing"),
        (("optim=adadelta",), "optim.name was adam and is now adadelta, .* init_from="),
    ],
)
def test_another_model_or_optimizer_cannot_be_forced(corpus, stopped, tmp_path, changes, message):
    settings = toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, *changes, f"resume={stopped.path}", "force=true")
    with pytest.raises(ValueError, match=message):
        TrainingRun(make_plan(settings, mixer="transformer"))


def test_settings_of_the_optimizer_do_not_come_from_the_file(corpus, stopped, tmp_path):
    wrong = {"betas": [0.1, 0.2], "weight_decay": 7.0, "eps": "x"}
    copied = with_state(
        stopped, tmp_path, lambda payload: payload["optimizer_states"][0]["param_groups"][0].update(wrong)
    )
    run = execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={copied}"))
    group = read_state(run.folder.last)["optimizer_states"][0]["param_groups"][0]
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.9, 0.98), 1e-4, 1e-9)


def test_weights_that_are_not_finite_are_not_saved(stopped, tmp_path):
    payload = read_state(stopped.last)
    next(iter(payload["state_dict"].values())).view(-1)[0] = float("inf")
    with pytest.raises(TrainingFault, match=r"diverged.*update 2.*optim\.lr"):
        AtomicCheckpointIO().save_checkpoint(payload, tmp_path / "last.ckpt")
    with pytest.raises(TrainingFault, match="diverged"):
        AtomicCheckpointIO().save_checkpoint(payload, tmp_path / "best.safetensors")
    assert not list(tmp_path.iterdir())
    assert isinstance(AtomicCheckpointIO(), L.fabric.plugins.CheckpointIO)
