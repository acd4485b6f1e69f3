"""Attention's relatives: where each reduces to attention, its equation by hand, and refusals."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config, lengths_mask
from conftest import jiggle
from exact import wide
from test_conformance import WIDTH, close, inputs
from torch import Tensor, nn

from seq2seq.kernels.shortconv import shortconv
from seq2seq.mixers.attention import Attention
from seq2seq.mixers.gated_delta import GatedDelta
from seq2seq.mixers.linear_attention import LinearAttention
from seq2seq.mixers.lowrank import LowRank
from seq2seq.mixers.nonlocal_ import PAIRWISE, NonLocal
from seq2seq.mixers.postconv_attention import PostconvAttention
from seq2seq.mixers.preconv_attention import PreconvAttention
from seq2seq.mixers.pyramid import Pyramid
from seq2seq.mixers.retention import Retention
from seq2seq.network.build import build_model, max_positions
from seq2seq.network.mixer import SelfMixer

LENGTHS = [9, 4, 7, 1]
HEADS = 2
HEAD_DIM = WIDTH // HEADS
either_form = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def exact(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def make(kind: type[SelfMixer], causal: bool, **settings: object) -> SelfMixer:
    return jiggle(kind(dim=WIDTH, causal=causal, num_heads=HEADS, **settings).double()).eval()


def copy(target: nn.Module, **parts: Tensor) -> None:
    with torch.no_grad():
        for name, value in parts.items():
            target.get_parameter(name).copy_(value)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def agree(one: nn.Module, other: nn.Module) -> None:
    """The same output at every real position of a padded batch."""
    x, mask = wide(len(LENGTHS), max(LENGTHS), WIDTH), lengths_mask(LENGTHS)
    exact(one(x, mask)[mask], other(x, mask)[mask])


def sentences(mixer: SelfMixer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Sentences of a padded batch: x (T, D), y (T, D), and which positions each sees (T, T)."""
    x, mask = wide(len(LENGTHS), max(LENGTHS), WIDTH), lengths_mask(LENGTHS)
    y, found = mixer(x, mask), []
    for row, length in enumerate(LENGTHS):
        seen = torch.ones(length, length).bool()
        found.append((x[row, :length], y[row, :length], seen.tril() if mixer.causal else seen))
    return found


# ---- the non-local operation


@either_form
@pytest.mark.parametrize("pairwise", PAIRWISE)
def test_pairwise_by_hand(pairwise, causal):
    """f(x_i, x_j) pair by pair, divided by its sum or by the number of positions that are seen."""
    mixer = make(NonLocal, causal, pairwise=pairwise)
    for x, y, seen in sentences(mixer):
        rows = torch.cat([x, x], -1) if mixer.qk is None else mixer.qk(x)
        if pairwise == "tanh_concatenation":  # any queries, and any weights w_q of them, cancel
            rows, w_q = torch.cat([wide(*x.shape), rows], -1), wide(HEADS, HEAD_DIM)
        q, k = (heads(part) for part in rows.chunk(2, -1))
        f = torch.zeros(HEADS, len(x), len(x), dtype=torch.float64)
        for h, i, j in torch.nonzero(seen.expand_as(f)).tolist():
            a, b = q[h, i], k[h, j]
            if pairwise == "additive":
                f[h, i, j] = torch.exp(mixer.score[h] @ torch.tanh(a + b))
            elif pairwise == "tanh_concatenation":
                f[h, i, j] = torch.exp(torch.cat([w_q[h], mixer.score[h]]) @ torch.tanh(torch.cat([a, b])))
            elif pairwise == "concatenation":
                f[h, i, j] = F.relu(mixer.score[h] @ torch.cat([a, b]))
            else:
                f[h, i, j] = a @ b if pairwise == "dot_product" else torch.exp(a @ b)
        counted = pairwise in ("dot_product", "concatenation")
        total = seen.sum(-1, keepdim=True) if counted else f.sum(-1, keepdim=True)
        by_hand = mixer.out(((f / total) @ heads(mixer.value(x))).transpose(0, 1).flatten(1))
        torch.testing.assert_close(y, by_hand, atol=1e-10, rtol=1e-10)


# ---- convolutions before and after the product


@either_form
def test_shortconv_is_grouped_conv1d(causal):
    """Channels of a group share a kernel, as torch has it with the kernels repeated."""
    for taps, groups in ((1, 6), (2, 3), (3, 6), (4, 1), (11, 2)):
        x, weight = wide(2, random.randint(1, 9), 6), wide(groups, taps)
        left = taps - 1 if causal else taps // 2
        padded = F.pad(x.transpose(1, 2), (left, taps - 1 - left))
        expected = F.conv1d(padded, weight.repeat_interleave(6 // groups, 0)[:, None], groups=6).transpose(1, 2)
        exact(shortconv(x, weight, causal=causal), expected)


@either_form
@pytest.mark.parametrize("values", [False, True])
def test_preconv_by_hand(values, causal):
    """torch's convolution and torch's attention, one after the other."""
    mixer = make(PreconvAttention, causal, kernel_size=4, values=values)
    left = 3 if causal else 2
    for x, y, seen in sentences(mixer):
        parts = list(mixer.qkv(x).t().chunk(3))  # (D, T) each
        for place, weight in enumerate(mixer.weight.split(WIDTH)):
            padded = F.pad(parts[place], (left, 3 - left))
            parts[place] = F.conv1d(padded[None], weight[:, None], groups=WIDTH)[0]
        mixed = F.scaled_dot_product_attention(*(heads(part.t()) for part in parts), attn_mask=seen)
        exact(y, mixer.out(mixed.transpose(0, 1).flatten(1)))


@either_form
@pytest.mark.parametrize("taps", [1, 3, 4, 13])
def test_postconv_of_weights_by_hand(taps, causal):
    """The attention matrix itself, convolved along the keys by torch: the fast path never has it."""
    mixer = make(PostconvAttention, causal, kernel_size=taps)
    left = taps - 1 if causal else taps // 2
    for x, y, seen in sentences(mixer):
        q, k, v = (heads(part) for part in mixer.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)).masked_fill(~seen, float("-inf"))
        rows = scores.softmax(-1).transpose(0, 1)  # (T, H, T): every row is a sequence, heads its channels
        # conv1d correlates: the flipped kernel moves weight from key j to key j + k - left
        padded = F.pad(rows, (taps - 1 - left, left))
        mixing = F.conv1d(padded, mixer.weight.flip(1)[:, None], groups=HEADS).transpose(0, 1)
        assert not causal or not mixing[~seen.expand_as(mixing)].any()
        exact(y, mixer.out((mixing @ v).transpose(0, 1).flatten(1)))


@either_form
@pytest.mark.parametrize("taps", [1, 3, 4, 13])
def test_postconv_of_scores_by_hand(taps, causal):
    """Each score is a sum over the scores of neighboring keys of the sentence, one product after another."""
    mixer = make(PostconvAttention, causal, kernel_size=taps, of="scores")
    left = taps - 1 if causal else taps // 2
    for x, y, seen in sentences(mixer):
        q, k, v = (heads(part) for part in mixer.qkv(x).chunk(3, -1))
        plain = q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)  # (H, T, T)
        scores = torch.zeros_like(plain)
        for j in range(len(x)):
            for tap in range(taps):
                if 0 <= j + tap - left < len(x):
                    scores[:, :, j] += mixer.weight[:, tap, None] * plain[:, :, j + tap - left]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        exact(y, mixer.out((weights @ v).transpose(0, 1).flatten(1)))


@either_form
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("before", ["depthwise", "full"])
def test_preconv_of_the_input_by_hand(before, batch_norm, causal):
    """C x of Han et al., one tap after another, then BN + ReLU, and attention of its queries and keys."""
    mixer = make(PreconvAttention, causal, kernel_size=4, before=before, batch_norm=batch_norm)
    taps = mixer.weight if before == "full" else torch.diag_embed(mixer.weight.t()).permute(1, 2, 0)  # (D, D, K)
    if batch_norm:
        mixer.norm.mean.normal_()
        mixer.norm.variance.uniform_(0.5, 2.0)
    left = 3 if causal else 2
    for x, y, seen in sentences(mixer):
        z = torch.zeros_like(x)
        for t in range(len(x)):
            for tap in range(4):
                if 0 <= t + tap - left < len(x):
                    z[t] += taps[:, :, tap] @ x[t + tap - left]
        if batch_norm:
            z = (z - mixer.norm.mean) / (mixer.norm.variance + 1e-5).sqrt() * mixer.norm.weight + mixer.norm.bias
            z = z.clamp(min=0.0)
        (q, k), v = mixer.qkv(z).chunk(3, -1)[:2], mixer.qkv(x).chunk(3, -1)[2]
        mixed = F.scaled_dot_product_attention(*(heads(part) for part in (q, k, v)), attn_mask=seen)
        exact(y, mixer.out(mixed.transpose(0, 1).flatten(1)))


def test_preconv_normalizes_real_positions_by_their_own_statistics():
    """In training as torch's BatchNorm1d over the real positions of the batch, running statistics included."""
    mixer = make(PreconvAttention, False, before="full", batch_norm=True).train()
    x, mask = wide(len(LENGTHS), max(LENGTHS), WIDTH), lengths_mask(LENGTHS)
    inputs = []
    mixer.norm.register_forward_hook(lambda _, given, y: inputs.append((given[0].detach(), y.detach())))
    mixer(x, mask)
    ((before, after),) = inputs
    torchs = nn.BatchNorm1d(WIDTH).double()
    torchs.load_state_dict({"weight": mixer.norm.weight, "bias": mixer.norm.bias}, strict=False)
    exact(after[mask], torchs(before[mask]))
    exact(mixer.norm.mean, torchs.running_mean)
    exact(mixer.norm.variance, torchs.running_var)


# ---- lower resolution, lower rank


@either_form
@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_pyramid_by_hand(size, causal):
    """Each position gathers all blocks of the sentence, or the past blocks and the part of its own block so far."""
    mixer = make(Pyramid, causal, reduction=size)
    for x, y, _ in sentences(mixer):
        q, rows = heads(mixer.query(x)), mixer.key_value(x)
        for t in range(len(x)):
            blocks = [block.mean(0) for block in (rows[: t + 1] if causal else rows).split(size)]
            k, v = (heads(part) for part in torch.stack(blocks).chunk(2, -1))
            mixed = F.scaled_dot_product_attention(q[:, t : t + 1], k, v)
            exact(y[t], mixer.out(mixed.flatten()))


@either_form
def test_lowrank_with_identity_slots_is_attention(causal):
    """This holds also for sentences shorter than max_len, whose last slots are empty."""
    mixer, attention = make(LowRank, causal, rank=12, max_len=12), make(Attention, causal)
    copy(mixer, key_slots=torch.eye(12), value_slots=torch.eye(12))
    copy(attention, **{"qkv.weight": mixer.qkv.weight, "out.weight": mixer.out.weight})
    agree(mixer, attention)


@either_form
def test_lowrank_by_hand(causal):
    """Compute the slots of every position explicitly: r keys and values, made of the positions that it sees."""
    mixer = make(LowRank, causal, rank=3, max_len=11)
    for x, y, seen in sentences(mixer):
        q, k, v = mixer.qkv(x).chunk(3, -1)
        for t in range(len(x)):
            key, value = ((slots[:, : len(x)] * seen[t]) @ part for slots, part in
                          ((mixer.key_slots, k), (mixer.value_slots, v)))  # fmt: skip
            mixed = F.scaled_dot_product_attention(heads(q[t : t + 1]), heads(key), heads(value))
            exact(y[t], mixer.out(mixed.flatten()))


def test_lowrank_says_how_long_it_can_be():
    mixer = make(LowRank, True, rank=3, max_len=5)
    with pytest.raises(ValueError, match=r"6 positions exceeds the 5"):
        mixer(wide(1, 6, WIDTH), lengths_mask([6]))
    with pytest.raises(ValueError, match=r"7 positions"):
        mixer.empty_state(1, 7)
    assert max_positions(config("mixer=lowrank", *TINY, "model.max_len=40")) == 40


REPRESENTATIVE = {"test_compiles_in_one_graph": {"LinearAttention"}}


@pytest.mark.parametrize(
    "kind",
    [NonLocal, PreconvAttention, PostconvAttention, Pyramid, LowRank, LinearAttention, Retention, GatedDelta],
)
def test_compiles_in_one_graph(kind):
    settings = {"max_len": 80} if kind is LowRank else {}
    mixer = jiggle(kind(dim=WIDTH, causal=random.random() < 0.5, num_heads=HEADS, **settings)).eval()
    x, mask, _, _ = inputs(2, 70, torch.empty(0))
    torch._dynamo.reset()
    close(torch.compile(mixer, backend="eager", fullgraph=True)(x, mask), mixer(x, mask), 1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nonlocal", {"pairwise": "cosine"}, "pairwise is 'cosine'"),
        ("postconv_attention", {"of": "values"}, "of is 'values'"),
        ("preconv_attention", {"before": "conv"}, "before is 'conv'"),
        ("preconv_attention", {"before": "full", "values": True}, "before=full.*values"),
        ("preconv_attention", {"batch_norm": True}, "batch_norm.*before"),
        ("relative", {"biases": False, "content": False}, "biases.*content"),
        ("pyramid", {"reduction": 0}, "reduction is 0"),
        ("lowrank", {"rank": 1}, "rank is 1"),
        ("retention", {"num_heads": 16}, "num_heads 16"),
    ],
)
def test_settings_that_cannot_be(name, settings, message):
    values = config(f"mixer={name}", *TINY)
    values["mixer"]["encoder"] |= settings
    with pytest.raises(ValueError, match=f"encoder: .*{message}"):
        build_model(values)


def test_the_mean_of_a_long_block_does_not_stop_moving_in_bfloat16():
    """The last steps of a long block move the mean by less than the precision of bfloat16."""
    mixer = Pyramid(dim=8, causal=True, num_heads=2, reduction=512).bfloat16().eval()
    x = torch.randn(1, 512, 8) + torch.linspace(-3, 3, 512)[:, None]
    x = x.bfloat16()
    state = mixer.empty_state(1, 512, device=x.device, dtype=x.dtype)
    for t in range(512):
        _, state = mixer.step(x[:, t], state, torch.tensor([t]))
    wanted = mixer.key_value(x).float().mean(1)
    torch.testing.assert_close(state.running.float(), wanted, atol=5e-3, rtol=0)
