"""Heads that start at a convolution's taps: where they look, and that they compute it, dilated and strided."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config, lengths_mask
from torch import Tensor, nn

from seq2seq.mixers.quadratic import Quadratic
from seq2seq.network.build import build_model

DIM = 4


def at_taps(kernel: Tensor, *, centers: Tensor | None = None, causal: bool = False, **settings: Any) -> Quadratic:
    """A mixer with the weights of a kernel (D_out, D_in, taps), and a head at each tap, or at each of `centers`."""
    dim, taps = kernel.shape[1], kernel[0, 0].numel()
    start = {"center_std": None} if centers is None else {}
    mixer = Quadratic(dim=dim, causal=causal, num_heads=taps, head_dim=dim, **start, **settings).double()
    with torch.no_grad():
        if centers is not None:
            mixer.centers.copy_(centers)
        mixer.log_sharpness.fill_(math.log(46.0))  # the published one; exp(-46) is lost in a sum with 1
        mixer.inner.weight.copy_(torch.eye(dim).repeat(taps, 1))
        mixer.out.weight.copy_(torch.cat(kernel.flatten(2).unbind(2), 1))
    return mixer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 2, 3, 5])
def test_is_a_dilated_convolution(taps, dilation, causal):
    """It equals torch's convolution with repeated border positions; every s-th output is the output of stride s."""
    kernel, x = torch.randn(DIM, DIM, taps).double(), torch.randn(2, 13, DIM).double()
    left = dilation * (taps - 1 if causal else taps // 2)
    padded = F.pad(x.transpose(1, 2), (left, dilation * (taps - 1) - left), mode="replicate")
    y = at_taps(kernel, dilation=dilation, causal=causal)(x, lengths_mask([13, 13]))
    for stride in (1, 2, 3):
        expected = F.conv1d(padded, kernel, dilation=dilation, stride=stride).transpose(1, 2)
        torch.testing.assert_close(y[:, ::stride], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2])
def test_is_a_dilated_convolution_on_a_grid(dilation):
    kernel, image = torch.randn(DIM, DIM, 3, 3).double(), torch.randn(2, DIM, 6, 7).double()
    padded = F.pad(image, [dilation] * 4, mode="replicate")
    mixer = at_taps(kernel, dilation=dilation, grid_width=7)
    y = mixer(image.flatten(2).transpose(1, 2), lengths_mask([42, 42])).transpose(1, 2).unflatten(2, (6, 7))
    for stride in (1, 2):
        expected = F.conv2d(padded, kernel, dilation=dilation, stride=stride)
        torch.testing.assert_close(y[:, :, ::stride, ::stride], expected, atol=1e-12, rtol=1e-12)


def test_a_head_starts_near_its_tap():
    """Freshly made, a head gives its tap more than 95% of its weight on a line, and more than 90% on a grid."""
    for grid_width, share in ((None, 0.95), (7, 0.9)):
        mixer = Quadratic(dim=9, num_heads=9, center_std=None, causal=False, grid_width=grid_width).double()
        nn.init.eye_(mixer.inner.weight)
        nn.init.eye_(mixer.out.weight)
        # Channel c is head c: a one at the middle of 7 x 7 is seen by each head from one place
        x = torch.zeros(1, 49, 9).double()
        x[0, 24] = 1.0
        with torch.no_grad():
            y = mixer(x, lengths_mask([49]))[0]
        assert len(set(y.argmax(0).tolist())) == 9
        assert y.amax(0).min() > share


def test_refusals():
    with pytest.raises(ValueError, match=r"num_heads is 6.*choose 4 or 9"):
        Quadratic(dim=12, num_heads=6, center_std=None, causal=False, grid_width=3)


def test_taps_on_the_grid_of_an_image():
    patches = {"height": 6, "width": 10, "size": 2, "bits": 8}
    sizes = ("model.dim=36", "model.num_heads=9")
    taps = ("mixer.encoder.center_std=null", "mixer.decoder.center_std=null")
    model = build_model(config("mixer=quadratic", *TINY, *sizes, *taps, "model.tie=target", patches=patches))
    centers = [layer.self_mixer.centers for layer in model.encoder.layers]
    assert all(sorted(c.tolist()) == [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)] for c in centers)
    assert all(layer.self_mixer.centers.flatten().tolist() == list(range(-8, 1)) for layer in model.decoder.layers)
