"""Scores of a run: the tokenizer of its language, and a look at its references before training."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from composed import resolved

from seq2seq.data.multi_corpus import Direction
from seq2seq.settings.data import TOKENIZE
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.train import _train
from seq2seq.training import checks
from seq2seq.training.checks import look_at_references, look_at_updates, score_tokenizer
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

CHINESE = ["一个女人的头上有一个装满水的篮子。", "那个人正在演奏乐器。"]


def tokenizer(lang: str, **chosen: str) -> str:
    plan: Any = SimpleNamespace(data=SimpleNamespace(tokenize={**TOKENIZE, **chosen}, convention=None))
    return score_tokenizer(plan, lang)


@pytest.mark.parametrize("lang", ["zh", "cn", "zht", "zho_Hans", "chinese", "yue"])
def test_a_run_into_chinese_is_scored_as_chinese(lang):
    assert tokenizer(lang) == "zh"


def test_data_tokenize_names_a_language_by_any_of_its_codes():
    assert tokenizer("zho_Hans", zh="char") == "char"
    assert tokenizer("ja", jp="char") == "char"
    assert tokenizer("jpn", ja="char") == "char"
    assert tokenizer("zh-TW", **{"zh-TW": "char", "zh": "intl"}) == "char"


def references(lines: list[str], *parts: Direction) -> Any:
    prepared = SimpleNamespace(references={"valid": lines}.__getitem__)
    return SimpleNamespace(prepared=prepared, directions={"valid": list(parts)}.__getitem__)


@pytest.mark.parametrize("bounds", [{"max_epochs": 6}, {"max_epochs": 6, "max_steps": 108}, {"max_steps": 2}])
def test_epochs_of_few_updates_are_told(bounds, caplog):
    parts: Any = SimpleNamespace(plan=SimpleNamespace(data=SimpleNamespace(batch_tokens=None)))
    for updates in (18, 90):
        data: Any = SimpleNamespace(updates_per_epoch=updates, streaming=False, prepared=parts)
        look_at_updates(data, TrainerSettings(**bounds))
    told = [message for message in caplog.messages if "108 updates are few" in message]
    assert caplog.messages == told
    assert len(told) == ("max_steps" not in bounds)


def test_references_are_looked_at_before_training(caplog):
    with caplog.at_level(logging.WARNING):
        look_at_references(references(CHINESE), "zh")
        look_at_references(references(["a dog runs."] * 3), "13a")
        assert caplog.messages == []
        # A run that writes "ch" for Chinese, which is the code of Chamorro, has the tokenizer 13a
        look_at_references(references(CHINESE), "13a")
        assert caplog.messages.pop().endswith("data.tokenize.<target language>=zh")
        look_at_references(references(["a do@@ g"]), "13a")
        assert "'@@ '" in caplog.messages.pop()


def test_each_direction_is_looked_at_by_itself(caplog):
    parts = Direction("en-de", "13a", range(2)), Direction("en-zh", "zh", range(2, 4))
    with caplog.at_level(logging.WARNING):
        look_at_references(references(["ein Hund", "eine Katze", *CHINESE], *parts), "13a")
        assert caplog.messages == []
        wrong = parts[0], parts[1]._replace(tokenize="13a")
        look_at_references(references(["ein Hund", "eine Katze", *CHINESE], *wrong), "13a")
    assert ["en-zh" in message for message in caplog.messages] == [True]


def test_a_convention_has_the_rules_of_one_target_language(monkeypatch):
    several = SimpleNamespace(target_languages=["de", "zh"], stream=None)
    monkeypatch.setattr(checks, "make_data_plan", lambda *_: several)
    plan: Any = SimpleNamespace(data=SimpleNamespace(convention="tokenized"), trainer=TrainerSettings(max_steps=1))
    with pytest.raises(ValueError, match=r"data\.convention=tokenized .*de, zh"):
        checks.plan_data(plan, None)


@pytest.mark.parametrize("begin", [_train, TrainingRun], ids=["command", "python"])
def test_an_earlier_run_is_refused_before_anything_is_loaded(begin, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("the model or the corpus was loaded")

    monkeypatch.setattr(checks, "check_model", fail)
    monkeypatch.setattr(checks, "plan_data", fail)
    last = tmp_path / "x" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    plan = make_plan(resolved([f"runs={tmp_path}", "run=x"]), mixer="transformer")
    with pytest.raises(ValueError, match="holds an earlier run"):
        begin(plan)
