"""Schedules against their formulas; scaling and clipping against torch."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import composed
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from seq2seq.network.build import hidden_matrices
from seq2seq.settings.declare import read_section
from seq2seq.settings.optim import OptimSettings
from seq2seq.system.resources import conf_dir
from seq2seq.training.objective import muon
from seq2seq.training.objective.muon import MuonWithAdam, orthogonalize
from seq2seq.training.objective.optim import Schedule, build_optimizer, learning_rate, scale_and_clip

REPRESENTATIVE = {
    "test_muon_updates_every_linear_layer_but_the_tables": {"bahdanau", "dynamicconv", "lightconv", "transformer"}
}


def rates(settings: OptimSettings, count: int) -> list[float]:
    return [learning_rate(step, settings) for step in range(1, count + 1)]


def test_warm_up_then_inverse_square_root():
    settings = OptimSettings(lr=1e-3, warmup_steps=10, warmup_init_lr=1e-5)
    found = rates(settings, 1000)
    assert found[9] == pytest.approx(1e-3)
    assert found[0] == pytest.approx(1e-5 + (1e-3 - 1e-5) / 10)
    assert found[39] == pytest.approx(1e-3 * math.sqrt(10 / 40))
    assert found.index(max(found)) == 9
    steps = [b - a for a, b in itertools.pairwise(found[:10])]
    assert max(steps) == pytest.approx(min(steps))
    assert learning_rate(10**8, dataclasses.replace(settings, min_lr=1e-5)) == 1e-5


def test_cosine_goes_to_the_minimum_and_stays():
    settings = OptimSettings(schedule="cosine", lr=1.0, warmup_steps=5, period=100, min_lr=0.1)
    assert learning_rate(5, settings) == pytest.approx(1.0)
    assert learning_rate(55, settings) == pytest.approx(0.55)
    assert learning_rate(105, settings) == learning_rate(10_000, settings) == pytest.approx(0.1)
    found = rates(settings, 200)[4:]
    assert found == sorted(found, reverse=True)


def test_anneal_follows_the_budget_whatever_the_updates():
    settings = OptimSettings(schedule="anneal", lr=1.0, warmup_share=0.2, warmup_init_lr=0.0, min_lr=0.1)
    assert learning_rate(1, settings, 0.0) == 0.0
    assert learning_rate(3, settings, 0.1) == learning_rate(300, settings, 0.1) == pytest.approx(0.5)
    assert learning_rate(6, settings, 0.2) == pytest.approx(1.0)
    assert learning_rate(6, settings, 0.6) == learning_rate(600, settings, 0.6) == pytest.approx(0.55)
    assert learning_rate(60, settings, 1.0) == pytest.approx(0.1)
    assert learning_rate(1, dataclasses.replace(settings, warmup_init_lr=0.4), 0.1) == pytest.approx(0.7)


def test_the_rate_may_stay_before_it_falls():
    """Warmup-stable-decay by hand; a fall that is longer than the rest after the rise is cut to the rest."""
    rates = {"schedule": "anneal", "lr": 1.0, "warmup_share": 0.25, "warmup_init_lr": 0.0}
    settings = OptimSettings(**rates, decay_share=0.2)
    found = [learning_rate(1, settings, share) for share in (0.125, 0.25, 0.5, 0.8, 0.85, 0.9, 1.0)]
    assert found == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5 + 0.5**1.5, 0.5, 0.0])
    whole, most = OptimSettings(**rates), OptimSettings(**rates, decay_share=0.75)
    shares = [part / 16 for part in range(17)]
    assert [learning_rate(1, whole, each) for each in shares] == [learning_rate(1, most, each) for each in shares]
    assert learning_rate(1, OptimSettings(**rates, decay_share=1e-17), 1.0) == 1.0


def test_the_schedule_is_told_the_share_and_keeps_it():
    settings = OptimSettings(schedule="anneal", lr=1.0, warmup_share=0.0)
    schedules = []
    for _ in range(2):
        optimizer = build_optimizer([nn.Parameter(torch.zeros(2))], settings)
        schedules.append((optimizer, Schedule(optimizer, settings)))
    (first, told), (second, loaded) = schedules
    first.step()
    told.share = 0.75
    told.step()
    loaded.load_state_dict(told.state_dict())
    assert loaded.last_epoch == told.last_epoch == 1
    assert (
        first.param_groups[0]["lr"] == second.param_groups[0]["lr"] == pytest.approx((1 + math.cos(0.75 * math.pi)) / 2)
    )


def test_no_warm_up():
    assert learning_rate(1, OptimSettings(schedule="constant", lr=0.5, warmup_steps=0)) == 0.5
    assert learning_rate(4, OptimSettings(lr=0.5, warmup_steps=0)) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["adam", "adadelta", "muon"])
def test_the_schedule_sets_the_rate_of_each_update(name):
    settings = OptimSettings(name=name, lr=1.0, warmup_steps=3, schedule="constant", warmup_init_lr=0.0)
    weight = nn.Parameter(torch.zeros(2))
    optimizer = build_optimizer([weight], settings)
    schedule = Schedule(optimizer, settings)
    used = []
    for _ in range(5):
        used.append(optimizer.param_groups[0]["lr"])
        weight.grad = torch.ones(2)
        optimizer.step()
        schedule.step()
    assert used == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])


@pytest.mark.parametrize("clip_norm", [0.0, 0.05, 1e6])
def test_scale_and_clip(clip_norm):
    parameters = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.zeros(2))]
    for parameter in parameters[:2]:  # the last has no gradient
        parameter.grad = torch.randn_like(parameter)
    expected = [p.grad / 7 for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in expected]))
    if clip_norm:
        expected = [g * min(1.0, clip_norm / float(norm)) for g in expected]
    found = scale_and_clip(parameters, torch.tensor(1 / 7), clip_norm=clip_norm)
    torch.testing.assert_close(found, norm)
    for parameter, gradient in zip(parameters, expected, strict=False):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert parameters[2].grad is None


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"name": "sgd"}, "adam"),
        ({"schedule": "linear"}, "cosine"),
        ({"lr": 0}, "optim.lr=0"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"learning_rate": 1}, "optim.learning_rate"),
        ({"lr": math.nan}, "optim.lr=nan"),
        ({"betas": [0.9]}, r"optim.betas=\[0.9\] is not a list of 2 numbers from 0 and below 1"),
        ({"betas": 0.9}, "optim.betas=0.9"),
        ({"betas": [0.9, 2.0]}, r"optim.betas=\[0.9, 2.0\]"),
        ({"betas": [0.9, "x"]}, r"optim.betas=\[0.9, 'x'\]"),
        ({"name": "adadelta", "rho": 1.0}, "optim.rho=1.0"),
    ],
)
def test_wrong_settings_are_named(values, word):
    with pytest.raises(ValueError, match=word):
        read_section(OptimSettings, values, "optim")


@pytest.mark.parametrize(
    ("name", "given"),
    [("adam", {"betas": (0.7, 0.8), "eps": 1e-3}), ("adadelta", {"rho": 0.8, "eps": 1e-3})],
)
def test_settings_reach_the_optimizer(name, given):
    settings = OptimSettings(name=name, weight_decay=0.5, **given)
    (group,) = build_optimizer([nn.Parameter(torch.ones(3))], settings).param_groups
    assert {key: group[key] for key in (*given, "weight_decay")} == {**given, "weight_decay": 0.5}


def test_weight_decay_is_decoupled():
    settings = OptimSettings(lr=0.1, warmup_steps=0, schedule="constant", weight_decay=0.5)
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.zeros(1)
    build_optimizer([weight], settings).step()
    assert weight.item() == pytest.approx(1 - 0.1 * 0.5)


@pytest.mark.parametrize("most", [2**24, 30])
def test_muon_makes_the_updates_of_torchs_muon_and_adamw(monkeypatch, most):
    """Compare the parts of one optimizer with two of torch's, block by block for a matrix of blocks.

    Blocks of one shape are updated together, at most 30 numbers in one of the cases; in one turn one has no gradient.
    """
    # Jordan's iteration, which torch has
    monkeypatch.setattr(muon, "_COEFFICIENTS", ((3.4445, -4.7750, 2.0315),) * 5)
    monkeypatch.setattr(muon, "_MOST", most)
    # As torch's, which iterates in bfloat16 on a CPU that only emulates it, too
    monkeypatch.setattr(muon, "has_bf16", lambda kind: True)
    shapes = [(8, 3), (8, 3), (4, 4), (5,), (7, 4), (10, 4)]
    own = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    # torch has no blocks: the last parameter is three parameters there
    last = (4, 2, 4)
    twin = [nn.Parameter(torch.ones(shape)) for shape in (*shapes[:5], *((rows, 4) for rows in last))]
    rates = {"lr": 0.1, "weight_decay": 0.01}
    scale = 3
    blocks = {own[0]: (8,), own[1]: (8,), own[2]: (4,), own[5]: last}
    # Values that are not the defaults
    how = {"betas": (0.7, 0.8), "eps": 1e-2}
    settings = OptimSettings(name="muon", warmup_steps=0, adam_lr_scale=scale, momentum=0.6, **how, **rates)
    optimizer = build_optimizer(own, settings, blocks)
    assert isinstance(optimizer, MuonWithAdam)
    theirs = torch.optim.Muon([*twin[:3], *twin[5:]], adjust_lr_fn="match_rms_adamw", momentum=0.6, **rates)
    adam = torch.optim.AdamW(twin[3:5], **how, **rates)
    for turn, rate in enumerate((0.1, 0.1, 0.05)):
        for group in (*optimizer.param_groups, *theirs.param_groups, *adam.param_groups):
            group["lr"] = rate
        adam.param_groups[0]["lr"] = scale * rate
        for mine in own:
            mine.grad = torch.randn_like(mine)
        gradients = [*(mine.grad for mine in own[:5]), *own[5].grad.split(last)]  # type: ignore[union-attr]
        for other, gradient in zip(twin, gradients, strict=True):
            other.grad = gradient.clone()
        if turn == 1:
            own[1].grad = twin[1].grad = None
        before = own[0].detach().clone()
        for each in (optimizer, theirs, adam):
            each.step()
        # All singular values of an orthogonal matrix are 1
        size = torch.linalg.svdvals(own[0].detach() - (1 - rate * 0.01) * before) / (rate * 0.2 * 8**0.5)
        assert size.min() > 0.5
        assert size.max() < 1.5
    for mine, other in zip([*own[:5], *own[5].split(last)], twin, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("shape", [(16, 16), (12, 40), (40, 12)])
def test_singular_values_of_orthogonalized_matrices_are_near_one(shape):
    """Values from 0.006 of the norm on become 0.48 to 1.5; the singular vectors stay (by torch's SVD)."""
    u, _, vh = torch.linalg.svd(torch.randn(2, *shape, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(-1.9, 0, min(shape), dtype=torch.float64)
    matrices = 3 * (u * values) @ vh
    assert values[0] / values.norm() > 0.006
    found = u.mT @ orthogonalize(matrices) @ vh.mT
    after = found.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found, torch.diag_embed(after), rtol=0, atol=1e-9)
    assert after.min() > 0.48
    assert after.max() < 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05, 1.0])
@pytest.mark.parametrize("shape", [(4, 128), (64, 64), (256, 64)])
def test_matrices_of_nearly_one_singular_value_do_not_grow(shape, noise, dtype):
    """Rounding takes their largest value beyond 1, where the polynomials rise steeply."""
    rows, columns = shape
    one = torch.randn(8, rows, 1) @ torch.randn(8, 1, columns)
    other = torch.randn(8, rows, columns)
    matrices = one / one.norm(dim=(1, 2), keepdim=True) + noise * other / other.norm(dim=(1, 2), keepdim=True)
    largest = torch.linalg.matrix_norm(orthogonalize(matrices.to(dtype)).float(), ord=2)
    assert largest.max() < 1.6


def test_muon_computes_in_float32_where_bf16_is_emulated(monkeypatch):
    dtypes = []

    def record(matrices):
        dtypes.append(matrices.dtype)
        return orthogonalize(matrices)

    monkeypatch.setattr(muon, "orthogonalize", record)
    updates, gradient = [], torch.randn(6, 8)
    for in_hardware in (True, False):
        monkeypatch.setattr(muon, "has_bf16", lambda accelerator, found=in_hardware: found)
        matrix = nn.Parameter(torch.zeros(6, 8))
        matrix.grad = gradient
        build_optimizer([matrix], OptimSettings(name="muon", lr=0.1, warmup_steps=0), {matrix: (6,)}).step()
        updates.append(matrix.detach())
    assert dtypes == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(*updates, rtol=0.1, atol=3e-3)


def test_muon_goes_on_from_its_state():
    whole, part = ([nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))] for _ in range(2))
    gradients = [[torch.randn(3, 4), torch.randn(3)] for _ in range(4)]
    settings = OptimSettings(name="muon", lr=0.1, warmup_steps=0)

    def update(parameters, optimizer, steps):
        for step in steps:
            for parameter, gradient in zip(parameters, gradients[step], strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    update(whole, build_optimizer(whole, settings, {whole[0]: (3,)}), range(4))
    first = build_optimizer(part, settings, {part[0]: (3,)})
    update(part, first, range(2))
    second = build_optimizer(part, settings, {part[0]: (3,)})
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    update(part, second, range(2, 4))
    for expected, found in zip(whole, part, strict=True):
        assert torch.equal(expected, found)


def test_muon_skips_an_update_that_is_not_finite():
    matrix, vector = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))
    optimizer = build_optimizer([matrix, vector], OptimSettings(name="muon", lr=0.1, warmup_steps=0), {matrix: (3,)})
    states = []
    for found_inf in (0.0, 1.0, 0.0):
        matrix.grad, vector.grad = torch.randn(3, 4), torch.randn(3)
        optimizer.found_inf = torch.tensor(found_inf)  # type: ignore[attr-defined]
        optimizer.step()
        parts = (matrix.detach(), vector.detach(), optimizer.state[matrix]["momentum_buffer"])
        states.append([part.clone() for part in parts])
    assert all(map(torch.equal, states[0], states[1]))
    assert not any(map(torch.equal, states[1], states[2]))


def test_muon_takes_one_group_of_parameters():
    groups = [{"params": [nn.Parameter(torch.ones(3))]} for _ in range(2)]
    with pytest.raises(ValueError, match=r"optim.name=adam for several"):
        MuonWithAdam(groups, {}, lr=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv", "lightconv", "bahdanau", "luong"])
def test_muon_updates_every_linear_layer_but_the_tables(mixer):
    """Muon updates matrices that are not tables; each block of them makes one product with its input."""
    model = composed.tiny(f"mixer={mixer}")
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {names[matrix]: blocks for matrix, blocks in hidden_matrices(model).items()}
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    vectors = {name for name, weight in model.named_parameters() if weight.ndim == 2 and 1 in weight.shape}
    assert set(found) == linear - vectors - {"output.weight"}
    assert all(sum(blocks) == model.get_parameter(name).shape[0] for name, blocks in found.items())
    parts = {"qkv": 3, "key_value": 2, "input": 3, "recurrent": 3, "read": 3, "feed": 3}
    for name, blocks in found.items():
        layer = name.split(".")[-2]
        expected = 2 if layer == "inner" and "conv" in mixer else parts.get(layer, 1)
        assert len(blocks) == expected, name


@pytest.mark.parametrize("path", sorted((conf_dir() / "optim").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_is_valid(path):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("train", [f"optim={path.stem}"])
    read_section(OptimSettings, OmegaConf.to_container(composed.optim, resolve=True), "optim")  # type: ignore[arg-type]
