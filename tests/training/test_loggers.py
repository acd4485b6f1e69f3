"""Loggers get the translations of each validation and the final scores; TensorBoard's file is read back."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import toycorpus
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger

from seq2seq.runs.folder import RunFolder
from seq2seq.training.lightning_parts.loggers import CsvLogger, log_results, log_samples, log_settings, make_loggers
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_a_run_with_tensorboard_and_a_logger_of_ones_own"}

HERE = __name__
ROWS = [("ein <unk> Haus", "a <unk> house", "a house"), ("zwei | drei", "two", "two | three")]
RESULTS = {"valid": {"bleu": 1.5, "signatures": ["x"]}, "test": {"bleu": 2.5, "chrf": 3.0, "search": {"beam_size": 5}}}
SCORES = {"final/valid_bleu": 1.5, "final/test_bleu": 2.5, "final/test_chrf": 3.0}


class MyLogger(Logger):
    """A logger of a user that takes text."""

    made: ClassVar[list[MyLogger]] = []

    def __init__(self, *, note: str = "") -> None:
        super().__init__()
        self.note, self.settings, self.texts, self.metrics = note, {}, [], []
        MyLogger.made.append(self)

    @property
    def name(self) -> str:
        return "mine"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any) -> None:
        self.settings |= params

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.metrics.append((step, dict(metrics)))

    def log_text(self, key: str, columns: list[str], data: list[list[str]], step: int) -> None:
        self.texts.append((key, columns, data, step))


def events(folder: Path) -> Any:
    """Read all of a folder's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def test_a_run_with_tensorboard_and_a_logger_of_ones_own(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus")
    MyLogger.made.clear()
    words = ["logger=default", f"+logger.mine._target_={HERE}.MyLogger", "+logger.mine.note=hello", "run=x"]
    words += ["trainer.max_steps=2", "trainer.val_steps=1", "trainer.samples=2"]
    run = TrainingRun(make_plan(toycorpus.settings(corpus, tmp_path, *words), mixer="transformer"))
    assert not MyLogger.made  # only checked, since a logger may write as soon as it is made
    run.execute()
    results = run.folder.read_results()
    (mine,) = MyLogger.made
    assert (mine.note, mine.settings["model.dim"]) == ("hello", 16)
    assert mine.metrics[-1] == (2, {f"final/{split}_{key}": value for split in ("valid", "test")
                                    for key, value in results[split].items() if isinstance(value, float)})  # fmt: skip
    sources = (corpus / "valid.de").read_text().splitlines()
    assert [(key, step) for key, _, _, step in mine.texts] == [("val/samples", 1), ("val/samples", 2)]
    for _, columns, data, _ in mine.texts:
        assert columns == ["source", "hypothesis", "reference"]
        assert [row[0] for row in data] == [sources[5], sources[15]]
    # TensorBoard's file has the same scores
    found = events(run.folder.path / "tensorboard")
    shown = found.Tensors("val/samples/text_summary")
    assert [each.step for each in shown] == [1, 2]
    text = shown[-1].tensor_proto.string_val[0].decode()
    hypothesis = mine.texts[-1][2][0][1]
    assert f"    source     {sources[5]}\n    hypothesis {hypothesis}\n    reference  " in text
    pictures = found.Images("val/attention")
    assert [each.step for each in pictures] == [1, 2]
    assert pictures[0].width > 24
    (score,) = found.Scalars("final/test_bleu")
    assert (score.step, score.value) == (2, pytest.approx(results["test"]["bleu"], abs=1e-4))
    assert settings_in(found)["model.dim"] == 16
    # Final scores are in results.json, not in metrics.csv
    header = next(csv.reader((run.folder.path / "metrics.csv").open()))
    assert not any(name.startswith("final") for name in header)


def settings_in(found: Any) -> dict[str, Any]:
    """Return the hyperparameters of a run in TensorBoard's files."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for each in found.summary_metadata.values():
        data = HParamsPluginData.FromString(each.plugin_data.content)
        if data.WhichOneof("data") == "session_start_info":
            return {
                key: value.number_value or value.string_value for key, value in data.session_start_info.hparams.items()
            }
    return {}


class FakeRun:
    """The part of `wandb.Run` that Lightning's WandbLogger and this package use."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.config = SimpleNamespace(update=lambda values, allow_val_change: self.settings.update(values))

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def define_metric(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def wandb(monkeypatch) -> ModuleType:
    """A stand-in for the package: `init`, `run` and `Table`, as Lightning calls them."""
    module = ModuleType("wandb")
    module.run, module.given = None, []
    module.init = lambda **given: module.given.append(given) or FakeRun()
    module.Table = lambda columns, data, dataframe=None: {"columns": columns, "data": data}
    for name, classes in (("sdk", ()), ("sdk.lib", ("RunDisabled",)), ("wandb_run", ("Run",))):
        part = ModuleType(f"wandb.{name}")
        for each in classes:
            setattr(part, each, type(each, (), {}))
        monkeypatch.setitem(sys.modules, f"wandb.{name}", part)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", True)
    return module


def test_wandb_gets_a_table_and_a_summary(wandb, tmp_path):
    node = {"_target_": "lightning.pytorch.loggers.WandbLogger", "project": "mine", "name": "my name"}
    loggers = make_loggers({"wandb": node}, RunFolder(tmp_path / "run"), step=0)
    log_settings(loggers, {"model": {"dim": 8}})
    log_samples(loggers, ROWS, 7)
    log_results(loggers, {}, RESULTS, 9)
    (logger,) = loggers
    assert isinstance(logger, WandbLogger)
    page = logger.experiment
    (given,) = wandb.given
    # One page for all parts of a run; a name of the user's own stays
    assert {key: given[key] for key in ("name", "id", "project", "dir")} == {
        "name": "my name", "id": "run", "project": "mine", "dir": str(tmp_path / "run"),
    }  # fmt: skip
    assert page.settings == {"model.dim": 8}
    table = {"columns": ["source", "hypothesis", "reference"], "data": [list(row) for row in ROWS]}
    assert page.logged == [{"val/samples": table, "trainer/global_step": 7}]
    assert page.summary == SCORES


def test_a_logger_without_text_or_summary_gets_metrics(tmp_path):
    node = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "theirs", "version": "1"}
    loggers = make_loggers({"a": node, "off": None}, RunFolder(tmp_path), step=3)
    log_samples(loggers, ROWS, 7)
    log_results(loggers, {"a": 1}, RESULTS, 9)
    assert [type(logger) for logger in loggers] == [CSVLogger]
    (row,) = csv.DictReader((tmp_path / "theirs" / "1" / "metrics.csv").open())
    assert row == {"step": "9", **{key: str(value) for key, value in SCORES.items()}}


def test_our_csv_has_neither(tmp_path):
    logger = CsvLogger(save_dir=str(tmp_path))
    log_settings([logger], {"a": 1})
    log_samples([logger], ROWS, 1)
    log_results([logger], {}, RESULTS, 1)
    assert not list(tmp_path.iterdir())
