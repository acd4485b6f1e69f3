"""Attention within a window equals full attention under a band mask; its cost is linear, and its state a ring."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config, lengths_mask
from conftest import jiggle
from exact import wide
from test_conformance import WIDTH, Stepper, close
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.mixers.local import Local
from seq2seq.network.build import build_model

KINDS = [
    {},
    {"blocks": True},
    {"blocks": True, "shift": 1},
    {"blocks": True, "shift": 3},
    {"relative_bias": True},
    {"relative_bias": True, "blocks": True, "shift": 2},
]


def band(mixer: Local, length: int) -> Tensor:
    """Return which position sees which, (T, T), one pair at a time."""
    seen = torch.zeros(length, length, dtype=torch.bool)
    for q in range(length):
        for k in range(length):
            if mixer.blocks:
                near = (q + mixer.shift) // mixer.window == (k + mixer.shift) // mixer.window
            else:
                near = q - k < mixer.window if mixer.causal else abs(q - k) <= mixer.window // 2
            seen[q, k] = near and not (mixer.causal and k > q)
    return seen


def banded(mixer: Local, x: Tensor, mask: Tensor) -> Tensor:
    """Full attention under the band mask, with the mixer's weights."""
    q, k, v = (part.unflatten(-1, (mixer.num_heads, -1)).transpose(1, 2) for part in mixer.qkv(x).chunk(3, -1))
    length = x.shape[1]
    allowed = band(mixer, length)
    bias = torch.zeros(mixer.num_heads, length, length, dtype=x.dtype)
    if mixer.bias is not None:
        # One pair of positions after another: the first row of the table is the most negative offset
        reach = mixer.window - 1 if mixer.blocks or mixer.causal else mixer.window // 2
        rows = [[mixer.bias[(k - q + reach) % len(mixer.bias)] for k in range(length)] for q in range(length)]
        bias = torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)
    scores = bias.masked_fill(~(allowed & mask[:, None, None, :]), float("-inf"))
    return mixer.out(F.scaled_dot_product_attention(q, k, v, attn_mask=scores).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [4, 5])
def test_is_attention_under_a_band_mask(window, causal, given):
    """Values and gradients, at lengths around one span of keys and far beyond, whole blocks and broken ones."""
    mixer = jiggle(Local(dim=8, causal=causal, num_heads=2, window=window, **given).double())
    for length in (1, 3, window, 2 * window - 1, 2 * window, 2 * window + 2, 6 * window, 6 * window + 1):
        x, mask = wide(2, length, 8).requires_grad_(), lengths_mask([length, length // 2 + 1], length)
        weight = wide(2, length, 8) * mask[:, :, None]
        found, expected = mixer(x, mask), banded(mixer, x, mask)
        torch.testing.assert_close(found[mask], expected[mask], atol=1e-12, rtol=1e-12)
        inputs = (x, *mixer.parameters())
        pair = (torch.autograd.grad((weight * y.nan_to_num()).sum(), inputs) for y in (found, expected))
        for mine, theirs in zip(*pair, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("given", KINDS, ids=str)
def test_the_ring_turns(given):
    """`step` = `forward` long after the ring is full, over shuffled beams."""
    mixer = jiggle(Local(dim=WIDTH, causal=True, num_heads=2, window=5, **given))
    steps = Stepper(mixer, 2, 2, 23, torch.empty(0))
    for t in range(23):
        close(steps.step(), steps.expected(), 1e-5)
        if t % 3 == 0:
            steps.reorder()
    assert steps.state.past.shape == (4, 5, 2 * WIDTH)


@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_cost_grows_with_the_length(causal, given):
    """Each further block costs the same, and no intermediate tensor is as large as T x T."""
    mixer = Local(dim=8, causal=causal, num_heads=2, window=8, **given)

    def work(length: int) -> int:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            mixer(torch.randn(1, length, 8), lengths_mask([length]))
        return counter.get_total_flops()

    first, second, third = (work(length) for length in (64, 128, 192))
    assert third - second == second - first > 0
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(part.numel() for part in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(part))
            return out

    with Sizes():
        mixer(torch.randn(1, 1024, 8), lengths_mask([1024]))
    assert max(sizes) < 1024 * 1024 / 16


def test_the_preset_shifts_every_other_layer():
    """Every other layer is shifted at any depth, so that its blocks join the borders of the layer before."""
    for preset, biased in {"local_blocks": False, "swin": True}.items():
        model = build_model(config(f"mixer={preset}", *TINY, "model.encoder_layers=5"))
        assert [layer.self_mixer.shift for layer in model.encoder.layers] == [0, 8, 0, 8, 0]
        decoder = [layer.self_mixer for layer in model.decoder.layers]
        assert all(mixer.blocks and mixer.window == 16 for mixer in decoder)
        assert all((mixer.bias is not None) == biased for mixer in decoder)


def test_refusals():
    for window in (0, -2):
        with pytest.raises(ValueError, match=f"window is {window}"):
            Local(dim=8, causal=False, num_heads=2, window=window)
    for given in ({"blocks": True, "shift": 4}, {"blocks": True, "shift": -1}, {"shift": 1}):
        with pytest.raises(ValueError, match=f"shift is {given['shift']}"):
            Local(dim=8, causal=False, num_heads=2, window=4, **given)
