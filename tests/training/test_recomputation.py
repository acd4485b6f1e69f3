"""trainer.checkpoint_activations: layers are computed again in the backward pass, and gradients do not change."""

from __future__ import annotations

import composed
import pytest
import torch
from torch import nn

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.make_trainer import prepare_for_training

SETTINGS = TrainerSettings(max_steps=1, checkpoint_activations=True)


def gradients(model: nn.Module) -> torch.Tensor:
    """Return all gradients of one batch as one vector."""
    model.zero_grad()
    src = torch.full((3, 4), 5)
    model.features(src, src > 0, src, src > 0).sum().backward()  # type: ignore[operator]
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def test_checkpointed_layers_are_computed_twice():
    # Without dropout
    model = composed.tiny("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1").eval()
    expected = gradients(model)
    prepare_for_training(model, SETTINGS)
    calls = []
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.mix.register_forward_pre_hook(lambda layer, _: calls.append(layer))
    assert torch.equal(gradients(model), expected)
    # Two layers, forward and again in the backward pass
    assert len(calls) == 4


def test_statistics_of_batches_are_not_recomputed():
    given = ("mixer.encoder.before=depthwise", "mixer.encoder.batch_norm=true")
    model = composed.tiny("mixer=preconv_attention", *given)
    with pytest.raises(ValueError, match=r"checkpoint_activations.*batch_norm"):
        prepare_for_training(model, SETTINGS)
