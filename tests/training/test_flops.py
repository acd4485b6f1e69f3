"""FLOPs of a training step: against torch's own counter on real tensors, and against formulas written out here."""

from __future__ import annotations

import logging

import pytest
import torch
from composed import TINY, VOCAB, config, lengths_mask, random_tokens
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.network.build import build_model, on_meta_device
from seq2seq.training.machine import flops
from seq2seq.training.machine.flops import TrainingFlops, training_flops

CORE = ("transformer", "lightconv", "dynamicconv", "bahdanau")
D, F, H, LAYERS = 16, 24, 2, 4  # of TINY
KERNELS = {"encoder": [3, 7, 15, 31, 31], "decoder": [3, 7, 15, 31]}


def counted(settings: dict, rows: int, src_len: int, tgt_len: int) -> int:
    found = training_flops(settings)
    assert found is not None
    assert found.polynomial
    return found(rows, src_len, tgt_len)


REPRESENTATIVE = {
    "test_agrees_with_torchs_counter": (),
    "test_agrees_with_formulas": {"lightconv"},
}


def measured(settings: dict, rows: int, src_len: int, tgt_len: int) -> int:
    """FlopCounterMode over a real forward and backward pass; SDPA by its definition, whose products it sees."""
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
    """Exactly, but for the band products, and for products of which one factor is constant and needs no gradient."""
    settings = config(f"mixer={name}", *TINY)
    constant = 0
    if name == "bahdanau":
        # The mask (B, 1, S) that averages the memory (B, S, D), and the first state of two recurrences, which is zero
        constant = LAYERS * (2 * shape[0] * shape[1] * D + 2 * (2 * shape[0] * (D // 2) * 3 * (D // 2)))
    assert counted(settings, *shape) == measured(settings, *shape) - band_excess(name, *shape) + constant


def by_formula(name: str, rows: int, src_len: int, tgt_len: int) -> int:
    """Forward FLOPs from the sizes alone: 2 m n k for every product."""
    src, tgt = rows * src_len, rows * tgt_len
    ffn = 2 * D * F * 2
    total = 2 * tgt * D * VOCAB + LAYERS * ffn * tgt
    cross = LAYERS * (2 * tgt * D * D * 2 + 2 * src * D * 2 * D + 2 * 2 * rows * tgt_len * src_len * D)
    if name == "transformer":
        own = LAYERS * sum(
            n * 8 * D * D + rows * length * length * 4 * D for n, length in ((src, src_len), (tgt, tgt_len))
        )
        return total + cross + own + LAYERS * ffn * src
    own = 0
    for side, n in (("encoder", src), ("decoder", tgt)):
        for taps in KERNELS[side]:
            own += n * (2 * D * 2 * D + 2 * D * D + 2 * taps * D)
            own += n * 2 * D * H * taps if name == "dynamicconv" else 0
    return total + cross + own + (LAYERS + 1) * ffn * src


@pytest.mark.parametrize("name", ["transformer", "lightconv", "dynamicconv"])
def test_agrees_with_formulas(name):
    for shape in ((1, 5, 4), (7, 24, 31), (2, 300, 200)):
        assert counted(config(f"mixer={name}", *TINY), *shape) == 3 * by_formula(name, *shape)


@pytest.mark.slow
def test_recurrence_agrees_with_formulas():
    """BiGRU with H = D / 2 a direction; Bahdanau with scores of width D, read at every target position."""
    rows, src_len, tgt_len = 3, 11, 6
    src, tgt, half = rows * src_len, rows * tgt_len, D // 2
    ffn = 2 * D * F * 2
    encoder = LAYERS * src * (2 * (2 * D * 3 * half + 2 * half * 3 * half) + ffn)
    # Keys, first state and mean of the memory
    project = LAYERS * (2 * src * D * D + 2 * rows * D * D + 2 * rows * src_len * D)
    # Query, scores and sum over the source; gates from input, reading and state; readout of state and reading
    attend = 2 * D * D + 2 * src_len * D + 2 * src_len * D
    decoder = LAYERS * tgt * (attend + 3 * (2 * D * 3 * D) + 2 * (2 * D * D) + ffn)
    expected = 3 * (encoder + project + decoder + 2 * tgt * D * VOCAB)
    assert counted(config("mixer=bahdanau", *TINY), rows, src_len, tgt_len) == expected


@pytest.mark.slow
def test_a_base_transformer_costs_what_the_literature_says():
    """365 MFLOP a target token at 27 + 27 tokens and a vocabulary of 32k."""
    settings = config("mixer=transformer", "model=base", src_vocab_size=32000, tgt_vocab_size=32000)
    per_token = counted(settings, 32, 27, 27) / (32 * 27)
    assert per_token == pytest.approx(365e6, rel=0.01)


@pytest.mark.parametrize("mixer", ["local_mlp", "local"])
def test_counts_blocks_of_long_sentences_as_they_are(mixer):
    """Both compute all pairs of positions up to some length, and blocks beyond it."""
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


def test_counts_each_shape_where_no_polynomial_fits(monkeypatch):
    """A mixer whose work depends on length in steps: blocks of 16 positions."""
    from seq2seq.mixers.attention import Attention

    def blocked(self, x, mask):
        length = -(-x.shape[1] // 16) * 16
        padded = torch.nn.functional.pad(x, (0, 0, 0, length - x.shape[1]))
        return self.out(self.qkv(padded).chunk(3, -1)[0])[:, : x.shape[1]]

    monkeypatch.setattr(Attention, "forward", blocked)
    shallow = ("model.encoder_layers=1", "model.decoder_layers=1")
    with on_meta_device():
        count = TrainingFlops(build_model(config("mixer=transformer", *TINY, *shallow)))
    assert not count.polynomial
    one, other = count(4, 17, 5), count(4, 32, 5)
    cross_and_ffn = 2 * 4 * 15 * D * 2 * D + 4 * 4 * 5 * 15 * D + 4 * 15 * 4 * D * F
    assert other - one == 3 * cross_and_ffn  # 17 and 32 positions are the same two blocks to the mixer


def test_a_mixer_that_needs_data_costs_a_warning(monkeypatch, caplog):
    from seq2seq.mixers.attention import Attention

    flops._training_flops.cache_clear()
    monkeypatch.setattr(Attention, "forward", lambda self, x, mask: x * int(mask.sum()))
    with caplog.at_level(logging.WARNING):
        assert training_flops(config("mixer=transformer", *TINY)) is None
    assert "does not run on the meta device" in caplog.text
    flops._training_flops.cache_clear()
