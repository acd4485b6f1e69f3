"""No wait of the host in a training step: counted with tensors that claim to be on a GPU, and on a GPU by CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from benchmarks import launches
from seq2seq.kernels.fused import fused
from seq2seq.settings.compose import presets

EXHAUSTIVE = {
    "test_no_preset_waits",
    "test_one_kernel_around_each_sublayer",
    "test_muon_does_not_wait",
    "test_weights_are_cast_together_on_a_gpu",
}
REPRESENTATIVE = {"test_a_training_step_does_not_wait": ["dynamicconv"]}
# A table of learned positions, and mixers with their own kernels
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")
CASES = {name: launches.CASES[name] for name in ("transformer, learned positions", "dynamicconv", "lightconv")}


@no_gpu
@pytest.mark.parametrize("name", CASES)
def test_a_training_step_does_not_wait(name):
    trace = launches.of_training(CASES[name])
    assert not trace.waits, trace.waits
    assert sum(trace.launches.values()) > 500


@no_gpu
def test_muon_does_not_wait():
    trace = launches.of_training(CASES["dynamicconv"], optimizer="muon")
    assert not trace.waits, trace.waits


@no_gpu
def test_one_kernel_around_each_sublayer():
    """Post-norm, switched on: two of an encoder layer and three of a decoder layer."""
    with fused():
        trace = launches.of_training(("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1"))
    assert not trace.waits, trace.waits
    assert trace.launches["residual_norm_forward"] == trace.launches["residual_norm_backward"] == 5
    assert not trace.launches["native_layer_norm"]


@no_gpu
def test_weights_are_cast_together_on_a_gpu():
    trace = launches.of_training(CASES["dynamicconv"], bf16=True)
    assert not trace.waits, trace.waits
    # Weights and their gradients
    assert trace.launches["_foreach_copy_"] == 2


@no_gpu
@pytest.mark.parametrize("mixer", presets())
def test_no_preset_waits(mixer):
    trace = launches.of_training((f"mixer={mixer}",))
    assert not trace.waits, trace.waits


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: int(x.max()),
        lambda x: float(x.max()),
        lambda x: x[x > 0],
        lambda x: x[[0, 2]],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.new_tensor(3),
        lambda x: torch.tensor([1, 2], device=x.device),
        lambda x: x.cpu(),
    ],
    ids=["item", "tolist", "bool", "int", "float", "mask", "list", "nonzero", "select", "new", "tensor", "cpu"],
)
def test_planted_wait_is_found(wait):
    x = torch.arange(4)
    with launches.Trace() as trace:
        wait(x)
    assert sum(trace.waits.values()) == 1, trace.waits


def test_what_does_not_wait_is_not_counted():
    x = torch.arange(4.0)
    with launches.Trace() as trace:
        assert x.is_cuda
        y: Tensor = torch.full_like(x, 3) + torch.zeros(4, device=x.device)
        y.view(2, 2).t().fill_(2)
    assert not trace.waits
    assert dict(trace.launches) == {"full_like": 1, "zeros": 1, "add": 1, "fill_": 1}
    assert not x.is_cuda


@pytest.mark.gpu
@pytest.mark.parametrize("name", launches.CASES)
def test_cuda_sees_no_wait(name):
    device = torch.device("cuda", 0)
    batch = launches.make_batch(4, 12)
    step = launches.training_step(
        launches.make_model(launches.CASES[name]).to(device), type(batch)(*(part.to(device) for part in batch))
    )
    step()  # compiles and allocates
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
