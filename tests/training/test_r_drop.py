"""R-Drop: the loss of two passes against torch's cross entropy and KL divergence, and its use in training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_task import Data, batch, fit, make
from torch import nn

from seq2seq.training.objective import loss as losses
from seq2seq.training.objective.r_drop import r_drop_cross_entropy


def example(*, rows: int = 4, length: int = 6, vocab: int = 13, bias: bool = True, dtype: torch.dtype = torch.float64):
    """Features of two passes that require gradients, an output layer, targets, and a mask of right-padded lengths."""
    features = torch.randn(2, rows, length, 5, dtype=dtype, requires_grad=True)
    output = nn.Linear(5, vocab, bias=bias, dtype=dtype)
    target = torch.randint(0, vocab, (rows, length))
    return features, output, target, torch.arange(length) < torch.randint(1, length + 1, (rows, 1))


def gradients(loss: torch.Tensor, *of: torch.Tensor | None) -> list[torch.Tensor]:
    return list(torch.autograd.grad(2.5 * loss, [each for each in of if each is not None]))


@pytest.mark.parametrize("chunk", [256, 1, 7])
@pytest.mark.parametrize("weight", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_agrees_with_torch(monkeypatch, chunk, weight, smoothing, bias):
    monkeypatch.setattr(losses, "_SMALL_CPU_CHUNK", chunk)
    features, output, target, mask = example(bias=bias)
    fast = r_drop_cross_entropy(features, output, target, mask, smoothing=smoothing, weight=weight)
    rows = output(features)[:, mask]
    first, second = rows.log_softmax(-1)
    loss = F.cross_entropy(
        rows.flatten(0, 1), target[mask].repeat(2), label_smoothing=smoothing, reduction="sum"
    ) / 2 + weight / 4 * (
        F.kl_div(second, first, reduction="sum", log_target=True)
        + F.kl_div(first, second, reduction="sum", log_target=True)
    )
    torch.testing.assert_close(fast.loss, loss)
    for found, expected in zip(
        gradients(fast.loss, features, output.weight, output.bias),
        gradients(loss, features, output.weight, output.bias),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
    nll = F.cross_entropy(rows.flatten(0, 1), target[mask].repeat(2), reduction="sum") / 2
    torch.testing.assert_close(fast.nll, nll)
    assert fast.tokens == mask.sum()


def test_under_autocast():
    features, output, target, mask = example(vocab=300, dtype=torch.float32)
    exact = r_drop_cross_entropy(features, output, target, mask, smoothing=0.1, weight=5.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = r_drop_cross_entropy(features, output, target, mask, smoothing=0.1, weight=5.0)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, exact.loss, rtol=1e-2, atol=0)
    for one, other in zip(
        gradients(found.loss, features, output.weight), gradients(exact.loss, features, output.weight), strict=True
    ):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * float(other.abs().max()))


def test_the_passes_have_different_dropout():
    """With dropout the divergence counts; without it, and in validation, the loss equals the loss of one pass."""
    one = batch([0, 3, 5])
    plain, still = make().train(), make(r_drop=5.0).train()
    lone = plain.sum_losses(one).loss.item()
    assert still.sum_losses(one).loss.item() == pytest.approx(lone, rel=1e-5)
    drops, barely = make(dropout=0.3, r_drop=5.0).train(), make(dropout=0.3, r_drop=1e-9).train()
    losses = []
    for task in (drops, barely):
        torch.manual_seed(1)  # the same dropouts
        losses.append(task.sum_losses(one).loss.item())
    assert losses[0] > 1.001 * losses[1]
    drops.eval()
    assert drops.sum_losses(one).loss.item() == lone


def test_training_by_it_repeats():
    weights = []
    for _ in range(2):
        task = make(dropout=0.3, r_drop=5.0)
        fit(task, Data([batch([0, 1, 2]), batch([4, 5])]))
        weights.append(torch.cat([part.detach().flatten() for part in task.parameters()]))
        assert task.train_sums[2] == sum(int(batch(rows).tgt_mask.sum()) for rows in ([0, 1, 2], [4, 5]))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
