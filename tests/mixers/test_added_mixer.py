"""Adding a mixer takes one module, one settings file and a preset, which this test makes in a separate folder."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import test_conformance
from composed import Case, preset_config
from conftest import PLATFORMS

MODULE = '''
"""A fading mean of the past."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.network.mixer import SelfMixer, real_positions


class Fading(SelfMixer):
    """y_t = W c_t, c_t = r c_{t-1} + x_t; where not causal, W times the mean of the sentence."""

    state_growth = "constant"

    def __init__(self, *, dim: int, causal: bool, rate: float) -> None:
        super().__init__(dim=dim, causal=causal)
        self.rate = rate
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Fade x (B, T, D)."""
        mask = real_positions(x, mask)
        x = x.masked_fill(~mask[:, :, None], 0.0)
        if not self.causal:
            return self.out((x.sum(1, keepdim=True) / mask.sum(1)[:, None, None]).expand_as(x).to(x.dtype))
        total, totals = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            total = self.rate * total + x[:, t]
            totals.append(total)
        return self.out(torch.stack(totals, 1))

    class State(NamedTuple):
        """The faded sum (N, D)."""

        total: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Any = None, dtype: Any = None) -> Fading.State:
        """An empty sum."""
        return self.State(torch.zeros(batch_size, self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Fading.State, position: Tensor) -> tuple[Tensor, Fading.State]:
        """Add x (N, D)."""
        total = self.rate * state.total + x
        return self.out(total), self.State(total)
'''
SLOT = """
_target_: strangers_mixers.fading.Fading
per_layer:
  rate: [0.5, 0.25]
"""
PRESET = """
defaults:
  - self@encoder: fading
  - self@decoder: fading
  - cross: attention
"""


def checks() -> list[tuple[str, str]]:
    """Every conformance check with each form, encoder or decoder, to which it applies."""
    found = []
    for name, check in vars(test_conformance).items():
        marks = [mark for mark in getattr(check, "pytestmark", []) if mark.args[0] == "case"]
        slots = {case.slot for mark in marks for case in mark.args[1] if isinstance(case, Case)}
        found += [(name, slot) for slot in sorted(slots - {"cross"})]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Files that a user adds: a module of a package of their own, and the two settings files."""
    root = tmp_path_factory.mktemp("added")
    files = {
        "strangers_mixers/__init__.py": "",
        "strangers_mixers/fading.py": MODULE,
        "mixer/self/fading.yaml": SLOT,
        "mixer/fading.yaml": PRESET,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(root))
    yield root
    sys.path.remove(str(root))
    for name in [name for name in sys.modules if name.startswith("strangers_mixers")]:
        del sys.modules[name]


@pytest.mark.parametrize(("check", "slot"), checks())
def test_an_added_mixer_is_checked_like_any_other(check: str, slot: str, folder: Path):
    case = Case(slot, "fading", folder=str(folder), trust=("strangers_mixers",))
    assert len(case.variants()) == 2
    choices = {"case": case, "platform": PLATFORMS["cpu"], "longest": 9}
    function = getattr(test_conformance, check)
    function(**{name: choices[name] for name in inspect.signature(function).parameters})


def test_an_added_preset_trains(folder: Path):
    settings = preset_config("fading", str(folder))
    test_conformance.train_one_step(settings, trust=("strangers_mixers",))
