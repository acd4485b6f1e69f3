"""Test whole runs, of a second each, on a toy corpus: their results, stopping, resuming and refusals."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import tiny
import torch
import toycorpus
from composed import resolved
from conftest import PATIENCE
from rich.console import Console
from toycorpus import execute

from seq2seq import checkpoint, prepare
from seq2seq.data.preparation import prepare_corpora
from seq2seq.inference.translator import Translator
from seq2seq.metrics.scorers import bleu as bleu_of
from seq2seq.runs.folder import RunFolder, folder_of
from seq2seq.runs.results import RunResult, read_config, read_run
from seq2seq.runs.resume import Resumed
from seq2seq.runs.training_state import model_weights, read_state
from seq2seq.settings.compose import chosen_settings
from seq2seq.settings.declare import read_section
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.bounds.divergence import Divergence
from seq2seq.training.bounds.faults import TrainingFault
from seq2seq.training.callbacks.checkpointing import SaveLast
from seq2seq.training.callbacks.progress import ProgressLog
from seq2seq.training.lightning_parts.checkpoint_io import AtomicCheckpointIO
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun, train


def batches(corpus: Path, folder: Path) -> int:
    """Count the batches of an epoch."""
    data = prepare_corpora(checked(corpus, folder).data_plan)
    return int(TranslationDataModule(data).batches_per_epoch)


class Signal(L.Callback):
    """Callback that sends a signal to this process at the start of one micro-batch ("train", "valid" or "test")."""

    def __init__(self, signum: int, batch: int = 1, *, during: str = "train") -> None:
        self.signum, self.batch, self.during, self.seen = signum, batch, during, 0

    def _count(self, phase: str) -> None:
        self.seen += phase == self.during
        if phase == self.during and self.seen == self.batch:
            os.kill(os.getpid(), self.signum)

    def on_train_batch_start(self, *_: Any) -> None:
        self._count("train")

    def on_validation_batch_start(self, *_: Any) -> None:
        self._count("valid")

    def on_test_batch_start(self, *_: Any) -> None:
        self._count("test")


class Kill(L.Callback):
    """Callback that raises RuntimeError at an update, in place of kill -9: nothing is saved after it."""

    def __init__(self, update: int | None = None) -> None:
        self.update = update

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.update in (None, trainer.global_step):
            raise RuntimeError("killed")


class Recorder(L.Callback):
    """Callback that records the sentences and the update of each micro-batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.steps: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch.index.tolist())
        self.steps.append(trainer.global_step)


def checked(corpus: Path, folder: Path, *overrides: str) -> TrainingRun:
    """Make a run whose settings have passed all checks, without executing it."""
    return TrainingRun(make_plan(toycorpus.settings(corpus, folder, *overrides), mixer="transformer"))


def results_of(folder: RunFolder) -> dict[str, Any]:
    return json.loads(folder.results.read_text())


def metrics_of(folder: RunFolder) -> list[dict[str, str]]:
    """Read the rows of metrics.csv."""
    with (folder.path / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def weights(run: TrainingRun, name: str = "last") -> dict[str, torch.Tensor]:
    if name == "last":
        return model_weights(read_state(run.folder.last))
    return checkpoint.load(run.folder.path / "checkpoints" / f"{name}.safetensors").model.state_dict()


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_files_and_results_of_a_run(corpus, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    config = toycorpus.settings(corpus, tmp_path, "trainer.max_steps=6", "trainer.val_steps=3", "trainer.log_steps=2")
    best = train(make_plan(config, mixer="transformer"))
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("toy-transformer-")
    found = read_run(folder, "test")
    assert isinstance(found, RunResult)
    results = found.results
    assert results["steps"] == 6
    assert results["valid"]["bleu"] == best
    assert results["test"]["signatures"][0].startswith("nrefs:1|")
    times = ("training_seconds", "training_cpu_seconds", "seconds")
    for key in ("parameters", "target_tokens_per_second", "padding", *times):
        assert results[key] > 0, key
    assert results["versions"]["torch"] == torch.__version__
    # best.safetensors is all that translation needs
    loaded = checkpoint.load(folder / "checkpoints" / "best.safetensors")
    assert (loaded.meta["src_lang"], loaded.meta["tgt_lang"]) == ("de", "en")
    translator = Translator.load(folder / "checkpoints" / "best.safetensors", device="cpu")
    src, ref, hyp = (found.test_lines(side) for side in ("src", "ref", "hyp"))
    assert (src, ref) == tuple((corpus / f"test.{side}").read_text().splitlines() for side in ("de", "en"))
    assert translator.texts(src) == hyp
    assert bleu_of(hyp, ref).value == pytest.approx(results["test"]["bleu"])
    assert dataclasses.asdict(translator.settings) == results["test"]["search"]
    assert (translator.settings.beam_size, translator.settings.max_len_extra) == (2, 12)
    assert loaded.meta["step"] == results["best_step"]
    # A row for every second update, and one for each validation
    rows = metrics_of(RunFolder(folder))
    assert len(found.curve()) == 2
    assert [row["step"] for row in rows if row["train/loss"]] == ["2", "3", "4", "6"]
    assert [row["step"] for row in rows if row["val/bleu"]] == ["3", "6"]
    shown = capsys.readouterr().out
    assert shown.count("validation at update") == 2
    assert "hyp " in shown
    assert f"test BLEU {results['test']['bleu']:.2f}" in caplog.text


# Whole runs, of a second or more; `make test-all` has all
EXHAUSTIVE = {
    "test_an_interrupted_validation_is_repeated",
    "test_a_run_resumes_with_a_larger_budget",
    "test_a_validation_repeated_at_the_end_of_an_epoch_changes_nothing",
    "test_a_validation_killed_before_its_checkpoint_has_one_row",
    "test_a_run_that_the_clock_has_ended_is_finished",
    "test_a_larger_budget_sets_the_earlier_results_aside",
    "test_a_model_with_learned_positions_is_decoded_within_them",
    "test_writing_checkpoints_is_not_training_time",
    "test_a_fine_tuned_run_resumes_without_its_initial_checkpoint",
    "test_settings_without_effect_are_refused_with_an_experiment",
    "test_a_run_is_not_continued_under_other_settings_unless_forced",
    "test_a_run_extends_the_tokenizer_of_its_checkpoint",
    "test_a_killed_run_resumes_from_its_last_validation",
    "test_a_run_resumes_after_its_corpus_and_tokenizer_were_moved",
    "test_a_fine_tuned_run_and_its_preparation_keep_label_and_languages",
    "test_the_batch_grows_when_an_epoch_is_smaller_than_a_batch",
    "test_an_older_checkpoint_needs_a_copied_folder",
    "test_a_finished_run_scored_with_another_search_records_it",
    "test_a_signal_in_the_final_test_leaves_the_best_checkpoint",
    "test_best_checkpoints_without_files_are_forgotten",
    "test_step_checkpoints_after_the_last_state_are_removed",
    "test_the_first_update_under_another_budget_has_its_rate",
    "test_forced_growth_begins_with_small_batches",
    "test_results_list_the_changes_of_settings",
}
REPRESENTATIVE = {
    "test_seeds_make_two_runs_identical": {"32"},
    "test_a_stopped_run_resumes_bit_for_bit": {"mid-epoch"},
    "test_a_killed_run_resumes_from_its_last_validation": {"True"},
    "test_a_diverged_run_ends_before_it_validates_nonsense": {"transformer"},
    "test_results_of_a_finished_run_stay_as_they_are": {"true"},
    "test_stops_around_the_end_of_an_epoch_change_nothing": {"(0, 1)"},
    "test_a_run_that_lost_its_best_weights_finds_others": {"missing"},
}


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_seeds_make_two_runs_identical(corpus, tmp_path, precision):
    given = ("trainer.accumulate=2", "trainer.test=false", f"trainer.precision={precision}")
    first = execute(toycorpus.settings(corpus, tmp_path, "run=a", *given))
    second = execute(toycorpus.settings(corpus, tmp_path, "run=b", *given))
    other = execute(toycorpus.settings(corpus, tmp_path, "run=c", "seed=2", *given))
    assert_same(weights(first), weights(second))
    assert any(not torch.equal(a, b) for a, b in zip(weights(first).values(), weights(other).values(), strict=True))


@pytest.mark.parametrize("precision", ["32", "tf32", "bf16"])
def test_only_tf32_allows_tf32(corpus, tmp_path, monkeypatch, precision):
    plan = checked(corpus, tmp_path, f"trainer.precision={precision}").plan
    monkeypatch.setattr("seq2seq.training.run.TrainingRun", lambda *_, **__: SimpleNamespace(execute=float))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision != "tf32")
    before = torch.get_float32_matmul_precision()
    try:
        train(plan)
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("signum", "batch", "accumulate", "optimizer"),
    [
        (signal.SIGINT, 5, "2", "adam"),
        (signal.SIGTERM, 8, "1", "muon"),
        (signal.SIGINT, -1, "2", "adam"),
        (signal.SIGTERM, 0, "2", "adam"),
        (signal.SIGTERM, 3, "2 trainer.accumulate_start=1", "adam"),
        (signal.SIGTERM, 8, "2 trainer.accumulate_start=1", "adam"),  # the update after which the batch grows
        (signal.SIGTERM, 11, "2 trainer.accumulate_start=1", "adam"),
    ],
    ids=["mid-epoch", "mid-epoch-sigterm", "last-batch-of-epoch", "validating", "small", "growing", "grown"],
)
def test_a_stopped_run_resumes_bit_for_bit(corpus, tmp_path, signum, batch, accumulate, optimizer):
    given = (*f"trainer.accumulate={accumulate}".split(), "trainer.test=false", "trainer.max_steps=14",
             "trainer.val_steps=5", "trainer.log_steps=1", f"optim.name={optimizer}")  # fmt: skip
    whole, parts = Recorder(), Recorder()
    run = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given), whole)
    # -1: the last batch of the epoch; 0: the first one of a validation
    stop = Signal(signum, batch if batch > 0 else run.data.batches_per_epoch if batch else 1,
                  during="train" if batch else "valid")  # fmt: skip
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given), parts, stop)
    assert end.value.code == 128 + signum
    assert signal.getsignal(signal.SIGINT) is handler
    last = tmp_path / "runs" / "parts" / "checkpoints" / "last.ckpt"
    assert read_state(last)["run"]["settings"]["run"] == "parts"
    resumed = execute(toycorpus.settings(corpus, tmp_path, "run=parts", "resume=auto", *given), parts)
    # Every batch once, in the same order, over both processes
    assert parts.batches == whole.batches
    assert_same(weights(run), weights(resumed))
    rows = list(csv.DictReader((last.parent.parent / "metrics.csv").open()))
    assert [int(row["step"]) for row in rows if row["lr"]] == list(range(1, 15))
    assert [row["step"] for row in rows if row["val/bleu"]] == ["5", "10", "14"]
    first, second = (results_of(each.folder) for each in (run, resumed))
    for key in ("valid", "best_step", "steps", "epochs"):
        assert first[key] == second[key], key


@pytest.mark.parametrize(("share", "windows"), [(0.5, [1, 1, 1, 1, 2, 2, 2, 2]), (0.3, [1, 1, 1, 1, 2, 2, 2, 2])])
def test_the_batch_grows_at_its_share_of_the_run(corpus, tmp_path, share, windows):
    """With a share of 0.3 the batch grows after four updates: after three, half of a larger window would be left."""
    seen = Recorder()
    growth = ("trainer.accumulate=2", "trainer.accumulate_start=1", f"trainer.accumulate_share={share}")
    given = ("trainer.max_steps=8", "trainer.test=false", "trainer.val_sentences=4")
    run = execute(toycorpus.settings(corpus, tmp_path, *growth, *given), seen)
    assert len(seen.steps) <= run.data.batches_per_epoch
    assert [seen.steps.count(step) for step in range(8)] == windows


def test_the_batch_grows_when_an_epoch_is_smaller_than_a_batch(corpus, tmp_path):
    """Two pairs are too few for windows of three micro-batches: the end of an epoch ends a window."""
    growth = ("trainer.accumulate=3", "trainer.accumulate_start=1", "trainer.accumulate_share=0.3", "data.limit=2")
    growth += ("data.vocab_size=290",)
    given = ("trainer.max_steps=4", "trainer.test=false", "trainer.val_steps=4", "data.max_tokens=4096")
    run = execute(toycorpus.settings(corpus, tmp_path, *growth, *given))
    assert run.data.batches_per_epoch < 3
    last = read_state(run.folder.path / "checkpoints" / "last.ckpt")
    assert (last["global_step"], last["grown"]) == (4, True)


def test_forced_growth_begins_with_small_batches(corpus, tmp_path):
    """A run that began without growth is continued, forced, with small batches."""
    given = ("run=it", "trainer.accumulate=2", "trainer.test=false", "trainer.val_sentences=4")
    execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=2"))
    seen = Recorder()
    more = ("resume=auto", "force=true", "trainer.accumulate_start=1", "trainer.max_steps=8")
    execute(toycorpus.settings(corpus, tmp_path, *given, *more), seen)
    assert [seen.steps.count(step) for step in range(2, 8)] == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("epoch_end", [False, True])
def test_a_killed_run_resumes_from_its_last_validation(corpus, tmp_path, epoch_end):
    size = batches(corpus, tmp_path)
    every = size // (1 if epoch_end else 2)
    steps = size + 4
    given = (f"trainer.val_steps={every}", f"trainer.max_steps={steps}", "trainer.test=false")
    whole, before, after = Recorder(), Recorder(), Recorder()
    run = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given), whole)
    with pytest.raises(RuntimeError, match="killed"):
        execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given), before, Kill(every + 1))
    resumed = execute(toycorpus.settings(corpus, tmp_path, "run=parts", "resume=auto", *given), after)
    assert before.batches[:every] + after.batches == whole.batches
    assert_same(weights(run), weights(resumed))


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_interrupted_validation_is_repeated(corpus, tmp_path, batch, crash):
    every = "data.max_tokens=64"  # several batches of validation
    given = ("run=it", "trainer.max_steps=3", "trainer.test=false", every)
    with pytest.raises(SystemExit):
        execute(toycorpus.settings(corpus, tmp_path, *given), Signal(signal.SIGINT, batch, during="valid"))
    checkpoints = tmp_path / "runs" / "it" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["last.ckpt"]
    more = ("resume=auto", "trainer.max_steps=5") if crash else ("resume=auto",)
    if crash:
        with pytest.raises(RuntimeError, match="killed"):
            execute(toycorpus.settings(corpus, tmp_path, *given, *more), Kill())
        assert (checkpoints / "best.safetensors").exists()
    resumed, seen = None, Recorder()
    resumed = execute(toycorpus.settings(corpus, tmp_path, *given, *more), seen)
    assert len(seen.batches) == (2 if crash else 0)
    results = results_of(resumed.folder)
    assert (results["steps"], results["valid"]["signatures"][0][:8]) == (5 if crash else 3, "nrefs:1|")
    rows = list(csv.DictReader((checkpoints.parent / "metrics.csv").open()))
    assert [row["step"] for row in rows if row["val/bleu"]] == (["3", "5"] if crash else ["3"])
    assert all(float(row["train/loss"]) > 0 for row in rows if row["train/loss"])


def test_a_signal_in_a_validation_of_the_average_saves_the_trained_weights(corpus, tmp_path):
    """The average advances once per update, regardless of the number of micro-batches."""

    class Trained(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self.weights = {name: weight.clone() for name, weight in pl_module.state_dict().items()}

    trained = Trained()
    given = ("run=it", "trainer.test=false", "trainer.max_steps=3", "trainer.accumulate=2", "trainer.ema=0.9")
    with pytest.raises(SystemExit):
        execute(toycorpus.settings(corpus, tmp_path, *given), trained, Signal(signal.SIGINT, during="valid"))
    last = read_state(tmp_path / "runs" / "it" / "checkpoints" / "last.ckpt")
    assert_same(last["state_dict"], trained.weights)
    assert last["callbacks"]["AverageWeights"]["average"]["updates"] == 3


def test_a_validation_repeated_at_the_end_of_an_epoch_changes_nothing(corpus, tmp_path):
    every = batches(corpus, tmp_path)
    given = (f"trainer.val_steps={every}", f"trainer.max_steps={every + 4}", "trainer.test=false")
    whole, parts = Recorder(), Recorder()
    run = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given), whole)
    again = toycorpus.settings(corpus, tmp_path, "run=parts", "resume=auto", *given)
    for signum in (signal.SIGINT, signal.SIGTERM):  # the second interrupts the validation that makes up for the first
        with pytest.raises(SystemExit):
            execute(again, parts, Signal(signum, during="valid"))
    with pytest.raises(RuntimeError, match="killed"):
        execute(again, Kill())
    resumed = execute(again, parts)
    assert parts.batches == whole.batches
    assert_same(weights(run), weights(resumed))


def test_a_signal_in_the_final_test_leaves_the_best_checkpoint(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    given = ("run=it", "data.max_tokens=40")
    with pytest.raises(SystemExit) as end:
        execute(toycorpus.settings(corpus, tmp_path, *given), Signal(signal.SIGINT, during="test"))
    assert end.value.code == 130
    assert "training is done" in caplog.text
    assert "translate: python -m seq2seq.translate --ckpt" in caplog.text
    results = json.loads((tmp_path / "runs" / "it" / "results.json").read_text())
    assert results["valid"]["bleu"] >= 0
    assert "test" not in results
    # Resumed, the run only scores the test set
    again = execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto"))
    assert results_of(again.folder)["test"]["search"]["beam_size"] == 2


def test_a_signal_in_the_last_batch_of_the_test_does_not_lose_it(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    # One batch
    config = toycorpus.settings(corpus, tmp_path, "run=it", "data.max_tokens=4096")
    with pytest.raises(SystemExit) as end:
        execute(config, Signal(signal.SIGINT, during="test"))
    assert end.value.code == 130
    assert "stopped (SIGINT) when the test was scored" in caplog.text
    assert "test" in results_of(RunFolder(tmp_path / "runs" / "it"))


def test_a_run_is_not_continued_under_other_settings_unless_forced(corpus, tmp_path, caplog):
    given = ("run=it", "trainer.max_steps=1", "trainer.test=false")
    first = execute(toycorpus.settings(corpus, tmp_path, *given))
    before = first.folder.config.read_text()
    for override, message in (
        ("mixer/cross=additive", "mixer.cross._target_ was .*CrossAttention"),
        ("tokenizer.type=bpe", "tokenizer.type was unigram and is now bpe"),
        ("model.dropout=0.3", "model.dropout was 0.1"),
        ("optim.lr=0.02", "optim.lr was 0.01"),
    ):
        with pytest.raises(ValueError, match=message + r".*run=<name>"):
            checked(corpus, tmp_path, *given, "resume=auto", override)
    assert first.folder.config.read_text() == before
    # Of many changes, the first are named
    with pytest.raises(ValueError, match=r"mixer\..*; and 2 more; resume it") as refused:
        checked(corpus, tmp_path, *given, "resume=auto", "mixer=lstm", "seed=2")
    assert str(refused.value).count(" and is now ") == 5
    # Another model cannot be forced
    assert "force=true" not in str(refused.value)
    other = ("run=it", "trainer.max_steps=2", "trainer.test=false", "resume=auto", "seed=2", "model.dropout=0.3")
    with pytest.raises(ValueError, match=r"seed was 1 and is now 2; model\.dropout was 0\.1 .*force=true"):
        checked(corpus, tmp_path, *other)
    forced = execute(toycorpus.settings(corpus, tmp_path, *other, "force=true"))
    assert "model.dropout was 0.1 and is now 0.3" in caplog.text
    assert read_state(forced.folder.last)["global_step"] == 2


@pytest.mark.parametrize("schedule", ["anneal", "constant"])
def test_results_list_the_changes_of_settings(corpus, tmp_path, schedule):
    """A larger budget is listed only if the learning rate follows the budget."""
    given = ("run=it", "trainer.test=false", "force=true", f"optim.schedule={schedule}")
    execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=2"))
    execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto", "trainer.max_steps=3"))
    last = ("resume=auto", "trainer.max_steps=4", "model.dropout=0.3")
    folder = execute(toycorpus.settings(corpus, tmp_path, *given, *last)).folder
    budgets = [["trainer.max_steps was 2 and is now 3"], ["trainer.max_steps was 3 and is now 4"]]
    first = [{"update": 2, "changes": budgets[0]}] if schedule == "anneal" else []
    second = {"update": 3, "changes": ["model.dropout was 0.1 and is now 0.3", *(budgets[1] if first else [])]}
    results = results_of(folder)
    assert results["continued"] == [*first, second]
    assert read_state(folder.last)["run"]["continued"] == [*first, second]


def test_a_finished_run_scored_with_another_search_records_it(corpus, tmp_path, caplog):
    """Comparisons read the new search and convention."""
    caplog.set_level("INFO")
    given = ("run=it", "trainer.max_steps=1", "resume=auto", "force=true")
    folder = execute(toycorpus.settings(corpus, tmp_path, *given)).folder
    before = results_of(folder)
    execute(toycorpus.settings(corpus, tmp_path, *given, "search.beam_size=1"))
    results, config = results_of(folder), read_config(folder.config)
    assert (results["test"]["search"]["beam_size"], config["search"]["beam_size"]) == (1, 1)
    assert {key for key in results if results[key] != before[key]} <= {"command", "test", "test_seconds"}
    assert "convention" not in results["test"]
    more = ("search.beam_size=1", "data.convention=tokenized", "data.lowercase=true")
    execute(toycorpus.settings(corpus, tmp_path, *given, *more))
    assert results_of(folder)["test"]["convention"]["name"] == "BLEU (tokenized)"
    # Nothing is left
    caplog.clear()
    execute(toycorpus.settings(corpus, tmp_path, *given, *more))
    assert "scoring the test set" not in caplog.text


def test_an_epoch_is_not_continued_beyond_its_end(corpus, tmp_path):
    """With larger batches, forced, an epoch may have fewer batches than the run has already trained on."""
    given = ("run=it", "trainer.test=false", "force=true")
    execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=4"))
    other = ("resume=auto", "trainer.max_steps=8", "data.max_tokens=8192")
    with pytest.raises(ValueError, match=r"after batch 4 of an epoch, .* has [123] batches: resume with the settings"):
        execute(toycorpus.settings(corpus, tmp_path, *given, *other))


def test_a_run_is_not_continued_on_another_text(corpus, tmp_path):
    own = toycorpus.write(tmp_path / "own")
    given = ("run=it", "trainer.max_steps=1", "trainer.test=false")
    first = execute(toycorpus.settings(own, tmp_path, *given))
    before = {path: path.read_bytes() for path in first.folder.path.rglob("*") if path.is_file()}
    # One more pair, after the run
    for lang in ("de", "en"):
        with (own / f"train.{lang}").open("a") as file:
            file.write("Tim\n")
    prepared = sorted(first.data_plan.cache_dir.iterdir())
    with pytest.raises(ValueError, match="text of the corpus"):
        execute(toycorpus.settings(own, tmp_path, *given, "resume=auto"))
    # Before the text is prepared again
    assert sorted(first.data_plan.cache_dir.iterdir()) == prepared
    assert {path: path.read_bytes() for path in first.folder.path.rglob("*") if path.is_file()} == before
    settings, corpus_id = first.plan.config, first.prepared.fingerprint
    resumed = Resumed.open(first.folder.last, settings, first.folder)
    two = settings | {"trainer": settings["trainer"] | {"devices": 2}, "force": True}
    assert resumed.threads
    assert Resumed.open(first.folder.last, two, first.folder).threads is None
    with pytest.raises(ValueError, match=r"tokenizer has changed .* run=<name>$"):
        resumed.require_same_pieces({})
    # Other sampling leaves the pieces as they are
    resumed.require_same_pieces({**first.prepared.tokenizer.to_state(), "sampling_alpha": 0.5})
    resumed.require_same_text(corpus_id)
    with pytest.raises(ValueError, match=r"best\.safetensors: holds only weights, .*; name the run's folder"):
        checked(own, tmp_path, f"resume={first.folder.best}")


def test_a_run_resumes_after_its_corpus_and_tokenizer_were_moved(corpus, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    homes = [toycorpus.write(tmp_path / name) for name in ("here", "there")]
    for home in homes:
        (home / "m.model").write_bytes(tiny.tokenizer().to_state()["src_model"])
        for language in ("de", "en"):
            (home / f"more.x.{language}").write_text((home / f"valid.{language}").read_text())

    def words(home: Path, *more: str) -> dict[str, Any]:
        corpora = f"data.corpora={{more.x: {{train: {home / 'more.x'}}}}}"
        given = ("trainer.test=false", "trainer.val_steps=2", f"tokenizer.model={home / 'm.model'}", corpora)
        return toycorpus.settings(home, tmp_path, *given, f"cache={tmp_path / 'cache'}", *more)

    whole = execute(words(homes[0], "run=whole", "trainer.max_steps=4"))
    first = execute(words(homes[0], "run=parts", "trainer.max_steps=2"))
    # By its name, or as the checkpoint of a run that is named by its settings
    for resume in ("resume=auto", f"resume={first.folder.last}"):
        moved = words(homes[1], "run=parts", "trainer.max_steps=4", resume)
        assert TrainingRun(make_plan(moved, mixer="transformer")).resumed is not None
        assert f"data.train was {homes[0] / 'train'} and is now {homes[1] / 'train'}" in caplog.text
    second = execute(words(homes[1], "run=parts", "trainer.max_steps=4", "resume=auto"))
    assert_same(weights(whole), weights(second))
    assert read_config(second.folder.config)["data"]["train"] == str(homes[1] / "train")
    (homes[1] / "m.model").write_bytes(tiny.tokenizer(vocab_size=290).to_state()["src_model"])
    with pytest.raises(ValueError, match="the tokenizer has changed since"):
        execute(words(homes[1], "run=parts", "trainer.max_steps=6", "resume=auto"))


def test_a_run_resumes_with_a_larger_budget(corpus, tmp_path):
    given = ("trainer.test=false", "optim.schedule=constant", "trainer.val_steps=3")
    whole = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given, "trainer.max_steps=6"))
    execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=3"))
    more = toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=6", "resume=auto")
    assert_same(weights(whole), weights(execute(more)))


def test_resume_auto_without_a_run_says_so(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    assert checked(corpus, tmp_path, "resume=auto").resumed is None
    assert "holds no run yet" in caplog.text
    assert "its name depends on all settings" in caplog.text
    caplog.clear()
    assert checked(corpus, tmp_path, "resume=auto", "run=mine").resumed is None
    assert caplog.messages[0].endswith("mine holds no run yet, so a new one starts")


def test_resume_auto_does_not_restart_a_finished_run(corpus, tmp_path):
    """last.ckpt was deleted, since it is three times as large as the best checkpoint: the scored weights stay."""
    given = ("run=it", "trainer.max_steps=1")
    first = execute(toycorpus.settings(corpus, tmp_path, *given))
    for state in first.folder.states:
        state.unlink()
    with pytest.raises(ValueError, match=r"has lost its last\.ckpt: begin another .* init_from="):
        checked(corpus, tmp_path, *given, "seed=2", "resume=auto")


def test_a_copied_state_is_not_resumed(corpus, tmp_path):
    """The config.yaml of another program does not make its folder a run."""
    given = ("trainer.test=false", "trainer.max_steps=1")
    first = execute(toycorpus.settings(corpus, tmp_path, "run=it", *given))
    other = tmp_path / "other"
    (other / "backup").mkdir(parents=True)
    (other / "config.yaml").write_text("mine: 1\n")
    copy = other / "backup" / "last.ckpt"
    copy.write_bytes(first.folder.last.read_bytes())
    with pytest.raises(ValueError, match=r"is in no run's folder, .*; copy the whole folder"):
        checked(corpus, tmp_path, "run=branch", *given, "trainer.max_steps=2", f"resume={copy}")
    assert RunFolder.of_checkpoint(copy) is None
    run = RunFolder.of_checkpoint(first.folder.last)
    assert run is not None
    assert run.path == first.folder.path


def test_an_existing_run_is_refused(corpus, tmp_path):
    config = toycorpus.settings(corpus, tmp_path, "trainer.max_steps=1", "trainer.test=false")
    execute(config)
    with pytest.raises(ValueError, match=r"resume=auto.*run=<name>"):
        TrainingRun(make_plan(config, mixer="transformer"))
    # Harmless settings do not make it another run
    with pytest.raises(ValueError, match="resume=auto"):
        checked(corpus, tmp_path, "trainer.max_steps=1", "trainer.log_steps=7")
    assert checked(corpus, tmp_path, "trainer.max_steps=2").resumed is None


@pytest.mark.parametrize(
    "more",
    [(), ("trainer.accumulate=2", "resume=auto", "data.streaming=true", "trainer.val_steps=9", "trainer.test=false")],
)
def test_a_dry_run_tries_all_stages_and_leaves_nothing(corpus, tmp_path, caplog, capsys, more):
    caplog.set_level("INFO")
    given = ("run=it", "trainer.max_steps=1000000", "trainer.dry_run=true", *more)
    config = toycorpus.settings(corpus, tmp_path, *given)
    # Left by a dry run that was killed
    leftover = tmp_path / "runs" / "it.dry-run" / "checkpoints" / "last.ckpt"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    train(make_plan(config, mixer="transformer"))
    assert list((tmp_path / "runs").iterdir()) == []
    words = "a validation" if more else "a validation and a test"
    assert f"dry run: all stages work (2 updates, a checkpoint, {words} of 8 sentences each)" in caplog.text
    assert ("test: BLEU" in caplog.text) != bool(more)
    # A stream has no epochs
    assert ("  epoch " in capsys.readouterr().out) != bool(more)
    # The name of the run itself does not change
    plain = toycorpus.settings(corpus, tmp_path, *given, "run=null", "trainer.dry_run=false")
    assert folder_of(plain, "x") == folder_of({**config, "run": None}, "x")


def test_a_dry_run_that_fails_says_so_and_leaves_nothing(corpus, tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "best.safetensors")

    monkeypatch.setattr("seq2seq.checkpoint.save", full)
    config = toycorpus.settings(corpus, tmp_path, "trainer.dry_run=true")
    with pytest.raises(TrainingFault, match="No space left on device"):
        train(make_plan(config, mixer="transformer"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("mixer", ["identity", "transformer"])
def test_a_diverged_run_ends_before_it_validates_nonsense(corpus, tmp_path, mixer):
    given = ("run=it", "optim.lr=1e30", "trainer.max_steps=20", "trainer.val_steps=1", "trainer.test=false")
    config = toycorpus.settings(corpus, tmp_path, f"mixer={mixer}", *given)
    with pytest.raises(Divergence, match=r"the run has diverged: at update [2-5] .* lower optim\.lr=1e\+30") as fault:
        execute(config, mixer=mixer)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("during", ["validation", "test"])
def test_scores_of_a_search_that_are_not_finite_end_the_run_in_one_line(corpus, tmp_path, during):
    class Overflow(L.Callback):
        def on_validation_batch_start(self, *_: Any) -> None:
            self.fail("validation")

        def on_test_batch_start(self, *_: Any) -> None:
            self.fail("test")

        def fail(self, phase: str) -> None:
            if phase == during:
                raise FloatingPointError("the scores are not finite")

    with pytest.raises(TrainingFault, match="the scores are not finite") as fault:
        execute(toycorpus.settings(corpus, tmp_path, "run=it", "trainer.max_steps=2"), Overflow())
    assert ("training is done" in str(fault.value)) == (during == "test")


def test_a_second_run_in_the_same_folder_is_refused(corpus, tmp_path):
    config = toycorpus.settings(corpus, tmp_path, "run=it", "resume=auto", "trainer.max_steps=2", "trainer.test=false")
    early = TrainingRun(make_plan(config, mixer="transformer"))

    class Second(L.Callback):
        message = ""

        def on_train_start(self, *_: Any) -> None:
            with pytest.raises(ValueError, match="is in use") as refused:
                execute(config)
            self.message = str(refused.value)

    second = Second()
    execute(config, second)
    assert "runs/it is in use" in second.message
    assert "run=<name>" in second.message
    assert "\n" not in second.message
    assert not (tmp_path / "runs" / "it" / ".lock").exists()
    # It looked for a checkpoint before the first run wrote one
    with pytest.raises(ValueError, match="has just ended: give the same command again"):
        early.execute()
    assert execute(config).resumed is not None


def test_a_folder_that_cannot_be_made_is_one_line(corpus, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="set runs=<folder> to one that can"):
        execute(toycorpus.settings(corpus, tmp_path, f"runs={tmp_path / 'file' / 'runs'}"))


@pytest.mark.parametrize("phase", ["checks", "data", "threads"])
def test_a_signal_before_training_ends_the_run_with_its_status(corpus, tmp_path, monkeypatch, phase):
    function = {"checks": "checks.plan_data", "data": "prepare_corpora", "threads": "measure_threads"}[phase]

    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(f"seq2seq.training.run.{function}", interrupted)
    monkeypatch.setattr("seq2seq.training.run.known_threads", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        train(make_plan(toycorpus.settings(corpus, tmp_path, "run=it"), mixer="transformer"))
    assert end.value.code == 143
    assert not (tmp_path / "runs" / "it").exists()


def test_out_of_memory_before_training_is_one_line(corpus, tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("seq2seq.training.run.measure_threads", full)
    monkeypatch.setattr("seq2seq.training.run.known_threads", lambda *_: None)
    with pytest.raises(TrainingFault, match="out of memory on a batch of"):
        execute(toycorpus.settings(corpus, tmp_path, "run=it"))


def test_a_validation_killed_before_its_checkpoint_has_one_row(corpus, tmp_path):
    """Killed while best.safetensors was written: the row is there, and last.ckpt says that the validation is due."""
    given = ("run=it", "trainer.max_steps=3", "trainer.test=false", "logger=csv", "trainer.save_time=0.001")

    class KillAtSave(L.Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, payload: Any) -> None:
            if trainer.validating:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        execute(toycorpus.settings(corpus, tmp_path, *given), KillAtSave())
    path = tmp_path / "runs" / "it" / "metrics.csv"
    assert sum(bool(row["val/bleu"]) for row in csv.DictReader(path.open())) == 1
    assert execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto")).resumed is not None
    rows = list(csv.DictReader(path.open()))
    assert [row["step"] for row in rows if row["val/bleu"]] == ["3"]
    assert [row["step"] for row in rows if row["lr"]] == ["3"]


def test_an_older_checkpoint_needs_a_copied_folder(corpus, tmp_path):
    given = ("trainer.test=false", "optim.schedule=constant", "trainer.val_steps=2", "trainer.keep_last=2")
    first = execute(toycorpus.settings(corpus, tmp_path, "run=it", *given, "trainer.max_steps=2"))
    older = first.folder.last.with_name("older.ckpt")
    shutil.copy(first.folder.last, older)
    more = ("run=it", "resume=auto", *given, "trainer.max_steps=6")
    whole = execute(toycorpus.settings(corpus, tmp_path, *more))
    before = {path: path.read_bytes() for path in whole.folder.path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"older\.ckpt is from update 2, .*it has reached update 6: .* resume=auto"):
        execute(toycorpus.settings(corpus, tmp_path, "run=it", *given, f"resume={older}", "trainer.max_steps=4"))
    assert {path: path.read_bytes() for path in whole.folder.path.rglob("*") if path.is_file()} == before
    copied = shutil.copytree(whole.folder.path, tmp_path / "copied")
    (copied / "checkpoints" / "older.ckpt").replace(copied / "checkpoints" / "last.ckpt")
    again = ("run=it", *given, f"resume={copied}", "trainer.max_steps=6")
    assert_same(weights(whole), weights(execute(toycorpus.settings(corpus, tmp_path, *again))))


@pytest.mark.parametrize("best", ["missing", "of another update"])
def test_a_run_that_lost_its_best_weights_finds_others(corpus, tmp_path, caplog, best):
    caplog.set_level("INFO")
    given = ("run=it", "trainer.max_steps=2", "trainer.test=false")
    first = execute(toycorpus.settings(corpus, tmp_path, *given))
    if best == "missing":
        first.folder.best.unlink()
    else:
        stored = checkpoint.read(first.folder.best)
        checkpoint.save(first.folder.best, stored._replace(meta=stored.meta | {"step": 7}))
    again = execute(toycorpus.settings(corpus, tmp_path, "resume=auto", *given)).folder
    assert "does not have the weights of update 2" in caplog.text
    assert checkpoint.updates(again.best) == results_of(again)["best_step"] == 2


def test_step_checkpoints_after_the_last_state_are_removed(corpus, tmp_path):
    given = ("trainer.test=false", "optim.schedule=constant", "trainer.val_steps=1", "trainer.keep_last=2")
    first = execute(toycorpus.settings(corpus, tmp_path, "run=it", *given, "trainer.max_steps=3")).folder
    # A checkpoint that was saved after last.ckpt, before the run was killed
    shutil.copy(first.best, first.best.with_name("step-90.safetensors"))
    execute(toycorpus.settings(corpus, tmp_path, "run=it", *given, "trainer.max_steps=4", "resume=auto"))
    assert [path.name for path in sorted(first.best.parent.glob("step-*"))] == [
        "step-3.safetensors",
        "step-4.safetensors",
    ]


@pytest.mark.parametrize("stops", [(-1,), (0, 1), (0, 2, 1), (0, 0)], ids=str)
def test_stops_around_the_end_of_an_epoch_change_nothing(corpus, tmp_path, stops):
    """Each process is stopped at a batch: the last one of the epoch (0), the one before it (-1), or its first ones."""
    given = ("trainer.max_steps=null", "trainer.max_epochs=2", "trainer.test=false", "trainer.log_steps=1",
             "data.limit=80", "data.vocab_size=300", "trainer.val_sentences=4")  # fmt: skip
    whole, parts = Recorder(), Recorder()
    run = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given), whole)
    size = run.data.batches_per_epoch
    assert 3 < size == len(whole.batches) / 2
    on = ("run=parts", "resume=auto", *given)
    for batch in stops:
        stop = Signal(signal.SIGTERM, batch if batch > 0 else size + batch)
        with pytest.raises(SystemExit):
            execute(toycorpus.settings(corpus, tmp_path, *on), parts, stop)
    resumed = execute(toycorpus.settings(corpus, tmp_path, *on), parts)
    assert parts.batches == whole.batches
    assert_same(weights(run), weights(resumed))
    first, second = (results_of(each.folder) for each in (run, resumed))
    ends = [(found["steps"], found["epochs"], found["ended_by"]) for found in (first, second)]
    assert ends == [(2 * size, 2.0, "max_epochs")] * 2
    columns = []
    for each in (run, resumed):
        rows = list(csv.DictReader((each.folder.path / "metrics.csv").open()))
        columns.append([(row["step"], row["epoch"], row["lr"]) for row in rows if row["lr"]])
    assert columns[0] == columns[1]


def test_a_kill_while_last_is_written_loses_no_step_checkpoint(corpus, tmp_path, monkeypatch):
    given = ("run=it", "trainer.max_steps=3", "trainer.val_steps=1", "trainer.keep_last=3", "trainer.test=false")
    save = SaveLast.save

    def killed(self: SaveLast, trainer: L.Trainer) -> None:
        save(self, trainer)
        if trainer.global_step == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(SaveLast, "save", killed)
    with pytest.raises(RuntimeError, match="killed"):
        execute(toycorpus.settings(corpus, tmp_path, *given))
    monkeypatch.undo()
    folder = execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto")).folder
    assert [path.name for path in sorted(folder.best.parent.glob("step-*"))] == [
        f"step-{n}.safetensors" for n in (1, 2, 3)
    ]


def test_best_checkpoints_without_files_are_forgotten(corpus, tmp_path):
    given = ("run=it", "trainer.test=false", "optim.schedule=constant", "trainer.val_steps=1", "trainer.keep_best=2")
    first = execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=2")).folder
    for path in first.best.parent.glob("top-*"):
        path.unlink()
    execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto", "trainer.max_steps=4"))
    kept = [path.name for path in sorted(first.best.parent.glob("top-*"))]
    assert kept == ["top-3.safetensors", "top-4.safetensors"]


def test_a_finished_run_that_is_resumed_only_reports(corpus, tmp_path):
    given = ("trainer.max_steps=3", "trainer.test=false")
    first = execute(toycorpus.settings(corpus, tmp_path, *given))
    before, seen, earlier = weights(first), Recorder(), results_of(first.folder)
    first.folder.results.unlink()  # killed before it was written
    again = execute(toycorpus.settings(corpus, tmp_path, "resume=auto", *given), seen)
    assert seen.batches == []
    assert_same(before, weights(again))
    found = results_of(again.folder)
    for clocked in ("seconds", "training_seconds", "training_cpu_seconds", "target_tokens_per_second"):
        assert found.pop(clocked) > 0
        del earlier[clocked]
    used, before_that = found.pop("throughput"), earlier.pop("throughput")
    assert used["padding"] == before_that["padding"] > 0
    assert used["model_flops_per_second"] > 0
    assert found == earlier
    assert earlier["epochs"] == round(3 / first.data.batches_per_epoch, 3)


@pytest.mark.parametrize("test", ["true", "false"])
def test_results_of_a_finished_run_stay_as_they_are(corpus, tmp_path, test):
    first = execute(toycorpus.settings(corpus, tmp_path, "run=it", "trainer.max_steps=2"))
    before = {path: path.read_bytes() for path in first.folder.path.glob("*.*")}
    assert first.folder.results in before
    again = ("run=it", "trainer.max_steps=2", "resume=auto", f"trainer.test={test}")
    execute(toycorpus.settings(corpus, tmp_path, *again))
    assert {path: path.read_bytes() for path in first.folder.path.glob("*.*")} == before


def test_the_first_update_under_another_budget_has_its_rate(corpus, tmp_path):
    rates: list[float] = []

    class Rates(L.Callback):
        def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    given = ("run=it", "optim=anneal", "resume=auto", "trainer.test=false")
    execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=10"))
    execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=20"), Rates())
    # Half of the run is done, and the rate does not fall before 80%
    assert rates[0] == rates[1] > rates[-1] > 0


def test_a_callback_that_stops_does_not_cut_off_the_window(corpus, tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or trainer.fit_loop.epoch_loop.batch_idx == 3

    given = ("trainer.accumulate=3", "trainer.test=false", "optim.schedule=constant")
    ended, whole = (
        execute(toycorpus.settings(corpus, tmp_path, *given, f"trainer.max_steps={steps}"), *callbacks).folder
        for steps, callbacks in ((9, [Stop()]), (2, []))
    )
    assert results_of(ended)["steps"] == 2
    one, other = (read_state(folder.last)["train_sums"] for folder in (ended, whole))
    assert one == other


def test_a_larger_budget_sets_the_earlier_results_aside(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    given = ("run=it", "optim.schedule=constant", "resume=auto")
    folder = execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=2")).folder
    # Of a further test set
    (folder.path / "test2017.hyp").write_text("a dog\n")
    before = {path.name: path.read_bytes() for path in folder.path.glob("*.*") if path.suffix != ".csv"}
    assert before.keys() == {"config.yaml", "results.json", "test.src", "test.ref", "test.hyp", "test2017.hyp"}
    assert "another budget" not in caplog.text
    more = toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=5", "trainer.patience=9")

    class Fail(L.Callback):
        def on_train_start(self, *_: Any) -> None:
            raise RuntimeError("no device")

    # Fails before the first update: the results of the earlier budget still hold
    with pytest.raises(RuntimeError, match="no device"):
        execute(more, Fail())
    assert "trainer.max_steps was 2 and is now 5; trainer.patience was null and is now 9" in caplog.text
    for name, content in before.items():
        assert (folder.path / name).read_bytes() == content, name
    with pytest.raises(SystemExit):
        execute(more, Signal(signal.SIGINT))
    assert "unfinished" in str(read_run(folder.path, "test"))
    assert not list(folder.path.glob("test*.*"))
    assert {path.name: path.read_bytes() for path in (folder.path / "before-2").iterdir()} == before
    assert "max_steps: 5" in folder.config.read_text()
    execute(more)
    found = read_run(folder.path, "test")
    assert isinstance(found, RunResult)
    assert (found.results["steps"], found.config["trainer"]["max_steps"]) == (5, 5)


def test_fine_tuning_keeps_the_tokenizer_and_starts_from_the_weights(corpus, tmp_path):
    first = execute(toycorpus.settings(corpus, tmp_path, "trainer.test=false"))
    new = toycorpus.write(tmp_path / "new", (100, 10, 10))
    given = (f"init_from={first.folder.best}", "data.name=new", "data.vocab_size=290", "trainer.test=false")
    # Too small a rate to move any weight
    slow = ("optim.lr=1e-12", "optim.warmup_init_lr=1e-12", "trainer.max_steps=1")
    second = execute(toycorpus.settings(new, tmp_path, *given, *slow))
    assert second.prepared.tokenizer.fingerprint == first.prepared.tokenizer.fingerprint
    old, now = weights(first, "best"), weights(second, "last")
    for name in old:
        torch.testing.assert_close(now[name], old[name], atol=1e-6, rtol=1e-5)
    assert read_state(second.folder.last)["global_step"] == 1


def test_a_fine_tuned_run_resumes_without_its_initial_checkpoint(corpus, tmp_path):
    """The run's own checkpoint has the model and the tokenizer; only a new run needs the initial checkpoint."""
    origin = tiny.save(tmp_path)
    words = toycorpus.words(corpus, tmp_path, f"init_from={origin}", "trainer.test=false", "trainer.max_steps=2")
    # The typed keys: all other settings of the model are the checkpoint's
    chosen = chosen_settings(["data", "optim.lr", "trainer", "init_from"])

    def run(*more: str) -> TrainingRun:
        return TrainingRun(make_plan(resolved([*words, *more]), mixer="transformer", chosen=chosen))

    first = run()
    first.execute()
    digest = checkpoint.digest(origin)
    origin.unlink()
    last = f"resume={first.folder.last}"
    again = run(last, "trainer.max_steps=3")
    assert again.plan.config["model"] == first.plan.config["model"]
    again.execute()
    assert read_state(first.folder.last)["global_step"] == 3
    found = first.folder.read_results()
    assert (found["steps"], found["init_from"], found["tokenizer"]) == (3, digest, again.prepared.tokenizer.fingerprint)
    with pytest.raises(ValueError, match=r"tiny\.safetensors: no such file; .* resume=<run>"):
        run("resume=auto")
    with pytest.raises(ValueError, match=r"tiny\.safetensors: no such file$"):
        run()


def test_a_run_extends_the_tokenizer_of_its_checkpoint(tmp_path, caplog):
    """A new target language in its own script, with a tag, that `prepare` and a resumed run find again."""
    caplog.set_level(logging.INFO)
    origin = tiny.save(tmp_path)
    new = toycorpus.write(tmp_path / "new", (60, 8, 8))
    greek = str.maketrans(dict(zip("abcdefghiklmnorstuwy", "αβγδεζηθικλμνξορστυω", strict=True)))
    for path in list(new.glob("*.en")):
        path.with_suffix(".el").write_text(path.read_text().translate(greek))
    words = toycorpus.words(new, tmp_path, f"init_from={origin}", "data.tgt=el", "data.tag_target=true")
    words += ["trainer.test=false", "trainer.max_steps=1"]
    chosen = chosen_settings(["data.tgt", "data.tag_target", "tokenizer.extend", "optim.lr", "trainer", "init_from"])

    def run(*more: str) -> TrainingRun:
        made = TrainingRun(make_plan(resolved([*words, *more]), mixer="transformer", chosen=chosen))
        made.execute()
        return made

    with pytest.raises(ValueError, match=r"the tokenizer has no piece <2el>: .*tokenizer\.extend=0"):
        run()
    prepare.prepare(make_plan(resolved([*words, "tokenizer.extend=25"]), mixer="transformer", chosen=chosen))
    caplog.clear()
    first = run("tokenizer.extend=25")
    assert "made the" not in caplog.text
    loaded = checkpoint.load(first.folder.best)
    assert 301 < loaded.tokenizer.src_vocab_size == len(loaded.model.output.weight) <= 326
    assert loaded.meta["tgt_langs"] == ["el"]
    assert loaded.tokenizer.tag_ids(["<2el>"]) == [300]
    # Without the checkpoint, the run's own, whose tokenizer is extended already
    origin.unlink()
    run("tokenizer.extend=25", f"resume={first.folder.last}", "trainer.max_steps=2")
    assert checkpoint.load(first.folder.best).tokenizer.fingerprint == loaded.tokenizer.fingerprint


def test_a_fine_tuned_run_and_its_preparation_keep_label_and_languages(corpus, tmp_path, caplog):
    """A checkpoint with two target languages is fine-tuned on one of them."""
    caplog.set_level(logging.INFO)
    payload = tiny.payload(t=tiny.tokenizer(symbols=("<2en>", "<2nl>")))
    payload.meta.update({"tgt_langs": ["nl", "en"], "tgt_lang": "nl", "preset": "gru"})
    origin = tmp_path / "origin.safetensors"
    checkpoint.save(origin, payload)
    words = toycorpus.words(corpus, tmp_path, f"init_from={origin}", "trainer.test=false", "trainer.max_steps=1")
    chosen = chosen_settings(["data.tgt", "data.src", "optim.lr", "trainer", "init_from"])
    plan = make_plan(resolved(words), mixer="transformer", chosen=chosen)
    folder = TrainingRun(plan)
    folder.execute()
    assert folder.folder.path.name.startswith("toy-gru-")
    entry = checkpoint.read_description(folder.folder.best)
    assert (entry["tgt_lang"], entry["tgt_langs"], entry["preset"]) == ("en", ["en", "nl"], "gru")
    caplog.clear()
    train(make_plan(resolved([*words, "trainer.dry_run=true"]), mixer="transformer", chosen=chosen))
    assert ".dry-run" in caplog.text
    caplog.clear()
    # `prepare` makes the same data as the training
    prepare.prepare(plan)
    assert "data.tag_target=true" in caplog.text
    assert "made the ids" not in caplog.text


def test_early_stopping_counts_validations_without_progress_and_finishes_the_run(corpus, tmp_path):
    frozen = ("optim.lr=1e-12", "optim.warmup_init_lr=1e-12", "trainer.max_steps=50")
    given = (*frozen, "trainer.val_steps=2", "trainer.patience=2", "trainer.test=false", "resume=auto")
    found = results_of(execute(toycorpus.settings(corpus, tmp_path, *given)).folder)
    assert (found["steps"], found["best_step"], found["ended_by"]) == (6, 2, "patience")
    seen = Recorder()
    execute(toycorpus.settings(corpus, tmp_path, *given), seen)
    assert seen.batches == []


def test_writing_checkpoints_is_not_training_time(corpus, tmp_path, monkeypatch):
    given = ("trainer.save_time=0.001s", "trainer.val_steps=3", "trainer.keep_best=1", "trainer.keep_last=1")
    config = toycorpus.settings(corpus, tmp_path, "run=it", "trainer.test=false", *given)
    watches, running = [], {"saving": [], "training": []}

    write = AtomicCheckpointIO.save_checkpoint

    def save(*given, **named):
        running["saving"].append(watches[0].running)
        write(*given, **named)

    class Look(L.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            watches.extend(each.watch for each in trainer.callbacks if isinstance(each, ProgressLog))

        def on_before_optimizer_step(self, *_: Any) -> None:
            running["training"].append(watches[0].running)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    execute(config, Look())
    assert len(running["saving"]) > 6
    assert not any(running["saving"])
    assert running["training"] == [True] * 4


def test_max_time_bounds_a_run(corpus, tmp_path, caplog):
    given = ("run=it", "trainer.max_steps=100000", "trainer.max_time=0.5s", "trainer.test=false")
    run = execute(toycorpus.settings(corpus, tmp_path, *given))
    results = results_of(run.folder)
    assert 0 < results["seconds"] < 100  # a busy machine may be late
    assert (results["max_time"], results["ended_by"]) == (0.5, "max_time")
    assert results["seconds_over_budget"] == pytest.approx(max(0, results["seconds"] - 0.5), abs=0.011)
    assert run.folder.best.exists()
    told = f"trainer.max_time=0.5s ended the run at update {results['steps']}, before trainer.max_steps=100000; set"
    assert told in caplog.text


def test_no_update_follows_a_validation_that_used_up_the_time(corpus, tmp_path, monkeypatch):
    """After a validation that used up the time there is no update and no second validation."""
    share, validations = [0.0], []
    monkeypatch.setattr(Budget, "_time_share", lambda self: share[0])

    class Slow(L.Callback):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            share[0] = 1.0
            validations.append(trainer.global_step)

    given = ("run=it", "trainer.max_time=1h", "trainer.max_steps=9", "trainer.val_steps=2", "trainer.test=false")
    folder = execute(toycorpus.settings(corpus, tmp_path, *given), Slow()).folder
    found = results_of(folder)
    assert (found["steps"], found["ended_by"], validations) == (2, "max_time", [2])


def test_a_run_that_the_clock_has_ended_is_finished(corpus, tmp_path, monkeypatch, caplog):
    """The run is finished even if its last validation left time unused; a restart reports what ended the run."""
    caplog.set_level("INFO")
    given = ("run=it", "trainer.max_steps=null", "trainer.max_time=1h", "trainer.test=false", "resume=auto")
    share = [0.0]
    monkeypatch.setattr(Budget, "_time_share", lambda self: share[0])

    class Clock(L.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            share[0] = 1.0

        def on_validation_start(self, *_: Any) -> None:
            share[0] = 0.9

    folder = execute(toycorpus.settings(corpus, tmp_path, *given), Clock()).folder
    assert results_of(folder)["steps"] == 1
    # Kill makes any update fail
    execute(toycorpus.settings(corpus, tmp_path, *given), Kill())
    more = ("trainer.max_time=2h", "trainer.max_steps=3")
    execute(toycorpus.settings(corpus, tmp_path, *given, *more))
    found = results_of(folder)
    assert (found["steps"], found["ended_by"]) == (3, "max_steps")
    assert "nothing was left to train (ended by max_time)" in caplog.text


def test_an_annealed_rate_follows_the_clock_only_where_nothing_else_bounds_the_run():
    place = SimpleNamespace(epoch_loop=SimpleNamespace(batch_idx=4), restarted_mid_epoch=False)
    trainer: Any = SimpleNamespace(
        global_step=10, world_size=1, current_epoch=1, num_training_batches=10, fit_loop=place
    )
    for bounds, expected in (({"max_steps": 100}, 0.1), ({"max_epochs": 4}, 1.5 / 4), ({}, 0.8)):
        settings = read_section(TrainerSettings, bounds | {"max_time": "1000s"}, "trainer")
        budget = Budget(settings)
        budget.clock.load(900.0)
        # 400 of the 500 seconds that are not spent otherwise
        budget.training.load(400.0)
        budget.begin()
        assert budget.schedule_share(trainer) == pytest.approx(expected)
        assert budget.used_share(trainer) == pytest.approx(0.9)


def test_a_budget_keeps_its_state_on_resume():
    settings = read_section(TrainerSettings, {"max_time": "1000s", "patience": 3}, "trainer")
    first, second = Budget(settings), Budget(settings)
    first.clock.load(70.0)
    first.bad_validations = 2
    first.validation_seconds = 9.0
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()


def test_a_model_with_learned_positions_is_decoded_within_them(corpus, tmp_path):
    given = ("model.positions=learned", "model.max_len=40", "search.max_len_extra=400", "trainer.max_steps=1")
    with pytest.raises(ValueError, match=r"model\.max_len=40 .*data\.clean\.max_length=40"):
        checked(corpus, tmp_path, *given)
    padded = ("model.positions=learned", "model.max_len=15", "data.clean.max_length=15")
    with pytest.raises(ValueError, match=r"model\.max_len=15 .*padded to 16.*data\.clean\.max_length=14"):
        checked(corpus, tmp_path, *padded)
    with pytest.raises(ValueError, match=r"min_len is 40; the model has 40 target positions.*at most 39"):
        checked(corpus, tmp_path, *given, "data.clean.max_length=40", "search.min_len=40")
    run = execute(toycorpus.settings(corpus, tmp_path, *given, "data.clean.max_length=40"))
    assert results_of(run.folder)["test"]["search"]["max_len"] == 40


def test_a_terminal_shows_a_bar(corpus, tmp_path, monkeypatch):
    console = Console(force_terminal=True, file=io.StringIO(), width=200)
    monkeypatch.setattr("seq2seq.training.loop.get_console", lambda: console)
    execute(toycorpus.settings(corpus, tmp_path, "trainer.test=false"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("loss", "lr", "tokens/s", "left", "validating", "hyp"):
        assert word in shown, word


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_heads=3", "divisible"),
        ("data.tokenize={en: 13b}", "13b"),
        ("search.n_best=2", "search.n_best=2"),
        ("+mixer.encoder.per_layer={dropout: [0, 0, 0]}", "3 values for 1 layers"),
        ("data.train=/nowhere/train", "/nowhere/train"),
        ("resume=/nowhere/last.ckpt", "no such file"),
        ("init_from=/nowhere/best.safetensors", "no such file"),
    ],
)
def test_wrong_settings_fail_before_anything_is_written(corpus, tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        checked(corpus, tmp_path, override)
    assert not (tmp_path / "runs").exists()


def command(corpus: Path, *overrides: str) -> list[str]:
    """The command line of a run of the toy corpus in the current folder."""
    files = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    given = ["data=files", "data.name=toy", *files, f"cache={corpus / 'cache'}", *toycorpus.TINY]
    if not any(override.startswith("mixer=") for override in overrides):
        given.append("mixer=transformer")
    return [sys.executable, "-m", "seq2seq.train", *given, *overrides]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def launch(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_settings_without_effect_are_refused_with_an_experiment(corpus, tmp_path):
    """Fine-tuning asks Hydra, by which the command runs, what the experiment sets."""
    own = tmp_path / "own" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("# @package _global_\ndefaults:\n  - override /optim: adam\n")
    given = ("experiment=mine", "optim.rho=0.5", "--config-dir", str(tmp_path / "own"))
    done = launch(tmp_path, command(corpus, *given))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("train: optim.rho=0.5 has no effect with optim.name=adam: leave it out, or")
    given = ("experiment=mine", "init_from=lost.safetensors", "--config-dir", str(tmp_path / "own"))
    done = launch(tmp_path, command(corpus, *given))
    assert (done.returncode, done.stderr.partition("\n")[0]) == (2, "train: init_from=lost.safetensors: no such file")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_usable_checkpoint(corpus, tmp_path, signum):
    endless = command(corpus, "trainer.max_steps=100000", "trainer.line_time=0.1s", "run=it")
    pipe = subprocess.PIPE
    process = subprocess.Popen(endless, cwd=tmp_path, env=environment(), stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "tokens/s" in line:
            process.send_signal(signum)
            break
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum
    assert "resume=auto" in out
    assert "Traceback" not in err
    assert read_state(tmp_path / "runs" / "it" / "checkpoints" / "last.ckpt")["global_step"]


@pytest.mark.slow
def test_a_sweep_gives_each_job_its_folder_and_leaves_no_litter(corpus, tmp_path):
    sweep = command(corpus, "mixer=transformer,lightconv", "model.encoder_layers=4", "trainer.max_steps=1",
                    "model.decoder_layers=4", "trainer.test=false", "-m")  # fmt: skip
    done = launch(tmp_path, sweep)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert [name.rsplit("-", 1)[0] for name in names if name != "sweeps"] == ["toy-lightconv", "toy-transformer"]
    files = sorted(path.name for path in (tmp_path / "runs" / "sweeps").rglob("*") if path.is_file())
    assert files == ["job.json", "job.json", "multirun.yaml", "sweep.json"]


def test_settings_are_checked_before_torch_is_imported_and_waiting_threads_sleep():
    """Spinning threads stop each other on a busy machine; torch reads the variable when it is loaded."""
    code = (
        "import seq2seq.train, os, sys; print(os.environ['OMP_WAIT_POLICY'], {'torch', 'lightning'} & set(sys.modules))"
    )
    given = environment()
    given.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PASSIVE", "set()"]
