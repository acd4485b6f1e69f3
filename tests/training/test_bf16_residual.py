"""trainer.bf16_residual: which tensors are bf16, and that only rounding changes."""

from __future__ import annotations

from typing import Any

import composed
import pytest
import torch
import toycorpus
from torch import Tensor, nn

from seq2seq.kernels.layer_norm import LayerNorm
from seq2seq.mixers.attention import CrossAttention
from seq2seq.network.model import Sublayer
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.machine.hardware import require_autocast, require_packing
from seq2seq.training.make_trainer import keep_stream_in_bf16
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

# A whole run; `make test-all` has it
EXHAUSTIVE = {"test_a_run_trains_with_it"}


def run(model: nn.Module, autocast: bool) -> tuple[Tensor, list[torch.dtype]]:
    """Features of two sentences, and the types that leave sublayers and norms."""
    types: list[torch.dtype] = []
    parts = [part for part in model.modules() if isinstance(part, Sublayer | LayerNorm)]
    hooks = [part.register_forward_hook(lambda _, __, y: types.append(y.dtype)) for part in parts]
    src = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model.features(src, src > 0, src, src > 0)  # type: ignore[operator]
    for hook in hooks:
        hook.remove()
    assert len(types) == len(parts)
    return y, types


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv"])
def test_the_whole_stream_is_bf16_under_autocast_alone(mixer, norm):
    model = composed.tiny(f"mixer={mixer}", f"model.norm={norm}")
    plain, types = run(model, autocast=True)
    assert set(types) == {torch.float32} or norm == "pre"
    exact, _ = run(model, autocast=False)
    keep_stream_in_bf16(model)
    low, types = run(model, autocast=True)
    assert set(types) == {torch.bfloat16}
    # As near to float32 as autocast is, within a factor of its sixteen sublayers
    error, usual = ((y.float() - exact).norm() / exact.norm() for y in (low, plain))
    assert error < max(4 * usual, 0.05)
    low.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.encoder.layers.parameters())
    same, types = run(model, autocast=False)
    assert set(types) == {torch.float32}
    assert torch.equal(same, exact)


def test_auto_leaves_a_cpu_as_it_is():
    model = composed.tiny("mixer=transformer", "model.norm=post")
    keep_stream_in_bf16(model, on_gpus_alone=True)
    _, types = run(model, autocast=True)
    assert set(types) == {torch.float32}


def test_a_layer_norm_in_bf16_sums_in_float32():
    norm = LayerNorm(256)
    nn.init.normal_(norm.weight, 1, 0.2)
    nn.init.normal_(norm.bias, 0, 0.2)
    x = (torch.randn(64, 256) * 3 + 20).bfloat16()  # sums of 20s in bf16 would stop at 4,096
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    expected = torch.nn.functional.layer_norm(x.double(), (256,), norm.weight.double(), norm.bias.double())
    torch.testing.assert_close(y.double(), expected, atol=0.03, rtol=0.01)
    wide = torch.randn(4, 256)
    assert torch.equal(norm(wide), torch.nn.functional.layer_norm(wide, (256,), norm.weight, norm.bias))


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_without_autocast_it_is_refused(precision):
    given: dict[str, Any] = {"max_steps": 1, "bf16_residual": True}
    with pytest.raises(ValueError, match=r"trainer\.precision=bf16"):
        require_autocast(TrainerSettings(**given), precision)
    require_autocast(TrainerSettings(**given), "bf16-mixed")
    require_autocast(TrainerSettings(max_steps=1), precision)


def test_a_run_trains_with_it(tmp_path):
    corpus = toycorpus.write(tmp_path / "toy", (60, 8, 8))
    given = ("trainer.bf16_residual=true", "trainer.precision=bf16", "trainer.test=false")
    assert TrainingRun(make_plan(toycorpus.settings(corpus, tmp_path, *given), mixer="transformer")).execute() >= 0


def test_packed_training_is_refused_on_a_cpu(tmp_path):
    corpus = toycorpus.write(tmp_path / "toy", (60, 8, 8))
    config = toycorpus.settings(corpus, tmp_path)
    config["mixer"]["cross"]["packed"] = True
    with pytest.raises(ValueError, match="packed=true of CrossAttention needs a GPU"):
        TrainingRun(make_plan(config, mixer="transformer"))


@pytest.mark.parametrize(
    ("heads", "dropout", "reason"),
    [(2, 0.0, None), (4, 0.0, "heads have 4 channels"), (2, 0.1, "model.attention_dropout=0")],
)
def test_packed_training_of_what_no_kernel_serves_is_refused_at_once(heads, dropout, reason):
    mixer = CrossAttention(dim=16, memory_dim=16, num_heads=heads, dropout=dropout, packed=True)
    if reason is None:
        require_packing(mixer, "gpu", "bf16-mixed")
        return
    with pytest.raises(ValueError, match=f"packed=true of CrossAttention: .*{reason}"):
        require_packing(mixer, "gpu", "bf16-mixed")
