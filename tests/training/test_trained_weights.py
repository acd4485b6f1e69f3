"""Frozen weights, and low-rank updates: against W x + B A x, and in whole runs that save plain checkpoints."""

from __future__ import annotations

from pathlib import Path

import composed
import pytest
import tiny
import torch
import toycorpus
from composed import resolved
from torch import nn

from seq2seq import checkpoint
from seq2seq.network.build import hidden_matrices
from seq2seq.network.low_rank import add_low_rank, merge_low_rank, merged
from seq2seq.network.model import Seq2Seq
from seq2seq.runs.training_state import read_state
from seq2seq.settings.compose import chosen_settings, typed_mixers
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.run import read_settings
from seq2seq.training.objective.optim import build_optimizer
from seq2seq.training.objective.trained_weights import choose_trained
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

REPRESENTATIVE = {"test_a_run_saves_plain_checkpoints_and_resumes": {"ema"}}


def trained(model: nn.Module) -> set[str]:
    return {name for name, each in model.named_parameters() if each.requires_grad}


def logits(model: Seq2Seq) -> torch.Tensor:
    mask = composed.lengths_mask([3, 5])
    tokens = composed.random_tokens(mask)
    return model.eval()(tokens, mask, tokens, mask)


def moved(model: nn.Module) -> None:
    """Change every trained weight, as updates would."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in (each for each in model.parameters() if each.requires_grad):
            each += 0.1 * torch.randn(each.shape, generator=generator)


def test_a_layer_computes_w_x_plus_b_a_x(seed):
    layer = nn.Linear(6, 4).double()
    weight, bias, x = layer.weight.detach().clone(), layer.bias, torch.randn(5, 6).double()
    add_low_rank(layer, 2)
    # It starts as the plain layer
    assert layer(x).equal(nn.functional.linear(x, weight, bias))
    moved(layer)
    names = {name.rpartition(".")[2]: each for name, each in layer.named_parameters() if "weight" in name}
    names["original"].data.copy_(weight)
    expected = x @ weight.T + x @ names["down"].T @ names["up"].T + layer.bias
    torch.testing.assert_close(layer(x), expected)
    assert (names["up"].shape, names["down"].shape) == ((4, 2), (2, 6))


@pytest.mark.parametrize("preset", ["transformer", "dynamicconv", "gru", "bahdanau"])
def test_a_merged_model_is_plain_and_computes_the_same(preset, seed):
    """Of mixers that read the weight inside their own kernels, too."""
    plain, model = composed.tiny(f"mixer={preset}"), composed.tiny(f"mixer={preset}")
    model.load_state_dict(plain.state_dict())
    torch.manual_seed(seed)
    before = logits(plain)
    choose_trained(model, OptimSettings(lora=2))
    factors = trained(model)
    assert factors
    assert all(name.endswith((".up", ".down")) for name in factors)
    torch.manual_seed(seed)
    torch.testing.assert_close(logits(model), before)
    moved(model)
    torch.manual_seed(seed)
    now = logits(model)
    assert (now - before).abs().max() > 1e-3
    weights = merged(model.state_dict())
    assert weights.keys() == plain.state_dict().keys()
    plain.load_state_dict(weights)
    merge_low_rank(model)
    for each in (plain, model):
        torch.manual_seed(seed)
        torch.testing.assert_close(logits(each), now)
    torch.testing.assert_close(dict(model.state_dict()), weights)


def test_patterns_freeze_weights_by_any_of_their_names():
    model = composed.tiny("mixer=transformer")
    choose_trained(model, OptimSettings(freeze=("encoder.*", "*.pre_norm.*")))
    assert trained(model)
    # The table is tied to the output layer and the decoder's embedding
    assert not {name for name in trained(model) if name.startswith(("encoder.", "output.")) or "pre_norm" in name}
    assert not model.output.weight.requires_grad


def test_low_rank_updates_leave_frozen_and_new_weights_as_they_are():
    model = composed.tiny("mixer=transformer")
    new = {name for name in model.state_dict() if name.startswith("decoder.layers.0.mix.f.")}
    choose_trained(model, OptimSettings(freeze=("encoder.*",), lora=2), new=new)
    assert new <= trained(model)
    assert {name.split(".parametrizations")[0].split(".")[0] for name in trained(model) - new} == {"decoder"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ("encoder.layer.*",)}, r"optim\.freeze: no weight is called encoder\.layer\.\*; did you mean"),
        ({"freeze": ("*",)}, r"optim\.freeze leaves no weight to train"),
        ({"lora": 10_000}, r"optim\.lora=10000 leaves no weight to train"),
    ],
)
def test_a_choice_without_an_effect_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        choose_trained(composed.tiny("mixer=transformer"), OptimSettings(**settings))


@pytest.mark.parametrize("name", ["adam", "muon"])
@pytest.mark.parametrize("settings", [{"freeze": ("encoder.*",)}, {"lora": 2}], ids=["freeze", "lora"])
def test_the_optimizer_has_states_for_trained_weights_alone(name, settings, seed):
    model = composed.tiny("mixer=transformer")
    optim = OptimSettings(name=name, weight_decay=0.1, **settings)
    choose_trained(model, optim)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = build_optimizer(model.parameters(), optim, hidden_matrices(model))
    for _ in range(2):
        optimizer.zero_grad()
        logits(model).square().mean().backward()
        optimizer.step()
    chosen = trained(model)
    states = {each for each in optimizer.state if optimizer.state[each]}
    assert states == {each for each in model.parameters() if each.requires_grad}
    for each, weight in model.named_parameters():
        assert weight.equal(before[each]) != (each in chosen), each


def test_settings_that_exclude_each_other():
    for words, message in (
        (["optim.lora=2"], r"optim\.lora=2 updates a trained model: set init_from"),
        (["optim.freeze=[encoder.*]", "trainer.strategy=fsdp", "trainer.devices=2"], r"optim\.freeze needs whole"),
    ):
        with pytest.raises(ValueError, match=message):
            read_settings(resolved(["optim=anneal", *words]))


@pytest.mark.parametrize("more", [("optim=muon",), ("optim=anneal", "trainer.ema=0.5")], ids=["muon", "ema"])
def test_a_run_saves_plain_checkpoints_and_resumes(tmp_path: Path, more: tuple[str, ...]):
    corpus = toycorpus.write(tmp_path / "corpus", (60, 6, 6))
    origin = tiny.save(tmp_path)
    words = toycorpus.words(corpus, tmp_path, f"init_from={origin}", "run=x", "optim.lora=2", *more)
    words = [word for word in words if not word.startswith(("mixer=", "model.", "data.vocab_size"))]
    chosen = chosen_settings(["data", "optim.lr", "trainer", "init_from"])

    def run(*given: str) -> TrainingRun:
        made = TrainingRun(make_plan(resolved([*words, *given]), mixer="x", chosen=chosen))
        made.execute()
        return made

    folder = run("trainer.max_steps=2").folder
    before, after = checkpoint.load(origin).model.state_dict(), checkpoint.load(folder.best).model.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(name.endswith(".weight") and ".layers." in name and "norm" not in name for name in changed)
    # The state keeps the factors
    assert any(name.endswith(".up") for name in read_state(folder.last)["state_dict"])
    assert "bleu" in folder.read_results()["test"]
    # Without the factors
    parameters = sum(each.numel() for each in checkpoint.load(folder.best).model.parameters())
    assert folder.read_results()["parameters"] == parameters
    again = run("trainer.max_steps=3", "resume=auto")
    assert read_state(folder.last)["global_step"] == 3
    # The Lightning module as well
    again.task().save(tmp_path / "again.safetensors")
    assert checkpoint.load(tmp_path / "again.safetensors").model.state_dict().keys() == before.keys()
    with pytest.raises(ValueError, match=r"optim\.lora was 2 and is now 3, which cannot continue"):
        run("optim.lora=3", "resume=auto", "force=true")


def test_a_run_with_a_new_mixer_resumes_when_its_start_is_gone(tmp_path: Path):
    """The weights of the new mixer stay whole: the run's own checkpoint, which has them, does not change that."""
    corpus = toycorpus.write(tmp_path / "corpus", (60, 6, 6))
    origin = tiny.save(tmp_path)
    swap = "mixer/self@mixer.encoder=gru"
    words = toycorpus.words(corpus, tmp_path, f"init_from={origin}", "run=x", "optim.lora=2", swap)
    words = [word for word in words if not word.startswith(("mixer=", "model.", "data.vocab_size"))]
    how = {"chosen": chosen_settings(["data", "trainer", "init_from", swap]), "replaced": typed_mixers([swap])}
    folder = tmp_path
    for given in (["trainer.max_steps=2"], ["trainer.max_steps=3", "resume={}"]):
        more = [word.format(folder) for word in given]
        run = TrainingRun(make_plan(resolved([*words, *more]), mixer="x", **how))
        run.execute()
        folder = run.folder.path
        origin.unlink(missing_ok=True)
    state = read_state(run.folder.last)
    assert state["global_step"] == 3
    whole = {name for name in state["state_dict"] if "encoder.layers.0.mix" in name}
    assert whole
    assert not any(name.endswith(".up") for name in whole)
