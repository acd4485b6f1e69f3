"""Points of the relation graph against plain loops and against the mixers beside them; float64, exactly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from exact import LENGTHS, MASK, both_forms, exactly, made, sequences

from seq2seq.mixers.depthwise import Depthwise
from seq2seq.mixers.inhomogeneous_depthwise import InhomogeneousDepthwise


@both_forms
@pytest.mark.parametrize("taps", [1, 4, 11])
def test_inhomogeneous_kernels_by_hand(taps, causal):
    """One position, one tap after another."""
    mixer, x = made(InhomogeneousDepthwise, causal=causal, kernel_size=taps, rank=3), sequences()
    z = F.glu(mixer.inner(x), -1)
    kernels = mixer.weight(F.gelu(mixer.squeeze(z))).unflatten(-1, (taps, -1))  # (B, T, K, D)
    left = taps - 1 if causal else taps // 2
    y = torch.zeros_like(z)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for k in range(taps):
                if 0 <= t + k - left < length:
                    y[row, t] += kernels[row, t, k] * z[row, t + k - left]
    exactly(mixer(x, MASK), mixer.out(y))


@both_forms
@pytest.mark.parametrize("glu", [True, False])
def test_inhomogeneous_kernels_of_a_constant_prediction_are_depthwise(glu, causal):
    """V = 0 leaves w_0 for every position."""
    mixer = made(InhomogeneousDepthwise, causal=causal, kernel_size=5, glu=glu)
    plain = made(Depthwise, causal=causal, kernel_size=5, glu=glu)
    plain.inner.load_state_dict(mixer.inner.state_dict())
    plain.out.load_state_dict(mixer.out.state_dict())
    with torch.no_grad():
        mixer.weight.weight.zero_()
        plain.weight.copy_(mixer.weight.bias.unflatten(0, (5, -1)).t())
    x = sequences()
    exactly(mixer(x, MASK), plain(x, MASK))
