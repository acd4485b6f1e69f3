"""A model in parts over processes has the gradients, updates, averages and checkpoints of a whole model."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import composed
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import PATIENCE
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from seq2seq.network.model import Seq2Seq
from seq2seq.search import Specials, search
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.divergence import SkippedUpdates
from seq2seq.training.callbacks.ema import AverageWeights
from seq2seq.training.machine.ddp import ReplicatedStrategy
from seq2seq.training.machine.fsdp import (
    ShardedStrategy,
    gathered,
    is_sharded,
    load_optimizer,
    load_weights,
    make_parts,
    make_strategy,
    make_whole,
    shard,
)
from seq2seq.training.machine.hardware import resolve_accelerator
from seq2seq.training.objective.loss import projected_cross_entropy
from seq2seq.training.objective.optim import build_optimizer, scale_and_clip

ADAM = OptimSettings(schedule="constant", warmup_steps=0, lr=0.01)


class Pairs(NamedTuple):
    """A batch: source and target with their masks."""

    src: Tensor
    src_mask: Tensor
    tgt: Tensor
    tgt_mask: Tensor

    def loss(self, model: Seq2Seq) -> Tensor:
        features = model.features(self.src, self.src_mask, self.tgt, self.tgt_mask)
        return projected_cross_entropy(features, model.output, self.tgt, self.tgt_mask, smoothing=0.1).loss


class Place:
    """One of `size` processes, with a whole model and the same model in parts."""

    def __init__(self, rank: int, folder: str, seed: int, *, size: int = 2, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, device
        given = {"init_method": f"file://{folder}/meeting", "timeout": datetime.timedelta(seconds=PATIENCE)}
        dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=size, **given)
        self.mesh = init_device_mesh(device, (size,))
        torch.manual_seed(seed)  # the same weights and batches in all processes
        torch.set_num_threads(1)

    def pairs(self) -> Pairs:
        masks = [composed.lengths_mask(torch.randint(2, 9, (3,)).tolist(), 9) for _ in range(2)]
        drawn = (composed.random_tokens(masks[0]), masks[0], composed.random_tokens(masks[1]), masks[1])
        return Pairs(*(tensor.to(self.device) for tensor in drawn))

    def models(self, *overrides: str) -> tuple[Seq2Seq, Seq2Seq]:
        whole, parts = (composed.tiny(*overrides).to(self.device) for _ in range(2))
        parts.load_state_dict(whole.state_dict())
        shard(parts, self.mesh)
        return whole, parts


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def gradients_agree(place: Place, whole: Seq2Seq, parts: Seq2Seq) -> None:
    """FSDP averages over the processes; two micro-batches each are summed."""
    whole.zero_grad()
    parts.zero_grad()
    for _ in range(2):
        batches = [place.pairs() for _ in range(place.size)]
        sum(batch.loss(whole) for batch in batches).backward()  # type: ignore[union-attr]
        batches[place.rank].loss(parts).backward()
    for (name, one), two in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert one.grad is not None, name
        assert isinstance(two.grad, DTensor), name
        same(two.grad.full_tensor() * place.size, one.grad)


def every_mixer(place: Place) -> None:
    for preset in composed.PRESETS:
        whole, parts = place.models(f"mixer={preset}")
        total = sum(p.numel() for p in whole.parameters())
        own = torch.tensor(sum(p.to_local().numel() for p in parts.parameters()))
        assert own <= (1 / place.size + 0.05) * total, (preset, own, total)
        own = own.to(place.device)
        dist.all_reduce(own)
        assert own == total
        gradients_agree(place, whole, parts)
        uneven_decoding(place, whole, parts)
        gradients_agree(place, whole, parts)


def uneven_decoding(place: Place, whole: Seq2Seq, parts: Seq2Seq) -> None:
    """One process validates and the others have nothing to do: none waits."""
    pairs = place.pairs()
    how = {"special": Specials(composed.BOS, composed.EOS, composed.PAD), "settings": SearchSettings(beam_size=1)}
    make_whole(parts)
    if place.rank == place.size - 1:
        with torch.no_grad():
            same(pairs.loss(parts), pairs.loss(whole))
        found = [search(model, pairs.src, pairs.src_mask, **how) for model in (parts, whole)]
        assert [best[0].ids for best in found[0]] == [best[0].ids for best in found[1]]
    make_parts(parts)
    assert all(isinstance(parameter, DTensor) for parameter in parts.parameters())


def updates(place: Place) -> None:
    """Updates are clipped by the norm of all parts, skipped by all processes or by none, and saved and loaded whole."""
    whole, parts = place.models("mixer=lightconv")
    optimizers = [build_optimizer(model.parameters(), ADAM) for model in (whole, parts)]
    for broken in (False, True, False):
        before = [parameter.to_local().clone() for parameter in parts.parameters()]
        gradients_agree(place, whole, parts)
        if broken:
            next(whole.parameters()).grad[0] = torch.nan  # type: ignore[index]
            if place.rank == 0:
                next(parts.parameters()).grad.to_local()[0] = torch.nan  # type: ignore[union-attr]
        norms = []
        for model, optimizer, scale in zip((whole, parts), optimizers, (1 / place.size, 1.0), strict=True):
            norms.append(scale_and_clip(model.parameters(), torch.tensor(scale, device=place.device), clip_norm=0.1))
            assert bool(SkippedUpdates(1).judge(norms[-1], optimizer, 0)) == broken
            optimizer.step()
        torch.testing.assert_close(norms[1], norms[0], equal_nan=True)
        unmoved = [torch.equal(a, b.to_local()) for a, b in zip(before, parts.parameters(), strict=True)]
        assert all(unmoved) == broken
    kept = gathered(parts.state_dict(keep_vars=True))
    same(kept, {name: weight.cpu() for name, weight in whole.state_dict().items()})
    assert kept["output.weight"] is kept["encoder.embedding.table.weight"]
    state = gathered(optimizers[1].state_dict())
    for number, values in optimizers[0].state_dict()["state"].items():
        same({key: value.cpu() for key, value in state["state"][number].items()},
             {key: value.cpu() for key, value in values.items()})  # fmt: skip
    assert state["param_groups"] == optimizers[0].state_dict()["param_groups"]
    assert set(gathered(parts.state_dict(keep_vars=True), keep=False).values()) == {None}
    again(place, kept, state)


def again(place: Place, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Whole tensors that were kept go into parts, and into a whole model, without loss."""
    for model in reversed(place.models("mixer=lightconv")):
        load_weights(model, weights)
        optimizer = build_optimizer(model.parameters(), ADAM)
        load_optimizer(optimizer, state)
        found = [gathered(model.state_dict(keep_vars=True)), gathered(optimizer.state_dict()["state"])]
        torch.testing.assert_close(found, [weights, state["state"]], atol=0, rtol=0, check_device=False)


def averages(place: Place) -> None:
    """The average is made before the model is sharded, and follows it."""
    whole, parts = composed.tiny("mixer=dynamicconv"), composed.tiny("mixer=dynamicconv")
    parts.load_state_dict(whole.state_dict())
    both = [AverageWeights(model, 0.5) for model in (whole, parts)]
    shard(parts, place.mesh)
    for _ in range(3):
        noise = {name: torch.randn_like(weight) for name, weight in whole.state_dict().items()}
        for model, average in zip((whole, parts), both, strict=True):
            load_weights(model, noise | {"output.weight": noise["encoder.embedding.table.weight"]}, strict=False)
            average.update()
    states = [average.state_dict() for average in both]
    same(states[1], states[0])
    both[1].load_state_dict(states[0])
    own = gathered(parts.state_dict(keep_vars=True))
    pairs = place.pairs()
    for average in both:
        average.swap_in()
    with torch.no_grad():
        expected = pairs.loss(whole)
    make_whole(parts)
    with torch.no_grad():
        same(pairs.loss(parts), expected)
    both[1].swap_out()  # as a signal does in the middle of a validation
    torch.testing.assert_close(gathered(parts.state_dict(keep_vars=True)), own, atol=0, rtol=0)


def in_two_processes(rank: int, folder: str, seed: int) -> None:
    place = Place(rank, folder, seed)
    every_mixer(place)
    updates(place)
    averages(place)
    dist.destroy_process_group()


@pytest.mark.exhaustive  # two minutes
def test_parts_do_what_the_whole_does(tmp_path, seed):
    mp.spawn(in_two_processes, (str(tmp_path), seed), nprocs=2)


@pytest.mark.gpu
@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="needs torch 2.13")
def test_one_gpu(tmp_path, seed):
    """Test NCCL, streams and fused updates, with one process that has the whole model."""
    place = Place(0, str(tmp_path), seed, size=1, device="cuda")
    every_mixer(place)
    updates(place)
    dist.destroy_process_group()


def test_a_whole_model_stays_as_it_is():
    model = composed.tiny("mixer=transformer")
    make_whole(model)
    make_parts(model)
    assert not is_sharded(model)
    kept = gathered(model.state_dict(keep_vars=True))
    torch.testing.assert_close(kept, dict(model.state_dict()), atol=0, rtol=0)


def test_the_strategy_of_settings():
    assert make_strategy(TrainerSettings(max_steps=1, strategy="fsdp")) == "auto"
    assert isinstance(make_strategy(TrainerSettings(max_steps=1, devices=2)), ReplicatedStrategy)
    assert isinstance(make_strategy(TrainerSettings(max_steps=1, nodes=2, strategy="fsdp")), ShardedStrategy)
    with pytest.raises(ValueError, match=r"trainer\.strategy=deepspeed is not one of ddp, fsdp"):
        TrainerSettings(max_steps=1, strategy="deepspeed")


def test_an_old_torch_is_told(monkeypatch):
    monkeypatch.delattr(FSDPModule, "reset_iter_state")
    resolve_accelerator(TrainerSettings(max_steps=1, accelerator="cpu", strategy="fsdp"))
    with pytest.raises(ValueError, match=r"trainer\.strategy=fsdp.*torch 2\.13.*strategy=ddp"):
        resolve_accelerator(TrainerSettings(max_steps=1, accelerator="cpu", devices=2, strategy="fsdp"))
