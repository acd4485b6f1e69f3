"""Weights cast in one step equal autocast's single casts bit for bit, and no cast of a layer's weight is left."""

from __future__ import annotations

import collections
import functools
from typing import Any

import composed
import pytest
import torch
from recorded_steps import TwinRecorder, multiply_without_looking
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from seq2seq.data.batching import Batch
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.lightning_parts.replay import Replay
from seq2seq.training.lightning_parts.task import seed_generator
from seq2seq.training.machine.weight_copies import cast_together, narrow
from seq2seq.training.make_trainer import prepare_for_training
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.loss import LossSums
from seq2seq.training.objective.optim import scale_and_clip

REPRESENTATIVE = {
    "test_training_has_the_bits_of_autocast": {"lightconv-{'freeze': True}", "transformer-{}"},
    "test_replayed_passes_have_the_bits_of_autocast": {"lightconv"},
}

MIXERS = ("transformer", "lightconv", "dynamicconv", "bahdanau")
# DropConnect copies a number of the host's on a CPU, which the twin of graphs refuses
SIZES = ("model.encoder_layers=2", "model.decoder_layers=2", "model.weight_dropout=0", "model.dropout=0.1")
KERNELS = ("mixer.encoder.per_layer.kernel_size=[3]", "mixer.decoder.per_layer.kernel_size=[3]")


def build(mixer: str, *, together: bool, device: str = "cpu") -> Seq2Seq:
    torch.manual_seed(5)
    model = composed.tiny(f"mixer={mixer}", *SIZES, *(KERNELS if "conv" in mixer else ())).train()
    if together:
        cast_together(model, device=device)
    return model.to(device)


def batch(number: int, device: str = "cpu") -> Batch:
    torch.manual_seed(number)
    src, tgt = (torch.randint(4, composed.VOCAB, (3, width)) for width in (6, 5))
    src[0, 4:] = composed.PAD
    masks = src != composed.PAD, torch.ones_like(tgt, dtype=torch.bool)
    whole = Batch(src, masks[0], tgt, tgt.roll(-1, 1), masks[1], torch.arange(3))
    return Batch(*(part.to(device) for part in whole))


def autocast(device: str = "cpu") -> torch.autocast:
    return torch.autocast(device, torch.bfloat16)


def frozen(model: Seq2Seq) -> list[nn.Parameter]:
    """A whole layer, and weights without their biases."""
    last = model.decoder.layers[-1].named_parameters()
    return [*model.encoder.layers[0].parameters(), *(each for name, each in last if name.endswith("out.weight"))]


def train(
    mixer: str,
    *,
    together: bool,
    device: str = "cpu",
    replayed: bool = False,
    freeze: bool = False,
    r_drop: float = 0.0,
) -> list[Tensor]:
    """Return the losses, gradients and weights of 12 updates of two micro-batches, the fifth of them skipped."""
    model, settings = build(mixer, together=together, device=device), OptimSettings(r_drop=r_drop)
    for each in frozen(model) if freeze else ():
        each.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def passes(given: Batch, window: int) -> LossSums:
        with autocast(device):
            sums = sum_losses(model, given, settings)
        sums.loss.backward()
        return LossSums(*(each.detach() for each in sums))

    replay = Replay(passes, model, make=lambda: TwinRecorder({})) if replayed else None
    found = []
    for update in range(12):
        optimizer.zero_grad() if replay is None else replay.clear()
        for part in range(2):
            given = batch(2 * update + part, device)
            seed = functools.partial(seed_generator, 2 * update + part, torch.device(device))
            seed()
            sums = passes(given, 2) if replay is None else replay(given, 2, seed=seed)
            found.append(sums.loss.clone())
        norm = scale_and_clip(model.parameters(), torch.tensor(0.05, device=device), clip_norm=1.0)
        found += [norm, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        if update != 4:
            optimizer.step()
    assert replay is None or replay.counts["replayed"] > 20
    return [*found, *(each.detach() for each in model.parameters())]


def require_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) > 100
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("how", [{}, {"freeze": True}, {"r_drop": 1.0}], ids=str)
@pytest.mark.parametrize("mixer", MIXERS)
def test_training_has_the_bits_of_autocast(mixer, how):
    require_same(train(mixer, together=False, **how), train(mixer, together=True, **how))


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS)
def test_training_on_a_gpu_has_the_bits_of_autocast(mixer):
    require_same(train(mixer, together=False, device="cuda"), train(mixer, together=True, device="cuda"))


@pytest.mark.parametrize("mixer", ["transformer", "lightconv", "dynamicconv"])
def test_replayed_passes_have_the_bits_of_autocast(mixer, monkeypatch):
    """Bahdanau is left out: while operations are recorded, torch's GRU takes other products in bf16."""
    multiply_without_looking(monkeypatch)
    require_same(train(mixer, together=False), train(mixer, together=True, replayed=True))


class Casts(TorchDispatchMode):
    """Counter of operations; casts of a parameter's memory, or to a parameter's shape, by the name of the parameter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers = {
            each.data_ptr(): name
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and name != "output"
            for each in layer.parameters()
        }
        self.casts: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name().split("::")[1].split(".")[0]] += 1
        if "_to_copy" in func.name() and args[0].data_ptr() in self.layers:
            self.casts.append(self.layers[args[0].data_ptr()])
        return func(*args, **(kwargs or {}))


def counted(model: Seq2Seq, numbers: tuple[int, ...] = (0, 1)) -> list[Casts]:
    """Count the operations of passes, whose gradients are added up."""
    found = []
    for number in numbers:
        with Casts(model) as casts:
            with autocast():
                loss = sum_losses(model, batch(number), OptimSettings()).loss
            loss.backward()
        found.append(casts)
    return found


@pytest.mark.parametrize("mixer", MIXERS)
def test_no_cast_of_a_layers_weight_is_left(mixer):
    plain, together = (counted(build(mixer, together=each)) for each in (False, True))
    layers = len(plain[0].casts)
    assert layers > 10
    for before, after, adds in zip(plain, together, (0, 1), strict=True):
        assert len(before.casts) == layers
        assert not after.casts
        # The cast of the gradient is gone, too
        assert after.counts["_to_copy"] == before.counts["_to_copy"] - 2 * layers
        assert (after.counts["_foreach_copy_"], after.counts["_foreach_add_"]) == (2, adds)
        # Autograd does not add up these gradients
        assert after.counts["add_"] == before.counts["add_"] - adds * layers
        # Autograd does not copy them: the first gradients stay where they were computed
        assert after.counts["clone"] == before.counts["clone"]


def test_a_frozen_weight_has_no_product_of_its_gradient():
    model = build("transformer", together=True)
    model.encoder.layers[0].transform.f.up.weight.requires_grad_(False)  # type: ignore[union-attr]
    (fewer,), (all_of_them,) = counted(model, (0,)), counted(build("transformer", together=True), (0,))
    assert fewer.counts["mm"] == all_of_them.counts["mm"] - 1


def test_shared_unused_and_double_weights_and_a_call_that_fails():
    torch.manual_seed(0)
    one, other, unused, double = (nn.Linear(3, 3) for _ in range(4))
    other.weight = one.weight
    double.double()
    layers = [one, other, unused, double]

    def gradients() -> list[Tensor | None]:
        x = torch.ones(2, 3)
        for layer in layers:
            layer.zero_grad()
        with autocast():
            (other(one(x)).float().sum() + double(x.double()).sum()).backward()
        return [each.grad for layer in layers for each in layer.parameters()]

    expected = gradients()
    with narrow(layers, torch.bfloat16):
        found = gradients()
    for one_of_them, another in zip(found, expected, strict=True):
        assert (one_of_them is None) == (another is None)
        assert one_of_them is None or torch.equal(one_of_them, another)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError), narrow(layers, torch.bfloat16):
        one(torch.ones(2, 4))
    assert all("forward" not in vars(layer) for layer in layers)


def test_only_training_under_autocast_casts():
    model = build("transformer", together=True)
    given = batch(0)
    ways = [(model.train(), False, True), (model.train(), True, False), (model.eval(), True, True)]
    for chosen, enabled, gradient in ways:
        within = torch.autocast("cpu", torch.bfloat16, enabled=enabled)
        with within, torch.set_grad_enabled(gradient), Casts(chosen) as casts:
            sum_losses(chosen, given, OptimSettings())
        assert not casts.counts["_foreach_copy_"]


def test_a_weight_that_a_hook_computes_is_left_to_it():
    def loss(*, together: bool) -> Tensor:
        model = build("transformer", together=False)
        layer: Any = model.encoder.layers[0].transform.f
        # The older form, which computes the weight before each call
        with pytest.warns(FutureWarning):
            torch.nn.utils.weight_norm(layer.up)
        if together:
            cast_together(model, device="cpu")
        with torch.no_grad():
            layer.up.weight_g.mul_(2)
        with autocast():
            torch.manual_seed(0)
            return sum_losses(model, batch(0), OptimSettings()).loss

    assert torch.equal(loss(together=True), loss(together=False))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, True), ({"checkpoint_activations": True}, False), ({"devices": 2, "strategy": "fsdp"}, False)],
)
def test_which_runs_do(settings, expected):
    model = build("transformer", together=False)
    prepare_for_training(model, TrainerSettings(max_steps=1, **settings))
    assert ("features" in vars(model)) == expected
