"""Attention of short rows by one tile against torch's own in float64: on a GPU compiled, else in Triton's interpreter.

Output buffers are filled with NaN first, so that a number that a kernel leaves unwritten shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from composed import lengths_mask
from conftest import DEVICE, jiggle
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from seq2seq.kernels.attention import attention, serve_groups, triton
from seq2seq.kernels.attention.reference import attention_reference
from seq2seq.kernels.attention.short_rows import divide, is_on, is_served, side_by_side
from seq2seq.kernels.dropconnect import keep_words, unpack
from seq2seq.kernels.fused import fused
from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.mixers.lowrank import LowRank
from seq2seq.mixers.postconv_attention import PostconvAttention
from seq2seq.mixers.preconv_attention import PreconvAttention
from seq2seq.mixers.qk_norm import NormalizedAttention, NormalizedCrossAttention
from seq2seq.mixers.quadratic import Quadratic
from seq2seq.mixers.relative import Relative
from seq2seq.mixers.relative_bias import RelativeBias

EXHAUSTIVE = {"test_dropout_follows_the_seed_and_keeps_the_mean"}
REPRESENTATIVE = {
    "test_kernels_are_their_reference": {
        "bfloat16",
        "bias of keys",
        "causal, lengths",
        "cross, lengths",
        "dropout",
        "groups, bias",
        "odder width",
        "self",
    },
    "test_self_mixers_train_by_it": {
        "attention-causal",
        "grouped-causal",
        "relative_bias-both ways",
        "rotary-both ways",
    },
    "test_cross_mixers_train_by_it": {"CrossAttention-5", "NormalizedCrossAttention-7"},
}

# By norm; the interpreter cuts bfloat16 off where a GPU rounds it
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3 if DEVICE == "cuda" else 1e-2}


pytestmark = pytest.mark.usefixtures("poisoned_outputs")


class Case(NamedTuple):
    """Sentences, heads of queries and of keys, queries, keys, channels of a head, and what else is asked for."""

    batch: int = 3
    heads: int = 2
    key_heads: int = 2
    queries: int = 6
    keys: int = 6
    width: int = 8
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    drop: float = 0.0
    dtype: torch.dtype = torch.float32


CASES = {
    "self": Case(),
    "causal": Case(causal=True, queries=17, keys=17),
    "cross, lengths": Case(queries=5, keys=9, lengths=(9, 1, 4)),
    "causal, lengths": Case(causal=True, lengths=(6, 1, 4)),
    "full tile": Case(batch=2, queries=64, keys=64, width=32, lengths=(64, 33)),
    "one query": Case(queries=1, keys=20),
    "one key": Case(queries=20, keys=1),
    "odd width": Case(width=40, causal=True),
    "odder width": Case(width=5, lengths=(1, 2, 3)),
    "wide head": Case(batch=1, width=128, queries=4, keys=16),
    "groups": Case(heads=4, lengths=(6, 1, 4)),
    "groups, causal, dropout": Case(heads=4, key_heads=1, causal=True, drop=0.3),
    "groups, bias": Case(heads=4, bias=(4, 6, 6)),
    "bias of heads": Case(bias=(2, 6, 6), lengths=(6, 1, 4)),
    "bias of heads, causal": Case(bias=(1, 2, 6, 6), causal=True),
    "bias of sentences": Case(bias=(3, 1, 6, 6)),
    "bias of keys": Case(queries=4, bias=(3, 2, 1, 6)),
    "bias of queries": Case(bias=(2, 6, 1)),
    "bias of all": Case(queries=4, bias=(3, 2, 4, 6), dtype=torch.bfloat16),
    "dropout": Case(drop=0.5),
    "dropout, two words": Case(queries=3, keys=40, drop=0.1, lengths=(40, 35, 1)),
    "bfloat16": Case(queries=5, keys=9, lengths=(9, 1, 4), dtype=torch.bfloat16),
    "float16": Case(causal=True, drop=0.1, dtype=torch.float16),
}
every_case = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def heads(case: Case, number: int, length: int) -> Tensor:
    """Heads of a projection (B, T, D), as mixers make them."""
    rows = torch.randn(case.batch, length, number, case.width, dtype=torch.float64)
    return rows.to(DEVICE, case.dtype).transpose(1, 2).requires_grad_()


def inputs(case: Case) -> tuple[list[Any], Tensor | None, Tensor | None]:
    """q, k, v and a bias where there is one, the mask of lengths, and words of dropout."""
    sizes = ((case.heads, case.queries), (case.key_heads, case.keys), (case.key_heads, case.keys))
    parts = [heads(case, *size) for size in sizes]
    if case.bias:
        parts.append(torch.randn(case.bias, device=DEVICE).requires_grad_())
    mask = None if case.lengths is None else lengths_mask(case.lengths, case.keys).to(DEVICE)[:, None, None]
    shape = case.batch, case.heads, case.queries
    return parts, mask, keep_words(shape, case.keys, case.drop, device=torch.device(DEVICE)) if case.drop else None


def by_kernels(case: Case, parts: list[Any], mask: Tensor | None, keep: Tensor | None, dy: Tensor) -> list[Any]:
    """The result and every gradient, by the launches themselves."""
    q, k, v, bias = [*(part.detach() for part in parts), None][:4]
    if bias is not None and case.heads > case.key_heads:
        k, v = (part.repeat_interleave(case.heads // case.key_heads, 1) for part in (k, v))
    given = (q, k, v, bias, mask, keep)
    y, lse = triton.forward(*given, case.causal, case.drop)
    grads: list[Any] = list(triton.backward(dy, lse, *given, causal=case.causal, drop=case.drop))
    if k.shape[1] > case.key_heads:
        grads[1:3] = [part.unflatten(1, (case.key_heads, -1)).sum(2) for part in grads[1:3]]
    return [y, *(grad for grad in grads if grad is not None)]


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare by norm; if the true value is 0 (a key has all the weight), the difference is only rounding."""
    assert found.isfinite().all()
    error = (found.double() - expected).norm()
    assert error <= tolerance * max(float(expected.norm()), 0.1 * expected.numel() ** 0.5), float(error)


@every_case
def test_kernels_are_their_reference(case):
    parts, mask, keep = inputs(case)
    dy = torch.randn(case.batch, case.heads, case.queries, case.width, device=DEVICE).to(case.dtype)
    found = by_kernels(case, parts, mask, keep, dy)
    wide: list[Any] = [part.detach().double().requires_grad_() for part in parts]
    q, k, v, bias = [*wide, None][:4]
    # Dropout is given by words, none without
    given = {"bias": bias, "mask": mask, "causal": case.causal, "dropout": case.drop, "keep": keep}
    y = attention_reference(q, *serve_groups(q, k, v), **given)
    expected = [y, *torch.autograd.grad(y, wide, dy.double())]
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        close(one, other.detach(), TOLERANCE[case.dtype])
    assert all(torch.equal(*pair) for pair in zip(found, by_kernels(case, parts, mask, keep, dy), strict=True))


def test_a_query_that_sees_no_key_gets_zeros():
    case = Case(causal=True, lengths=(6, 6, 6))
    parts, mask, _ = inputs(case)
    assert mask is not None
    mask[0, ..., :2] = False  # the first two queries have no past
    y, *grads = by_kernels(case, parts, mask, None, torch.ones(3, 2, 6, 8, device=DEVICE))
    assert (y[0, :, :2] == 0).all()
    assert (grads[0][0, :, :2] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


# Calls of `attention`


def test_off_unless_asked_for():
    assert not is_on()
    with fused():
        assert is_on()
        with torch.no_grad():
            assert not is_on()
    assert not is_on()


LEFT_TO_TORCH = {
    "queries": (Case(queries=65), None),
    "keys": (Case(keys=65), None),
    "channels": (Case(width=129), None),
    "channels of a short row": (Case(width=320, dtype=torch.float16), None),
    "float32": (Case(queries=40, keys=40), None),
    "float64": (Case(dtype=torch.float64), None),
    "mask": (Case(), torch.ones(3, 1, 6, 6, dtype=torch.bool)),
    "heads": (Case(heads=3), None),
}


@pytest.mark.parametrize(("case", "mask"), LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_other_calls_are_left_to_torch(case, mask):
    assert not is_served(*inputs(case)[0], None, mask)
    assert is_served(*inputs(Case())[0], None, None)


def test_longer_rows_are_as_today():
    parts, *_ = inputs(Case(queries=65, keys=65))
    with fused():
        found = attention(*parts, causal=True)
    assert torch.equal(found, attention(*parts, causal=True))


def test_dropout_follows_the_seed_and_keeps_the_mean():
    case = Case(batch=8, queries=32, keys=32, drop=0.25)
    q, k, _ = inputs(case)[0]
    v = torch.ones_like(k)

    def call(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with fused():
            return attention(q, k, v, dropout=case.drop)

    assert torch.equal(call(1), call(1))
    assert not torch.equal(call(1), call(2))
    # Sums of the weights that are left, scaled
    assert abs(float(call(1).detach().mean()) - 1.0) < 0.02
    keep = keep_words((8, 2, 32), 32, case.drop)
    assert abs(float(unpack(keep, 32).float().mean()) - 0.75) < 0.02


def test_checkpointed_layer_runs_again_with_the_same_mask():
    """The layer runs again in the thread of the backward pass, which is another thread on a GPU."""
    q, k, v = inputs(Case())[0]

    def gradients(call: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        return torch.autograd.grad(call(), (q, k, v), torch.ones_like(q))

    with fused():
        plain = gradients(lambda: attention(q, k, v, dropout=0.5))
        again = gradients(lambda: checkpoint(attention, q, k, v, dropout=0.5, use_reentrant=False))
    assert all(torch.equal(*pair) for pair in zip(plain, again, strict=True))


# Mixers

SELF = {
    "attention": (Attention, {}),
    "grouped": (Attention, {"num_heads": 4, "num_kv_heads": 2}),
    "rotary": (Attention, {"rotary": True}),
    "qk_norm": (NormalizedAttention, {}),
    "relative_bias": (RelativeBias, {"max_offset": 3}),
    "relative": (Relative, {}),
    "quadratic": (Quadratic, {"content": True}),
    "preconv": (PreconvAttention, {}),
    "postconv": (PostconvAttention, {}),
}
LENGTHS = (7, 1, 4)


def trained(mixer: Any, *given: Tensor) -> list[Tensor]:
    """The result and the gradients of inputs and parameters."""
    x, mask, *memory = (part.detach().requires_grad_(part.is_floating_point()) for part in given)
    y = mixer(x, mixer.project(*memory, mask)) if memory else mixer(x, mask)
    real = y if memory else y[mask]
    return [y, *torch.autograd.grad(real.square().sum(), [x, *memory, *mixer.parameters()])]


def same_by_both_ways(monkeypatch: pytest.MonkeyPatch, mixer: nn.Module, *given: Tensor) -> list[str]:
    """Compare a training pass with `fused` on and off, and return the launches and the copies that join tensors."""
    mixer = jiggle(mixer).to(DEVICE)
    expected = trained(mixer, *given)
    seen: list[str] = []
    for module, name in ((triton, "forward"), (triton, "backward"), (torch, "cat")):
        own = getattr(module, name)
        noted = lambda *a, own=own, name=name, **more: (seen.append(name), own(*a, **more))[1]  # noqa: E731
        monkeypatch.setattr(module, name, noted)
    with fused():
        found = trained(mixer, *given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    return seen


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("name", list(SELF))
def test_self_mixers_train_by_it(name, causal, monkeypatch):
    kind, options = SELF[name]
    mixer = kind(**{"dim": 16, "causal": causal, "num_heads": 2, **options})
    x, mask = torch.randn(3, 7, 16, device=DEVICE), lengths_mask(LENGTHS).to(DEVICE)
    seen = same_by_both_ways(monkeypatch, mixer, x, mask)
    assert [name for name in seen if name != "cat"] == ["forward", "backward"]
    if name in ("attention", "grouped", "relative_bias"):
        assert "cat" not in seen  # nothing of the joint projection is copied


@pytest.mark.parametrize("queries", [5, 7])
@pytest.mark.parametrize("kind", [CrossAttention, NormalizedCrossAttention])
def test_cross_mixers_train_by_it(kind, queries, monkeypatch):
    x, memory = torch.randn(3, queries, 16, device=DEVICE), torch.randn(3, 7, 12, device=DEVICE)
    mixer = kind(dim=16, memory_dim=12, num_heads=2)
    seen = same_by_both_ways(monkeypatch, mixer, x, lengths_mask(LENGTHS).to(DEVICE), memory)
    assert [name for name in seen if name != "cat"] == ["forward", "backward"]
    assert ("cat" in seen) == (kind is not CrossAttention)


def test_low_rank_mixers_have_rows_of_their_own(monkeypatch):
    mixer = LowRank(dim=16, causal=False, num_heads=2, rank=3, max_len=9)
    x, mask = torch.randn(3, 7, 16, device=DEVICE), lengths_mask(LENGTHS).to(DEVICE)
    assert "forward" in same_by_both_ways(monkeypatch, mixer, x, mask)


def test_parts_are_joined_where_they_lie_side_by_side():
    whole = torch.randn(2, 3, 10)
    first, second = whole[..., 2:4], whole[..., 4:9]
    joined = side_by_side((first, second))
    assert joined is not None
    assert torch.equal(joined, whole[..., 2:9])
    for apart in ((second, first), (first, first), (first, second.clone()), (first, whole[..., 5:9])):
        assert side_by_side(apart) is None


def test_divided_parts_have_the_gradients_of_a_split():
    x = torch.randn(2, 3, 9, requires_grad=True)
    with fused():
        divided = divide(x, 2, 3, 4)
    found, expected = (
        torch.autograd.grad([part.pow(n + 2).sum() for n, part in enumerate(parts)], x)[0]
        for parts in (divided, x.split([2, 3, 4], -1))
    )
    assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "width"), [(28, 28, 64), (40, 48, 64), (64, 64, 128)])
def test_as_exact_as_torchs_kernels(queries, keys, width, causal):
    case = Case(64, 8, 8, queries, keys, width, causal=causal, dtype=torch.bfloat16)
    parts, *_ = inputs(case)
    dy = torch.randn(64, 8, queries, width, device=DEVICE, dtype=case.dtype)
    found = by_kernels(case, parts, None, None, dy)
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        given = [part.detach().to(dtype).requires_grad_() for part in parts]
        y = F.scaled_dot_product_attention(*given, is_causal=causal)
        results.append([y, *torch.autograd.grad(y, given, dy.to(dtype))])
    for one, torchs, exact in zip(found, *results, strict=True):
        assert (one - exact).norm() <= 1.5 * (torchs - exact).norm()
