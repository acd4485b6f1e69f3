"""GRU and LSTM as self mixers against torch's own modules with the same weights."""

from __future__ import annotations

import pytest
import torch
from composed import lengths_mask
from conftest import jiggle
from exact import close, wide
from torch import nn

from seq2seq.mixers.gru import GRU, BiGRU
from seq2seq.mixers.lstm import LSTM, MemoryUnit

LENGTHS = [6, 2, 4, 1]
MASK = lengths_mask(LENGTHS)


def torchs(mixer: GRU | BiGRU | LSTM) -> nn.RNNBase:
    """torch's module with the mixer's weights; an LSTM's second bias is zero."""
    state, units = {}, [("", mixer.ahead)] + ([] if mixer.back is None else [("_reverse", mixer.back)])
    for suffix, unit in units:
        bias = torch.zeros_like(unit.input.bias) if unit.recurrent.bias is None else unit.recurrent.bias
        state |= {f"weight_ih_l0{suffix}": unit.input.weight, f"bias_ih_l0{suffix}": unit.input.bias}
        state |= {f"weight_hh_l0{suffix}": unit.recurrent.weight, f"bias_hh_l0{suffix}": bias}
    kind = nn.GRU if isinstance(mixer, GRU | BiGRU) else nn.LSTM
    both = mixer.back is not None
    theirs = kind(mixer.dim, mixer.out_dim // (2 if both else 1), batch_first=True, bidirectional=both).double()
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize(
    ("kind", "causal", "sizes"),
    [(GRU, True, {}), (GRU, False, {}), (LSTM, True, {}), (LSTM, False, {}), (BiGRU, False, {"out_dim": 8})],
)
def test_recurrent_mixers_are_torchs_on_packed_sequences(kind, causal, sizes):
    mixer, x = jiggle(kind(dim=6, causal=causal, **sizes).double()), wide(4, 6, 6)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    found, _ = nn.utils.rnn.pad_packed_sequence(torchs(mixer)(packed)[0], batch_first=True)
    close(mixer(x, MASK)[MASK], found[MASK], 1e-12)


def test_memory_unit_is_its_own_loop():
    unit, x = jiggle(MemoryUnit(input_dim=5, hidden_dim=4).double()), wide(3, 7, 5)
    close(unit(x), unit.loop(x), 1e-12)


def test_memory_unit_remembers_at_first():
    """The forget gate's bias starts at one, the others at zero."""
    assert MemoryUnit(input_dim=3, hidden_dim=2).input.bias.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_odd_widths_have_no_halves(kind):
    kind(dim=7, causal=True)
    with pytest.raises(ValueError, match="7"):
        kind(dim=7, causal=False)
