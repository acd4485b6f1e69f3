"""The classifier: a linear layer on the mean of the encoder's output, in the place of a decoder."""

from __future__ import annotations

import pytest
import torch
from composed import BOS, VOCAB, lengths_mask, random_tokens, tiny

from seq2seq.network.state import reorder

CLASSES = ("model.decoder_layers=0", "model.tie=none")


def test_a_class_is_read_from_the_mean_alone():
    """By hand: W mean_s h_s + b over the real positions; whatever the decoder reads changes nothing."""
    model = tiny("mixer=transformer", *CLASSES)
    mask = lengths_mask([7, 4, 1])
    src, given = random_tokens(mask), torch.randint(VOCAB, (3, 2))
    memory, _ = model.encoder(src, mask)
    logits = model(src, mask, given)
    for row, length in enumerate([7, 4, 1]):
        mean = sum(memory[row, s] for s in range(length)) / length
        expected = model.output.weight @ mean + model.output.bias
        torch.testing.assert_close(logits[row, 0], expected, rtol=1e-5, atol=1e-5)
    # The second position is the same for all sources: there eos is learned
    assert torch.equal(logits[0, 1], logits[2, 1])
    assert torch.equal(logits, model(src, mask, torch.full((3, 2), BOS)))


def test_steps_are_forward_after_a_reordered_beam():
    model = tiny("mixer=transformer", *CLASSES)
    mask = lengths_mask([5, 3])
    src = random_tokens(mask)
    context = model.context(src, mask)
    state = model.init_state(context, beam_size=3, max_len=4)
    whole = model(src, mask, torch.full((2, 2), BOS)).repeat_interleave(3, 0)
    first, state = model.step(torch.full((6,), BOS), context, state, torch.zeros(6, dtype=torch.long))
    state = reorder(state, torch.tensor([2, 0, 0, 5, 4, 3]))
    second, _ = model.step(torch.randint(VOCAB, (6,)), context, state, torch.ones(6, dtype=torch.long))
    torch.testing.assert_close(torch.stack([first, second], 1), whole, rtol=1e-5, atol=1e-5)


def test_every_weight_is_trained():
    model = tiny("mixer=transformer", *CLASSES)
    mask = lengths_mask([5, 3])
    model(random_tokens(mask), mask, torch.full((2, 2), BOS)).square().sum().backward()
    assert all(each.grad is not None for each in model.parameters())


def test_a_shared_table_is_refused():
    with pytest.raises(ValueError, match=r"model.tie=target: .*model.decoder_layers=0"):
        tiny("mixer=transformer", "model.decoder_layers=0", "model.tie=target")
