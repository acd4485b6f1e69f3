"""Callbacks, loggers and mixers of a user: refusals, the order of callbacks, and their states."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import toycorpus
import yaml
from composed import resolved
from lightning.pytorch.loggers import CSVLogger

import seq2seq
from seq2seq import checkpoint
from seq2seq.mixers.average import Average
from seq2seq.runs.folder import config_hash
from seq2seq.runs.training_state import read_state
from seq2seq.settings.classes import entries, require_classes
from seq2seq.training.lightning_parts.loggers import check_loggers
from seq2seq.training.lightning_parts.user_classes import user_callbacks
from seq2seq.training.loop import STATE_KEYS
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_a_mixer_of_another_package_is_trained"}
REPRESENTATIVE = {"test_a_run_with_frozen_parameters_is_resumed_with_its_average": {"muon"}}

PAGE = Path(seq2seq.__file__).parents[1] / "docs" / "training.md"
HERE = __name__


class Plain(L.Callback):
    """A callback without a state."""

    def __init__(self, *, patience: int = 1, words: list[str] | None = None) -> None:
        if patience < 0:
            raise ValueError(f"patience={patience} is\nnegative")
        self.patience, self.words = patience, words


class Stateful(Plain):
    """A callback with a state."""

    def state_dict(self):
        return {}


class Validation(Stateful):
    """A callback named as one of the run's own."""


class NoCallback:
    """Neither callback nor logger."""


def target(name: str) -> str:
    return f"{HERE}.{name}"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("Plain", "callbacks.mine=Plain names no class: write {_target_: package.module.Class, argument: value}"),
        ({"patience": 3}, "names no class"),
    ],
)
def test_an_entry_without_a_class_is_refused_before_imports(node, message):
    for section in ("callbacks", "logger"):
        config = {"callbacks": {}, "logger": {}, section: {"mine": node}}
        with pytest.raises(ValueError, match=re.escape(message.replace("callbacks.", f"{section}."))) as error:
            require_classes(config)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": target("Nothing")}, "cannot be made: Error loading"),
        ({"_target_": "sys.no.Class"}, "cannot be made"),
        ({"_target_": "Plain"}, "cannot be made"),
        ({"_target_": "../x.Plain"}, "cannot be made"),
        ({"_target_": 5}, "cannot be made"),
        ({"_target_": "no_such_package.Plain"}, "No module named 'no_such_package'"),
        ({"_target_": target("NoCallback")}, "makes a NoCallback, not a Callback of Lightning (lightning.pytorch."),
        ({"_target_": "pytorch_lightning.callbacks.EarlyStopping", "monitor": "x"}, "but one of pytorch_lightning"),
        ({"_target_": target("Plain"), "patiance": 3}, f"callbacks.mine.patiance is not an argument of {HERE}.Plain"),
        ({"_target_": target("Plain"), "x": 3}, "callbacks.mine.x is not an argument of"),
        ({"_target_": target("Plain"), "patience": -3}, "cannot be made: patience=-3 is negative"),
        ({"_target_": target("Plain"), "_partial_": True}, ", not a Callback of Lightning"),
        ({"_target_": target("Plain"), "words": {"_target_": "no.x"}}, "cannot be made"),
        ({"_target_": "lightning.pytorch.callbacks.EarlyStopping"}, "cannot be made"),
        ({"_target_": target("Validation")}, "saves its state as 'Validation', as does a callback of every run"),
        ({"_target_": "lightning.pytorch.callbacks.EMAWeightAveraging"}, "; set trainer.ema instead"),
        (
            {"_target_": "lightning.pytorch.callbacks.StochasticWeightAveraging", "swa_lrs": 0.1},
            "cannot use StochasticWeightAveraging; set trainer.ema, or trainer.keep_last with",
        ),
        (
            {"_target_": "lightning.pytorch.callbacks.GradientAccumulationScheduler", "scheduling": {0: 2}},
            "; set trainer.accumulate_start with trainer.accumulate_share instead",
        ),
    ],
)
def test_a_wrong_callback_is_refused_in_one_line(node, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        user_callbacks({"mine": node}, taken=set(STATE_KEYS))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("callbacks.mine")


def test_two_states_under_one_name_are_refused():
    node = {"_target_": target("Stateful")}
    with pytest.raises(ValueError, match=r"^callbacks.b saves its state as 'Stateful', as does callbacks.a: give"):
        user_callbacks({"a": node, "b": dict(node)}, taken=set())
    assert (
        len(user_callbacks({"a": {"_target_": target("Plain")}, "b": {"_target_": target("Plain")}}, taken=set())) == 2
    )


def test_entries_are_plain_values_in_order_and_null_turns_one_off():
    section = {"a": None, "b": {"_target_": target("Plain"), "words": ["x"]}, "c": {"_target_": target("Stateful")}}
    made = user_callbacks(section, taken=set())
    assert [type(each) for each in made] == [Plain, Stateful]
    assert type(made[0].words) is list
    assert user_callbacks({}, taken=set()) == []
    assert entries(None) == {}


def test_a_wrong_logger_is_refused_without_making_it(tmp_path, monkeypatch):
    check_loggers({"a": {"_target_": "lightning.pytorch.loggers.CSVLogger"}, "b": None})
    for node, message in (
        ({"_target_": target("NoCallback")}, r"^logger.mine.*makes a NoCallback, not a Logger of Lightning"),
        ({"_target_": "lightning.pytorch.loggers.CSVLogger", "nme": "x"}, r"^logger.mine.nme .* did you mean name\?$"),
    ):
        monkeypatch.setattr(CSVLogger, "__init__", lambda self, save_dir, name="": pytest.fail("was made"))
        with pytest.raises(ValueError, match=message):
            check_loggers({"mine": node})


def test_callbacks_are_part_of_a_run_and_loggers_are_not():
    plain = resolved()
    mine = resolved(["+callbacks.mine._target_=a.B"])
    logged = resolved(["+logger.mine._target_=a.B"])
    assert config_hash(plain) == config_hash(logged) != config_hash(mine)


@pytest.fixture
def documented(tmp_path, monkeypatch) -> list[str]:
    """Return the settings of the documented command, and write the module that it names."""
    blocks = re.findall(r"```(python|bash)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    ((_, code),) = [each for each in blocks if each[0] == "python" and "class StopAtLoss" in each[1]]
    ((_, command),) = [each for each in blocks if each[0] == "bash" and "StopAtLoss" in each[1]]
    (tmp_path / "my_callbacks.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield shlex.split(command)[3:]
    sys.modules.pop("my_callbacks", None)


def test_the_documented_callback_stops_a_run_and_keeps_its_state(documented, tmp_path, caplog):
    corpus = toycorpus.write(tmp_path / "corpus")

    def run(*overrides: str) -> TrainingRun:
        words = [
            *documented,
            "callbacks.mine.loss=1e9",
            "trainer.val_steps=1",
            "trainer.max_steps=9",
            "run=x",
            "trainer.test=false",
        ]
        return toycorpus.execute(toycorpus.settings(corpus, tmp_path, *words, *overrides))

    # The first part ends before the callback has seen enough
    folder = run("trainer.max_steps=1").folder
    assert read_state(folder.last)["callbacks"]["StopAtLoss"] == {"seen": 1}
    # The resumed run continues from the count of the first part
    assert run("resume=auto").folder.read_results()["steps"] == 2
    assert read_state(folder.last)["callbacks"]["StopAtLoss"] == {"seen": 2}
    assert "mine/seen" in (folder.path / "metrics.csv").read_text()
    # A run that a callback has ended is finished
    before = folder.results.read_bytes()
    caplog.clear()
    run("resume=auto")
    assert folder.results.read_bytes() == before
    assert yaml.safe_load(folder.config.read_text())["callbacks"]["mine"] == {
        "_target_": "my_callbacks.StopAtLoss", "loss": 1e9, "patience": 2,
    }  # fmt: skip
    # Another callback is another run
    with pytest.raises(ValueError, match=r"callbacks.mine.patience was 2 and is now 3"):
        run("resume=auto", "callbacks.mine.patience=3")
    assert run("resume=auto", "callbacks.mine.patience=3", "force=true").folder.read_results()["steps"] == 3


class Freeze(L.Callback):
    """A callback that trains only the decoder."""

    def setup(self, trainer, pl_module, stage):
        for parameter in pl_module.model.encoder.layers.parameters():
            parameter.requires_grad = False


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_run_with_frozen_parameters_is_resumed_with_its_average(tmp_path, optimizer):
    corpus = toycorpus.write(tmp_path / "corpus")
    words = [f"+callbacks.freeze._target_={target('Freeze')}", f"optim.name={optimizer}", "trainer.ema=0.5", "run=x"]

    def weights(*overrides: str) -> dict[str, torch.Tensor]:
        settings = toycorpus.settings(corpus, tmp_path, *words, "trainer.test=false", *overrides)
        return read_state(toycorpus.execute(settings).folder.last)["state_dict"]

    first = weights("trainer.max_steps=1")
    second = weights("trainer.max_steps=3", "resume=auto")
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed
    assert not any("encoder.layers" in name for name in changed)


class Mine(Average):
    """A mixer of another package."""


def test_a_mixer_of_another_package_is_trained(tmp_path):
    """A preset on the search path names it. The run trusts packages in its settings; its checkpoint needs `trust`."""
    corpus = toycorpus.write(tmp_path / "corpus")
    (tmp_path / "conf" / "mixer" / "self").mkdir(parents=True)
    (tmp_path / "conf" / "mixer" / "self" / "mine.yaml").write_text(f"_target_: {HERE}.Mine\n")
    preset = "defaults: [self@encoder: mine, self@decoder: mine, cross: attention]\n"
    (tmp_path / "conf" / "mixer" / "mine.yaml").write_text(preset)
    words = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "mixer=mine", "run=x", "trainer.test=false"]

    def run(*overrides: str) -> TrainingRun:
        return toycorpus.execute(toycorpus.settings(corpus, tmp_path, *words, *overrides), mixer="mine")

    folder = run("trainer.max_steps=1").folder
    run("trainer.max_steps=2", "resume=auto")
    assert read_state(folder.last)["global_step"] == 2
    with pytest.raises(ValueError, match=rf"{HERE}\.Mine' is not trusted"):
        checkpoint.load(folder.best)
    model = checkpoint.load(folder.best, trust=[HERE]).model
    assert {type(layer.self_mixer).__name__ for layer in (*model.encoder.layers, *model.decoder.layers)} == {"Mine"}
    run("run=tuned", f"init_from={folder.best}", "trainer.max_steps=1")


def test_a_checkpoint_callback_and_the_open_arguments_reach_lightning(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus")
    words = [
        "+callbacks.keep._target_=lightning.pytorch.callbacks.ModelCheckpoint",
        "+callbacks.keep.monitor=val/bleu",
        f"+callbacks.keep.dirpath={tmp_path / 'kept'}",
        "+callbacks.keep.filename=best",
        "trainer.lightning.detect_anomaly=true",
        "trainer.lightning.enable_model_summary=true",
        "trainer.test=false",
        "trainer.max_steps=1",
    ]
    run = toycorpus.execute(toycorpus.settings(corpus, tmp_path, *words), seen := Seen())
    assert seen.arguments == (True, True)
    # Lightning's own callback wrote it, after ours, and it is as complete as last.ckpt
    assert read_state(tmp_path / "kept" / "best.ckpt").keys() == read_state(run.folder.last).keys()


class Seen(L.Callback):
    """A callback that records the arguments of the trainer."""

    def on_train_start(self, trainer, pl_module):
        summary = any("ModelSummary" in type(each).__name__ for each in trainer.callbacks)
        self.arguments = (trainer._detect_anomaly, summary)
