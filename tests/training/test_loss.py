"""The loss: torch's own cross entropy is the measure."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seq2seq.training.loss import (
    label_smoothed_cross_entropy,
    label_smoothed_cross_entropy_reference,
    projected_cross_entropy,
)


def example(*, rows: int = 5, length: int = 7, vocab: int = 11, dtype: torch.dtype = torch.float32):
    """Logits that want a gradient, targets, and a mask of right-padded lengths."""
    logits = (3 * torch.randn(rows, length, vocab)).to(dtype).requires_grad_()
    target = torch.randint(0, vocab, (rows, length))
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
    return logits, target, mask


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("rows", [1, 5, 40])  # 40 x 7 rows: more than one block
def test_agrees_with_torch(smoothing, rows):
    logits, target, mask = example(rows=rows)
    twin = logits.detach().clone().requires_grad_()
    fast = label_smoothed_cross_entropy(logits, target, mask, smoothing=smoothing)
    slow = label_smoothed_cross_entropy_reference(twin, target, mask, smoothing=smoothing)
    (2.5 * fast.loss).backward()
    (2.5 * slow.loss).backward()
    torch.testing.assert_close(fast.loss, slow.loss)
    torch.testing.assert_close(fast.nll, slow.nll)
    assert fast.tokens.item() == slow.tokens.item() == mask.sum().item()
    torch.testing.assert_close(logits.grad, twin.grad, atol=1e-6, rtol=1e-5)


def test_gradient_by_differences():
    logits, target, mask = example(rows=2, length=3, vocab=5)

    def total(x):
        return label_smoothed_cross_entropy(x, target, mask, smoothing=0.1).loss

    total(logits).backward()
    nudge = torch.randn_like(logits)
    with torch.no_grad():
        change = (total(logits + 1e-2 * nudge) - total(logits - 1e-2 * nudge)) / 2e-2
    assert logits.grad is not None
    torch.testing.assert_close((logits.grad * nudge).sum(), change, rtol=1e-2, atol=1e-3)


def test_padding_has_no_influence():
    logits, target, mask = example()
    garbled = torch.where(mask[..., None], logits.detach(), torch.full_like(logits, 1e4)).requires_grad_()
    first = label_smoothed_cross_entropy(logits, target, mask, smoothing=0.1)
    second = label_smoothed_cross_entropy(garbled, target.masked_fill(~mask, 0), mask, smoothing=0.1)
    second.loss.backward()
    assert first.loss.item() == second.loss.item()
    assert garbled.grad is not None
    assert (garbled.grad[~mask] == 0).all()


def test_bfloat16_logits_are_summed_in_float32():
    logits, target, mask = example(rows=64, vocab=300, dtype=torch.bfloat16)
    found = label_smoothed_cross_entropy(logits, target, mask, smoothing=0.1)
    exact = label_smoothed_cross_entropy(logits.detach().double().float(), target, mask, smoothing=0.1)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, exact.loss, rtol=1e-6, atol=0)
    found.loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


@settings(max_examples=30, deadline=None)
@given(vocab=st.integers(2, 50), smoothing=st.floats(0, 0.9), seed=st.integers(0, 1000))
def test_uniform_logits_cost_log_v(vocab, smoothing, seed):
    torch.manual_seed(seed)
    target, mask = torch.randint(0, vocab, (2, 4)), torch.ones(2, 4, dtype=torch.bool)
    sums = label_smoothed_cross_entropy(torch.zeros(2, 4, vocab), target, mask, smoothing=smoothing)
    expected = 8 * torch.log(torch.tensor(float(vocab)))
    torch.testing.assert_close(sums.loss, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.nll, expected, rtol=1e-4, atol=1e-4)


# ---- projection and loss together


def projected_example(*, bias: bool, dtype: torch.dtype = torch.float64, rows: int = 6, vocab: int = 29):
    """Features that want a gradient, an output layer, targets and a mask."""
    output = nn.Linear(8, vocab, bias=bias).to(dtype)
    features = (2 * torch.randn(rows, 7, 8, dtype=dtype)).requires_grad_()
    target = torch.randint(0, vocab, (rows, 7))
    mask = torch.arange(7) < torch.randint(1, 8, (rows, 1))
    return features, output, target, mask


def gradients(loss, features, output):
    return torch.autograd.grad(loss, [features, *output.parameters()])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 42, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_projected_loss_is_the_plain_one(bias, chunk, smoothing):
    """In float64, through torch's linear layer and cross entropy: to rounding, for any chunk."""
    features, output, target, mask = projected_example(bias=bias)
    found = projected_cross_entropy(features, output, target, mask, smoothing=smoothing, chunk=chunk)
    logits = output(features)[mask]
    plain = F.cross_entropy(logits, target[mask], label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found.loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        found.nll, F.cross_entropy(logits, target[mask], reduction="sum"), rtol=1e-12, atol=1e-12
    )
    assert found.tokens == mask.sum()
    for one, other in zip(
        gradients(2.5 * found.loss, features, output), gradients(2.5 * plain, features, output), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_projected_loss_by_differences():
    """Along a random direction through features, weights and bias at once, in float64."""
    features, output, target, mask = projected_example(bias=True, rows=2, vocab=5)
    moved = [features, *output.parameters()]
    nudges = [torch.randn_like(part) for part in moved]

    def total(size: float) -> torch.Tensor:
        with torch.no_grad():
            for part, nudge in zip(moved, nudges, strict=True):
                part.add_(nudge, alpha=size)
            loss = projected_cross_entropy(features, output, target, mask, smoothing=0.2, chunk=3).loss
            for part, nudge in zip(moved, nudges, strict=True):
                part.sub_(nudge, alpha=size)
        return loss

    loss = projected_cross_entropy(features, output, target, mask, smoothing=0.2, chunk=3).loss
    grads = gradients(loss, features, output)
    directional = sum((one * nudge).sum() for one, nudge in zip(grads, nudges, strict=True))
    torch.testing.assert_close(directional, (total(1e-5) - total(-1e-5)) / 2e-5, rtol=1e-6, atol=1e-7)


def test_gradients_of_the_projected_loss_are_given_once():
    features, output, target, mask = projected_example(bias=False)
    loss = projected_cross_entropy(features, output, target, mask, smoothing=0.1).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used up"):
        loss.backward()


def test_projected_loss_agrees_with_torchs_own():
    """F.linear_cross_entropy, where torch has it (2.13)."""
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    features, output, target, mask = projected_example(bias=True)
    found = projected_cross_entropy(features, output, target, mask, smoothing=0.1)
    theirs = F.linear_cross_entropy(
        features.flatten(0, 1),
        output.weight,
        target.masked_fill(~mask, -100).flatten(),
        linear_bias=output.bias,
        reduction="sum",
        label_smoothing=0.1,
    )
    torch.testing.assert_close(found.loss, theirs)
    for one, other in zip(gradients(found.loss, features, output), gradients(theirs, features, output), strict=True):
        torch.testing.assert_close(one, other)


def test_projected_loss_under_autocast():
    """Products in bf16, sums in float32: as near to the float64 loss as the plain path, and gradients in float32."""
    features, output, target, mask = projected_example(bias=True, dtype=torch.float32, rows=40, vocab=300)
    exact = nn.Linear(8, 300).double()
    exact.load_state_dict({key: value.double() for key, value in output.state_dict().items()})
    truth = label_smoothed_cross_entropy(exact(features.double()), target, mask, smoothing=0.1).loss
    expected = gradients(truth, features, exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = projected_cross_entropy(features, output, target, mask, smoothing=0.1, chunk=64)
        plain = label_smoothed_cross_entropy(output(features), target, mask, smoothing=0.1)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss.double(), truth.double(), rtol=2e-3, atol=0)
    ours, theirs = gradients(found.loss, features, output), gradients(plain.loss, features, output)
    for one, other, right in zip(ours, theirs, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - right).norm() < 1.5 * (other - right).norm() + 1e-6


def test_projected_loss_ignores_padding_and_needs_no_gradient():
    features, output, target, mask = projected_example(bias=False)
    garbled = torch.where(mask[..., None], features.detach(), 1e3)
    with torch.no_grad():
        one = projected_cross_entropy(features, output, target, mask, smoothing=0.1)
        other = projected_cross_entropy(garbled, output, target.masked_fill(~mask, 0), mask, smoothing=0.1, chunk=4)
    torch.testing.assert_close(one.loss, other.loss)
    assert not one.loss.requires_grad
