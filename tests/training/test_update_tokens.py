"""Runs of data.batch_tokens: the machine cuts updates, and changes nothing but rounding and draws of dropout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import toycorpus

from seq2seq.evaluation.evaluator import Evaluator
from seq2seq.runs.training_state import read_state
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {
    "test_with_dropout_the_loss_is_of_the_same_law",
    "test_subwords_are_sampled_where_micro_batches_are_idle",
    "test_a_run_goes_on_with_other_micro_batches",
}
REPRESENTATIVE = {"test_micro_batches_of_an_update_do_not_change_it": {"false"}}

NO_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.weight_dropout=0")


def trained(corpus: Path, folder: Path, *given: str) -> TrainingRun:
    fixed = ("data.batch_tokens=600", "trainer.test=false", "optim=anneal", "trainer.val_sentences=4")
    return toycorpus.execute(toycorpus.settings(corpus, folder, *fixed, *given))


def state(run: TrainingRun) -> dict[str, Any]:
    return read_state(run.folder.last)


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_micro_batches_of_an_update_do_not_change_it(corpus, tmp_path, streaming):
    given = (*NO_DROPOUT, "trainer.max_steps=5", f"data.streaming={streaming}", "trainer.val_steps=5")
    given = (*given, "data.clean.max_length=48")
    whole, cut = (trained(corpus, tmp_path, f"run={size}", f"data.max_tokens={size}", *given) for size in (600, 96))
    assert whole.data.window == 1
    assert cut.data.window > 5
    torch.testing.assert_close(state(cut)["state_dict"], state(whole)["state_dict"], atol=1e-5, rtol=1e-4)
    assert state(cut)["train_sums"][2] == state(whole)["train_sums"][2]
    assert json.loads(cut.folder.results.read_text())["accumulate"] == cut.data.window


def test_a_run_goes_on_with_other_micro_batches(corpus, tmp_path):
    """A run continues in the middle of an epoch, and over its end."""
    given = (*NO_DROPOUT, "optim.schedule=constant")
    whole = trained(corpus, tmp_path, "run=whole", "data.max_tokens=600", "trainer.max_steps=20", *given)
    assert 7 < whole.data.batches_per_epoch < 20
    trained(corpus, tmp_path, "run=parts", "data.max_tokens=600", "trainer.max_steps=4", *given)
    on = ("run=parts", "resume=auto", *given)
    trained(corpus, tmp_path, *on, "data.max_tokens=96", "trainer.max_steps=7")
    parts = trained(corpus, tmp_path, *on, "data.max_tokens=300", "trainer.max_steps=20")
    assert state(parts)["train_sums"][2] == state(whole)["train_sums"][2]
    torch.testing.assert_close(state(parts)["state_dict"], state(whole)["state_dict"], atol=2e-5, rtol=1e-4)


def test_subwords_are_sampled_where_micro_batches_are_idle(corpus, tmp_path):
    given = ("tokenizer.sampling_alpha=0.2", "data.max_tokens=56", "data.clean.max_length=30")
    run = trained(corpus, tmp_path, *given, "trainer.max_epochs=1", "trainer.max_steps=null")
    batches = run.data._training_sampler().batches()
    assert any(rows.tolist() == [-1] for rows in batches)
    assert state(run)["train_sums"][3] == sum(len(rows) for rows in batches if rows[0] >= 0)


def test_with_dropout_the_loss_is_of_the_same_law(corpus, tmp_path):
    given = ("trainer.max_steps=12", "model.dropout=0.2")
    runs = [trained(corpus, tmp_path, f"run={size}", f"data.max_tokens={size}", *given) for size in (600, 96)]
    losses = [state(run)["train_sums"][0] / state(run)["train_sums"][2] for run in runs]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_the_machine_does_not_name_a_run(corpus, tmp_path):
    def name(*given: str) -> str:
        return TrainingRun(make_plan(toycorpus.settings(corpus, tmp_path, *given), mixer="x")).folder.path.name

    update = "data.batch_tokens=600"
    names = {name(update, f"data.max_tokens={size}", f"trainer.devices={n}") for size, n in ((600, 1), (96, 1))}
    assert names == {name(update, "data.max_tokens=auto")}
    assert name("data.batch_tokens=601") not in names


def test_micro_batches_and_tokens_are_two_ways_to_size_an_update(corpus, tmp_path):
    for given in ("trainer.accumulate=2", "trainer.accumulate_start=1"):
        settings = toycorpus.settings(corpus, tmp_path, "data.batch_tokens=600", given)
        with pytest.raises(ValueError, match=rf"{given} .*data\.batch_tokens=600 .*one of the two"):
            make_plan(settings, mixer="x")


def test_a_stream_says_that_its_buffer_is_below_an_update(corpus, tmp_path, caplog):
    given = ("data.streaming=true", "data.shuffle_buffer=9", "trainer.val_steps=2", "trainer.max_steps=1")
    trained(corpus, tmp_path, *given, "data.batch_tokens=40000", "data.max_tokens=auto")
    assert "raise data.shuffle_buffer, or lower data.batch_tokens" in caplog.text


def test_a_validation_is_estimated_by_the_sentences_that_it_has(corpus, tmp_path, monkeypatch):
    """Two of 20 sentences are validated, so most batches have none or few of them; a rank may have no sentence."""
    found = {}
    for count in ("0", "2", "null"):

        class Look(L.Callback):
            def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, count: str = count) -> None:
                found.setdefault(count, pl_module.budget.validation_seconds)

        sentences = "null" if count == "null" else "2"
        given = ("trainer.max_time=1h", "trainer.max_steps=1", f"trainer.val_sentences={sentences}", f"run={count}")
        settings = toycorpus.settings(corpus, tmp_path, "trainer.test=false", "data.max_tokens=64", *given)
        with monkeypatch.context() as patch:
            if count == "0":
                patch.setattr(Evaluator, "chosen", lambda *_: [])
            toycorpus.execute(settings, Look())
    assert 0 < found["0"] < found["2"] < found["null"]


def test_a_micro_batch_below_the_longest_pair_is_refused_before_training(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"data\.max_tokens=40 .*longest training pair.*raise data\.max_tokens"):
        trained(corpus, tmp_path, "data.max_tokens=40")
