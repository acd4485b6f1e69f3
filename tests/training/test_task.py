"""One update: windows, tokens, clipping, seeds; and validation that counts every sentence once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import tiny
import torch
from torch.utils.data import DataLoader

from seq2seq.data.batching import Batch, Ragged, collate
from seq2seq.metadata import describe
from seq2seq.network.build import build_model
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.lightning_parts.task import (
    TranslationTask,
    grow_window,
    micro_batch_seed,
    restore_window,
    seek_data,
    window_state,
)

TOKENIZER = tiny.tokenizer()


def ids(lengths: list[int], seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    return Ragged.from_rows([[*rng.integers(4, 300, n - 1).tolist(), TOKENIZER.eos_id] for n in lengths])


def batch(rows: list[int], seed: int = 0) -> Batch:
    """Return the sentences `rows` of a fixed set of 12 sentences with different lengths."""
    lengths = [3, 9, 4, 7, 5, 8, 2, 6, 4, 5, 9, 3]
    src, tgt = ids(lengths, seed), ids(lengths[::-1], seed + 1)
    at = np.asarray(rows)
    return collate(src.select(at), tgt.select(at), at, pad_id=TOKENIZER.pad_id, bos_id=TOKENIZER.bos_id)


class Data(L.LightningDataModule):
    """Data with given training batches; validation has 12 sentences, some of them twice."""

    def __init__(self, training: list[Batch], validation: list[Batch] | None = None) -> None:
        super().__init__()
        self.training, self.validation = training, validation or []
        self.batches_per_epoch = len(training)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.training, batch_size=None)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.validation, batch_size=None)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        pass

    @property
    def prepared(self) -> Data:
        return self

    def size(self, split: str) -> int:
        return 12

    def sources(self, split: str) -> list[str]:
        return [f"source {i}" for i in range(12)]

    def references(self, split: str) -> list[str]:
        return [f"reference {i}" for i in range(12)]

    def directions(self, split: str) -> list[Any]:
        return []


class Task(TranslationTask):
    """Task that keeps the gradients of every update."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().on_before_optimizer_step(optimizer)
        self.__dict__.setdefault("updates", []).append(
            [p.grad.clone() for p in self.parameters() if p.grad is not None]
        )


def make(*, dropout: float = 0.0, cls: type[TranslationTask] = Task, val_sentences: int | None = None, **optim: Any):
    torch.manual_seed(0)
    config = tiny.model_config(TOKENIZER, dropout=dropout)
    description = describe(
        model_config=config, tokenizer=TOKENIZER, src_lang="de", tgt_lang="en", tokenize="13a", data="toy"
    )
    return cls(
        model=build_model(config),
        tokenizer=TOKENIZER,
        description=description,
        optim=OptimSettings(**optim),
        search=SearchSettings(beam_size=1, max_len_ratio=0, max_len_extra=4),
        seed=7,
        sentences={"valid": val_sentences},
    )


def fit(task: TranslationTask, data: Data, *, accumulate: int = 1, **settings: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": False}
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=accumulate, use_distributed_sampler=False,
        enable_model_summary=False, num_sanity_val_steps=0, limit_val_batches=len(data.validation), **quiet, **settings,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    return trainer


def test_a_window_is_one_large_batch():
    parts = [[0, 1], [2, 3, 4, 5, 6], [7], [8, 9, 10, 11]]
    whole, windowed = make(), make()
    fit(whole, Data([batch(sum(parts[:3], [])), batch(parts[3])]))  # noqa: RUF017
    # The epoch ends inside the second window
    fit(windowed, Data([batch(rows) for rows in parts]), accumulate=3)
    assert len(whole.updates) == len(windowed.updates) == 2
    for a, b in zip(whole.updates[0], windowed.updates[0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-5)
    for a, b in zip(whole.updates[1], windowed.updates[1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)  # the first update was equal only up to rounding


def test_padding_rows_apart_gives_the_same_gradient():
    together, apart = make(), make()
    fit(together, Data([batch(list(range(12)))]))
    fit(apart, Data([batch([i]) for i in range(12)]), accumulate=12)
    for a, b in zip(together.updates[0], apart.updates[0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_ranks_divide_by_the_tokens_of_all_of_them(monkeypatch):
    task = make(cls=TranslationTask)
    task._trainer = SimpleNamespace(world_size=2, global_step=0)  # type: ignore[assignment]
    monkeypatch.setattr("torch.distributed.all_reduce", lambda sums: sums.add_(30))  # the other rank had 30
    task._window_sums = torch.full((4,), 10.0, dtype=torch.float64)
    for parameter in task.parameters():
        parameter.grad = torch.full_like(parameter, 4.0)  # the sum over ranks
    task.on_before_optimizer_step(None)  # type: ignore[arg-type]
    for parameter in task.parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 4.0 / 40))
    assert task.train_sums.tolist() == [40.0] * 4


def test_clipping_comes_after_the_division():
    task = make(clip_norm=0.01)
    fit(task, Data([batch([0, 1, 2]), batch([3, 4])]), accumulate=2)
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in task.updates[0]]))
    assert norm.item() == pytest.approx(0.01, rel=1e-3)
    assert task.grad_norm > 0.01


def test_micro_batches_do_not_share_dropout():
    class Masks(TranslationTask):
        def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.__dict__.setdefault("losses", []).append(loss.item())
            return loss

    same = [batch([0, 1, 2])] * 6
    first, second = (make(dropout=0.5, cls=Masks, lr=1e-12, warmup_init_lr=0.0) for _ in range(2))
    fit(first, Data(same), accumulate=3)
    fit(second, Data(same), accumulate=3)
    assert first.losses == second.losses
    assert len(set(first.losses)) == 6


def test_seeds_differ_for_every_micro_batch():
    seeds = {micro_batch_seed(s, t, m) for s in range(4) for t in range(50) for m in range(8)}
    assert len(seeds) == 4 * 50 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_validation_is_in_file_order_and_counts_a_sentence_once():
    task = make(cls=TranslationTask)
    order = [[7, 3, 11], [0, 5], [3, 7], [1, 2, 4, 6, 8, 9, 10]]  # 3 and 7 came twice, as from two ranks
    trainer = fit(task, Data([batch([0, 1])], [batch(rows) for rows in order]))
    result = task.evaluation
    assert result is not None
    assert result.references == [f"reference {i}" for i in range(12)]
    assert len(result.hypotheses) == len(result.sources) == 12
    assert trainer.callback_metrics["val/bleu"].item() == pytest.approx(result.bleu.value)
    assert result.perplexity == pytest.approx(float(np.exp(result.nll)))


def test_validation_on_a_part_is_spread_over_the_file():
    task = make(cls=TranslationTask, val_sentences=4)
    fit(task, Data([batch([0, 1])], [batch(list(range(12)))]))
    assert task.evaluation is not None
    assert task.evaluation.sources == ["source 0", "source 4", "source 7", "source 11"]


def test_a_blank_source_has_an_empty_translation():
    class Blank(Data):
        def sources(self, split: str) -> list[str]:
            return [" " if i == 3 else line for i, line in enumerate(super().sources(split))]

    task = make(cls=TranslationTask)
    fit(task, Blank([batch([0, 1])], [batch([3]), batch(list(range(12)))]))
    assert task.evaluation is not None
    assert [i for i, line in enumerate(task.evaluation.hypotheses) if not line] == [3]


def window(checkpoint: dict[str, Any], *, ranks: int, accumulate: int = 4, accumulate_start: int | None = 1) -> int:
    """Return the micro-batches of an update on each rank of a run that continues from `checkpoint`."""
    settings = TrainerSettings(max_steps=9, accumulate=accumulate, accumulate_start=accumulate_start)
    trainer: Any = SimpleNamespace(world_size=ranks, accumulate_grad_batches=settings.first_window)
    restore_window(trainer, checkpoint, Budget(settings))
    return trainer.accumulate_grad_batches


@pytest.mark.parametrize(("micro_batches", "resumed"), [(1, 1), (4, 4)])
def test_a_batch_has_grown_on_any_number_of_ranks(micro_batches, resumed):
    budget = Budget(TrainerSettings(max_steps=9, accumulate=4, accumulate_start=1))
    trainer: Any = SimpleNamespace(world_size=1, accumulate_grad_batches=micro_batches)
    saved = window_state(trainer, budget)
    assert saved["processes"] == 1
    # Three ranks divide neither 1 nor 4
    assert [window(saved, ranks=ranks) for ranks in (1, 3)] == [resumed, resumed]
    assert window(saved, ranks=1, accumulate=6, accumulate_start=2) == (6 if micro_batches == 4 else 2)
    assert window(saved, ranks=1, accumulate_start=None) == 4


def test_a_checkpoint_of_a_run_without_growth_lets_the_batch_grow():
    trainer: Any = SimpleNamespace(world_size=1, accumulate_grad_batches=4)
    saved = window_state(trainer, Budget(TrainerSettings(max_steps=9, accumulate=4)))
    assert window(saved, ranks=1) == 1


def test_a_batch_grows_where_a_window_of_the_larger_size_may_begin():
    settings = TrainerSettings(max_steps=9, accumulate=4, accumulate_start=2, accumulate_share=0.5)

    def grown(number: int, share: float, *, last: bool = False) -> bool:
        loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_idx=number))
        trainer: Any = SimpleNamespace(is_last_batch=last, fit_loop=loop, accumulate_grad_batches=2)
        grow_window(trainer, settings, share)
        return trainer.accumulate_grad_batches == 4

    assert not grown(3, 0.49)
    assert [number for number in range(9) if grown(number, 0.5)] == [3, 7]
    assert grown(1, 0.9, last=True)


def test_a_stream_is_resumed_by_as_many_processes():
    trainer: Any = SimpleNamespace(accumulate_grad_batches=1, world_size=2)
    loops = {"epoch_progress": {"current": {"processed": 0}}, "epoch_loop.batch_progress": {}}
    with pytest.raises(ValueError, match="as many processes as before: 3"):
        seek_data({"loops": {"fit_loop": loops}, "processes": 3}, trainer, SimpleNamespace(streaming=True))
