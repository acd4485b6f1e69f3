"""Cross mixers against the formulas of their papers, one sentence and position at a time."""

from __future__ import annotations

import pytest
import torch
from composed import lengths_mask
from conftest import jiggle
from torch import Tensor, nn

from seq2seq.mixers.fixed_context import FixedContext
from seq2seq.mixers.gru import GatedUnit

LENGTHS = [5, 1, 3]
MASK = lengths_mask(LENGTHS)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-7) -> None:
    """Compare; 1 / length is rounded to float32 in means."""
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def wide(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cell(unit: GatedUnit, *further: Tensor) -> nn.GRUCell:
    """torch's cell with a unit's weights, and `further` columns of W after those of x."""
    weight = torch.cat([unit.input.weight, *further], 1)
    theirs = nn.GRUCell(weight.shape[1], unit.hidden_dim).double()
    state = {"weight_ih": weight, "bias_ih": unit.input.bias}
    theirs.load_state_dict({**state, "weight_hh": unit.recurrent.weight, "bias_hh": unit.recurrent.bias})
    return theirs


# ---- the encoder-decoder without attention


@pytest.mark.parametrize("summary", ["ends", "mean"])
@pytest.mark.parametrize("every_step", [True, False])
def test_fixed_context_by_hand(summary, every_step):
    """s_0 = tanh(W c), s_i = GRU([x_i; c], s_{i-1}), y_i = W_s s_i + W_c c."""
    sizes = {"dim": 3, "memory_dim": 6, "out_dim": 5, "hidden_dim": 4}
    mixer = jiggle(FixedContext(**sizes, summary=summary, every_step=every_step).double())
    x, memory = wide(3, 4, 3), wide(3, 5, 6)
    y, gru = mixer(x, mixer.project(memory, MASK)), cell(mixer.unit)
    for row, length in enumerate(LENGTHS):
        h = memory[row, :length]
        c = h.mean(0) if summary == "mean" else torch.cat([h[-1, :3], h[0, 3:]])
        s = torch.tanh(mixer.start(c))
        for i in range(4):
            s = gru(torch.cat([x[row, i], c]) if every_step else x[row, i], s)
            expected = mixer.out_hidden(s) + (mixer.out_context(c) if every_step else 0.0)
            close(y[row, i], expected)


def test_fixed_context_has_no_loop(monkeypatch):
    """All positions run in torch's fused recurrence; the published reset, which it does not have, loops."""
    x, memory = torch.randn(3, 4, 4), torch.randn(3, 5, 4)
    monkeypatch.setattr(GatedUnit, "loop", None)
    fast, slow = (FixedContext(dim=4, memory_dim=4, reset=reset) for reset in ("after", "before"))
    assert fast(x, fast.project(memory, MASK)).shape == x.shape
    with pytest.raises(TypeError):
        slow(x, slow.project(memory, MASK))


def test_fixed_context_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="summary is 'last'"):
        FixedContext(dim=4, memory_dim=4, summary="last")
    with pytest.raises(ValueError, match="summary=mean"):
        FixedContext(dim=4, memory_dim=5)
    FixedContext(dim=4, memory_dim=5, summary="mean")
