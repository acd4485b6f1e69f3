"""LightConv's kernels for sentences of one tile, and the gate by tanh, against definitions in float64."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import DEVICE

pytest.importorskip("triton")

from seq2seq.kernels.launch_config import Config, one_tile, override
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv import triton as lightconv_triton
from seq2seq.kernels.lightconv.reference import lightconv_reference

# What `make test` runs of the cases
REPRESENTATIVE = {"test_sentences_of_one_tile": ["27-plain", "33-glu"], "test_narrow_types_with_a_gate": ["20"]}
EXHAUSTIVE = {"test_other_sentences_take_other_kernels"}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3 if DEVICE == "cuda" else 1e-2}


def close(found: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    error = torch.linalg.vector_norm(found.double() - wanted) / torch.linalg.vector_norm(wanted)
    assert error < limit, error


def check(length: int, taps: int, causal: bool, glu: bool, dtype: torch.dtype = torch.float32, width: int = 4) -> None:
    """Compare values and gradients of three sentences with bounds, the last one empty."""
    heads, channels = 2, 2 * width
    x = torch.randn(3, length, channels * (2 if glu else 1), device=DEVICE).to(dtype)
    weights = torch.randn(heads, taps, device=DEVICE).softmax(-1)
    dy = torch.randn(3, length, channels, device=DEVICE).to(dtype)
    start = torch.tensor([0, min(1, length - 1), length], device=DEVICE)
    end = torch.tensor([length, max(length - 2, 1), length], device=DEVICE)
    place = torch.arange(length, device=DEVICE)
    inside = ((place >= start[:, None]) & (place < end[:, None]))[:, :, None]
    exact = [part.double().requires_grad_() for part in (x, weights)]
    values = exact[0][..., :channels] * exact[0][..., channels:].sigmoid() if glu else exact[0]
    y = lightconv_reference(values * inside, exact[1], causal=causal)
    given = [part.clone().requires_grad_() for part in (x.masked_fill(~inside, float("nan")), weights)]
    found = lightconv(*given, causal=causal, glu=glu, start=start, end=end, backend="triton")
    close(found, y.detach(), TOLERANCE[dtype])
    wanted = torch.autograd.grad(y, exact, dy.double())
    for part, expected in zip(torch.autograd.grad(found, given, dy), wanted, strict=True):
        close(part, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("glu", [False, True], ids=["plain", "glu"])
@pytest.mark.parametrize("length", [1, 5, 16, 17, 27, 32, 33, 64])
def test_sentences_of_one_tile(length, glu, monkeypatch):
    """At the borders of tiles, shorter and longer than K, with fewer programs than sentences."""
    for name in lightconv_triton.PROGRAMS:
        monkeypatch.setitem(lightconv_triton.PROGRAMS, name, random.choice([1, 4]))
    for name in ("band_forward", "band_backward", "direct_forward", "direct_backward"):
        monkeypatch.setattr(lightconv_triton, name, None)
    for taps in (4, random.choice([7, 16, 17]), random.choice([31, 34, 64])):
        check(length, taps, random.random() < 0.5, glu)


def test_other_sentences_take_other_kernels(monkeypatch):
    """Those of more than 64 positions, few taps, and settings that are asked for."""
    for name in ("one_tile_forward", "one_tile_backward"):
        monkeypatch.setattr(lightconv_triton, name, None)
    check(65, 4, False, True)
    check(9, 3, True, False)
    with (
        override("lightconv", Config(16, 1, num_warps=4, num_stages=1)),
        override("lightconv_backward", Config(16, 2, num_warps=4, num_stages=1)),
    ):
        check(27, 4, False, True)
    assert one_tile("lightconv", 31, 64, 64, torch.bfloat16) == 64
    with pytest.raises(TypeError, match="NoneType"):
        check(9, 4, True, True)


@pytest.mark.parametrize("length", [20, 70])
def test_narrow_types_with_a_gate(length):
    """The gate is a tanh there; 70 is more than one tile."""
    check(length, 6, random.random() < 0.5, True, random.choice([torch.float16, torch.bfloat16]))


def test_parts_of_a_head_in_one_tile():
    """Heads of 48 channels, of which a program takes 32: the last ones are none."""
    settings = Config(32, 1, 4, 2, columns=32)
    with override("lightconv_one_tile", settings), override("lightconv_backward_one_tile", settings):
        check(20, 5, False, True, width=48)


def test_gate_by_tanh_is_exact_enough_for_16_bits():
    """tanh.approx errs by 2^-11 at most; so a gate does by 2^-12, and gated values by far less than their rounding."""
    a, b = torch.randn(2, 100_000, dtype=torch.float64)
    error = (torch.rand_like(a) * 2 - 1) * 2**-11
    gates = 0.5 * torch.tanh(0.5 * b) * (1 + error) + 0.5
    assert (gates - b.sigmoid()).abs().max() < 2**-12
    wanted = a * b.sigmoid()
    missed = [torch.linalg.vector_norm(found - wanted) for found in (a * gates, wanted.bfloat16())]
    assert missed[0] < missed[1] / 8
    close(a * gates, wanted, TOLERANCE[torch.float16] / 16)
