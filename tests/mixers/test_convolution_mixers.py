"""Convolution mixers as special cases of each other, or of torch's own convolution, in float64."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact import DIM, LENGTHS, MASK, both_forms, exactly, made, sequences
from torch import Tensor, nn

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.mixers.aan import AAN
from seq2seq.mixers.conv import Conv
from seq2seq.mixers.depthwise import Depthwise
from seq2seq.mixers.dynamic_depthwise import DynamicDepthwise
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.lightconv import LightConv
from seq2seq.mixers.multiscale import Multiscale
from seq2seq.mixers.talk import TaLK
from seq2seq.network.mixer import SelfMixer

gated_or_not = pytest.mark.parametrize("glu", [True, False])


def share(mixer: SelfMixer, other: SelfMixer) -> None:
    """Give the other mixer this mixer's projections, after removing the inner bias if the other mixer has none."""
    if other.inner.bias is None and mixer.inner.bias is not None:
        fill(mixer.inner.bias, 0.0)
        other.inner.load_state_dict({"weight": mixer.inner.weight})
    else:
        other.inner.load_state_dict(mixer.inner.state_dict())
    other.out.load_state_dict(mixer.out.state_dict())


def fill(parameter: nn.Parameter, values: Tensor | float) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(values, dtype=parameter.dtype))


def gated(mixer: SelfMixer, x: Tensor) -> Tensor:
    """Return the input of the convolution, which is zero at padding."""
    z = mixer.inner(x)  # type: ignore[operator]
    return (F.glu(z, -1) if mixer.glu else z).masked_fill(~MASK[:, :, None], 0.0)


def padded(z: Tensor, taps: int, causal: bool) -> Tensor:
    left = left_padding(taps, causal)
    return F.pad(z.transpose(1, 2), (left, taps - 1 - left))


@both_forms
@pytest.mark.parametrize("taps", [1, 4, 5, 11])
def test_conv_is_torchs(taps, causal):
    mixer, x = made(Conv, causal=causal, kernel_size=taps), sequences()
    theirs = nn.Conv1d(DIM, DIM, taps).double()
    theirs.load_state_dict(mixer.state_dict())
    values = x.masked_fill(~MASK[:, :, None], 0.0)
    exactly(mixer(x, MASK), theirs(padded(values, taps, causal)).transpose(1, 2))


@both_forms
@gated_or_not
@pytest.mark.parametrize("taps", [1, 4, 5, 15])
def test_depthwise_is_torchs_grouped_convolution(taps, glu, causal):
    mixer, x = made(Depthwise, causal=causal, kernel_size=taps, glu=glu), sequences()
    y = F.conv1d(padded(gated(mixer, x), taps, causal), mixer.weight[:, None], groups=DIM).transpose(1, 2)
    exactly(mixer(x, MASK), mixer.out(y))


@both_forms
@gated_or_not
def test_depthwise_with_shared_normalised_kernels_is_lightconv(glu, causal):
    depthwise = made(Depthwise, causal=causal, kernel_size=5, glu=glu)
    light = made(LightConv, causal=causal, kernel_size=5, glu=glu, num_heads=3)
    share(light, depthwise)
    fill(depthwise.weight, light.weight.softmax(-1).repeat_interleave(DIM // 3, 0))
    x = sequences()
    exactly(depthwise(x, MASK), light(x, MASK))


@both_forms
def test_dropconnect_of_one_scale_is_that_of_depthwise(causal):
    """The same masks are drawn; several scales share one mask, as wide as the widest kernel."""
    depthwise = made(Depthwise, causal=causal, kernel_size=5, weight_dropout=0.3)
    one = made(Multiscale, causal=causal, kernel_sizes=[5], weight_dropout=0.3)
    share(one, depthwise)
    fill(one.weight, depthwise.weight)
    x = sequences()
    mixed = []
    for mixer in (depthwise, one):
        torch.manual_seed(3)
        mixed.append(mixer.train()(x, MASK))
    exactly(*mixed)
    exactly(depthwise.eval()(x, MASK), one.eval()(x, MASK))
    assert not torch.equal(mixed[1], one(x, MASK))


@both_forms
@gated_or_not
def test_lightconv_without_softmax_is_depthwise_with_shared_kernels(glu, causal):
    """The two agree also with DropConnect, if a head has one channel: the same masks are drawn."""
    depthwise = made(Depthwise, causal=causal, kernel_size=5, glu=glu, weight_dropout=0.3)
    for heads in (3, DIM):
        light = made(
            LightConv, causal=causal, kernel_size=5, glu=glu, num_heads=heads, softmax=False, weight_dropout=0.3
        )
        share(light, depthwise)
        fill(depthwise.weight, light.weight.repeat_interleave(DIM // heads, 0))
        x = sequences()
        exactly(depthwise.eval()(x, MASK), light.eval()(x, MASK))
    mixed = []
    for mixer in (depthwise, light):
        torch.manual_seed(3)
        mixed.append(mixer.train()(x, MASK))
    exactly(*mixed)
    assert not torch.equal(mixed[0], depthwise.eval()(x, MASK))


@both_forms
def test_aan_by_hand(causal):
    """Gates of the input and of the transformed mean, one position at a time."""
    mixer, x = made(AAN, causal=causal, ffn_dim=7), sequences()
    found = mixer(x, MASK)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            g = mixer.down(mixer.up(x[row, : t + 1 if causal else length].mean(0)).clamp(min=0))
            keep, take = torch.sigmoid(mixer.gates(torch.cat([x[row, t], g]))).chunk(2)
            torch.testing.assert_close(found[row, t], keep * x[row, t] + take * g, atol=1e-12, rtol=1e-12)
    mixer.gates = None
    torch.testing.assert_close(mixer(x, MASK)[row, t], g, atol=1e-12, rtol=1e-12)


@both_forms
@pytest.mark.parametrize("softmax", [True, False])
def test_dynamicconv_of_constant_predictions_is_lightconv(softmax, causal):
    """A channel that is always one predicts the same kernels everywhere."""
    light = made(LightConv, causal=causal, kernel_size=4, glu=False, num_heads=3, softmax=softmax)
    dynamic = made(DynamicConv, causal=causal, kernel_size=4, glu=False, num_heads=3, softmax=softmax)
    fill(light.inner.weight, torch.cat([torch.zeros(1, DIM), torch.randn(DIM - 1, DIM)]))
    fill(light.inner.bias, torch.cat([torch.ones(1), torch.randn(DIM - 1)]))
    share(light, dynamic)
    fill(dynamic.kernel.weight, F.pad(light.weight.detach().flatten()[:, None], (0, DIM - 1)))
    x = sequences()
    exactly(dynamic(x, MASK), light(x, MASK))


@both_forms
def test_multiscale_is_the_gated_sum_of_its_scales(causal):
    """Convolve each scale by itself with torch, then weigh the results."""
    sizes = [5, 2, 9, 4]
    mixer, x = made(Multiscale, causal=causal, kernel_sizes=sizes), sequences()
    z, y = gated(mixer, x), torch.zeros_like(x)
    for scale, (size, weight) in enumerate(zip(sizes, mixer.weight.split(sizes, 1), strict=True)):
        alone = F.conv1d(padded(z, size, causal), weight[:, None], groups=DIM).transpose(1, 2)
        y = y + mixer.gate.softmax(1)[:, scale] * alone
    exactly(mixer(x, MASK), mixer.out(y))


def test_multiscale_refuses_no_scales():
    for sizes in ([], [3, 0]):
        with pytest.raises(ValueError, match=rf"kernel_sizes is \[{', '.join(map(str, sizes))}\]"):
            Multiscale(dim=4, causal=True, kernel_sizes=sizes)


@both_forms
@gated_or_not
def test_dynamic_depthwise_of_a_constant_prediction_is_depthwise(glu, causal):
    dynamic = made(DynamicDepthwise, causal=causal, kernel_size=5, glu=glu)
    static = made(Depthwise, causal=causal, kernel_size=5, glu=glu)
    share(dynamic, static)
    fill(dynamic.weight.weight, 0.0)
    fill(static.weight, dynamic.weight.bias.view(5, DIM).t())
    x = sequences()
    exactly(dynamic(x, MASK), static(x, MASK))


@both_forms
@pytest.mark.parametrize("taps", [3, 10])
def test_dynamic_depthwise_by_hand(taps, causal):
    """Kernels come from the mean of all real tokens, or of all so far; one sum for each position and channel."""
    mixer, x = made(DynamicDepthwise, causal=causal, kernel_size=taps), sequences()
    found, left = mixer(x, MASK), left_padding(taps, causal)
    for row, length in enumerate(LENGTHS):
        z = gated(mixer, x)[row, :length]
        mixed = torch.zeros_like(z)
        for t in range(length):
            mean = z[: t + 1].mean(0) if causal else z.mean(0)
            weights = mixer.weight(F.gelu(mixer.squeeze(mean))).view(taps, DIM)
            for k in range(max(0, left - t), min(taps, length + left - t)):
                mixed[t] = mixed[t] + weights[k] * z[t + k - left]
        torch.testing.assert_close(found[row, :length], mixer.out(mixed), atol=1e-12, rtol=1e-12)


def open_windows(mixer: SelfMixer, bias: float) -> None:
    """Windows of one size everywhere: the largest (a large bias) or the smallest."""
    fill(mixer.size.weight, 0.0)
    fill(mixer.size.bias, bias)


@both_forms
@gated_or_not
@pytest.mark.parametrize("taps", [2, 5, 8])
def test_talk_with_largest_windows_is_an_even_lightconv(taps, glu, causal):
    """Each of K taps has weight 1 / K, as kernels with equal logits have."""
    talk = made(TaLK, causal=causal, kernel_size=taps, glu=glu, num_heads=3)
    light = made(LightConv, causal=causal, kernel_size=taps, glu=glu, num_heads=3)
    share(light, talk)
    open_windows(talk, 1e3)
    fill(light.weight, random.random())
    x = sequences()
    exactly(talk(x, MASK), light(x, MASK))


@both_forms
@pytest.mark.parametrize("taps", [2, 5, 20])
def test_talk_by_hand(taps, causal):
    """M_ij from the distance of i and j and the predicted sizes, without prefix sums."""
    talk, x, heads = made(TaLK, causal=causal, kernel_size=taps, num_heads=3), sequences(), 3
    found, z = talk(x, MASK).detach(), gated(talk, x).detach()
    left = left_padding(taps, causal)
    right = taps - 1 - left
    sizes = torch.sigmoid(talk.size(F.glu(talk.inner(x), -1))).detach().numpy()
    for row, length in enumerate(LENGTHS):
        mixed = np.zeros((length, DIM))
        for i in range(length):
            for c in range(DIM):
                h = c // (DIM // heads)
                behind, ahead = left * sizes[row, i, h], right * sizes[row, i, heads + h] if right else 0.0
                for j in range(length):
                    reach = behind if j <= i else ahead
                    mixed[i, c] += min(1.0, max(0.0, 1 + reach - abs(i - j))) / taps * float(z[row, j, c])
        torch.testing.assert_close(
            found[row, :length], talk.out(torch.from_numpy(mixed)).detach(), atol=1e-12, rtol=1e-12
        )
