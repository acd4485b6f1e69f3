"""The kernel of the loss against torch's cross entropy in float64: on a GPU compiled, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE
from torch import Tensor, nn

pytest.importorskip("triton")

from seq2seq.kernels.cross_entropy import cross_entropy_, is_served
from seq2seq.kernels.cross_entropy.reference import cross_entropy_reference
from seq2seq.kernels.cross_entropy.triton import constants
from seq2seq.training.objective import loss as losses
from seq2seq.training.objective.loss import projected_cross_entropy

REPRESENTATIVE = {
    "test_kernel_is_torchs_cross_entropy": [
        *("37-torch.float32", "2049-torch.bfloat16", "32001-torch.float32", "65536-torch.bfloat16"),
    ],
    "test_projected_loss_with_the_kernel": ["4"],
}
# One block and several, with and without a rest; 8, 16 and 32 warps
VOCABULARIES = [1, 2, 37, 2047, 2048, 2049, 8193, 32001, 65535, 65536]
# The interpreter cuts bfloat16 off where a GPU rounds it
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3 if DEVICE == "cuda" else 8e-3}
TYPES = [torch.float32, torch.bfloat16]


def example(vocab: int, rows: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and a mask in which the second row is padding."""
    logits = (3 * torch.randn(rows, vocab)).to(dtype).to(DEVICE)
    labels = torch.randint(0, vocab, (rows,), device=DEVICE)
    mask = torch.ones(rows, dtype=torch.bool, device=DEVICE)
    mask[1:2] = False
    return logits, labels, mask


def by_torch(logits: Tensor, labels: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both costs of each row and the gradient of the smoothed loss, through autograd in float64."""
    wide = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(wide, labels, label_smoothing=smoothing, reduction="none")
    (gradient,) = torch.autograd.grad(loss[mask].sum(), wide)
    nll = F.cross_entropy(wide, labels, reduction="none").detach()
    uniform = F.cross_entropy(wide, torch.full_like(wide, 1 / wide.shape[1]), reduction="none").detach()
    return nll.where(mask, 0.0), uniform.where(mask, 0.0), gradient


def check(logits: Tensor, labels: Tensor, mask: Tensor, *, smoothing: float = 0.1) -> None:
    expected = by_torch(logits, labels, mask, smoothing)
    found = logits.clone()
    nll, uniform = cross_entropy_(found, labels, mask, at_label=1 - smoothing)
    # `projected_cross_entropy` subtracts the uniform part for whole sums
    found = (found.double() - smoothing / logits.shape[1]).where(mask[:, None], 0.0)
    torch.testing.assert_close(nll.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(uniform.double(), expected[1], rtol=1e-5, atol=1e-5)
    # Each number is compared by itself, so that the many small ones count
    tolerance = TOLERANCE[logits.dtype]
    torch.testing.assert_close(found, expected[2], rtol=4 * tolerance, atol=tolerance / logits.shape[1])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_reference_is_torchs_cross_entropy(smoothing):
    logits, labels, mask = (part.cpu() for part in example(37))
    nll, uniform, gradient = by_torch(logits, labels, mask, smoothing)
    costs, found = cross_entropy_reference(logits, labels, mask, at_label=1 - smoothing)
    found = (found - smoothing / 37).where(mask[:, None], 0.0)
    torch.testing.assert_close(costs.double(), torch.stack([nll, uniform]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.double(), gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_kernel_is_torchs_cross_entropy(vocab, dtype):
    check(*example(vocab, dtype=dtype))


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_float16_and_smoothing(smoothing):
    check(*example(3001, dtype=torch.float16), smoothing=smoothing)


def test_without_gradient_the_logits_stay():
    logits, labels, mask = example(2500)
    before = logits.clone()
    costs = cross_entropy_(logits, labels, mask, at_label=0.9, gradient=False)
    torch.testing.assert_close(logits, before, rtol=0, atol=0)
    torch.testing.assert_close(costs, cross_entropy_(before, labels, mask, at_label=0.9), rtol=0, atol=0)


@pytest.mark.parametrize("far", [1e4, -1e4])
def test_logits_far_from_zero(far):
    logits, labels, mask = example(2500)
    check((logits.double() + far).float(), labels, mask)


def test_impossible_tokens_have_no_probability():
    logits, labels, mask = example(2500)
    logits[:, ::3] = float("-inf")
    labels = labels // 3 * 3 + 1
    found = logits.clone()
    nll, _ = cross_entropy_(found, labels.clamp(max=2499), mask, at_label=1.0)
    wide = logits.double().requires_grad_()
    loss = F.cross_entropy(wide[mask], labels[mask].clamp(max=2499), reduction="none")
    torch.testing.assert_close(nll[mask].double(), loss.detach(), rtol=1e-5, atol=1e-5)
    assert (found[mask][:, ::3] == 0).all()
    assert found.isfinite().all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stay_so(wrong):
    """A non-finite logit makes only its own row non-finite, so that the update is skipped; padding is not read."""
    logits, labels, mask = example(2500)
    logits[1:3, 2400] = wrong
    costs = cross_entropy_(logits, labels, mask, at_label=0.9)
    assert costs.isfinite().all(0).tolist() == [True, True, False, True]
    assert logits.isfinite().all(1).tolist() == [True, True, False, True]
    assert (logits[1] == 0).all()
    assert (costs[:, 1] == 0).all()


def test_rows_with_a_gap_between_them():
    wide, labels, mask = example(300)
    before, part = wide.clone(), wide[:, :250]
    labels = labels % 250
    _, expected = cross_entropy_reference(part, labels, mask, at_label=0.9)
    cross_entropy_(part, labels, mask, at_label=0.9)
    torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(wide[:, 250:], before[:, 250:])


def test_again_to_the_bit():
    given = example(5000, dtype=torch.bfloat16)
    first, second = (given[0].clone() for _ in range(2))
    assert torch.equal(*(cross_entropy_(one, *given[1:], at_label=0.9) for one in (first, second)))
    assert torch.equal(first, second)


def test_no_rows():
    logits, labels, mask = example(10)
    assert cross_entropy_(logits[:0], labels[:0], mask[:0], at_label=0.9).shape == (2, 0)


def test_choice():
    logits, *_ = example(10)
    assert is_served(logits) == (DEVICE == "cuda")
    assert not is_served(logits, "torch")
    assert is_served(logits, "triton")
    with pytest.raises(ValueError, match="float64"):
        is_served(logits.double(), "triton")


def test_rows_of_all_programs_fit_a_cache():
    """48 warps of each of an H100's 132 multiprocessors, in half of its 50 MB."""
    for dtype in TYPES:
        for vocab in VOCABULARIES:
            launch = constants(vocab, dtype, True)
            rows = 132 * (48 // int(launch["num_warps"]))
            assert rows * vocab * dtype.itemsize <= 35e6, (vocab, dtype)
            assert launch["BLOCK"] == 256 * int(launch["num_warps"])


# ---- in the loss


def batch(vocab: int, dtype: torch.dtype) -> tuple[Tensor, nn.Linear, Tensor, Tensor]:
    """Features that require a gradient, an output layer, targets, and a mask of right-padded lengths."""
    output = nn.Linear(8, vocab).to(dtype).to(DEVICE)
    features = (2 * torch.randn(3, 5, 8)).to(dtype).to(DEVICE).requires_grad_()
    target = torch.randint(0, vocab, (3, 5), device=DEVICE)
    mask = torch.arange(5, device=DEVICE) < torch.tensor([[5], [2], [4]], device=DEVICE)
    return features, output, target, mask


@pytest.mark.parametrize("chunk", [4, 4096])
def test_projected_loss_with_the_kernel(monkeypatch, chunk):
    """Value and gradients agree with torch's cross entropy in float64."""
    for name in ("_CPU_CHUNK", "_GPU_CHUNK"):
        monkeypatch.setattr(losses, name, chunk)
    features, output, target, mask = batch(2100, torch.float32)
    found = projected_cross_entropy(features, output, target, mask, smoothing=0.1, backend="triton")
    ours = torch.autograd.grad(2.5 * found.loss, [features, *output.parameters()])
    wide = [part.detach().double().requires_grad_() for part in (features, *output.parameters())]
    logits = F.linear(*wide)[mask]
    loss = F.cross_entropy(logits, target[mask], label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(found.loss.double(), loss, rtol=1e-5, atol=0)
    nll = F.cross_entropy(logits, target[mask], reduction="sum")
    torch.testing.assert_close(found.nll.double(), nll, rtol=1e-5, atol=0)
    for one, other in zip(ours, torch.autograd.grad(2.5 * loss, wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5)


def test_projected_loss_with_the_kernel_under_autocast():
    """The error against float64 is about the error of torch's path."""
    features, output, target, mask = batch(2100, torch.float32)
    wide = [part.detach().double().requires_grad_() for part in (features, *output.parameters())]
    truth = F.cross_entropy(F.linear(*wide)[mask], target[mask], label_smoothing=0.1, reduction="sum")
    expected = torch.autograd.grad(truth, wide)
    errors = {}
    for backend in ("triton", "torch"):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            found = projected_cross_entropy(features, output, target, mask, smoothing=0.1, backend=backend)
        assert found.loss.dtype == torch.float32
        torch.testing.assert_close(found.loss.double(), truth, rtol=2e-3, atol=0)
        got = torch.autograd.grad(found.loss, [features, *output.parameters()])
        errors[backend] = [float((one - other).norm()) for one, other in zip(got, expected, strict=True)]
    for one, other in zip(errors["triton"], errors["torch"], strict=True):
        assert one < 2 * other + 1e-6


def test_no_gradient_wanted():
    features, output, target, mask = batch(100, torch.float32)
    with torch.no_grad():
        one, other = (
            projected_cross_entropy(features, output, target, mask, smoothing=0.1, backend=backend)
            for backend in ("triton", "torch")
        )
    torch.testing.assert_close(one.loss, other.loss)
    assert not one.loss.requires_grad
