"""Learned matrices over positions and baselines, against convolutions, averages and plain MLPs in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from composed import TINY, config, lengths_mask
from exact import DIM, LENGTHS, MASK, both_forms, exactly, made, sequences
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor

from seq2seq.data.batching import longest_width
from seq2seq.mixers.average import Average
from seq2seq.mixers.full_mlp import FullMLP
from seq2seq.mixers.gmlp import GatedMLP
from seq2seq.mixers.identity import Identity
from seq2seq.mixers.local_mlp import LocalMLP
from seq2seq.mixers.lowrank_mlp import LowRankMLP
from seq2seq.mixers.mlp import MLP, PositionMatrix
from seq2seq.mixers.separable import Separable
from seq2seq.network.build import max_positions
from seq2seq.system.resources import conf_dir
from seq2seq.training.machine.flops import training_flops

LENGTH = 7


def mixed(positions: PositionMatrix, z: Tensor) -> Tensor:
    """The sum by its definition: z (B, T, D) at padding counts as zero."""
    length = z.shape[1]
    weight = positions.weight[:, :length, :length].repeat_interleave(DIM // positions.weight.shape[0], 0)
    seen = torch.ones(length, length).tril() if positions.causal else torch.ones(length, length)
    return torch.einsum("cij,ij,bj,bjc->bic", weight, seen.to(z), MASK.to(z), z)


@both_forms
@pytest.mark.parametrize("max_len", [LENGTH, 12])
def test_mlp_by_its_definition(max_len, causal):
    mixer, x = made(MLP, causal=causal, num_heads=3, max_len=max_len), sequences()
    exactly(mixer(x, MASK), mixer.out(mixed(mixer.positions, mixer.inner(x))))


@both_forms
def test_separable_by_its_definition(causal):
    mixer, x = made(Separable, causal=causal, num_heads=2, max_len=9), sequences()
    first, _, second = mixer.before
    third, _, fourth = mixer.after
    z = mixed(mixer.positions, second(F.gelu(first(x))))
    exactly(mixer(x, MASK), fourth(F.gelu(third(z))))


@both_forms
def test_gmlp_by_its_definition(causal):
    mixer, x = made(GatedMLP, causal=causal, max_len=9), sequences()
    u, v = F.gelu(x @ mixer.inner.weight.t() + mixer.inner.bias).split(DIM, -1)
    normal = (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    gate = mixed(mixer.positions, normal * mixer.norm.weight + mixer.norm.bias) + mixer.bias[:LENGTH, None]
    exactly(mixer(x, MASK), mixer.out(u * gate))


@both_forms
@pytest.mark.parametrize("window", [1, 4, 5, 20])
def test_local_mlp_by_its_definition(window, causal):
    """One position, one tap after another."""
    mixer, x = made(LocalMLP, causal=causal, num_heads=3, window=window, max_len=9), sequences()
    z = mixer.inner(x) * MASK[:, :, None]
    left = window - 1 if causal else window // 2
    y = torch.zeros_like(z)
    for i in range(LENGTH):
        for k in range(window):
            if 0 <= i + k - left < LENGTH:
                y[:, i] += mixer.weight[:, i, k].repeat_interleave(DIM // 3) * z[:, i + k - left]
    exactly(mixer(x, MASK), mixer.out(y))


@both_forms
@pytest.mark.parametrize("nonlinear", [False, True])
@pytest.mark.parametrize("mix_channels", [False, True])
def test_lowrank_mlp_by_its_definition(causal, mix_channels, nonlinear):
    """One position and channel after another; a causal position sees the slots as they are after it."""
    given = {"max_len": 9, "rank": 2, "nonlinear": nonlinear, "mix_channels": mix_channels}
    mixer, x = made(LowRankMLP, causal=causal, num_heads=3, **given), sequences()
    activation = F.gelu if nonlinear else lambda value: value
    z = mixer.inner(x) * MASK[:, :, None]
    y = torch.zeros_like(z)
    for i in range(LENGTH):
        past = range(i + 1 if causal else LENGTH)
        for c in range(DIM):
            head = c // (DIM // 3)
            for slot in range(2):
                if mix_channels:
                    value = sum(z[:, j] @ mixer.read[j, slot] for j in past)
                    y[:, i, c] += mixer.write[i, c, slot] * activation(value)
                else:
                    value = sum(z[:, j, c] * mixer.read[head, slot, j] for j in past)
                    y[:, i, c] += mixer.write[head, i, slot] * activation(value)
    exactly(mixer(x, MASK), mixer.out(y))


@both_forms
def test_full_mlp_by_its_definition(causal):
    """One pair of positions after another."""
    mixer, x = made(FullMLP, causal=causal, max_len=9, hidden_dim=5), sequences()
    z = mixer.inner(x) * MASK[:, :, None]
    y = torch.zeros_like(z)
    for i in range(LENGTH):
        for j in range(i + 1 if causal else LENGTH):
            y[:, i] += z[:, j] @ mixer.weight[i, :, j].t()
    exactly(mixer(x, MASK), mixer.out(y))


def test_full_mlp_refuses_what_is_too_large():
    with pytest.raises(ValueError, match=r"max_len 256 and hidden_dim 64 make 268,435,456 weights.*max_len up to 181"):
        FullMLP(dim=64, causal=False, max_len=256)


@both_forms
def test_mlp_with_the_unit_matrix_is_the_identity(causal):
    mlp, identity = made(MLP, causal=causal, num_heads=1, max_len=9), made(Identity, causal=causal)
    with torch.no_grad():
        mlp.positions.weight.copy_(torch.eye(9))
    identity.out.load_state_dict(mlp.out.state_dict())
    x = sequences()
    exactly(mlp(x, MASK), identity(mlp.inner(x), MASK))


@both_forms
def test_average_by_hand(causal):
    mixer, x = made(Average, causal=causal), sequences()
    y = mixer(x, MASK)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            mean = x[row, : t + 1 if causal else length].mean(0)
            torch.testing.assert_close(y[row, t], mixer.out(mean), atol=1e-12, rtol=1e-12)


def test_matrices_start_as_convolutions_of_the_right_size():
    """Every diagonal is one random number, smaller the further off; the squares of an inner row sum to about std^2."""
    # Both bounds are more than 7 standard deviations off (0.248 +- 0.010 and 11.1 +- 0.6 in 40 draws): P below 1e-11
    weight = PositionMatrix(num_heads=300, max_len=64, causal=False, std=0.5).weight.detach()
    assert torch.equal(weight[:, 1:, 1:], weight[:, :-1, :-1])
    assert weight[:, 32].square().sum(-1).mean() == pytest.approx(0.25, rel=0.3)
    assert weight.diagonal(0, 1, 2).std() > 3 * weight.diagonal(10, 1, 2).std()


LONGEST = {
    MLP: {"num_heads": 2},
    Separable: {"num_heads": 2},
    GatedMLP: {},
    LocalMLP: {"num_heads": 2, "window": 3},
    LowRankMLP: {"num_heads": 2},
    FullMLP: {},
}


@pytest.mark.parametrize("kind", LONGEST)
def test_more_positions_than_weights_are_refused(kind):
    """At the limit everything works; beyond it, the errors of training, encoding and decoding name both numbers."""
    mixer = kind(dim=4, causal=True, max_len=5, **LONGEST[kind])
    mixer(torch.randn(2, 5, 4), lengths_mask([5, 2]))
    mixer.empty_state(1, 5)
    # The remedy names both slots, since the smaller number counts
    with pytest.raises(ValueError, match=r"6 positions exceeds the 5 .*encoder\.max_len.*decoder\.max_len"):
        mixer(torch.randn(1, 6, 4), lengths_mask([6]))
    with pytest.raises(ValueError, match=r"6 positions exceeds the 5 .*max_len"):
        mixer.empty_state(1, 6)
    with pytest.raises(ValueError, match="max_len is 0"):
        kind(dim=4, causal=True, max_len=0, **LONGEST[kind])


@pytest.mark.parametrize("name", ["mlp", "separable", "gmlp", "local_mlp", "lowrank_mlp", "full_mlp"])
def test_defaults_reach_to_the_longest_training_sentence(name):
    """Training with only `mixer=<name>` is not refused."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        plain = OmegaConf.to_container(compose("train", [f"mixer={name}"]), resolve=True)
    longest = min(longest_width(plain["data"]["max_tokens"]), plain["data"]["clean"]["max_length"])
    assert longest <= max_positions(plain) < 1024


@pytest.mark.slow
def test_flops_are_counted_within_the_longest_sentence():
    """Products with the matrices cost T^2 D; a model of few positions is not asked for more of them."""
    short = [f"mixer.{slot}.max_len=20" for slot in ("encoder", "decoder")]
    with_ = training_flops(config("mixer=mlp", *TINY, *short))
    without = training_flops(config("mixer=identity", *TINY))
    assert with_ is not None
    assert without is not None
    assert with_.polynomial
    rows, src, tgt, dim = 3, 19, 20, 16
    layers = 4 * (2 * dim * dim * rows * (src + tgt) + 2 * dim * rows * (src * src + tgt * tgt))
    assert with_(rows, src, tgt) - without(rows, src, tgt) == 3 * layers


@pytest.mark.parametrize("kind", [MLP, Separable])
@pytest.mark.parametrize(("start", "std", "cut"), [("mlp_mixer", 1 / 20, 2.28 / 20), ("resmlp", 0.02, 0.2)])
def test_a_matrix_starts_as_published(kind, start, std, cut):
    """Independent entries: LeCun's variance 1 / N, cut off at 2 / 0.8796 = 2.27 of it, or deviations of 0.02."""
    weight = kind(dim=4, causal=False, num_heads=2, max_len=400, start=start).positions.weight
    # Six standard errors of 320,000 draws are 0.75%
    assert weight.std().item() == pytest.approx(std, rel=0.0075)
    assert weight.abs().max() < cut
    assert abs(weight[:, 1:, 1:].flatten() @ weight[:, :-1, :-1].flatten()) < 0.02 * weight.square().sum()


def test_a_matrix_starts_as_a_convolution_unless_told():
    weight = MLP(dim=4, causal=False, num_heads=2, max_len=40).positions.weight
    assert torch.equal(weight[:, 1:, 1:], weight[:, :-1, :-1])
    with pytest.raises(ValueError, match="start is 'random'; choose one of convolution, mlp_mixer, resmlp"):
        MLP(dim=4, causal=False, num_heads=2, max_len=40, start="random")
