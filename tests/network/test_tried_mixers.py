"""A training refuses a mixer that breaks its contract. Every shipped mixer passes: tests/mixers/test_conformance.py."""

from __future__ import annotations

import pytest
import torch
from composed import config
from torch import Tensor, nn

from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.mixers.average import Average
from seq2seq.mixers.lightconv import LightConv
from seq2seq.mixers.past import Sums
from seq2seq.network.conformance import ContractError, try_mixer, try_mixers


class Future(Average):
    """A decoder that averages the whole sentence."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.out(x.mean(1, keepdim=True).expand_as(x))


class NoMask(Average):
    """The padding counts."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class OverBatch(Average):
    """Sentences are averaged with each other."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) - x.mean(0, keepdim=True)


class OnePosition(Average):
    """One output for all positions, which a residual would spread."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask)[:, -1:]


class Random(Average):
    """Dropout also in evaluation."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.functional.dropout(super().forward(x, mask), 0.1)


class OldState(Average):
    """A step that forgets its input."""

    def step(self, x, state, position):
        y, _ = super().step(x, state.__class__(state.total.clone()), position)
        return y, state


class OwnState(Average):
    """A state that the search cannot reorder."""

    def empty_state(self, batch_size, max_len, *, device=None, dtype=None):
        self.total = torch.zeros(2 * batch_size, self.dim, dtype=dtype)
        return super().empty_state(batch_size, max_len, device=device, dtype=dtype)

    def step(self, x, state, position):
        self.total = self.total + x
        return self.out(self.total / (position[:, None] + 1)), state


class TupleState(Average):
    """A state that is a plain tuple."""

    def empty_state(self, batch_size, max_len, *, device=None, dtype=None):
        return tuple(super().empty_state(batch_size, max_len, device=device, dtype=dtype))

    def step(self, x, state, position):
        y, state = super().step(x, Sums(*state), position)
        return y, tuple(state)


class Unregistered(Average):
    """A layer that no optimizer sees."""

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        self.more = [nn.Linear(dim, dim)]


class FutureInTraining(Average):
    """A decoder that averages the whole sentence, and hides it in evaluation."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = super().forward(x, mask)
        return y + x.mean(1, keepdim=True) if self.training else y


class FarFuture(Average):
    """A decoder that sees ten positions ahead."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) + x.roll(-10, 1)


class NotFinite(Average):
    """A mean over no positions."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) / 0.0


class Unsaved(Average):
    """Random values that no checkpoint has."""

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        self.scale = torch.rand(dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) * self.scale.to(x)


class Late(Average):
    """A layer that the first call makes."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(self.dim, self.dim, dtype=x.dtype)
        return self.late(super().forward(x, mask))


class Constant(Average):
    """Values that a checkpoint need not have."""

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        self.register_buffer("scale", nn.init.constant_(torch.empty(dim), 0.5), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) * self.scale


class HypothesisSecond(Average):
    """A state whose first dimension is the layer."""

    def empty_state(self, batch_size, max_len, *, device=None, dtype=None):
        return (torch.zeros(1, batch_size, self.dim, device=device, dtype=dtype),)


class DictState(Average):
    """A state that no search can reorder."""

    def empty_state(self, batch_size, max_len, *, device=None, dtype=None):
        return {"total": torch.zeros(batch_size, self.dim)}


class NoMaskArgument(Average):
    """The contract's second argument is missing."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class HeadsLast(CrossAttention):
    """Weights in another order."""

    def read_weights(self, x, context):
        return super().read_weights(x, context).transpose(1, 2)


class FirstRow(Average):
    """A mixer of its own for images, which forgets all rows but the first."""

    def __init__(self, *, dim: int, causal: bool, columns: int = 1) -> None:
        super().__init__(dim=dim, causal=causal)
        self.columns = columns

    @staticmethod
    def grid_values(values, columns):
        return {**values, "columns": columns}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask)[:, : self.columns]


class WholeSource(CrossAttention):
    """The padding of the source is read."""

    def project(self, memory, memory_mask):
        return super().project(memory, torch.ones_like(memory_mask))


class FoldedWrongly(CrossAttention):
    """Each hypothesis reads the source of another sentence."""

    def step(self, x, context, state, position):
        sentences = context.key.shape[0]
        y = self.forward(x.view(-1, sentences, self.dim).transpose(0, 1), context)  # (B, beam, D)
        return y.transpose(0, 1).reshape(x.shape), state


@pytest.mark.parametrize(
    ("mixer", "causal", "key"),
    [
        (Future, True, "Future.forward depends on later positions"),
        (NoMask, False, "NoMask.forward depends on padding"),
        (OverBatch, False, "OverBatch.forward .* other sentences"),
        (OnePosition, False, r"OnePosition.forward returns \(2, 1, 8\) .* \(2, 40, 8\)"),
        (FutureInTraining, True, "FutureInTraining.forward depends on later positions in training"),
        (FarFuture, True, "FarFuture.forward depends on later positions"),
        (NotFinite, False, "NotFinite.forward has values that are not finite"),
        (Random, True, "Random.forward varies in evaluation"),
        (OldState, True, "OldState.step differs from forward at position 1$"),
        (OwnState, True, "OwnState.step differs .*reordered"),
        (HypothesisSecond, True, r"HypothesisSecond: its state .* \(1, 2, 8\) for B=2"),
        (DictState, True, "DictState: its state holds a dict"),
        (Unregistered, False, "Unregistered.more is a list .*nn.ModuleList"),
    ],
)
def test_a_wrong_mixer_is_named(mixer, causal, key):
    with pytest.raises(ValueError, match=f"^mixer.slot: {key}"):
        try_mixer(mixer(dim=8, causal=causal), "mixer.slot")


@pytest.mark.parametrize(
    ("mixer", "key"),
    [
        (Unsaved, "Unsaved.forward differs after the weights were saved"),
        (Late, "Late makes late.bias, late.weight in forward"),
        (NoMaskArgument, r"NoMaskArgument fails .* TypeError: .* line \d"),
    ],
)
def test_a_mixer_that_could_not_be_loaded_or_called_is_named(mixer, key):
    settings = config("mixer=average")
    settings["mixer"]["encoder"] = {"_target_": f"{__name__}.{mixer.__name__}"}
    with pytest.raises(ContractError, match=f"^mixer.encoder: {key}"):
        try_mixers(settings, trust=(__name__,))


def test_a_buffer_outside_of_checkpoints_keeps_its_value():
    settings = config("mixer=average")
    settings["mixer"]["encoder"] = {"_target_": f"{__name__}.Constant"}
    try_mixers(settings, trust=(__name__,))


def test_weights_over_the_source_have_their_heads_second():
    with pytest.raises(ContractError, match=r"HeadsLast.read_weights returns \(2, 40, 2, 40\)"):
        try_mixer(HeadsLast(dim=8, memory_dim=8, num_heads=2))


def test_a_state_may_be_a_plain_tuple():
    try_mixer(TupleState(dim=8, causal=True))


def test_a_cross_mixer_that_reads_padding_is_named():
    with pytest.raises(ValueError, match=r"WholeSource\.forward depends on padding"):
        try_mixer(WholeSource(dim=8, memory_dim=8, num_heads=2))


def test_a_cross_mixer_that_mixes_up_hypotheses_is_named():
    with pytest.raises(ValueError, match=r"FoldedWrongly\.step differs .* position 0: .*one row of the context"):
        try_mixer(FoldedWrongly(dim=8, memory_dim=8, num_heads=2))


def test_mixers_of_settings_are_tried_where_they_are_used(monkeypatch):
    """The check draws no random number of the run, and knows the key of a kind in a hybrid stack."""
    monkeypatch.setattr(Attention, "forward", lambda self, x, mask=None: x.flip(1))
    settings = config("mixer=lightconv")
    before = torch.get_rng_state()
    try_mixers(settings)
    assert torch.equal(torch.get_rng_state(), before)
    attention = config("mixer=transformer")["mixer"]["decoder"]
    kinds = {"kinds": {"a": settings["mixer"]["decoder"], "b": attention}, "pattern": ["a", "b"]}
    settings["mixer"]["decoder"] = kinds
    with pytest.raises(ValueError, match=r"^mixer.decoder.kinds.b: Attention.forward depends on later"):
        try_mixers(settings)


@pytest.mark.parametrize("mixer", ["relative", "conv2d", "transformer"])
def test_an_encoder_of_images_is_tried_on_their_grid(mixer):
    patches = {"height": 8, "width": 12, "size": 2, "bits": 8}
    settings = config(f"mixer={mixer}", "model.dim=18", "model.num_heads=9", patches=patches)
    try_mixers(settings)
    target = {"_target_": f"{__name__}.FirstRow"}
    settings["mixer"]["encoder"] = target
    with pytest.raises(ValueError, match=r"^mixer.encoder: FirstRow.forward returns \(2, 6, 18\) .* \(2, 12, 18\)"):
        try_mixers(settings, trust=(__name__,))


def test_a_mixer_that_demands_triton_is_tried_without_it():
    mixer = LightConv(dim=8, causal=True, num_heads=2, kernel_size=3, backend="triton")
    try_mixer(mixer)
    assert mixer.backend == "triton"
