"""Replayed passes equal plain ones bit for bit, with a twin of CUDA graphs on a CPU; planted errors are found.

DropConnect is tested only on a GPU: on a CPU its masks copy a number from the host.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import tiny
import torch
import toycorpus
from recorded_steps import TwinRecorder, multiply_without_looking, replay_by_twin

from seq2seq.data.batching import Batch
from seq2seq.kernels.dropout import Dropout
from seq2seq.network.build import build_model
from seq2seq.runs.training_state import read_state
from seq2seq.search.graphs import CudaRecorder
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.trainer import LightningSettings, TrainerSettings
from seq2seq.training.lightning_parts import replay as module
from seq2seq.training.lightning_parts.replay import Replay, resolve_graphs
from seq2seq.training.lightning_parts.task import seed_generator
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.loss import LossSums
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {
    "test_a_resumed_run_captures_all_shapes_again_and_repeats_exactly",
    "test_parameters_that_a_callback_freezes_get_no_gradient",
}
REPRESENTATIVE = {"test_replayed_runs_have_the_bits_of_plain_ones": {"lightconv"}}

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_without_looking(monkeypatch)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Make runs replay by the twin, and count its captures and replays."""
    return replay_by_twin(monkeypatch)


def trained(corpus: Path, folder: Path, *given: str, callbacks: tuple[L.Callback, ...] = ()) -> TrainingRun:
    fixed = ("trainer.test=false", "trainer.val_sentences=4", "model.dropout=0.1")
    return toycorpus.execute(toycorpus.settings(corpus, folder, *fixed, *given), *callbacks)


def state(run: TrainingRun) -> dict[str, Any]:
    return read_state(run.folder.last)


def require_same(one: TrainingRun, other: TrainingRun) -> None:
    first, second = state(one), state(other)
    assert first["state_dict"].keys() == second["state_dict"].keys()
    for name, weights in first["state_dict"].items():
        assert torch.equal(weights, second["state_dict"][name]), name
    assert first["train_sums"] == second["train_sums"]
    assert first["skipped"] == second["skipped"]


class Spoil(L.Callback):
    """Makes the gradient of update 6 infinite."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == 5:
            next(each.grad for each in pl_module.parameters() if each.grad is not None).fill_(torch.inf)


@pytest.mark.parametrize(
    "given",
    [
        ("mixer=transformer", "trainer.accumulate=3", "trainer.ema=0.9"),
        (
            "mixer=dynamicconv",
            "mixer.encoder.per_layer.kernel_size=[3,7]",
            "mixer.decoder.per_layer.kernel_size=[3]",
            "model.weight_dropout=0",
            "trainer.accumulate=2",
            "trainer.accumulate_start=1",
        ),
        (
            "mixer=lightconv",
            "mixer.encoder.per_layer.kernel_size=[3]",
            "mixer.decoder.per_layer.kernel_size=[7]",
            "optim=muon",
            "optim.r_drop=1.0",
            "model.weight_dropout=0",
        ),
        # In bf16 torch's GRU takes other products on a CPU while operations are recorded
        pytest.param(("mixer=bahdanau", "trainer.accumulate=2"), id="bahdanau", marks=pytest.mark.slow),
        ("mixer=transformer", "data.batch_tokens=600", "data.max_tokens=96", "trainer.precision=bf16"),
    ],
    ids=lambda given: given[0].partition("=")[2],
)
def test_replayed_runs_have_the_bits_of_plain_ones(corpus, tmp_path, counts, given):
    given = (
        (*given, "data.max_tokens=300", "trainer.max_steps=24")
        if "600" not in str(given)
        else (*given, "trainer.max_steps=8")
    )
    plain = trained(corpus, tmp_path, "run=plain", "trainer.graphs=false", *given, callbacks=(Spoil(),))
    assert not counts
    replayed = trained(corpus, tmp_path, "run=replayed", *given, callbacks=(Spoil(),))
    require_same(plain, replayed)
    assert counts["replayed"] > counts["captured"] > 1
    found = json.loads(replayed.folder.results.read_text())["passes"]
    assert (found["captured"], found["replayed"]) == (counts["captured"], counts["replayed"])
    assert "passes" not in json.loads(plain.folder.results.read_text())
    assert state(replayed)["skipped"] == 1


def test_a_resumed_run_captures_all_shapes_again_and_repeats_exactly(corpus, tmp_path, counts):
    given = ("mixer=transformer", "data.max_tokens=300", "optim.schedule=constant", "trainer.accumulate=2")
    whole = trained(corpus, tmp_path, "run=whole", "trainer.max_steps=18", *given)
    trained(corpus, tmp_path, "run=parts", "trainer.max_steps=11", *given)
    parts = trained(corpus, tmp_path, "run=parts", "resume=auto", "trainer.max_steps=18", *given)
    require_same(whole, parts)
    # It may also continue with plain passes, under the same name
    plain = trained(
        corpus, tmp_path, "run=parts", "resume=auto", "trainer.max_steps=20", "trainer.graphs=false", *given
    )
    assert state(plain)["global_step"] == 20


class Freeze(L.Callback):
    """Freezes an embedding after update 9."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == 9:
            pl_module.model.encoder.embedding.requires_grad_(False)


def test_parameters_that_a_callback_freezes_get_no_gradient(corpus, tmp_path, counts):
    given = ("mixer=transformer", "data.max_tokens=300", "trainer.max_steps=24", "optim.weight_decay=0.1", "optim=adam")
    plain = trained(corpus, tmp_path, "run=plain", "trainer.graphs=false", *given, callbacks=(Freeze(),))
    require_same(plain, trained(corpus, tmp_path, "run=replayed", *given, callbacks=(Freeze(),)))


# ---- planted errors


class Passes:
    """Passes of a small model over random batches, which can be made wrong."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        tokenizer = tiny.tokenizer()
        self.model = build_model(tiny.model_config(tokenizer, dropout=0.2)).train()
        self.size = tokenizer.tgt_vocab_size
        self.settings = OptimSettings()
        self.calls = 0

    def __call__(self, batch: Batch, window: int) -> LossSums:
        self.calls += 1
        sums = sum_losses(self.model, batch, self.settings)
        self.loss(sums).backward()
        return LossSums(*(each.detach() for each in sums))

    def loss(self, sums: LossSums) -> torch.Tensor:
        return sums.loss

    def batches(self, count: int) -> list[Batch]:
        def draw() -> Batch:
            src, tgt = (torch.randint(4, self.size, (3, width)) for width in (6, 5))
            masks = [torch.ones_like(each, dtype=torch.bool) for each in (src, tgt)]
            return Batch(src, masks[0], tgt, tgt.roll(-1, 1), masks[1], torch.arange(3))

        return [draw() for _ in range(count)]


class BakedIn(Passes):
    """The loss depends on a number of the host, which changes."""

    def loss(self, sums: LossSums) -> torch.Tensor:
        return sums.loss * self.calls


class Moved(Passes):
    """A weight is another tensor from call to call."""

    def __call__(self, batch: Batch, window: int) -> LossSums:
        weight = self.model.output.norm.weight if hasattr(self.model.output, "norm") else next(self.model.parameters())
        weight.data = weight.data.clone() * 1.001
        return super().__call__(batch, window)


def gradients(passes: Passes, batches: list[Batch], *, replayed: bool, clear: bool = True, seeded: bool = True) -> Any:
    replay = Replay(passes, passes.model, make=lambda: TwinRecorder({}))
    if not replayed:
        replay._failed = True
    found = []
    for number, batch in enumerate(batches):
        if clear or not number:
            replay.clear()
        seed = functools.partial(seed_generator, number if seeded else 0, CPU)
        sums = replay(batch, 1, seed=seed)
        found.append(
            [sums.loss.clone(), *(each.grad.clone() for each in passes.model.parameters() if each.grad is not None)]
        )
    assert replay.counts["replayed"] == (len(batches) - 1 if replayed else 0)
    return found


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a, b) for first, second in zip(one, other, strict=True) for a, b in zip(first, second, strict=True)
    )


def test_gradients_of_each_call_are_those_of_plain_passes():
    batches = Passes().batches(5)
    expected = gradients(Passes(), batches, replayed=False)
    assert same(gradients(Passes(), batches, replayed=True), expected)
    # Gradients that are not cleared add up
    expected = gradients(Passes(), batches, replayed=False, clear=False)
    assert same(gradients(Passes(), batches, replayed=True, clear=False), expected)


@pytest.mark.parametrize("wrong", [BakedIn, Moved])
def test_planted_errors_are_caught(wrong):
    batches = Passes().batches(5)
    assert not same(gradients(wrong(), batches, replayed=True), gradients(wrong(), batches, replayed=False))


@pytest.mark.parametrize("wrong", [{"clear": False}, {"seeded": False}])
def test_gradients_that_are_not_cleared_and_a_stale_seed_are_caught(wrong):
    batches = Passes().batches(5)
    assert not same(gradients(Passes(), batches, replayed=True, **wrong), gradients(Passes(), batches, replayed=False))


class Waits(Passes):
    """The host reads the loss."""

    def loss(self, sums: LossSums) -> torch.Tensor:
        return sums.loss if float(sums.loss) > 0 else -sums.loss


def test_passes_that_cannot_be_captured_run_plainly_with_one_warning(caplog):
    passes = Waits()
    replay = Replay(passes, passes.model, make=lambda: TwinRecorder({}))
    expected = gradients(Passes(), Passes().batches(1), replayed=False)
    for number, batch in enumerate(passes.batches(5)):
        replay.clear()
        replay(batch, 1, seed=lambda number=number: seed_generator(number, CPU))
    assert (replay.counts["plain"], replay.counts["captured"], replay.counts["replayed"]) == (5, 0, 0)
    assert caplog.text.count("training without CUDA graphs") == 1
    assert expected


def test_the_latest_recordings_are_kept(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 2)
    passes = Passes()
    replay = Replay(passes, passes.model, make=lambda: Unreleased({}))
    for window in (1, 1, 2, 2, 1, 3, 3, 1, 2):
        replay.clear()
        replay(passes.batches(1)[0], window, seed=lambda: None)
    # 1 and 2 are captured; 3 takes the place of 2, which is captured again
    assert (replay.counts["captured"], replay.counts["replayed"], len(replay._recordings)) == (4, 6, 2)


def test_recordings_of_a_stale_generator_are_captured_again():
    """Otherwise replays would repeat the generator's random numbers."""
    recorder = Unreleased({})
    passes = Passes()
    replay = Replay(passes, passes.model, make=lambda: recorder)
    batches = passes.batches(6)
    for number, batch in enumerate(batches):
        if number == 3:
            recorder.stale = True
        replay.clear()
        replay(batch, 1, seed=lambda: None)
        recorder.stale = False
    assert (replay.counts["plain"], replay.counts["captured"], replay.counts["replayed"]) == (2, 2, 4)


def test_a_changed_rate_of_dropout_is_captured_again():
    found = []
    for replayed in (True, False):
        passes = Passes()
        replay = Replay(passes, passes.model, make=lambda: TwinRecorder({}))
        replay._failed = not replayed
        losses = []
        for number, batch in enumerate(passes.batches(8)):
            if number == 4:
                for each in passes.model.modules():
                    if isinstance(each, Dropout):
                        each.drop = 0.5
            replay.clear()
            losses.append(replay(batch, 1, seed=functools.partial(seed_generator, number, CPU)).loss.clone())
        found.append(losses)
    assert replay.counts["plain"] == 8
    assert torch.equal(*map(torch.stack, found))


class Unreleased(TwinRecorder):
    """A recorder that continues after it has waited."""

    def release(self) -> None:
        pass


# ---- settings


def test_auto_takes_graphs_if_it_can():
    settings = TrainerSettings(max_steps=1)
    assert resolve_graphs(settings, "gpu")
    assert resolve_graphs(TrainerSettings(max_steps=1, devices=2), "gpu")
    assert not resolve_graphs(settings, "cpu")
    assert not resolve_graphs(TrainerSettings(max_steps=1, graphs=False), "gpu")


@pytest.mark.parametrize(
    ("given", "accelerator", "key"),
    [
        ({}, "cpu", "a CPU"),
        ({"devices": 2, "strategy": "fsdp"}, "gpu", "fsdp"),
        ({"checkpoint_activations": True}, "gpu", "checkpoint_activations"),
        ({"lightning": LightningSettings(detect_anomaly=True)}, "gpu", "detect_anomaly"),
    ],
)
def test_graphs_that_cannot_be_taken_are_refused(given, accelerator, key):
    with pytest.raises(ValueError, match=rf"trainer\.graphs=true: .*{key}.* set trainer\.graphs=auto"):
        resolve_graphs(TrainerSettings(max_steps=1, graphs=True, **given), accelerator)


# ---- on a GPU


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_random_numbers_as_they_were():
    device = torch.device("cuda", 0)
    earlier, x = CudaRecorder(device), torch.zeros(8, device=device)
    replay = earlier.record(lambda: x.uniform_())
    torch.cuda.manual_seed(5)
    expected = torch.rand(8, device=device)
    with pytest.raises(RuntimeError):
        CudaRecorder(device).record(lambda: float(torch.rand(8, device=device).sum()))
    assert earlier.stale
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.rand(8, device=device), expected)
    later = CudaRecorder(device)
    assert not later.stale
    replay = later.record(lambda: x.uniform_())
    for _ in range(2):
        torch.cuda.manual_seed(5)
        replay()
        assert torch.equal(x, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["transformer", "lightconv", "dynamicconv", "bahdanau"])
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_gpu_replays_the_bits_of_plain_passes(corpus, tmp_path, mixer, precision):
    """Test DropConnect, accumulation and another epoch; a resumed run captures all shapes again."""
    taps = ("mixer.encoder.per_layer.kernel_size=[3,7]", "mixer.decoder.per_layer.kernel_size=[3]")
    given = (f"mixer={mixer}", *(taps if "conv" in mixer else ()), f"trainer.precision={precision}", "trainer.ema=0.9")
    given = (
        *given,
        "trainer.accelerator=gpu",
        "trainer.accumulate=2",
        "data.max_tokens=300",
        "model.weight_dropout=0.1",
    )
    given = (*given, "optim.schedule=constant")
    plain = trained(corpus, tmp_path, "run=plain", "trainer.graphs=false", "trainer.max_steps=40", *given)
    whole = trained(corpus, tmp_path, "run=whole", "trainer.max_steps=40", *given)
    require_same(plain, whole)
    counts = json.loads(whole.folder.results.read_text())["passes"]
    assert counts["replayed"] > counts["captured"] > 1
    trained(corpus, tmp_path, "run=parts", "trainer.max_steps=31", *given)
    require_same(whole, trained(corpus, tmp_path, "run=parts", "resume=auto", "trainer.max_steps=40", *given))
