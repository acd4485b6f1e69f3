"""Faults in training, skipped updates, averaged weights and the files that they leave."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lightning as L
import pytest
import torch
import toycorpus
from conftest import PATIENCE
from torch import nn
from toycorpus import execute

from seq2seq import checkpoint
from seq2seq.metrics import scorers
from seq2seq.runs.training_state import model_weights, read_state
from seq2seq.settings.optim import OptimSettings
from seq2seq.system.errors import CorpusFault
from seq2seq.training.bounds.divergence import SkippedUpdates
from seq2seq.training.bounds.faults import TrainingFault, as_fault
from seq2seq.training.callbacks.ema import AverageWeights
from seq2seq.training.callbacks.profiler import Profile
from seq2seq.training.objective.optim import build_optimizer
from seq2seq.training.run import TrainingRun

# A whole run of two seconds; `make test-all` has it
EXHAUSTIVE = {"test_a_profile_is_one_flag", "test_the_best_validations_are_kept"}


def saved(run: TrainingRun | Path) -> dict[str, Any]:
    """The state of the training."""
    folder = run.folder.path if isinstance(run, TrainingRun) else run
    return read_state(folder / "checkpoints" / "last.ckpt")


def weights(run: TrainingRun) -> dict[str, torch.Tensor]:
    """The weights in the state of the training."""
    return checkpoint.stored_once(model_weights(saved(run)))


class Poison(L.Callback):
    """Makes one weight of the gradient NaN before the updates given."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step in self.steps:
            next(p for p in pl_module.parameters() if p.grad is not None).grad.view(-1)[0] = float("nan")  # type: ignore[union-attr]


# ---- updates that are not finite


@pytest.mark.parametrize("name", ["adam", "adadelta", "muon"])
def test_an_update_that_is_not_finite_changes_nothing(name):
    layer = nn.Linear(3, 2)
    settings = OptimSettings(name=name, lr=0.1, warmup_steps=0)
    optimizer, skipped = build_optimizer(layer.parameters(), settings, {layer.weight: (2,)}), SkippedUpdates(5)

    def update(bad: bool) -> None:
        optimizer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        assert layer.weight.grad is not None
        layer.weight.grad[0, 0] = float("inf") if bad else 1.0
        norm = torch.nn.utils.get_total_norm([p.grad for p in layer.parameters() if p.grad is not None])
        assert bool(skipped.judge(norm, optimizer, 0)) == bad
        optimizer.step()

    update(False)
    before = [p.detach().clone() for p in layer.parameters()]
    state = {key: value.clone() for key, value in optimizer.state[layer.weight].items()}
    update(True)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert all(torch.equal(state[key], value) for key, value in optimizer.state[layer.weight].items())
    update(False)
    assert not torch.equal(before[0], layer.weight)
    assert skipped.count == 1


def test_a_run_skips_and_counts(corpus, tmp_path):
    given = ("run=it", "trainer.test=false", "optim.schedule=constant", "resume=auto")
    run = execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=6"), Poison(2, 3))
    results = json.loads(run.folder.results.read_text())
    assert (results["skipped_updates"], results["steps"]) == (2, 6)
    assert all(weight.isfinite().all() for weight in saved(run)["state_dict"].values())
    assert saved(run)["skipped"] == 2
    assert all(torch.isfinite(torch.tensor(saved(run)["train_sums"])))
    again = execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=7"))
    results = json.loads(again.folder.results.read_text())
    assert (results["skipped_updates"], results["steps"]) == (2, 7)


def test_too_many_end_the_run_and_name_the_sentences(corpus, tmp_path):
    given = ("run=it", "trainer.test=false", "trainer.max_steps=6", "trainer.max_skipped=1", "trainer.val_steps=1")
    with pytest.raises(TrainingFault, match=r"trainer\.max_skipped=1.*optim\.lr.*resume=auto"):
        execute(toycorpus.settings(corpus, tmp_path, *given), Poison(1, 3))
    fault = json.loads((tmp_path / "runs" / "it" / "fault-0.json").read_text())
    assert fault["update"] == 4
    assert 0 < len(fault["training_pairs"][0]) <= 240
    text = list(
        zip(*((corpus / f"train.{language}").read_text().splitlines() for language in ("de", "en")), strict=True)
    )
    assert [len(batch) for batch in fault["text"]] == [len(batch) for batch in fault["training_pairs"]]
    assert {tuple(pair) for pair in fault["text"][0]} <= set(text)
    assert saved(tmp_path / "runs" / "it")["global_step"] == 3


# ---- memory and disk


def test_out_of_memory_names_the_batch_and_the_settings(corpus, tmp_path, monkeypatch):
    class Greedy(L.Callback):
        def on_before_backward(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                torch.empty(2**60)

    given = ("trainer.test=false", "trainer.max_steps=6")
    with pytest.raises(TrainingFault, match=r"\d+ sentences, \d+ \+ \d+ pieces wide.*data\.max_tokens=512.*accumulate"):
        execute(toycorpus.settings(corpus, tmp_path, *given), Greedy())


def test_a_full_disk_leaves_the_last_checkpoint(corpus, tmp_path, monkeypatch):
    given = ("run=it", "trainer.test=false", "trainer.max_steps=6", "trainer.val_steps=2")
    real, saves = os.fsync, []

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        saves.extend([name] if "last.ckpt" in name else [])
        if len(saves) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingFault, match=r"No space left on device.*last\.ckpt is whole"):
        execute(toycorpus.settings(corpus, tmp_path, *given))
    folder = tmp_path / "runs" / "it"
    assert saved(folder)["global_step"] == 2
    assert not list(folder.rglob("*.tmp"))
    saves.append("")  # room again
    resumed = execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto"))
    assert saved(resumed)["global_step"] == 6


def test_unfinished_files_of_a_killed_run_are_deleted(corpus, tmp_path):
    config = toycorpus.settings(corpus, tmp_path, "run=it", "trainer.test=false")
    for place in (tmp_path / "runs" / "it", tmp_path / "runs" / "it" / "checkpoints"):
        place.mkdir(parents=True) if not place.exists() else None
        (place / ".last.ckpt.123.abc.tmp").write_bytes(b"half")
    run = execute(config)
    assert not list(run.folder.path.rglob("*.tmp"))


def test_other_errors_are_no_faults():
    given = {"shape": (1, 2, 3), "max_tokens": 4}
    assert as_fault(RuntimeError("shapes do not match"), **given) is None
    assert as_fault(ValueError("no"), **given) is None
    assert "line 7" in str(as_fault(CorpusFault("train.de: line 7"), **given))
    assert "1 sentences, 2 + 3" in str(as_fault(torch.OutOfMemoryError("CUDA out of memory"), **given))
    assert "x.arrow: No such file" in str(as_fault(FileNotFoundError(2, "No such file", "x.arrow"), **given))


def test_a_full_device_is_not_a_large_batch(corpus, tmp_path, monkeypatch):
    """CUDA's multi-process service may refuse a process when the model is moved to the device."""

    def refused(*_: Any, **__: Any) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    monkeypatch.setattr("lightning.pytorch.strategies.Strategy.setup_environment", refused)
    words = r"before the first batch \(CUDA error: out of memory\): .* or another device"
    with pytest.raises(TrainingFault, match=words):
        execute(toycorpus.settings(corpus, tmp_path, "run=it"))


# ---- the average of the weights


def test_the_average_follows_its_definition():
    layer, decay, rows = nn.Linear(2, 1, bias=False).double(), 0.6, []
    average = AverageWeights(layer, decay)
    wanted = layer.weight.detach().clone()
    for n in range(8):
        with torch.no_grad():
            layer.weight.copy_(torch.randn(1, 2))
        rate = min(decay, (1 + n) / (10 + n))
        wanted = rate * wanted + (1 - rate) * layer.weight.detach()
        average.update()
    own = layer.weight.detach().clone()
    average.swap_in()
    torch.testing.assert_close(layer.weight.detach(), wanted, atol=1e-6, rtol=1e-5)
    rows.append(layer.weight.detach().clone())
    for _ in range(2):  # a signal in a validation, then the end of the run
        average.swap_out()
    assert torch.equal(layer.weight, own)
    again = AverageWeights(nn.Linear(2, 1, bias=False).double(), decay)
    again.load_state_dict(average.state_dict())
    again.swap_in()
    assert torch.equal(again._weights[0], rows[0])


def test_an_average_begins_with_the_weights_of_the_first_update():
    """A checkpoint without an average is loaded after the callback is made; a later start changes nothing."""
    module = nn.Linear(3, 2)
    average = AverageWeights(module, decay=0.9)
    with torch.no_grad():
        module.weight.fill_(2.0)
    average.on_train_start()
    average.swap_in()
    assert torch.equal(module.weight, torch.full((2, 3), 2.0))
    average.swap_out()
    with torch.no_grad():
        module.weight.fill_(5.0)
    average.update()
    found = average.state_dict()["average"]["averages"][0].clone()
    torch.testing.assert_close(found, torch.full((2, 3), 2.0 + 0.9 * 3.0))
    average.on_train_start()
    assert torch.equal(average.state_dict()["average"]["averages"][0], found)


@pytest.mark.slow
def test_best_has_the_average_and_last_both(corpus, tmp_path):
    """A resumed run ends like one without a break; the average does not change training."""
    given = ("trainer.test=false", "trainer.val_steps=3", "optim.schedule=constant")
    ema = (*given, "trainer.ema=0.9")
    plain = execute(toycorpus.settings(corpus, tmp_path, "run=plain", *given, "trainer.max_steps=6"))
    whole = execute(toycorpus.settings(corpus, tmp_path, "run=whole", *ema, "trainer.max_steps=6"))
    execute(toycorpus.settings(corpus, tmp_path, "run=parts", *ema, "trainer.max_steps=3"))
    parts = execute(toycorpus.settings(corpus, tmp_path, "run=parts", "resume=auto", *ema, "trainer.max_steps=6"))
    for name, weight in saved(plain)["state_dict"].items():
        assert torch.equal(weight, saved(whole)["state_dict"][name])
        assert torch.equal(weight, saved(parts)["state_dict"][name])
    best, other = (checkpoint.read(run.folder.best).weights for run in (whole, parts))
    assert any(not torch.equal(weight, weights(whole)[name]) for name, weight in best.items())
    assert all(torch.equal(weight, other[name]) for name, weight in best.items())


# ---- less memory, other types, profiles

KERNELS = [f"mixer.{slot}.per_layer.kernel_size=[3]" for slot in ("encoder", "decoder")]


@pytest.mark.slow
def test_recomputed_activations_change_nothing(corpus, tmp_path):
    given = ("trainer.test=false", "mixer=dynamicconv", "model.weight_dropout=0.2", *KERNELS)
    kept = execute(toycorpus.settings(corpus, tmp_path, "run=kept", *given))
    again = execute(toycorpus.settings(corpus, tmp_path, "run=again", "trainer.checkpoint_activations=true", *given))
    for name, weight in saved(kept)["state_dict"].items():
        assert torch.equal(weight, saved(again)["state_dict"][name]), name


@pytest.mark.slow
def test_weights_in_bfloat16(corpus, tmp_path):
    seen = []

    class Types(L.Callback):
        def on_test_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            seen.append({weight.dtype for weight in pl_module.parameters()})

    given = ("trainer.precision=bf16-true", "optim.lr=0.02", "data.max_tokens=128")
    run = execute(toycorpus.settings(corpus, tmp_path, *given), Types())
    assert seen
    assert all(types == {torch.float32} for types in seen), "the test is decoded as translate decodes it"
    assert {weight.dtype for weight in saved(run)["state_dict"].values()} == {torch.bfloat16}
    assert json.loads(run.folder.results.read_text())["test"]["nll"] > 0
    checkpoint.load(run.folder.best)


@pytest.mark.parametrize("window", [1, 2])
def test_a_profile_is_one_flag(corpus, tmp_path, window):
    given = ("trainer.profile=true", "trainer.max_steps=12", f"trainer.accumulate={window}", "trainer.test=false")
    run = execute(toycorpus.settings(corpus, tmp_path, *given))
    text = (run.folder.path / "profile.txt").read_text()
    assert "aten::" in text
    rows = r"forward pass +([\d.]+)\n  backward pass +([\d.]+)\n  clipping .*? ([\d.]+)\n"
    head = re.match(r"5 micro-batches, (\d) updates.*\n  " + rows, text)
    assert head, text[:500]
    updates, *parts = map(float, head.groups())
    assert updates == 5 if window == 1 else updates in (2, 3)
    events = json.loads((run.folder.path / "trace.json").read_text())["traceEvents"]
    for name, shown in zip(("forward pass", "backward pass"), parts, strict=False):
        found = [
            event["dur"] for event in events if event.get("name") == name and event.get("cat") == "user_annotation"
        ]
        assert len(found) == 5
        assert sum(found) / 1000 == pytest.approx(shown, abs=0.2)
    whole = "Optimizer.step#MuonWithAdam.step"  # MuonWithAdam contains an AdamW
    steps = [event["dur"] for event in events if event.get("name") == whole and event.get("cat") == "user_annotation"]
    assert 0 < parts[2] < sum(steps) / 1000


def test_a_run_too_short_for_a_profile_says_so(tmp_path, caplog):
    trainer = Mock(is_global_zero=True, global_step=0)
    profile = Profile(tmp_path, updates=None)
    profile.on_train_start(trainer, Mock())
    profile.on_train_batch_end(trainer, Mock())
    profile.on_train_end(trainer, Mock())
    assert not list(tmp_path.iterdir())
    assert "trainer.profile" in caplog.text


@pytest.mark.slow
def test_the_profiler_is_silent():
    """The profiler's library prints lines unless a variable is set before torch is loaded."""
    code = "import seq2seq.train, torch\nwith torch.profiler.profile():\n    torch.ones(2, 2) @ torch.ones(2, 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert not [line for line in done.stderr.splitlines() if line.startswith(("STAGE:", "USDT:", "INFO:"))]


# ---- the best of several


def test_the_best_validations_are_kept(corpus, tmp_path, monkeypatch):
    """The two highest of made-up scores stay; a resumed run knows which it has kept."""
    scores = iter([3.0, 1.0, 2.0, 2.0, 5.0])

    def scored(hypotheses: list[str], references: list[str], *, tokenize: str) -> scorers.Score:
        return scorers.Score("BLEU", next(scores), "made up")

    monkeypatch.setattr(scorers, "bleu", scored)
    given = ("run=it", "trainer.test=false", "trainer.val_steps=2", "trainer.keep_best=2", "optim.schedule=constant")
    first = execute(toycorpus.settings(corpus, tmp_path, *given, "trainer.max_steps=6"))
    kept = first.folder.best.parent

    def steps() -> list[int]:
        return sorted(int(path.stem.removeprefix("top-")) for path in kept.glob("top-*.safetensors"))

    assert steps() == [2, 6]
    execute(toycorpus.settings(corpus, tmp_path, *given, "resume=auto", "trainer.max_steps=10"))
    assert steps() == [2, 10]
    for name, weight in checkpoint.read(kept / "top-10.safetensors").weights.items():
        assert torch.equal(weight, weights(first)[name])
    checkpoint.load(kept / "top-2.safetensors")
