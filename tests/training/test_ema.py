"""The average of the weights."""

from __future__ import annotations

import torch
from torch import nn

from seq2seq.training.callbacks.ema import WeightAverage


def test_an_average_begins_with_the_weights_of_the_first_update():
    """Those of a checkpoint that was made without an average come after the callback; later ones change nothing."""
    module = nn.Linear(3, 2)
    average = WeightAverage(module, decay=0.9)
    with torch.no_grad():
        module.weight.fill_(2.0)
    average.begin()
    average.swap_in()
    assert torch.equal(module.weight, torch.full((2, 3), 2.0))
    average.swap_out()
    with torch.no_grad():
        module.weight.fill_(5.0)
    average.update()
    found = average.state_dict()["averages"][0].clone()
    torch.testing.assert_close(found, torch.full((2, 3), 2.0 + 0.9 * 3.0))
    average.begin()
    assert torch.equal(average.state_dict()["averages"][0], found)
