"""FLOPs of a training step against torch's own counter on real tensors, and against the literature."""

from __future__ import annotations

import logging

import pytest
import torch
from composed import TINY, config, lengths_mask, random_tokens
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.network.build import build_model
from seq2seq.training.machine import flops
from seq2seq.training.machine.flops import training_flops

REPRESENTATIVE = {"test_agrees_with_torchs_counter": {"(3, 9, 7)-lightconv"}}
EXHAUSTIVE = {"test_counts_blocks_of_long_sentences_as_they_are"}
CORE = ("transformer", "lightconv", "dynamicconv", "bahdanau")
D, LAYERS = 16, 4  # of TINY
KERNELS = {"encoder": [3, 7, 15, 31, 31], "decoder": [3, 7, 15, 31]}


def counted(settings: dict, rows: int, src_len: int, tgt_len: int) -> int:
    found = training_flops(settings)
    assert found is not None
    assert found.polynomial
    return found(rows, src_len, tgt_len)


def measured(settings: dict, rows: int, src_len: int, tgt_len: int) -> int:
    """FlopCounterMode over a real forward and backward pass, with SDPA by its definition, whose products count."""
    model = build_model(settings).eval()
    src, tgt = (random_tokens(lengths_mask([length] * rows)) for length in (src_len, tgt_len))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(src, torch.ones_like(src).bool(), tgt).square().sum().backward()
    return counter.get_total_flops()


def band_excess(name: str, rows: int, src_len: int, tgt_len: int) -> int:
    """Cost of three products with a band matrix (T, T) beyond K multiply-adds a position and channel."""
    if name not in ("lightconv", "dynamicconv"):
        return 0
    sides = (("encoder", src_len), ("decoder", tgt_len))
    return sum(6 * rows * length * D * (length - taps) for side, length in sides for taps in KERNELS[side])


@pytest.mark.parametrize("name", CORE)
@pytest.mark.parametrize("shape", [(3, 9, 7), (2, 40, 35)], ids=str)
def test_agrees_with_torchs_counter(name, shape):
    """Counts agree exactly, except band products, and products with a constant factor, which needs no gradient."""
    settings = config(f"mixer={name}", *TINY)
    constant = 0
    if name == "bahdanau":
        # The mask (B, 1, S) that averages the memory (B, S, D), and the first state of two recurrences, which is zero
        constant = LAYERS * (2 * shape[0] * shape[1] * D + 2 * (2 * shape[0] * (D // 2) * 3 * (D // 2)))
    assert counted(settings, *shape) == measured(settings, *shape) - band_excess(name, *shape) + constant


@pytest.mark.slow
def test_a_base_transformer_costs_what_the_literature_says():
    """365 MFLOP a target token at 27 + 27 tokens and a vocabulary of 32k."""
    settings = config("mixer=transformer", "model=base", src_vocab_size=32000, tgt_vocab_size=32000)
    per_token = counted(settings, 32, 27, 27) / (32 * 27)
    assert per_token == pytest.approx(365e6, rel=0.01)


@pytest.mark.parametrize("mixer", ["local_mlp", "local"])
def test_counts_blocks_of_long_sentences_as_they_are(mixer):
    """Both kinds of mixers compute all pairs of positions up to some length, and blocks beyond it."""
    wide = ("mixer.encoder.window=64", "mixer.decoder.window=64") if mixer == "local" else ()
    shallow = ("model.encoder_layers=1", "model.decoder_layers=1")
    settings = config(f"mixer={mixer}", *TINY, *shallow, *wide)
    count = training_flops(settings)
    assert count is not None
    assert not count.polynomial
    assert count(2, 250, 240) == 3 * count._counted(2, 250, 240)


def test_a_window_that_only_longer_sentences_exceed():
    """The checks at the beginning pass: those before a longer batch find that there are blocks."""
    wide = ("mixer.encoder.window=160", "mixer.decoder.window=160")
    count = training_flops(config("mixer=local", *TINY, "model.encoder_layers=1", "model.decoder_layers=1", *wide))
    assert count is not None
    assert count.polynomial
    assert count(2, 250, 240) == 3 * count._counted(2, 250, 240)
    assert count.polynomial
    assert count(2, 700, 650) == 3 * count._counted(2, 700, 650)
    assert not count.polynomial


def test_a_mixer_that_needs_data_costs_a_warning(monkeypatch, caplog):
    from seq2seq.mixers.attention import Attention

    flops._training_flops.cache_clear()
    monkeypatch.setattr(Attention, "forward", lambda self, x, mask: x * int(mask.sum()))
    with caplog.at_level(logging.WARNING):
        assert training_flops(config("mixer=transformer", *TINY)) is None
    assert "does not run on the meta device" in caplog.text
    flops._training_flops.cache_clear()
