"""Test the atlas: measurements against declarations and known matrices, its parts against other implementations."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from composed import SELF
from torch import Tensor, nn

from seq2seq.analysis import plots
from seq2seq.analysis.atlas import map as atlas_map
from seq2seq.analysis.atlas import properties, scaling
from seq2seq.analysis.atlas.property_table import PUBLISHED, as_json, markdown
from seq2seq.analysis.atlas.survey import Point, survey
from seq2seq.analysis.atlas.write_atlas import VARIANTS, settings_of
from seq2seq.analysis.jacobian import jacobian
from seq2seq.mixers.attention import Attention
from seq2seq.mixers.nonlocal_ import PAIRWISE
from seq2seq.network.introspection import MixingProperties, freeze_mixing, mark_mixing
from seq2seq.network.mixer import SelfMixer
from seq2seq.settings.compose import self_mixers

# A mixer of all positions and a convolution; `make test-all` measures all mixers.
EXHAUSTIVE = {"test_tables_and_figure"}
# Settings that the map does not show
FORMS = [*(f"nonlocal+pairwise={pairwise}" for pairwise in PAIRWISE), "preconv_attention+before=depthwise"]
FORMS.append("preconv_attention+before=full+batch_norm=true")
REPRESENTATIVE = {"test_measurement_agrees_with_declaration": {"attention", "dynamicconv"}}


@pytest.mark.parametrize("name", dict.fromkeys([*SELF, *VARIANTS, *FORMS]))
def test_measurement_agrees_with_declaration(name):
    """Every self mixer of conf declares its `properties` and state_growth, and both agree with the measurement."""
    settings = settings_of(name)
    if settings is None:
        return  # a stack of several mixers is not a point of the map
    assert not survey(name, settings, limit=None).disagreements()


def test_there_are_mixers():
    assert set(self_mixers()) == set(SELF) >= {"attention", "lightconv", "dynamicconv", "bigru"}


class Known(SelfMixer):
    """Mixer y_i = g(sum_j M_ij v(x_j)) of a known matrix, (H, N, N) or (D, N, N) or a function of x."""

    def __init__(self, matrix: Any, *, gated: bool = False) -> None:
        super().__init__(dim=properties.DIM, causal=False)
        self.matrix, self.gated = matrix, gated
        self.value, self.out = nn.Linear(self.dim, self.dim), nn.Linear(self.dim, self.dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix x (B, N, D)."""
        matrix = mark_mixing(self.matrix(x)) if callable(self.matrix) else self.matrix.to(x)[None]  # (B, H, N, N)
        v = self.value(x)
        v = (v * v.sigmoid() if self.gated else v).unflatten(-1, (matrix.shape[1], -1))  # (B, N, H, D / H)
        y = torch.einsum("bhij,bjhc->bihc", matrix.expand(len(x), -1, -1, -1), v).flatten(2)
        return self.out(y * self.value(x).tanh() if self.gated else y)


# The sizes that `properties.measure` works with
N, H, D = properties.LENGTH, properties.HEADS, properties.DIM
APART = torch.arange(N) - torch.arange(N)[:, None]  # j - i


def toeplitz(count: int) -> Tensor:
    return torch.randn(count, 2 * N).double()[:, APART + N]


def banded(matrix: Tensor) -> Tensor:
    return matrix * (APART.abs() <= properties.WINDOW // 2)


def predicted(x: Tensor) -> Tensor:
    """Predict the matrix from queries and keys."""
    return torch.stack([x @ torch.eye(D).to(x).roll(h, 0) @ x.transpose(1, 2) / D for h in range(H)], 1).exp()


def predicted_apart(x: Tensor) -> Tensor:
    """Predict a matrix for every channel."""
    return torch.stack([x[:, :, c, None] * x[:, None, :, c] for c in range(D)], 1).exp()


def pooled(x: Tensor) -> Tensor:
    """Predict a kernel that all positions share from the mean of x."""
    kernel = torch.sin(x.mean(1)[:, :H, None] * 9 + torch.arange(2 * N).to(x))  # (B, H, 2N)
    return kernel[:, :, APART + N]


CASES = [
    # Matrix, sparse, shares_positions, shares_channels, dynamic
    (lambda: torch.randn(H, N, N), (False, False, True, False)),
    (lambda: torch.randn(D, N, N), (False, False, False, False)),
    (lambda: toeplitz(H), (False, True, True, False)),
    (lambda: toeplitz(H) * torch.rand(H, N, 1).double(), (False, True, True, False)),
    (lambda: banded(toeplitz(H)), (True, True, True, False)),
    (lambda: banded(toeplitz(D)), (True, True, False, False)),
    (lambda: banded(torch.randn(D, N, N)), (True, False, False, False)),
    (lambda: (-APART.square().double()).exp()[None].expand(H, -1, -1), (False, True, True, False)),
    (lambda: torch.randn(H, N, N).tril(-1), (False, False, True, False)),
    (lambda: predicted, (False, False, True, True)),
    (lambda: predicted_apart, (False, False, False, True)),
    (lambda: pooled, (False, True, True, True)),
    (lambda: lambda x: pooled(x) * banded(torch.ones(N, N)), (True, True, True, True)),
]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_known_matrices(case, gated):
    """Each property is measured correctly, with any pointwise functions before and after the mixing."""
    matrix, expected = CASES[case]
    found = properties.measure(Known(matrix(), gated=gated))
    assert found.properties == MixingProperties(*expected, linear=not gated)
    assert found.window == properties.WINDOW if expected[0] else found.window >= N - 1
    assert found.sparse_channels


@pytest.mark.slow
def test_published_table():
    """Five properties agree with tables 1 and 7 of Han et al. 2022, for the points that the tables have."""
    for name, published in PUBLISHED.items():
        assert survey(name, settings_of(name), limit=None).bidirectional.graph == published, name


def test_a_map_of_each_position_is_the_1_x_1_convolution_of_the_paper():
    """Its channels count in the paper's table, unless they stay apart."""
    dense = survey("identity", settings_of("identity"), limit=None).bidirectional
    assert dense.graph == PUBLISHED["identity"]
    assert dense.properties.shares_channels
    apart = Known(torch.eye(N)[None].double())
    apart.value, apart.out = nn.Identity(), nn.Identity()
    assert properties.measure(apart).graph == (True, True, True, True, False)


def test_a_setting_in_the_name_of_a_point_keeps_its_value():
    """`conv+kernel_size=3` is measured with 3 taps, and `conv` with the usual 11."""
    settings = settings_of("conv+kernel_size=3+groups=2")
    point = survey("conv+kernel_size=3+groups=2", settings, limit=None)
    assert point.bidirectional.window == 3
    assert properties.measured_values(settings_of("conv"))["kernel_size"] == properties.KERNEL
    with pytest.raises(ValueError, match=r"unknown setting mixer\.encoder\.grups"):
        survey("conv+grups=2", settings_of("conv+grups=2"), limit=None)


def test_window_is_measured_in_differences_of_sums():
    """Rounding errors of a prefix sum do not count as connections."""

    class Sums(Known):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            # A window from 2 before to 2 after as the difference of two prefix sums
            total = nn.functional.pad(self.value(x), (0, 0, 1, 0)).cumsum(1)
            at = torch.arange(N)
            return self.out(total[:, (at + 3).clamp(max=N)] - total[:, (at - 2).clamp(min=0)])

    expected = MixingProperties(True, True, True, False, True)
    assert properties.measure(Sums(None)) == properties.Measured(expected, 5, 1)


def test_disagreement_names_the_mixer_and_the_property(monkeypatch):
    settings = settings_of("attention")
    monkeypatch.setattr(Attention, "properties", None)
    (line,) = survey("attention", settings, limit=None).disagreements()
    assert "attention declares no `properties`" in line
    # A wrong declaration is reported for both forms
    monkeypatch.setattr(Attention, "properties", MixingProperties(True, False, True, True, True))
    first, second = survey("attention", settings, limit=None).disagreements()
    assert "attention declares sparse=True, but measured is sparse=False (window 36" in first
    assert "attention, causal, declares sparse=True" in second


def test_jacobian_is_autograds():
    """Compare with torch's own Jacobian: all directions and chosen ones, in pieces of several sizes."""
    weight = torch.randn(7, 5, 5, 3, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return torch.einsum("bjd,iodj->bio", x.sin(), weight.permute(0, 1, 3, 2))

    x = torch.randn(5, 3, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda z: function(z[None])[0], x)
    torch.testing.assert_close(jacobian(function, x), expected)
    u = torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close(jacobian(function, x, u), torch.einsum("ro,iojd->irjd", u, expected))


def test_jacobian_in_pieces(monkeypatch):
    mixer = Attention(dim=8, causal=True, num_heads=2)
    x, mask = torch.randn(6, 8), torch.ones(1, 6).bool()
    whole = jacobian(lambda z: mixer(z, mask.expand(len(z), -1)), x)
    # Pieces of 3 copies of 48 numbers, where the whole has 48 copies
    monkeypatch.setattr("seq2seq.analysis.jacobian.NUMBERS", 150)
    torch.testing.assert_close(jacobian(lambda z: mixer(z, mask.expand(len(z), -1)), x), whole)


def test_frozen_mixing_is_applied_to_another_input():
    """The tensors that one input marks replace, in order, the tensors of another input."""
    x, other = torch.randn(2, 4)
    with freeze_mixing() as marked:
        mark_mixing(x), mark_mixing(2 * x)
    with freeze_mixing(marked):
        assert torch.equal(mark_mixing(other), x)
        assert torch.equal(mark_mixing(other), 2 * x)
    assert mark_mixing(other) is other


def test_exponents_of_power_laws():
    power, lengths = random.uniform(0.5, 2.5), [64, 128, 512, 4096]
    assert scaling.exponent(lengths, [3 * n**power for n in lengths]) == pytest.approx(power)
    assert math.isnan(scaling.exponent([64], [1.0]))


def test_peak_bytes_of_known_work():
    """The work holds at most two thousand numbers at a time; earlier allocations do not count."""

    def work() -> None:
        for _ in range(3):
            a = torch.zeros(1000)
            b = a + 1
            del a, b

    assert 8000 <= scaling.peak_bytes(work) < 9000


def test_growth_stops_at_its_limit():
    found = scaling.measure(settings_of("attention"), lengths=(4, 8, 16), limit=1e-9)
    assert found.lengths == [4]
    found = scaling.measure(settings_of("lightconv"), lengths=(4, 8), limit=60)
    assert found.lengths == [4, 8]
    assert found.peak_bytes[1] > found.peak_bytes[0] > 4 * 4 * scaling.DIM
    # A fully connected layer refuses more weights than memory holds
    assert scaling.measure(settings_of("full_mlp"), lengths=(4, 8, 2**13), limit=60).lengths == [4, 8]


def point(name: str, dynamic: bool, sparse: bool, positions: bool, channels: bool) -> Point:
    """Make a point of the map with these properties."""
    measured = properties.Measured(MixingProperties(sparse, positions, channels, dynamic, True), 36, 1)
    return Point(
        name=name,
        declared=measured.properties,
        declared_causal=None,
        bidirectional=measured,
        causal=None,
        state=None,
        declared_state=None,
        parameters=1,
        growth=None,
    )


def test_map_joins_places_that_differ_in_one_property():
    """16 places have 4 neighbors each; a place holds all its mixers."""
    # The bits of n are the four properties
    every = [point(f"p{n}", *(bool(n >> bit & 1) for bit in range(4))) for n in range(16)]
    found = atlas_map.places([*every, *every])
    assert all(len(here) == 2 for here in found.values())
    assert len(atlas_map.edges(list(found))) == 16 * 4 // 2
    assert {atlas_map._at(row, column) for row in range(4) for column in range(4)} == set(found)


def test_tables_and_figure(tmp_path):
    """Both tables have a row for each mixer; a causal form that differs is named; the data is plain."""
    names = ("attention", "lightconv", "bigru", "dynamic_depthwise")
    points = [survey(name, settings_of(name), limit=None) for name in names]
    text = markdown(points)
    assert text.count("| `bigru` |") == 2
    assert "| `lightconv` | yes (11) | yes | yes | – | – |" in text
    assert "| `dynamic_depthwise` | yes (11) | yes (causal: –) |" in text
    assert "| `attention` | – | yes | – | yes | yes | the same |" in text
    assert "encoder-only" in text
    assert as_json(points)[0]["bidirectional"]["properties"]["dynamic"] is True
    path = atlas_map.draw(points, tmp_path / "map")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "map.svg").is_file()


def test_kernels_with_negative_weights_have_a_scale_with_zero_in_its_middle():
    pytest.importorskip("matplotlib")
    shares = torch.rand(2, 3).softmax(-1)
    found = plots._colors([shares])
    assert (found["norm"].vmin, found["norm"].vmax) == (0, 1)
    found = plots._colors([shares, torch.tensor([-3.0, 1.0])])
    assert [found["norm"](value) for value in (-3, 0, 3)] == [0, 0.5, 1]
    assert found["cmap"] != plots.COLOR_MAP
