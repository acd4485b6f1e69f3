"""Initial values of every parameter of every mixer, as docstrings and papers have them.

Bounds are exact. A measured standard deviation may be off by six standard errors, P = 2e-9 for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from composed import CROSS, SELF, Case, decodes
from torch import Tensor, nn
from torch.nn import functional as F

DIM = 64
HEADS = 2  # of composed.TINY
HEAD = DIM // HEADS
Rule = Callable[[Tensor], None]


def constant(value: float) -> Rule:
    def check(found: Tensor) -> None:
        assert torch.equal(found, torch.full_like(found, value))

    return check


def close(found: float, expected: float, count: int) -> None:
    """A standard deviation of `count` independent draws."""
    assert found == pytest.approx(expected, rel=6 / math.sqrt(2 * count))


def uniform(low: float, high: float) -> Rule:
    def check(found: Tensor) -> None:
        assert found.min() >= low - 1e-6
        assert found.max() <= high + 1e-6
        middle, spread = (low + high) / 2, (high - low) / math.sqrt(12)
        close((found - middle).square().mean().sqrt().item(), spread, found.numel())

    return check


def normal(std: float | Tensor, mean: float | Tensor = 0.0) -> Rule:
    """Independent draws; a tensor has a value for each column, or broadcasts otherwise."""

    def check(found: Tensor) -> None:
        standard = (found - mean) / std
        close(standard.square().mean().sqrt().item(), 1.0, found.numel())
        # Normal, not uniform within sqrt(3)
        assert found.numel() < 500 or standard.abs().max() > 2

    return check


def xavier(gain: float = 1.0, blocks: int = 1) -> Rule:
    """Glorot and Bengio 2010, eq. 16, of each of `blocks` matrices one above the other."""

    def check(found: Tensor) -> None:
        for block in found.chunk(blocks):
            bound = gain * math.sqrt(6 / (block.shape[0] + block.shape[1]))
            uniform(-bound, bound)(block)

    return check


def orthogonal(blocks: int) -> Rule:
    def check(found: Tensor) -> None:
        for block in found.chunk(blocks):
            torch.testing.assert_close(block @ block.T, torch.eye(len(block)), atol=1e-5, rtol=0)

    return check


def convolutions(std: float, causal: bool) -> Rule:
    """Matrices (H, N, N) with w_{j - i} at (i, j): std(w_d) ~ 1 / (1 + |d|), and their squares sum to std^2."""

    def check(found: Tensor) -> None:
        size = found.shape[-1]
        taps = torch.cat([found[:, -1, :-1], found[:, 0]], -1)  # d = 1 - N .. N - 1
        for i in range(size):
            assert torch.equal(found[:, i], taps[:, size - 1 - i : 2 * size - 1 - i])
        scale = 1.0 / (1 + torch.arange(1 - size, size).abs())
        used = scale[:size] if causal else scale
        normal(scale * std / used.square().sum().sqrt())(taps)

    return check


def forget_gate_of_one(found: Tensor) -> None:
    """Gates i, f, g, o (Jozefowicz et al. 2015)."""
    assert found.view(4, -1)[1].eq(1).all()
    assert found.view(4, -1)[[0, 2, 3]].eq(0).all()


def equal(expected: Tensor) -> Rule:
    return lambda found: torch.testing.assert_close(found, expected)


INPUTS = 2**-0.5  # the gain of queries, keys and values, see `attention_inputs`
QKV = {"qkv.weight": xavier(INPUTS, blocks=3)}
# The first head has sharpness 1/2, the last 1/512 (in logarithms)
SHARPNESS = equal(-math.log(2) * torch.linspace(1, 9, HEADS))
GATED_UNIT = {"recurrent.weight": orthogonal(3)}
LSTM = {"recurrent.weight": orthogonal(4), "input.bias": forget_gate_of_one}
UNIT = {"unit.recurrent.weight": orthogonal(3)}
# s'W h is as large as a product of unit vectors
LUONG = {"read.key.weight": xavier(DIM**-0.5)}
ATTENTION = {"query.weight": xavier(INPUTS), "key_value.weight": xavier(INPUTS, blocks=2)}
CROSS_RULES: dict[str, dict[str, Rule]] = {
    "attention": ATTENTION,
    "bahdanau": UNIT,
    "coverage": UNIT,
    "fixed_context": UNIT,
    "fixed_gaussian": {
        "rate_offsets": constant(0),
        "centers": equal(torch.tensor([-1.0, 0.0])),
        "log_sharpness": SHARPNESS,
    },
    "luong": {**LUONG, **UNIT},
    "luong_attention": LUONG,
    "luong_local": {**LUONG, **UNIT},
    "qk_norm": ATTENTION,
    "relu_attention": {**ATTENTION, "norm.gate": constant(0)},
}


def self_rules(mixer: nn.Module, *, causal: bool) -> dict[str, dict[str, Rule]]:
    """Return, by the mixer's name, the rules of parameters that do not follow `usual`."""
    taps = getattr(mixer, "kernel_size", 1)
    rank = getattr(mixer, "rank", 1)
    size = getattr(mixer, "max_len", 1)
    own = (torch.arange(taps) == (taps - 1 if causal else taps // 2)).float()
    near_identity = normal(0.02, mean=own)
    directions = ("ahead", "back")
    positions = {"positions.weight": convolutions(1.0, causal=causal)}
    later = 1.0 / (1 + torch.arange(size))
    return {
        "attention": QKV,
        "bigru": {f"{side}.{name}": rule for side in directions for name, rule in GATED_UNIT.items()},
        "conv": {"weight": normal((DIM * taps) ** -0.5)},
        "conv2d": {"weight": normal(DIM**-0.5 / getattr(mixer, "kernel_side", 1))},
        "criss_cross": QKV,
        "depthwise": {"weight": normal(taps**-0.5)},
        "dynamic_depthwise": {
            "weight.weight": normal((DIM // 4 * taps) ** -0.5),
            "weight.bias": normal(taps**-0.5),
        },
        "full_mlp": {
            "weight": lambda found: convolutions(4**-0.5, causal=causal)(found.permute(1, 3, 0, 2).flatten(0, 1))
        },
        "gated_delta": {
            **QKV,
            "rates.weight": xavier(blocks=2),
            "weight": uniform(-(taps**-0.5), taps**-0.5),
            "log_speed": lambda found: uniform(1, 16)(found.exp()),
            "rate_bias": lambda found: uniform(math.log(1e-3), math.log(1e-1))(F.softplus(found).log()),
            "norm": constant(1),
        },
        "gmlp": {"bias": constant(1), "positions.weight": convolutions(0.01, causal=causal)},
        "grouped_query": {
            "qkv.weight": lambda found: [
                xavier(INPUTS)(part) for part in found.split([DIM, *[(len(found) - DIM) // 2] * 2])
            ]
        },
        "gru": {f"{side}.{name}": rule for side in directions for name, rule in GATED_UNIT.items()},
        "inhomogeneous_depthwise": {
            "weight.weight": normal((rank * taps) ** -0.5),
            "weight.bias": normal(taps**-0.5),
        },
        "interlaced": {"inner.weight": xavier(INPUTS, blocks=5)},
        "lightconv": {"weight": xavier()},
        "linear_attention": QKV,
        "local": QKV,
        "local_bias": {**QKV, "bias": constant(0)},
        "local_blocks": QKV,
        "local_mlp": {"weight": same_at_all_positions},
        "lowrank": {
            **QKV,
            "key_slots": normal((rank + torch.arange(size)) ** -0.5),
            "value_slots": normal(later**0.5),
        },
        "lowrank_mlp": {"read": normal((later / later.sum()).sqrt()), "write": normal(rank**-0.5)},
        "lstm": {f"{side}.{name}": rule for side in directions for name, rule in LSTM.items()},
        "mlp": positions,
        "multiscale": {"weight": scales(mixer), "gate": constant(0)},
        "nonlocal": {
            "qk.weight": xavier(INPUTS * HEAD**-0.25, blocks=2),
            "value.weight": xavier(INPUTS),
        },
        "postconv_attention": {**QKV, "weight": near_identity},
        "preconv_attention": {**QKV, "weight": near_identity},
        "pyramid": ATTENTION,
        "qk_norm": QKV,
        "quadratic": {
            "centers": lambda found: normal(2.0)(found if not causal else below_zero(found)),
            "log_sharpness": SHARPNESS,
        },
        "relative": {
            "inner.weight": xavier(INPUTS, blocks=3),
            "place.weight": xavier(INPUTS),
            "u": xavier(),
            "v": xavier(),
            "r": normal(1.0),
        },
        "relative_bias": {**QKV, "bias": constant(0)},
        "relu_attention": {**QKV, "norm.gate": constant(0)},
        "resolutions": QKV,
        "retention": QKV,
        "rotary": QKV,
        "separable": positions,
        "swin": QKV,
        "talk": {"size.weight": xavier(blocks=1 if causal else 2)},
    }


def same_at_all_positions(found: Tensor) -> None:
    """A convolution at first: (H, N, w)."""
    assert torch.equal(found, found[:, :1].expand_as(found))
    normal(found.shape[-1] ** -0.5)(found[:, 0])


def scales(mixer: nn.Module) -> Rule:
    """Kernels side by side; the variance of each kernel's output is the number of kernels."""
    sizes = getattr(mixer, "kernel_sizes", ())

    def check(found: Tensor) -> None:
        assert sum(sizes) == found.shape[1]
        for size, part in zip(sizes, found.split(sizes, 1), strict=True):
            normal((len(sizes) / size) ** 0.5)(part)

    return check


def below_zero(found: Tensor) -> Tensor:
    """A causal mixer's centers, which are in the past."""
    assert (found <= 0).all()
    return found


def usual(name: str) -> Rule:
    """A bias of zeros, a norm's weight of ones, and any other weight by Xavier's rule."""
    if name.endswith("bias"):
        return constant(0)
    return constant(1) if "norm" in name else xavier()


CASES = [
    *(Case("encoder", name) for name in SELF),
    *(Case("decoder", name) for name in SELF if decodes(name)),
    *(Case("cross", name) for name in CROSS),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_initial_values(case):
    mixer = case.variants(f"model.dim={DIM}", dim=DIM, moved=False)[-1]
    own = CROSS_RULES if case.slot == "cross" else self_rules(mixer, causal=case.slot == "decoder")
    rules = own.get(case.name, {})
    found = {name: value.detach() for name, value in mixer.named_parameters()}
    # A renamed parameter must not lose its rule; a causal recurrence has one direction
    assert {name for name in rules if not name.startswith("back.")} <= found.keys()
    for name, value in found.items():
        try:
            rules.get(name, usual(name))(value)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
