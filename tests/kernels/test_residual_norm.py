"""Dropout, sum and norm of a sublayer in one kernel, against torch's own operations with the same mask: on a GPU
compiled, else in Triton's interpreter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import DEVICE
from torch import Tensor, nn

pytest.importorskip("triton")

from seq2seq.kernels import residual_norm as package
from seq2seq.kernels.dropout import Dropout
from seq2seq.kernels.fused import fused
from seq2seq.kernels.layer_norm import LayerNorm
from seq2seq.kernels.residual_norm import reference, residual_norm, skip_and_norm
from seq2seq.kernels.residual_norm.triton import PROGRAMS, TILE
from seq2seq.network.model import Sublayer

FLOAT, HALF = torch.float32, torch.bfloat16
# The stream's type and the sublayer's
TYPES = [(FLOAT, FLOAT), (FLOAT, HALF), (HALF, HALF), (HALF, FLOAT)]
# Relative, by norm; the interpreter cuts bfloat16 off where a GPU rounds it
TOLERANCE = {FLOAT: 1e-6, HALF: 1e-2}


@pytest.fixture(autouse=True)
def _switched_on():
    with fused():
        yield


def example(width: int, stream: torch.dtype, other: torch.dtype) -> tuple[Tensor, Tensor, LayerNorm]:
    norm = LayerNorm(width).to(DEVICE)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias, 0, 0.3)
    x, y = (torch.randn(3, 7, width).to(DEVICE, dtype).requires_grad_() for dtype in (stream, other))
    return x, y, norm


def mask_of(like: Tensor, drop: float) -> tuple[Tensor | None, float]:
    """The mask that a call draws next, by torch, and the keep probability."""
    keep = round(256 * (1 - drop))
    if keep == 256:
        return None, 1.0
    key = torch.randint(2**62, (1,), device=DEVICE)
    width = like.shape[-1]
    return reference.kept(key, like.numel() // width, width, keep).view(like.shape), keep / 256


def by_definition(
    inputs: list[Tensor], grads: list[Tensor | None], eps: float, drop: float
) -> tuple[list[Tensor], list[Tensor]]:
    """The sum, its norm, and the gradients of x, y, weight and bias, in float64, with the mask of seed 1."""
    torch.manual_seed(1)
    mask, keep = mask_of(inputs[1], drop)
    wide = [part.detach().double().requires_grad_() for part in inputs]
    outputs = reference.residual_norm_reference(*wide, eps=eps, kept=mask, keep=keep)
    used = [(out, grad.double()) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
    found = torch.autograd.grad([out for out, _ in used], wide, [grad for _, grad in used], allow_unused=True)
    return list(outputs), [part for part in found if part is not None]


def check(found: Any, expected: Any, narrowest: torch.dtype) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        error = (mine.double() - theirs).norm() / theirs.norm()
        assert error <= TOLERANCE[narrowest], error


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize(("stream", "other"), TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 40, 51])  # a power of two; rows of a multiple of 16 bytes, and not
def test_post_norm_and_its_gradients(width, stream, other, drop):
    x, y, norm = example(width, stream, other)
    inputs, grad = [x, y, norm.weight, norm.bias], torch.randn_like(x)
    torch.manual_seed(1)
    out = residual_norm(x, y, dropout=Dropout(drop), norm=norm)
    assert out.dtype == stream
    (_, expected), gradients = by_definition(inputs, [None, grad], norm.eps, drop)
    found = torch.autograd.grad(out, inputs, grad)
    assert [part.dtype for part in found] == [stream, other, FLOAT, FLOAT]
    check([out, *found], [expected, *gradients], HALF if HALF in (stream, other) else FLOAT)


@pytest.mark.parametrize(("stream", "other"), TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 72])
def test_pre_norm_and_its_gradients(width, stream, other):
    """The norm before a sublayer, whose gradient is added to the stream's, and the sum after one."""
    x, y, norm = example(width, stream, other)
    grad, more = torch.randn_like(x), torch.randn_like(x)
    same, normed = skip_and_norm(x, norm)
    assert torch.equal(same, x)
    none = torch.zeros_like(x)
    (_, expected), (dx, _, dw, db) = by_definition([x, none, norm.weight, norm.bias], [more, grad], norm.eps, 0.0)
    found = torch.autograd.grad([same, normed], [x, norm.weight, norm.bias], [more, grad])
    check([normed, *found], [expected, dx, dw, db], stream)
    torch.manual_seed(1)
    total = residual_norm(x, y, dropout=Dropout(0.3), norm=None)
    (expected, _), gradients = by_definition([x, y, norm.weight, norm.bias], [grad, None], norm.eps, 0.3)
    check(
        [total, *torch.autograd.grad(total, [x, y], grad)],
        [expected, *gradients],
        HALF if HALF in (stream, other) else FLOAT,
    )


def test_only_one_output_is_used():
    x, _, norm = example(40, FLOAT, FLOAT)
    for place in range(2):
        found = skip_and_norm(x, norm)[place]
        expected = (x, nn.LayerNorm.forward(norm, x))[place]
        check(torch.autograd.grad(found.cos().sum(), x), torch.autograd.grad(expected.cos().sum(), x), FLOAT)


def test_more_tiles_than_programs():
    """Programs sum over several tiles, and the last tile is not full."""
    x, _, norm = example(16, FLOAT, FLOAT)
    rows = PROGRAMS * (TILE // 16) + 3 if DEVICE == "cuda" else 2 * (TILE // 16) + 3
    x = torch.randn(rows, 16, device=DEVICE, requires_grad=True)
    inputs = [x, norm.weight, norm.bias]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seq2seq.kernels.residual_norm.triton.PROGRAMS", PROGRAMS if DEVICE == "cuda" else 2)
        found = torch.autograd.grad(skip_and_norm(x, norm)[1].cos().sum(), inputs)
    check(found, torch.autograd.grad(nn.LayerNorm.forward(norm, x).cos().sum(), inputs), FLOAT)


def test_rows_far_from_zero():
    x, y, norm = example(64, FLOAT, FLOAT)
    out = residual_norm(x + 1e4, y, dropout=Dropout(0.0), norm=norm)
    check(
        [out], [nn.functional.layer_norm((x + 1e4 + y).double(), (64,), norm.weight.double(), norm.bias.double())], HALF
    )


def test_masks_follow_from_the_seed():
    x, y, _ = example(64, FLOAT, FLOAT)
    torch.manual_seed(1)
    one, other = (residual_norm(x, y, dropout=Dropout(0.5), norm=None) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(residual_norm(x, y, dropout=Dropout(0.5), norm=None), one)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9])
def test_share_of_what_is_kept(drop):
    """The kept share of 200,000 numbers is right in every column and row, and neighbors are independent."""
    keep = round(256 * (1 - drop))
    kept = reference.kept(torch.randint(2**62, (1,)), 400, 500, keep).double()
    share, spread = keep / 256, (keep / 256 * (1 - keep / 256)) ** 0.5
    assert abs(kept.mean() - share) < 5 * spread / 200_000**0.5
    assert (kept.mean(0) - share).abs().max() < 5 * spread / 400**0.5
    assert (kept.mean(1) - share).abs().max() < 5 * spread / 500**0.5
    for one, next_ in ((kept[:, :-1], kept[:, 1:]), (kept[:-1], kept[1:])):
        assert abs(((one - share) * (next_ - share)).mean()) < 5 * spread**2 / 199_000**0.5


def test_again_to_the_bit():
    x, y, norm = example(72, HALF, HALF)
    grads = []
    for _ in range(2):
        torch.manual_seed(1)
        out = residual_norm(x, y, dropout=Dropout(0.1), norm=norm)
        grads.append([out, *torch.autograd.grad(out.float().cos().sum(), [x, y, norm.weight, norm.bias])])
    assert all(map(torch.equal, *grads))


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "without"])
@pytest.mark.parametrize("kind", ["pre", "post", "none"])
def test_sublayer_as_without_the_kernels(kind, residual):
    f = nn.Linear(24, 24).to(DEVICE)
    mine = Sublayer(f=f, dim=24, out_dim=24, norm=kind, dropout=0.0, residual=residual).to(DEVICE)
    theirs = copy.deepcopy(mine)
    x = torch.randn(2, 5, 24, device=DEVICE, requires_grad=True)

    def outcome(sublayer: Sublayer) -> list[Tensor]:
        y = sublayer(x)
        return [y, *torch.autograd.grad(y.cos().sum(), [x, *sublayer.parameters()])]

    found = outcome(mine)
    with fused(False):
        expected = outcome(theirs)
    check(found, [part.double() for part in expected], FLOAT)


@pytest.mark.parametrize("case", ["off", "eval", "wide", "shape"])
def test_what_the_kernels_do_not_take_is_as_before(case, monkeypatch):
    monkeypatch.setattr(package, "_fused", None)
    x, y, norm = example(24, FLOAT, FLOAT)
    dropout = Dropout(0.0).train(case != "eval")
    if case == "wide":
        monkeypatch.setattr(package, "MAX_WIDTH", 16)
    if case == "shape":
        y = y[:1]
    with fused(case != "off"):
        found = residual_norm(x, y, dropout=dropout, norm=norm)
    assert torch.equal(found, norm(x + y))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["pre", "post"])
def test_replayed_in_a_graph(kind):
    """Each replay draws another mask, which follows from the seed."""
    sublayer = Sublayer(f=nn.Identity(), dim=64, out_dim=64, norm=kind, dropout=0.5).cuda()
    x = torch.randn(8, 64, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        y = sublayer(x)
        return y, torch.autograd.grad(y.cos().sum(), x)[0]

    stream = torch.cuda.Stream()
    with fused(), torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with fused(), torch.cuda.graph(graph):
        outputs = step()
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        graph.replay()
        found.append([part.clone() for part in outputs])
    torch.manual_seed(1)
    with fused():
        expected = step()
    assert all(map(torch.equal, found[0], expected))
    assert all(map(torch.equal, found[0], found[2]))
    assert not torch.equal(found[0][0], found[1][0])
