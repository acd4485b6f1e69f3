"""Layers by hand, embeddings by their formulas, and the whole model: its two ways to decode agree."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from composed import BOS, PAD, PRESETS, TINY, VOCAB, config, lengths_mask, of_rows, random_tokens, tiny
from conftest import jiggle
from exact import close
from torch import Tensor, nn

from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.network.build import build_model
from seq2seq.network.embedding import Embedding, LearnedPositions, SinusoidalPositions, make_positions, make_table
from seq2seq.network.model import DecoderLayer, EmptySlot, EncoderLayer, FeedForward, Seq2Seq, Sublayer
from seq2seq.network.state import reorder

# `make test-all` has every preset, as conformance has of every mixer by itself.
_CORE = {"transformer", "dynamicconv", "bahdanau"}
REPRESENTATIVE = {
    "test_step_is_forward": _CORE,
    "test_padding_changes_nothing": _CORE,
    "test_autocast_trains": _CORE,
    "test_bfloat16_weights_decode": _CORE,
}
DIM = 8
RNNSEARCH = (
    "mixer=bahdanau",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.norm=none",
    "model.residual=false",
    "model.positions=none",
    "model.ffn_dim=0",
    "model.tie=none",
    "model.scale_embedding=false",
    "+mixer.encoder.out_dim=20",
    "mixer.encoder.reset=before",
    "mixer.cross.reset=before",
    "mixer.cross.readout=maxout",
    "mixer.cross.initial=backward",
    "+mixer.cross.hidden_dim=10",
    "+mixer.cross.out_dim=6",
    "+mixer.cross.score_dim=9",
)
MODELS = {preset: (f"mixer={preset}",) for preset in PRESETS} | {
    "attention-dynamicconv": ("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv"),
    "bigru-lightconv-additive": (
        "mixer=bahdanau",
        "mixer/self@mixer.decoder=lightconv",
        "mixer/cross=additive",
        "model.norm=post",
    ),
    "conv-bahdanau": ("mixer=dynamicconv", "mixer/cross=bahdanau", "model.positions=learned", "model.tie=target"),
    "dynamicconv-unnormalized": ("mixer=dynamicconv", "+mixer.encoder.softmax=false", "+mixer.decoder.softmax=false"),
    "rnnsearch": RNNSEARCH,
}
every_model = pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS.keys())


def norm(x: Tensor, layer: nn.LayerNorm | None) -> Tensor:
    """Layer norm by its formula."""
    assert layer is not None
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def sublayer(x: Tensor, f, around: Sublayer | None, kind: str, residual: bool) -> Tensor:
    """x + f(norm(x)), norm(x + f(x)) or x + f(x); without the residual, the same without the first x."""
    assert around is not None
    y = f(norm(x, around.pre_norm)) if kind == "pre" else f(x)
    y = x + y if residual else y
    return norm(y, around.post_norm) if kind == "post" else y


def slot(f: Any, kind: str, residual: bool) -> Any:
    """The sublayer of a mixer or feed-forward, or an empty slot."""
    if f is None:
        return EmptySlot(dim=DIM)
    return Sublayer(f=f, dim=DIM, out_dim=DIM, norm=kind, dropout=0.5, residual=residual)


every_layer = [(norm, residual) for norm in ("pre", "post", "none") for residual in (True, False)]


@pytest.mark.parametrize(("kind", "residual"), every_layer)
def test_encoder_layer_by_hand(kind, residual):
    mixer, ffn = Attention(dim=DIM, causal=False, num_heads=2), FeedForward(dim=DIM, ffn_dim=12)
    mix, transform = (slot(f, kind, residual) for f in (mixer, ffn))
    layer = jiggle(EncoderLayer(mix=mix, transform=transform)).double().eval()
    x, mask = torch.randn(3, 5, DIM).double(), lengths_mask([5, 2, 4])
    y = sublayer(x, lambda h: mixer(h, mask), layer.mix, kind, residual)
    y = sublayer(y, lambda h: ffn.down(ffn.up(h).clamp(min=0)), layer.transform, kind, residual)
    close(layer(x, mask), y)


@pytest.mark.parametrize(("kind", "residual"), every_layer)
@pytest.mark.parametrize("slots", ["all", "cross"])
def test_decoder_layer_by_hand(kind, residual, slots):
    """Test a decoder layer with every slot filled, and with only the cross mixer."""
    mixer = Attention(dim=DIM, causal=True, num_heads=2) if slots == "all" else None
    ffn = FeedForward(dim=DIM, ffn_dim=12, activation="gelu") if slots == "all" else None
    cross = CrossAttention(dim=DIM, memory_dim=6, num_heads=2)
    mix, read, transform = (slot(f, kind, residual) for f in (mixer, cross, ffn))
    layer = jiggle(DecoderLayer(mix=mix, read=read, transform=transform)).double().eval()
    x, mask, memory = torch.randn(3, 5, DIM).double(), lengths_mask([5, 2, 4]), torch.randn(3, 4, 6).double()
    context, y = cross.project(memory, lengths_mask([1, 4, 2])), x
    if mixer is not None:
        y = sublayer(y, lambda h: mixer(h, mask), layer.mix, kind, residual)
    y = sublayer(y, lambda h: cross(h, context), layer.read, kind, residual)
    if ffn is not None:
        y = sublayer(y, lambda h: ffn.down(nn.functional.gelu(ffn.up(h))), layer.transform, kind, residual)
    close(layer(x, mask, context), y)


def test_dropout_is_on_the_sublayers_output():
    """x + dropout(f(x)): if dropout removes almost everything, only the residual is left."""
    ones = nn.Linear(4, 4)
    nn.init.zeros_(ones.weight)
    nn.init.ones_(ones.bias)
    x = torch.randn(1000, 4)
    added = Sublayer(f=ones, dim=4, out_dim=4, norm="none", dropout=0.5)(x) - x
    assert ((added.abs() < 1e-5) | ((added - 2).abs() < 1e-5)).all()
    assert 0.4 < (added > 1).float().mean() < 0.6


def test_sinusoidal_positions_by_the_formula():
    positions = SinusoidalPositions(dim=10)
    for p in (0, 1, 7, 100, 3000):
        expected = [(math.sin, math.cos)[d % 2](p / 10000 ** (d // 2 * 2 / 10)) for d in range(10)]
        close(positions(torch.tensor(p)), torch.tensor(expected), 5e-4 if p > 100 else 1e-5)
    assert positions(torch.arange(6).view(2, 3)).shape == (2, 3, 10)
    assert not positions.state_dict()
    # Translation keeps the rates in float32, so training with bfloat16 weights must do the same
    place, exact = torch.arange(300), positions(torch.arange(300))
    assert torch.equal(positions.to(torch.bfloat16)(place), exact)
    assert torch.equal(positions.float()(place), exact)
    with pytest.raises(ValueError, match="7"):
        SinusoidalPositions(dim=7)


def test_sinusoidal_positions_of_fairseq():
    """Sines before cosines, the rates end at 1/10000, and the first position is 2."""
    positions = SinusoidalPositions(dim=10, fairseq=True)
    for p in (0, 1, 7, 100):
        angles = [(p + 2) / 10000 ** (i / 4) for i in range(5)]
        close(positions(torch.tensor(p)), torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]), 1e-5)
    assert isinstance(made := make_positions("fairseq", dim=4, max_len=2), SinusoidalPositions)
    assert made.fairseq


def test_learned_positions_have_a_limit():
    positions = LearnedPositions(dim=4, max_len=6)
    embedding = Embedding(table=make_table(9, 4, 0), positions=positions)
    assert embedding(torch.ones(2, 6, dtype=torch.int64)).shape == (2, 6, 4)
    assert embedding.step(torch.ones(2, dtype=torch.int64), torch.tensor([3, 5])).shape == (2, 4)
    with pytest.raises(ValueError, match=r"7 tokens exceeds the 6"):
        embedding(torch.ones(2, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"7 tokens exceeds the 6"):
        embedding.step(torch.ones(2, dtype=torch.int64), torch.tensor([3, 6]))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("scale", [True, False])
def test_embedding_by_hand(kind, scale):
    """scale * E[token] + P[position], whole or one position at a time."""
    table, positions = make_table(9, 4, PAD), make_positions(kind, dim=4, max_len=8)
    embedding = Embedding(table=table, positions=positions, dropout=0.5, scale=scale).eval()
    tokens = torch.randint(0, 9, (3, 5))
    x = table.weight[tokens] * (2.0 if scale else 1.0)
    x = x if positions is None else x + positions(torch.arange(5))
    close(embedding(tokens), x, 1e-6)
    for t in range(5):
        close(embedding.step(tokens[:, t], torch.full((3,), t)), x[:, t], 1e-6)
    assert not table.weight[PAD].any()


@every_model
@torch.no_grad()
def test_step_is_forward(overrides):
    """Logits of whole sequences and of steps agree, with beams shuffled and sentences leaving."""
    model, beam, length = tiny(*overrides).double(), 3, 9
    src_mask = lengths_mask([6, 2, 4])
    src = random_tokens(src_mask)
    context = model.context(src, src_mask)
    state = model.init_state(context, beam_size=beam, max_len=length)
    history = torch.empty(9, 0, dtype=torch.int64)
    leaving = random.randrange(1, length - 1)
    for t in range(length):
        token = torch.randint(0, VOCAB, (len(history),))
        history = torch.cat([history, token[:, None]], 1)
        logits, state = model.step(token, context, state, torch.full_like(token, t))
        whole = model(src.repeat_interleave(beam, 0), src_mask.repeat_interleave(beam, 0), history)
        close(logits, whole[:, -1], 1e-9)
        index = (torch.arange(len(src))[:, None] * beam + torch.randint(beam, (len(src), beam))).flatten()
        state, history = reorder(state, index), history[index]
        if t == leaving:
            rows = torch.tensor(random.choice([[0, 2], [1], [2, 1]]))
            history = history.unflatten(0, (-1, beam))[rows].flatten(0, 1)
            # Before rows of the context move, which may hold the same mask
            src, src_mask = src[rows], src_mask[rows]
            context, state = of_rows(context, rows), of_rows(state, rows, beam)


@every_model
def test_padding_changes_nothing(overrides):
    """A pair has the same logits alone and in a batch, with any token as padding.

    In float64, since retention and the gated delta rule may divide by a number that is almost 0.
    """
    model = tiny(*overrides).double()
    src_mask, tgt_mask = lengths_mask([7, 2, 5, 1]), lengths_mask([3, 9, 1, 6])
    src, tgt = random_tokens(src_mask), random_tokens(tgt_mask)
    src, tgt = (torch.where(m, t, torch.randint_like(t, VOCAB)) for m, t in ((src_mask, src), (tgt_mask, tgt)))
    together = model(src, src_mask, tgt, tgt_mask)
    assert together.shape == (4, 9, VOCAB)
    for row, (s, t) in enumerate(zip(src_mask.sum(1).tolist(), tgt_mask.sum(1).tolist(), strict=True)):
        one = slice(row, row + 1)
        close(together[one, :t], model(src[one, :s], src_mask[one, :s], tgt[one, :t]), 1e-9)


@every_model
def test_autocast_trains(overrides):
    """bfloat16 autocast, as training uses it: finite loss and gradients everywhere, close to float32's."""
    model = build_model(config(*TINY, *overrides))
    src_mask, tgt_mask = lengths_mask([7, 3]), lengths_mask([4, 8])
    src, tgt = random_tokens(src_mask), random_tokens(tgt_mask)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(src, src_mask, tgt, tgt_mask)[tgt_mask].float(), tgt[tgt_mask])
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    exact = model(src, src_mask, tgt, tgt_mask)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        near(model(src, src_mask, tgt, tgt_mask), exact)
        context = model.context(src, src_mask)
        state = model.init_state(context, beam_size=1, max_len=4)
        near(stepped(model, tgt[:, :4], context, state), exact[:, :4])


def stepped(model: Seq2Seq, tgt: Tensor, context: Any, state: Any) -> Tensor:
    """Logits (B, T, V) of one step after another."""
    logits = []
    for t in range(tgt.shape[1]):
        now, state = model.step(tgt[:, t], context, state, torch.full(tgt.shape[:1], t))
        logits.append(now)
    return torch.stack(logits, 1)


def near(rounded: Tensor, exact: Tensor) -> None:
    """bfloat16 logits (B, T, V) differ from float32 by a fraction of their size, at most positions.

    At a single position, retention and the gated delta rule may divide by a number that is almost 0.
    """
    assert ((rounded.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).median() < 0.1


@every_model
def test_bfloat16_weights_decode(overrides):
    """A model cast to bfloat16 as a whole still agrees with itself in float32."""
    model = tiny(*overrides)
    src_mask = lengths_mask([7, 3])
    src, tgt = random_tokens(src_mask), torch.full((2, 3), BOS)
    exact = model(src, src_mask, tgt)
    model.bfloat16()
    near(model(src, src_mask, tgt), exact)
    context = model.context(src, src_mask)
    near(stepped(model, tgt, context, model.init_state(context, beam_size=1, max_len=3)), exact)


def test_features_are_what_the_output_layer_reads():
    model, mask = tiny("mixer=transformer"), lengths_mask([5, 3])
    src, tgt = random_tokens(mask), random_tokens(mask)
    close(model.output(model.features(src, mask, tgt, mask)), model(src, mask, tgt, mask), 1e-6)
