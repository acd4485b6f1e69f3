"""Convolution mixers as special cases of each other, or of torch's own convolution, in float64."""

from __future__ import annotations

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
def test_static_kernels_drop_the_same_weights(glu, causal):
    """LightConv with a head for each channel, Depthwise, and one scale of Multiscale are one convolution."""
    given = {"causal": causal, "glu": glu, "weight_dropout": 0.3}
    light = made(LightConv, kernel_size=5, num_heads=DIM, softmax=False, **given)
    mixers = [light, made(Depthwise, kernel_size=5, **given), made(Multiscale, kernel_sizes=[5], **given)]
    x, mixed = sequences(), []
    for mixer in reversed(mixers):
        share(light, mixer)
        fill(mixer.weight, light.weight)
        torch.manual_seed(3)
        mixed.append(mixer.train()(x, MASK))
    exactly(mixed[0], mixed[2])
    exactly(mixed[1], mixed[2])
    assert not torch.equal(mixed[2], light.eval()(x, MASK))


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
@pytest.mark.parametrize("taps", [3, 10])
def test_dynamic_depthwise_by_hand(taps, glu, causal):
    """Kernels come from the mean of all real tokens, or of all so far; one sum for each position and channel."""
    mixer, x = made(DynamicDepthwise, causal=causal, kernel_size=taps, glu=glu), sequences()
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


@both_forms
@gated_or_not
@pytest.mark.parametrize("taps", [2, 5, 20])
def test_talk_by_hand(taps, glu, causal):
    """M_ij from the distance of i and j and the predicted sizes, without prefix sums."""
    talk, x, heads = made(TaLK, causal=causal, kernel_size=taps, glu=glu, num_heads=3), sequences(), 3
    found, z = talk(x, MASK).detach(), gated(talk, x).detach()
    left = left_padding(taps, causal)
    right = taps - 1 - left
    sizes = torch.sigmoid(talk.size(z)).detach().numpy()
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
