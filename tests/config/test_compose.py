"""Mistakes on the command line: unknown keys and choices, and keys that have moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

from seq2seq.config.compose import resolved_settings
from seq2seq.config.explain import explain, refuse_mistakes

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
    message = explain(words)
    assert message.startswith(f"{wrong} is no setting; did you mean {near}"), message


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.max_time=3", "mixer=dynamicconv", "mixer/self@mixer.encoder=attention"],
        ["+trainer.foo=3", "~logger.csv"],
        ["data.corpora={a: {train: x}}", "mixer.encoder.per_layer.kernel_size=[3,7]"],
        ["run=it-${seed}", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"],
        ["no override"],
    ],
)
def test_everything_else_is_left_to_hydra(words):
    assert explain(words) == ""
    refuse_mistakes("train", words)
    refuse_mistakes("train", ["--config-dir=elsewhere", "their.key=1"])


def test_a_moved_setting_is_refused_with_its_new_name():
    words = ["mixer=dynamicconv", "mixer.encoder.kernel=torch"]
    assert explain(words) == "mixer.encoder.kernel is now mixer.encoder.backend"
    assert explain(["model=small", "model.peak_lr=1e-3"]) == "model.peak_lr is now optim.peak_lr"


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("mixer=transfomer", "transformer"),
        ("mixer/self@mixer.encoder=attentoin", "attention"),
        ("data=phrasbook", "phrasebook"),
        ("model=smal", "small"),
        ("optim=aneal", "anneal"),
        ("experiment=tateoba", "tatoeba"),
    ],
)
def test_an_unknown_choice_is_told_with_what_is_like_it(word, near):
    message = explain(["seed=2", word])
    assert message.startswith(f"{word} is no choice; did you mean {near}"), message
    assert "schema" not in message
    assert "\n" not in message
    assert explain(["mixer=qqqqqq"]).startswith("mixer=qqqqqq is no choice (known: average, bahdanau, ")


def test_what_is_refused_is_a_value_error_of_one_line():
    assert resolved_settings(["model=small"])["optim"]["peak_lr"] == 5e-4
    for words, message in ((["modl=small"], "modl is no setting"), (["no override"], "settings: .*no override")):
        with pytest.raises(ValueError, match=message) as refused:
            resolved_settings(words)
        assert "\n" not in str(refused.value)


def test_a_setting_that_is_there_needs_no_plus():
    message = "data.num_workers is a setting already: write data.num_workers=1"
    assert explain(["+data.num_workers=1"]) == message


def test_nothing_like_it_is_told_too():
    assert explain(["qqqqqqqq=1"]) == "qqqqqqqq is no setting (--cfg job lists all)"


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_a_program_ends_with_one_line(tmp_path, program):
    command = [sys.executable, "-m", f"seq2seq.{program}", "trainer.maxtime=3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{program}: trainer.maxtime is no setting; did you mean trainer.max_time")
    assert "+trainer" not in done.stderr
    assert not list(tmp_path.iterdir())
