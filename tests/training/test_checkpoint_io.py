"""A resumed run continues from every part of its checkpoint, or is refused with the part's name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import toycorpus

from seq2seq import checkpoint
from seq2seq.experiments.folder import RunFolder
from seq2seq.training.checkpoint_io import AtomicCheckpointIO
from seq2seq.training.errors import TrainingFault
from seq2seq.training.plan import make_plan
from seq2seq.training.run import Run

KEPT = ("trainer.val_steps=2", "trainer.ema=0.9", "trainer.keep_best=1")
GIVEN = ("run=it", "trainer.test=false", "optim=anneal", *KEPT)
SHORT, LONG = ("trainer.max_steps=2", "optim.schedule=constant"), ("trainer.max_steps=4", "optim.schedule=constant")
# One of each way to be wrong
EXHAUSTIVE = {"test_a_run_of_the_older_format_continues_as_if_never_stopped"}
REPRESENTATIVE = {
    "test_a_part_that_is_missing_or_wrong_is_named_before_any_work": {
        "callbacks-{}-callbacks",
        "global_step-True-global_step",
        "loops-5-loops",
        "lr_schedulers-<deleted>-lr_schedulers",
        "lr_schedulers/0/last_epoch-7-is at update 7, the rest at 2",
        "lr_schedulers/0/share-nan-lr_schedulers",
        "optimizer_states-[]-optimizer_states",
        "optimizer_states/0/param_groups/0/params-[0, 1]-parameters, as the model has",
        "optimizer_states/0/state-{}-optimizer_states' has no state of parame",
        "optimizer_states/0/state/1/exp_avg-<deleted>-no 'exp_avg' of parameter 1",
        "optimizer_states/0/state/1/exp_avg_sq-tensor([0.])-shape",
        "run-{}-run.settings",
        "run/settings-{'model': 3}-model was",
        "train_sums-[1.0]-train_sums",
    },
    "test_a_state_that_its_owner_cannot_restore_is_named": {
        "callbacks/AverageWeights/average/average-tensor([0.])-other shapes",
        "callbacks/KeepBest/kept-[3]-callbacks.KeepBest",
        "callbacks/Stopping-<deleted>-callbacks.Stopping' is missing",
        "callbacks/Validation/pending-3-callbacks.Validation",
        "loops/fit_loop/epoch_loop.automatic_opti-9-at update 9",
        "loops/fit_loop/epoch_progress/current/pr-x-loops.fit_loop.epoch_progress.current.pr",
    },
}


def execute(config: dict[str, Any]) -> Run:
    run = Run(make_plan(config, mixer="transformer"))
    run.execute()
    return run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toycorpus.write(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two updates."""
    return execute(toycorpus.settings(corpus, tmp_path_factory.mktemp("stopped"), *GIVEN, *SHORT)).folder


@pytest.fixture(scope="module")
def saved(stopped: RunFolder) -> dict[str, Any]:
    return checkpoint.read(stopped.last)


def set_at(payload: dict[str, Any], place: str, value: Any) -> None:
    """Set or, by DELETE, remove an entry of nested dictionaries and lists."""
    node: Any = payload
    *parents, leaf = place.split("/")
    for parent in parents:
        node = node[int(parent) if isinstance(node, list) or parent.isdigit() else parent]
    key = int(leaf) if isinstance(node, list) or leaf.isdigit() else leaf
    if value is DELETE:
        del node[key]
    else:
        node[key] = value


# A word, so that the names of the cases are the same in every process
DELETE = "<deleted>"
ADAM = "optimizer_states/0"
FIT = "loops/fit_loop"
WRONG: list[tuple[str, Any, str]] = [
    ("optimizer_states", [], "optimizer_states"),
    ("optimizer_states", [5], "optimizer_states"),
    ("optimizer_states", {}, "optimizer_states"),
    ("optimizer_states", [{}], "optimizer_states"),
    (f"{ADAM}/state", {}, "optimizer_states' has no state of parameter 0"),
    (f"{ADAM}/state/3", DELETE, "optimizer_states' has no state of parameter 3"),
    (f"{ADAM}/state/1/exp_avg", DELETE, "no 'exp_avg' of parameter 1"),
    (f"{ADAM}/state/1/exp_avg_sq", torch.zeros(1), "shape"),
    (f"{ADAM}/state/1/exp_avg_sq", torch.zeros(1).expand(10, 10), "exp_avg_sq"),
    (f"{ADAM}/state/1/step", DELETE, "parameter 1"),
    (f"{ADAM}/param_groups", [], "optimizer_states"),
    (f"{ADAM}/param_groups/0/params", [0, 1], "parameters, as the model has"),
    ("lr_schedulers", [], "lr_schedulers"),
    ("lr_schedulers", DELETE, "lr_schedulers"),
    ("lr_schedulers/0", {}, "lr_schedulers"),
    ("lr_schedulers/0/last_epoch", 7, "is at update 7, the rest at 2"),
    ("lr_schedulers/0/share", float("nan"), "lr_schedulers"),
    ("global_step", DELETE, "global_step"),
    ("global_step", True, "global_step"),
    ("global_step", "2", "global_step"),
    ("skipped", DELETE, "skipped"),
    ("processes", 0, "processes"),
    ("train_sums", [1.0], "train_sums"),
    ("run", {}, "run.settings"),
    ("run", 5, "run"),
    ("run/settings", {"model": 3}, "model was"),
    ("run/settings/trainer", 5, "run.settings"),
    ("run/corpus", 5, "run.corpus"),
    ("run/threads", "many", "run.threads"),
    ("loops", {}, "loops"),
    ("loops", 5, "loops"),
    ("callbacks", {}, "callbacks"),
    ("callbacks", 5, "callbacks"),
]
# Known only to Lightning's trainer and the callbacks.
WRONG_STATES: list[tuple[str, Any, str]] = [
    (FIT, {}, "loops.fit_loop"),
    (f"{FIT}/epoch_progress/current/processed", "x", "loops.fit_loop.epoch_progress.current.processed"),
    (f"{FIT}/epoch_progress/current/processed", -3, "wrong type"),
    (f"{FIT}/epoch_loop.automatic_optimization.optim_progress/optimizer/step/total/completed", 9, "at update 9"),
    ("callbacks/Stopping", DELETE, "callbacks.Stopping' is missing"),
    ("callbacks/Stopping", {}, "callbacks.Stopping"),
    ("callbacks/Stopping/elapsed", "long", "callbacks.Stopping"),
    ("callbacks/RecordScores/best_scores", [], "callbacks.RecordScores"),
    ("callbacks/Validation/pending", 3, "callbacks.Validation"),
    ("callbacks/ProgressLog/logged", [1], "callbacks.ProgressLog"),
    ("callbacks/KeepBest/kept", [3], "callbacks.KeepBest"),
    ("callbacks/AverageWeights", DELETE, "callbacks.AverageWeights' is missing"),
    ("callbacks/AverageWeights/average/averages", [], "callbacks.AverageWeights"),
    ("callbacks/AverageWeights/average/averages/0", torch.zeros(1), "other shapes"),
]


def refused(saved: dict[str, Any], tmp_path: Path, change: tuple[str, Any], start: Callable[[Path], Any]) -> str:
    payload = copy.deepcopy(saved)
    set_at(payload, *change)
    path = tmp_path / "changed.ckpt"
    torch.save(payload, path)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked by the caller
        start(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize(("place", "value", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_a_part_that_is_missing_or_wrong_is_named_before_any_work(corpus, saved, tmp_path, place, value, named):
    def start(path: Path) -> None:
        Run(make_plan(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={path}"), mixer="transformer"))

    assert named in refused(saved, tmp_path, (place, value), start)


@pytest.mark.parametrize(("place", "value", "named"), WRONG_STATES, ids=lambda value: str(value)[:40])
def test_a_state_that_its_owner_cannot_restore_is_named(corpus, saved, tmp_path, place, value, named):
    def start(path: Path) -> None:
        execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={path}"))

    assert named in refused(saved, tmp_path, (place, value), start)


def test_the_unchanged_file_continues(corpus, stopped, tmp_path):
    run = execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={stopped.last}", "run=other"))
    assert checkpoint.read(run.folder.last)["global_step"] == 4


def test_a_copy_does_not_replace_another_run(corpus, stopped, tmp_path):
    other = execute(
        toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, "trainer.max_steps=1", "seed=7", "run=other")
    ).folder
    before = checkpoint.read(other.last)
    copied = tmp_path / "copy.ckpt"
    torch.save(checkpoint.read(stopped.last), copied)
    given = (*GIVEN, *LONG, f"resume={copied}", "run=other")
    with pytest.raises(ValueError, match=r"other holds another run.*\(seed was 7 and is now 1\).*run=<name>"):
        execute(toycorpus.settings(corpus, tmp_path, *given))
    assert checkpoint.read(other.last)["global_step"] == before["global_step"] == 1
    # Its own, from before: a backup may be put back
    mine = execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, "trainer.max_steps=1", "run=mine")).folder
    execute(toycorpus.settings(corpus, tmp_path, *given[:-1], "run=mine"))
    assert checkpoint.read(mine.last)["global_step"] == 4


def as_written_before(payload: dict[str, Any]) -> dict[str, Any]:
    """Convert a training checkpoint to format 1, with the settings' names of then."""
    old = copy.deepcopy(payload)
    old["seq2seq"]["format"] = 1
    settings = old["run"]["settings"]
    for mixers in (settings["mixer"], old["seq2seq"]["model"]["mixer"]):
        for slot in (mixers["encoder"], mixers["decoder"]):
            if "backend" in slot:
                slot["kernel"] = slot.pop("backend")
    settings["model"]["peak_lr"] = settings["optim"].pop("peak_lr")
    # What is newer than the format
    for key in ("threads",):
        del settings["trainer"][key], old["run"][key]
    return old


def test_a_run_of_the_older_format_continues_as_if_never_stopped(corpus, tmp_path):
    kernels = [f"mixer.{side}.per_layer.kernel_size=[3]" for side in ("encoder", "decoder")]
    given = (*GIVEN[1:], "mixer=lightconv", *kernels, "optim.schedule=constant")
    whole = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *given, "trainer.max_steps=4"))
    first = execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=2"))
    torch.save(as_written_before(checkpoint.read(first.folder.last)), first.folder.last)
    again = execute(toycorpus.settings(corpus, tmp_path, "run=parts", *given, "trainer.max_steps=4", "resume=auto"))
    one, other = (checkpoint.read(run.folder.last) for run in (whole, again))
    for name, weight in one["state_dict"].items():
        assert torch.equal(weight, other["state_dict"][name]), name
    for number, moments in one["optimizer_states"][0]["state"].items():
        for key, moment in moments.items():
            assert torch.equal(moment, other["optimizer_states"][0]["state"][number][key]), (number, key)
    averages = [each["callbacks"]["AverageWeights"]["average"]["averages"] for each in (one, other)]
    assert all(torch.equal(a, b) for a, b in zip(*averages, strict=True))
    assert one["callbacks"]["RecordScores"] == other["callbacks"]["RecordScores"]


def test_settings_of_the_optimizer_are_those_of_the_run_and_not_of_the_file(corpus, saved, tmp_path):
    payload = copy.deepcopy(saved)
    payload["optimizer_states"][0]["param_groups"][0] |= {"betas": [0.1, 0.2], "weight_decay": 7.0, "eps": "x"}
    path = tmp_path / "changed.ckpt"
    torch.save(payload, path)
    run = execute(toycorpus.settings(corpus, tmp_path, *GIVEN, *LONG, f"resume={path}"))
    group = checkpoint.read(run.folder.last)["optimizer_states"][0]["param_groups"][0]
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.9, 0.98), 1e-4, 1e-9)


def test_the_state_of_muon_is_of_its_kind_for_each_parameter(corpus, tmp_path):
    given = ("run=it", "trainer.test=false", "optim=muon", *KEPT)
    run = execute(toycorpus.settings(corpus, tmp_path, *given, *SHORT))
    payload = checkpoint.read(run.folder.last)
    state = payload["optimizer_states"][0]["state"]
    kinds = {"momentum_buffer": [], "exp_avg": []}
    for number, entry in state.items():
        kinds["momentum_buffer" if "momentum_buffer" in entry else "exp_avg"].append(number)
    assert all(kinds.values())

    def start(path: Path) -> None:
        Run(make_plan(toycorpus.settings(corpus, tmp_path, *given, *LONG, f"resume={path}"), mixer="transformer"))

    for part, numbers in kinds.items():
        change = (f"{ADAM}/state/{numbers[0]}/{part}", DELETE)
        assert f"no '{part}' of parameter {numbers[0]}" in refused(payload, tmp_path, change, start)


def test_weights_that_are_not_finite_are_not_saved(saved, tmp_path):
    payload = copy.deepcopy(saved)
    next(iter(payload["state_dict"].values())).view(-1)[0] = float("inf")
    with pytest.raises(TrainingFault, match=r"diverged.*update 2.*optim\.lr"):
        AtomicCheckpointIO().save_checkpoint(payload, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())
    assert isinstance(AtomicCheckpointIO(), L.fabric.plugins.CheckpointIO)
