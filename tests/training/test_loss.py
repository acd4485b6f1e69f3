"""The loss, compared with torch's own cross entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seq2seq.training.objective import loss as losses
from seq2seq.training.objective.loss import projected_cross_entropy


def projected_example(*, bias: bool, dtype: torch.dtype = torch.float64, rows: int = 6, vocab: int = 29):
    """Features that require a gradient, an output layer, targets and a mask."""
    output = nn.Linear(8, vocab, bias=bias).to(dtype)
    features = (2 * torch.randn(rows, 7, 8, dtype=dtype)).requires_grad_()
    target = torch.randint(0, vocab, (rows, 7))
    mask = torch.arange(7) < torch.randint(1, 8, (rows, 1))
    return features, output, target, mask


def gradients(loss, features, output):
    return torch.autograd.grad(loss, [features, *output.parameters()])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 42, 1024])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_projected_loss_is_the_plain_one(monkeypatch, bias, chunk, smoothing):
    """In float64 it equals torch's linear layer and cross entropy up to rounding, for any chunk."""
    monkeypatch.setattr(losses, "_CPU_CHUNK", chunk)
    features, output, target, mask = projected_example(bias=bias)
    found = projected_cross_entropy(features, output, target, mask, smoothing=smoothing)
    logits = output(features)[mask]
    plain = F.cross_entropy(logits, target[mask], label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found.loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        found.nll, F.cross_entropy(logits, target[mask], reduction="sum"), rtol=1e-12, atol=1e-12
    )
    for one, other in zip(
        gradients(2.5 * found.loss, features, output), gradients(2.5 * plain, features, output), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradients_of_the_projected_loss_are_given_once():
    features, output, target, mask = projected_example(bias=False)
    loss = projected_cross_entropy(features, output, target, mask, smoothing=0.1).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used up"):
        loss.backward()


def test_projected_loss_under_autocast(monkeypatch):
    """Products in bf16, sums in float32: as near to the float64 loss as the plain path, and gradients in float32."""
    monkeypatch.setattr(losses, "_CPU_CHUNK", 64)
    features, output, target, mask = projected_example(bias=True, dtype=torch.float32, rows=40, vocab=300)
    exact = nn.Linear(8, 300).double()
    exact.load_state_dict({key: value.double() for key, value in output.state_dict().items()})
    truth = F.cross_entropy(exact(features.double())[mask], target[mask], label_smoothing=0.1, reduction="sum")
    expected = gradients(truth, features, exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = projected_cross_entropy(features, output, target, mask, smoothing=0.1)
        logits = output(features)[mask].float()
        plain = F.cross_entropy(logits, target[mask], label_smoothing=0.1, reduction="sum")
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss.double(), truth.double(), rtol=2e-3, atol=0)
    ours, theirs = gradients(found.loss, features, output), gradients(plain, features, output)
    for one, other, right in zip(ours, theirs, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - right).norm() < 1.5 * (other - right).norm() + 1e-6


def test_projected_loss_ignores_padding_and_needs_no_gradient(monkeypatch):
    features, output, target, mask = projected_example(bias=False)
    garbled = torch.where(mask[..., None], features.detach(), 1e3)
    with torch.no_grad():
        one = projected_cross_entropy(features, output, target, mask, smoothing=0.1)
        monkeypatch.setattr(losses, "_CPU_CHUNK", 4)
        other = projected_cross_entropy(garbled, output, target.masked_fill(~mask, 0), mask, smoothing=0.1)
    torch.testing.assert_close(one.loss, other.loss)
    assert not one.loss.requires_grad
