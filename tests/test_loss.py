"""The loss: torch's own cross entropy is the measure."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.loss import label_smoothed_cross_entropy, label_smoothed_cross_entropy_reference


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
