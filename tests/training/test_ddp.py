"""Copies of a model on several ranks send one message per update, and equal one accumulating process bit for bit."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import toycorpus
from recorded_steps import multiply_without_looking, replay_by_twin
from torch import Tensor, nn

from seq2seq.runs.training_state import read_state
from seq2seq.training.machine.ddp import sum_gradients
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

UPDATES = 20


def exchange(monkeypatch: pytest.MonkeyPatch, *ranks: list[nn.Parameter]) -> int:
    """Let ranks exchange their gradients, one after another; return the number of messages."""
    messages: list[list[Tensor]] = [[] for _ in ranks]
    for rank, sent in zip(ranks, messages, strict=True):
        # Nothing is added, so that gradients do not change
        monkeypatch.setattr(dist, "all_reduce", lambda flat, sent=sent: sent.append(flat.clone()))
        sum_gradients(rank)
    sums = [torch.stack(parts).sum(0) for parts in zip(*messages, strict=True)]
    for rank in ranks:
        answers = iter(sums)
        monkeypatch.setattr(dist, "all_reduce", lambda flat, answers=answers: flat.copy_(next(answers)))
        sum_gradients(rank)
    return len(sums)


def parameters(*gradients: float | None, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Parameters of 2 x 3, 3 x 3 and so on, whose gradients are transposed."""
    made = [nn.Parameter(torch.zeros(rows + 2, 3, dtype=dtype)) for rows in range(len(gradients))]
    for parameter, gradient in zip(made, gradients, strict=True):
        if gradient is not None:
            parameter.grad = torch.full_like(parameter.t().contiguous(), gradient).t()
    return made


def means(rank: list[nn.Parameter]) -> list[float | None]:
    """The value of each gradient; None for a parameter without a gradient."""
    assert all(each.grad is None or bool((each.grad == each.grad[0, 0]).all()) for each in rank)
    return [None if each.grad is None else float(each.grad[0, 0]) for each in rank]


def test_a_rank_without_a_gradient_adds_nothing_and_shifts_nothing(monkeypatch):
    ranks = parameters(1, None, None, 4, 5), parameters(10, 20, None, 40, None)
    for rank in ranks:
        rank[3].requires_grad_(False)
    assert exchange(monkeypatch, *ranks) == 1
    # A parameter without a gradient on any rank keeps none, or it would decay; a frozen parameter is left alone
    assert means(ranks[0]) == [11, 20, None, 4, 5]
    assert means(ranks[1]) == [11, 20, None, 40, 5]


def test_a_message_for_each_type(monkeypatch):
    ranks = [parameters(1, 2) + parameters(3, None, dtype=torch.bfloat16) for _ in range(2)]
    assert exchange(monkeypatch, *ranks) == 2
    for rank in ranks:
        assert means(rank) == [2, 4, 6, None]


def test_gradients_stay_where_captured_passes_add_to_them(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.mul_(2))
    (parameter,) = parameters(3)
    kept = parameter.grad
    sum_gradients([parameter])
    assert parameter.grad is kept
    assert means([parameter]) == [6]


# ---- runs


class Uneven(L.Callback):
    """Module in which the two micro-batches of an update differ, on one rank or on two.

    Only the second reads one weight, neither reads another weight, and a layer is frozen after update 9. In update
    6 a gradient of the second is infinite. A statistic differs from rank to rank, as do the first values of weights.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        model, sum_losses = pl_module.model, pl_module.sum_losses
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(trainer.global_rank))
        model.extra, model.unused = nn.Parameter(drawn), nn.Parameter(torch.ones(3))
        model.register_buffer("statistic", torch.zeros(()))

        def with_extra(batch: Any) -> Any:
            sums = sum_losses(batch)
            return sums._replace(loss=sums.loss + (model.extra**2).sum()) if self.second else sums

        pl_module.sum_losses = with_extra

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        number = batch_idx % trainer.accumulate_grad_batches * trainer.world_size + trainer.global_rank
        self.second = number == 1
        pl_module.model.statistic += 1 + trainer.global_rank

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == 5 and self.second:
            next(each.grad for each in pl_module.parameters() if each.grad is not None).fill_(torch.inf)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == 9:
            pl_module.model.encoder.layers[0].requires_grad_(False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert trainer.world_size == 1 or pl_module.model.statistic == UPDATES


def trained(corpus: Path, folder: Path, *given: str) -> None:
    fixed = ("trainer.test=false", "trainer.val_sentences=4", "model.dropout=0.1", f"trainer.max_steps={UPDATES}")
    more = ("data.max_tokens=300", "optim=adam", "optim.weight_decay=0.1")
    TrainingRun(
        make_plan(toycorpus.settings(corpus, folder, *fixed, *more, *given), mixer="x"), callbacks=(Uneven(),)
    ).execute()


def in_two_processes(rank: int, port: int, corpus: Path, folder: Path) -> None:
    """One of two processes of torchrun: a plain run, and a run that replays."""
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": 2}
    os.environ |= {key: str(value) for key, value in (where | {"RANK": rank, "LOCAL_RANK": rank}).items()}
    sent: list[int] = []
    all_reduce = dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **how: Any) -> Any:
        sent.append(tensor.numel() if tensor.dtype == torch.float32 else 0)
        return all_reduce(tensor, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counted)
        multiply_without_looking(patch)
        trained(corpus, folder, "run=two", "trainer.devices=2", "trainer.graphs=false")
        assert sum(size > 1 for size in sent) == UPDATES
        counts = replay_by_twin(patch)
        trained(corpus, folder, "run=replayed", "trainer.devices=2")
        assert counts["replayed"] > counts["captured"] > 1
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one_that_accumulates(tmp_path, monkeypatch):
    corpus = toycorpus.write(tmp_path / "toy")
    multiply_without_looking(monkeypatch)
    trained(corpus, tmp_path, "run=one", "trainer.accumulate=2")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(in_two_processes, (port, corpus, tmp_path), nprocs=2)
    one, *others = (
        read_state(tmp_path / "runs" / run / "checkpoints" / "last.ckpt") for run in ("one", "two", "replayed")
    )
    for other in others:
        assert other["state_dict"].keys() == one["state_dict"].keys()
        for name, weights in one["state_dict"].items():
            assert name == "model.statistic" or torch.equal(other["state_dict"][name], weights), name
        assert other["train_sums"] == pytest.approx(one["train_sums"])
        assert other["skipped"] == one["skipped"] == 1
    assert one["state_dict"]["model.unused"].tolist() == [1, 1, 1]
