"""Word-level distillation: the loss against torch's cross entropies, and its use in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
import toycorpus
from composed import resolved
from test_r_drop import example, gradients
from test_task import Data, batch, fit, make
from torch import nn

from seq2seq import checkpoint
from seq2seq.settings.compose import chosen_settings, typed_mixers
from seq2seq.settings.run import read_settings
from seq2seq.training.make_trainer import load_teacher
from seq2seq.training.objective import loss as losses
from seq2seq.training.objective.word_distillation import distilled_cross_entropy
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_settings_that_cannot_work"}


@pytest.mark.parametrize("chunk", [256, 1, 7])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_agrees_with_torch(monkeypatch, chunk, weight, smoothing, bias):
    """Students and teachers of different widths."""
    monkeypatch.setattr(losses, "_SMALL_CPU_CHUNK", chunk)
    both, output, target, mask = example(bias=bias)
    features = both[0].detach().requires_grad_()
    teacher = torch.randn(*target.shape, 3).double(), nn.Linear(3, 13, bias=bias).double()
    fast = distilled_cross_entropy(features, output, target, mask, teacher=teacher, smoothing=smoothing, weight=weight)
    rows = output(features)[mask]
    hard = F.cross_entropy(rows, target[mask], label_smoothing=smoothing, reduction="sum")
    soft = F.cross_entropy(rows, teacher[1](teacher[0])[mask].softmax(-1).detach(), reduction="sum")
    loss = (1 - weight) * hard + weight * soft
    torch.testing.assert_close(fast.loss, loss)
    of = features, output.weight, output.bias
    for found, expected in zip(gradients(fast.loss, *of), gradients(loss, *of), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fast.nll, F.cross_entropy(rows, target[mask], reduction="sum"))
    assert fast.tokens == mask.sum()


def test_the_teacher_counts_in_training_alone_and_is_not_saved():
    task, plain = (make(**given) for given in ({"teacher": "x", "teacher_weight": 0.5}, {}))
    teacher = make().model.eval()
    with torch.no_grad():
        for each in teacher.parameters():
            each.mul_(1.5)
    vars(task)["teacher"] = teacher
    assert task.state_dict().keys() == plain.state_dict().keys()
    given = batch([0, 1, 2])
    assert task.train().sum_losses(given).loss != plain.train().sum_losses(given).loss
    assert task.eval().sum_losses(given).loss == plain.eval().sum_losses(given).loss
    before = {name: each.clone() for name, each in teacher.state_dict().items()}
    fit(task.train(), Data([batch([0, 1, 2])]))
    torch.testing.assert_close(dict(teacher.state_dict()), before, atol=0, rtol=0)


def test_a_student_learns_from_the_model_that_it_was(tmp_path: Path):
    """With another mixer; a teacher with another tokenizer is refused."""
    corpus = toycorpus.write(tmp_path / "corpus", (60, 6, 6))
    origin = tiny.save(tmp_path)
    slot = "mixer/self@mixer.decoder=lightconv"
    words = toycorpus.words(
        corpus, tmp_path, f"init_from={origin}", slot, f"optim.teacher={origin}", "trainer.max_steps=2"
    )
    words = [word for word in words if not word.startswith(("mixer=", "model.", "data.vocab_size"))]
    chosen = chosen_settings([slot, "data", "optim.lr", "trainer", "init_from"])
    run = TrainingRun(make_plan(resolved(words), mixer="x", chosen=chosen, replaced=typed_mixers(words)))
    run.execute()
    assert type(checkpoint.load(run.folder.best).model.decoder.layers[0].self_mixer).__name__ == "LightConv"
    other = toycorpus.settings(corpus, tmp_path, f"optim.teacher={origin}")
    with pytest.raises(ValueError, match=r"optim\.teacher=.* has another tokenizer than this run: .*seq2seq\.distill"):
        TrainingRun(make_plan(other, mixer="x")).execute()


def test_a_teacher_needs_the_positions_of_the_longest_sentence(tmp_path: Path):
    origin = tiny.save(tmp_path, positions="learned", max_len=16)
    plan = make_plan(resolved([f"optim.teacher={origin}"]), mixer="x")
    tokenizer = checkpoint.load(origin).tokenizer
    assert load_teacher(plan, tokenizer, longest=16)
    other = make_plan(resolved([f"optim.teacher={origin}", "data.src=en", "data.tgt=de"]), mixer="x")
    with pytest.raises(ValueError, match=r"translates de to en .*this run en to de"):
        load_teacher(other, tokenizer, longest=16)
    with pytest.raises(ValueError, match=r"has 16 positions.* 17 pieces.*data\.clean\.max_length=16"):
        load_teacher(plan, tokenizer, longest=17)


def test_settings_that_cannot_work():
    with pytest.raises(ValueError, match=r"optim\.r_drop=5\.0 and optim\.teacher are two losses"):
        read_settings(resolved(["optim.r_drop=5", "optim.teacher=x"]))
    with pytest.raises(ValueError, match=r"optim\.teacher=nowhere: no such file"):
        make_plan(resolved(["optim.teacher=nowhere"]), mixer="x")
    with pytest.raises(ValueError, match=r"optim\.teacher_weight"):
        make_plan(resolved(["optim.teacher_weight=0.3"]), mixer="x", typed=["optim.teacher_weight"])
