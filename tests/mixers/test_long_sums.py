"""Sums over thousands of positions are taken in float32, also for narrower values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from seq2seq.mixers.aan import AAN
from seq2seq.mixers.average import Average
from seq2seq.mixers.dynamic_depthwise import DynamicDepthwise
from seq2seq.mixers.lowrank import LowRank
from seq2seq.mixers.lowrank_mlp import LowRankMLP
from seq2seq.mixers.talk import TaLK
from seq2seq.network.mixer import SelfMixer

REPRESENTATIVE = {"test_states_of_steps": {"aan", "average", "dynamic_depthwise", "lowrank_mlp"}}

LENGTH, DIM = 2000, 16
# Of the last positions, whose sums are longest; bfloat16 itself rounds by 1/256.
LAST, TOLERANCE = 200, 0.01


def inputs() -> tuple[Tensor, Tensor]:
    """Values with a mean above zero, whose sum grows, and their mask."""
    return (torch.randn(1, LENGTH, DIM) + 0.5).bfloat16(), torch.ones(1, LENGTH, dtype=torch.bool)


def error(found: Tensor, expected: Tensor) -> float:
    found, expected = found[:, -LAST:].double(), expected[:, -LAST:]
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
def test_prefix_sums_of_a_whole_sequence():
    mixer = TaLK(dim=DIM, causal=True, num_heads=4, kernel_size=15).bfloat16()
    x, mask = inputs()
    assert error(mixer(x, mask), copy.deepcopy(mixer).double()(x.double(), mask)) < TOLERANCE


@pytest.mark.parametrize(
    "make",
    [
        lambda: Average(dim=DIM, causal=True),
        lambda: AAN(dim=DIM, causal=True, ffn_dim=DIM),
        lambda: LowRankMLP(dim=DIM, causal=True, num_heads=4, max_len=LENGTH),
        lambda: LowRank(dim=DIM, causal=True, num_heads=4, max_len=LENGTH),
        lambda: DynamicDepthwise(dim=DIM, causal=True, kernel_size=3),
    ],
    ids=["average", "aan", "lowrank_mlp", "lowrank", "dynamic_depthwise"],
)
@torch.no_grad()
def test_states_of_steps(make):
    mixer: SelfMixer = make().bfloat16()
    x, mask = inputs()
    state = mixer.empty_state(1, LENGTH, dtype=torch.bfloat16)
    outputs = []
    for position in range(LENGTH):
        output, state = mixer.step(x[:, position], state, torch.tensor([position]))
        outputs.append(output)
    assert error(torch.stack(outputs, 1), copy.deepcopy(mixer).double()(x.double(), mask)) < TOLERANCE
