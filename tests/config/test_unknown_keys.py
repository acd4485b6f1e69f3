"""Mistyped keys on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seq2seq.config.unknown_keys import refuse_unknown, unknown_key

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "wrong", "near"),
    [
        (["trainer.maxtime=3"], "trainer.maxtime", "trainer.max_time"),
        (["trainr.max_time=3"], "trainr.max_time", "trainer.max_time"),
        (["mixr=lightconv"], "mixr", "mixer"),
        (["data=files", "data.train=x", "data.trian=y"], "data.trian", "data.train"),
        (["seed=1,2", "mixer=bahdanau,transformer", "optim.lrr=3,4"], "optim.lrr", "optim.lr"),
        (["model.dropot=choice(0.1,0.2)", "seed=range(1,3)"], "model.dropot", "model.dropout"),
        (["optim.lrr=1", "modl.dim=2"], "optim.lrr", "optim.lr"),
        (["hydra.launchr.x=1"], "hydra.launchr.x", "hydra.launcher"),
    ],
)
def test_a_mistyped_key_is_told_with_what_is_like_it(words, wrong, near):
    message = unknown_key(words)
    assert message.startswith(f"{wrong} is no setting; did you mean {near}"), message


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.max_time=3", "mixer=dynamicconv", "mixer/self@mixer.encoder=attention"],
        ["+trainer.foo=3", "~logger.csv"],
        ["data.corpora={a: {train: x}}", "mixer.encoder.per_layer.kernel_size=[3,7]"],
        ["run=it-${seed}", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"],
        ["mixer=transfomer"],  # Hydra lists what there is
        ["no override"],
    ],
)
def test_everything_else_is_left_to_hydra(words):
    assert unknown_key(words) == ""
    refuse_unknown("train", words)
    refuse_unknown("train", ["--config-dir=elsewhere", "their.key=1"])


def test_a_moved_setting_is_refused_with_its_new_name():
    words = ["mixer=dynamicconv", "mixer.encoder.kernel=torch"]
    assert unknown_key(words) == "mixer.encoder.kernel is now mixer.encoder.backend"


def test_nothing_like_it_is_told_too():
    assert unknown_key(["qqqqqqqq=1"]) == "qqqqqqqq is no setting (--cfg job lists all)"


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_a_program_ends_with_one_line(tmp_path, program):
    command = [sys.executable, "-m", f"seq2seq.{program}", "trainer.maxtime=3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{program}: trainer.maxtime is no setting; did you mean trainer.max_time")
    assert "+trainer" not in done.stderr
    assert not list(tmp_path.iterdir())
