"""Attention on a GPU: packed rows against their definition, and the setting of cuDNN is kept for other code."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from seq2seq.kernels import attention as kernel
from seq2seq.kernels.attention import packed
from seq2seq.kernels.attention.reference import attention_reference
from seq2seq.mixers.attention import Attention, CrossAttention

LENGTHS = [3, 7, 1, 7]


def inputs(queries: int = 5, keys: int = 7, heads: int = 2, width: int = 8, **options: object) -> tuple[Tensor, ...]:
    """q, k and v, and the mask of LENGTHS."""
    q, k, v = (torch.randn(len(LENGTHS), heads, length, width, **options) for length in (queries, keys, keys))
    mask = torch.arange(keys, device=q.device) < torch.tensor(LENGTHS, device=q.device)[:, None]
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask


def attend_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, q_bounds: Tensor, k_bounds: Tensor, longest_q: int, longest_k: int
) -> Tensor:
    """Attend only within each sequence, as torch's `varlen_attn` does: q, k, v (all queries or keys, H, d)."""
    parts = []
    for i in range(len(q_bounds) - 1):
        queries = slice(int(q_bounds[i]), int(q_bounds[i + 1]))
        keys = slice(int(k_bounds[i]), int(k_bounds[i + 1]))
        assert queries.stop - queries.start <= longest_q
        assert keys.stop - keys.start <= longest_k
        one = (q[queries].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1))  # (H, ., d)
        parts.append(attention_reference(*one).transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Let the reference implementation take the place of torch's kernel, which needs a GPU."""
    monkeypatch.setattr(packed, "varlen_attn", attend_by_sequence)
    monkeypatch.setattr(packed, "obstacle", lambda q, dropout: None)


def test_bounds_by_hand():
    queries, keys = packed.bounds(torch.tensor([2, 4]), queries=3, keys=4)
    # Row 0: three queries and two keys, then two padded keys; row 1 has no padding
    assert queries.tolist() == [0, 3, 3, 6, 6]
    assert keys.tolist() == [0, 2, 4, 8, 8]
    assert queries.dtype == keys.dtype == torch.int32


@pytest.mark.parametrize("queries", [5, 7])
def test_packed_is_masked_attention(on_a_cpu, queries):
    q, k, v, mask = inputs(queries, dtype=torch.float64)
    found, expected = packed.packed_attention(q, k, v, mask), attention_reference(q, k, v, mask=mask[:, None, None])
    torch.testing.assert_close(found, expected)
    dy = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad(y, (q, k, v), dy) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_mixers_train_packed_and_decode_with_masks(on_a_cpu, monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(packed, "varlen_attn", lambda *given: [calls.append("packed"), attend_by_sequence(*given)][1])
    mask = inputs()[-1]
    x = torch.randn(len(LENGTHS), 7, 16)
    for kind in ("self", "cross"):
        torch.manual_seed(1)
        results = []
        for flag in (True, False):
            if kind == "self":
                mixer = Attention(dim=16, causal=False, num_heads=2, packed=flag)
            else:
                mixer = CrossAttention(dim=16, memory_dim=16, num_heads=2, packed=flag)
            mixer.load_state_dict(results[0][0].state_dict() if results else mixer.state_dict())
            given = mask if kind == "self" else mixer.project(x.flip(0), mask)
            results.append((mixer, mixer.train()(x, given)))
            before = len(calls)
            mixer.eval()(x, given)
            assert len(calls) == before
        torch.testing.assert_close(results[0][1], results[1][1])
    assert len(calls) == 2


def test_where_it_cannot_serve_it_says_what_to_change():
    q, k, v, mask = inputs()
    with pytest.raises(ValueError, match="needs a GPU, and tensors are on cpu, or leave packed at false"):
        packed.packed_attention(q, k, v, mask)
    with pytest.raises(ValueError, match=r"model\.attention_dropout=0"):
        packed.packed_attention(q, k, v, mask, dropout=0.1)
    with pytest.raises(ValueError, match="12 channels"):
        packed.packed_attention(*(part.new_zeros(1, 1, 2, 12) for part in (q, k, v)), mask)
    with pytest.raises(ValueError, match="packed"):
        Attention(dim=16, causal=True, num_heads=2, packed=True)


def test_another_machine_decodes_without_packing():
    for kind in (Attention, CrossAttention):
        assert kind.portable_values({"num_heads": 2, "packed": True}) == {"num_heads": 2, "packed": False}
        assert kind.portable_values({"num_heads": 2}) == {"num_heads": 2}


@pytest.mark.parametrize("allowed", [True, False])
def test_cudnn_is_off_in_our_calls_alone(allowed):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        assert isinstance(kernel.without_cudnn(False), contextlib.nullcontext)
        assert isinstance(kernel.without_cudnn(True), contextlib.nullcontext) is not allowed
        with contextlib.suppress(KeyError), kernel.without_cudnn(True):
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            assert torch.backends.cuda.flash_sdp_enabled()
            raise KeyError
        assert torch.backends.cuda.cudnn_sdp_enabled() is allowed
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("queries", "taken"), [(28, False), (128, False), (129, True)])
def test_short_rows_do_without_flash_attention(queries, taken):
    claimed: Any = SimpleNamespace(is_cuda=True, shape=(2, 8, queries, 64))
    before = torch.backends.cuda.flash_sdp_enabled()
    with contextlib.suppress(KeyError), kernel.without_flash(claimed):
        assert torch.backends.cuda.flash_sdp_enabled() is (taken and before)
        raise KeyError
    assert torch.backends.cuda.flash_sdp_enabled() is before
    assert isinstance(kernel.without_flash(torch.zeros(1, 1, queries, 4)), contextlib.nullcontext)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys", "width"), [(7, 7, 64), (5, 7, 32), (33, 16, 128), (130, 264, 64)])
def test_packed_on_a_gpu(queries, keys, width):
    """Compare with the definition in float32; padded keys get no gradient."""
    q, k, v, mask = inputs(queries, keys, width=width, device="cuda", dtype=torch.bfloat16)
    found = packed.packed_attention(q, k, v, mask)
    wide = [part.detach().float().requires_grad_() for part in (q, k, v)]
    expected = attention_reference(*wide, mask=mask[:, None, None])
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)
    dy = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (q, k, v), dy)
    for one, other in zip(gradients, torch.autograd.grad(expected, wide, dy.float()), strict=True):
        torch.testing.assert_close(one.float(), other, atol=5e-2, rtol=5e-2)
    for one in gradients[1:]:
        assert not one.transpose(1, 2)[~mask].any()


@pytest.mark.gpu
def test_packed_compiles_into_one_graph():
    call = torch.compile(packed.packed_attention, fullgraph=True, dynamic=True)
    for keys in (16, 24):
        q, k, v, mask = inputs(8, keys, width=64, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(call(q, k, v, mask), packed.packed_attention(q, k, v, mask))
