"""Mixers of constant memory: their parallel, recurrent and chunked forms agree with each other and with equations."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from composed import lengths_mask
from conftest import jiggle
from test_attention_forms import HEAD_DIM, HEADS, WIDTH, either_form, heads, make, sentences, wide
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.kernels.gated_delta import gated_delta
from seq2seq.kernels.gated_delta.reference import gated_delta_reference
from seq2seq.kernels.retention import retention
from seq2seq.kernels.retention.reference import retention_reference
from seq2seq.mixers.gated_delta import GatedDelta
from seq2seq.mixers.linear_attention import EPSILON, LinearAttention
from seq2seq.mixers.retention import Retention
from seq2seq.training.machine import flops as flops  # registers the formula of torch's triangular systems


def parts(length: int, width: int = 5, values: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """q, k (2, 2, T, d) and v (2, 2, T, e)."""
    return wide(2, 2, length, width), wide(2, 2, length, width), wide(2, 2, length, values)


# ---- retention and linear attention


@pytest.mark.parametrize("fades", [True, False], ids=["retention", "linear"])
@pytest.mark.parametrize("length", [1, 7, 64, 150])
def test_two_forms_of_retention_agree(length, fades):
    """A loop over positions and chunks of any size agree, as do their gradients; the last chunk is the sentence."""
    q, k, v = (part.requires_grad_() for part in parts(length))
    decay = 1.0 - 2.0 ** (-1.0 - 4 * torch.rand(2, dtype=torch.float64)) if fades else None
    forms = [retention_reference(q, k, v, decay=decay)]
    forms += [retention(q, k, v, decay=decay, chunk=chunk) for chunk in (1, random.randint(2, 80), 64, length)]
    weight = torch.randn_like(forms[0])
    gradients = [torch.autograd.grad((form * weight).sum(), (q, k, v)) for form in forms]
    for form, gradient in zip(forms[1:], gradients[1:], strict=True):
        torch.testing.assert_close(form, forms[0], atol=1e-10, rtol=1e-10)
        for one, other in zip(gradient, gradients[0], strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@either_form
def test_linear_attention_is_its_quadratic_form(causal):
    """softmax(q k') is replaced by phi(q) . phi(k), normalized over the visible pairs, also beyond a chunk."""
    mixer = make(LinearAttention, causal)
    long = wide(1, 150, WIDTH)
    seen = torch.ones(150, 150).bool()
    cases = [*sentences(mixer), (long[0], mixer(long, lengths_mask([150]))[0], seen.tril() if causal else seen)]
    for x, y, seen in cases:
        q, k, v = (heads(part) for part in mixer.qkv(x).chunk(3, -1))
        phi_q, phi_k = (torch.where(part > 0, part + 1, part.exp()) for part in (q, k))
        scores = (phi_q @ phi_k.transpose(1, 2)) * seen
        weights = scores / (scores.sum(-1, keepdim=True) + EPSILON)
        torch.testing.assert_close(y, mixer.out((weights @ v).transpose(0, 1).flatten(1)), atol=1e-11, rtol=1e-11)


@either_form
def test_retention_mixer_by_hand(causal):
    """Queries and keys as complex numbers turned by their positions, every pair weighed by gamma^|i-j|."""
    mixer = make(Retention, causal)
    rate = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
    for x, y, seen in sentences(mixer):
        time = torch.arange(len(x)).double()
        turn = torch.polar(torch.ones_like(rate), rate * time[:, None])  # (T, d / 2)
        q, k, v = (heads(part) for part in mixer.qkv(x).chunk(3, -1))
        q, k = (torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) * turn for part in (q, k))
        scores = (q @ k.conj().transpose(1, 2)).real / HEAD_DIM**0.5
        gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(HEADS)]).double()[:, None, None]
        mixed = (scores * gamma ** (time[:, None] - time).abs() * seen) @ v
        mixed = F.rms_norm(mixed, (HEAD_DIM,), eps=1e-5).transpose(0, 1).flatten(1)
        expected = mixer.out(F.silu(x @ mixer.gate.weight.t()) * mixed)
        torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


# ---- the gated delta rule


def rules(length: int, width: int = 5) -> tuple[Tensor, ...]:
    """q, k of length 1, v, log a and b in (0, 1)."""
    q, k, v = parts(length, width)
    return (
        F.normalize(q, dim=-1),
        F.normalize(k, dim=-1),
        v,
        F.logsigmoid(wide(2, 2, length)),
        wide(2, 2, length).sigmoid(),
    )


@pytest.mark.parametrize("length", [1, 7, 64, 150])
def test_two_forms_of_the_delta_rule_agree(length):
    """A loop over positions and chunks of any size agree, as do their gradients."""
    given = [part.detach().requires_grad_() for part in rules(length)]
    forms = [gated_delta_reference(*given)]
    forms += [gated_delta(*given, chunk=chunk) for chunk in (1, random.randint(2, 80), 64)]
    weight = torch.randn_like(forms[0])
    gradients = [torch.autograd.grad((form * weight).sum(), given) for form in forms]
    for form, gradient in zip(forms[1:], gradients[1:], strict=True):
        torch.testing.assert_close(form, forms[0], atol=1e-10, rtol=1e-10)
        for one, other in zip(gradient, gradients[0], strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_delta_rule_counts_its_products():
    """The products are three with the state, three between positions, and a triangular system as half a product."""
    given = [part.to("meta") for part in rules(10)]
    with FlopCounterMode(display=False) as counter:
        gated_delta(*given)
    batch, t, d, e = 4, 10, 5, 3
    assert counter.get_total_flops() == batch * (3 * 2 * t * d * e + 2 * 2 * t * t * d + 2 * t * t * e + t * t * e)


def test_delta_rule_survives_forgetting_everything():
    """A decay of e^-200 a position, whose products are zero in float32 and whose inverse is infinite."""
    q, k, v, log_decay, rate = (part.float() for part in rules(100))
    found = gated_delta(q, k, v, log_decay - 200.0, rate)
    alone = rate[..., None] * (q * k).sum(-1, keepdim=True) * v
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


def gated_delta_by_hand(mixer: GatedDelta, x: Tensor) -> Tensor:
    """The memory of one sentence x (T, D) as a loop over positions with torch's convolution: (T, D)."""
    taps = mixer.kernel_size
    inner = F.conv1d(F.pad(mixer.qkv(x).t(), (taps - 1, 0)), mixer.weight[:, None], groups=3 * WIDTH)
    q, k, v = (heads(part) for part in F.silu(inner).t().chunk(3, -1))
    rate, speed = mixer.rates(x).chunk(2, -1)
    decay = (-mixer.log_speed.exp() * F.softplus(speed + mixer.rate_bias)).exp()
    outputs = []
    for h in range(HEADS):
        state = torch.zeros(HEAD_DIM, HEAD_DIM).double()  # values by keys, as the paper has it
        for t in range(len(x)):
            a, b = decay[t, h], rate[t, h].sigmoid()
            key, query = (part[h, t] / part[h, t].norm() for part in (k, q))
            state = a * state @ (torch.eye(HEAD_DIM) - b * torch.outer(key, key)) + b * torch.outer(v[h, t], key)
            outputs.append(state @ query)
    return torch.stack(outputs).view(HEADS, len(x), HEAD_DIM).transpose(0, 1).flatten(1)


@either_form
@pytest.mark.parametrize("gate", [True, False])
def test_gated_delta_mixer_by_hand(gate, causal):
    """One memory, or the sum of both directions; then norm, gate and projection."""
    mixer = make(GatedDelta, causal, gate=gate)
    for x, y, _ in sentences(mixer):
        memory = gated_delta_by_hand(mixer, x)
        if not causal:
            memory = memory + gated_delta_by_hand(mixer, x.flip(0)).flip(0)
        memory = F.rms_norm(memory.unflatten(-1, (HEADS, -1)), (HEAD_DIM,), mixer.norm, eps=1e-5).flatten(1)
        expected = mixer.out(F.silu(x @ mixer.gate.weight.t()) * memory if gate else memory)
        torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", [LinearAttention, Retention, GatedDelta])
def test_memories_keep_float32_in_bf16(kind):
    """The state is in float32 even if inputs are in bf16, in which a sum over many positions would stop growing."""
    mixer = jiggle(kind(dim=WIDTH, causal=True, num_heads=HEADS)).to(torch.bfloat16).eval()
    state = mixer.empty_state(3, 10, dtype=torch.bfloat16)
    y, state = mixer.step(torch.randn(3, WIDTH, dtype=torch.bfloat16), state, torch.zeros(3, dtype=torch.int64))
    assert y.dtype == torch.bfloat16
    assert state[0].dtype == torch.float32
