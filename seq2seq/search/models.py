"""Models that can be searched, alone or as an ensemble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from seq2seq.network.state import Nested

# A model's context, state and narrow output layer, which a search does not look into
ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT")


class Model(Protocol[ContextT, StateT, OutputT]):
    """A model that can be searched, such as `seq2seq.network.model.Seq2Seq` or an ensemble.

    A model whose logits are log-probabilities has an attribute `normalized` that is True.
    """

    def context(self, src: Tensor, src_mask: Tensor) -> ContextT:
        """Compute the context of the source, once per sentence."""
        ...

    def init_state(self, context: ContextT, *, beam_size: int, max_len: int) -> StateT:
        """Return the state before the first position."""
        ...

    def narrow(self, ids: Tensor, allowed: Tensor) -> OutputT:
        """Return an output layer for `step` with logits of the tokens ids (U,), -inf where allowed (B, U) is False."""
        ...

    def step(
        self, token: Tensor, context: ContextT, state: StateT, position: Tensor, output: OutputT | None = None
    ) -> tuple[Tensor, StateT]:
        """Return logits (N, V) of the token after `token` (N,) at position (N,), and the next state.

        Args:
            output: An output layer of `narrow`, to return its logits (N, U) instead.
        """
        ...


# Any model: the types of its context, state and output are its own
AnyModel: TypeAlias = Model[Any, Any, Any]


def step_log_probs(
    model: Model[ContextT, StateT, OutputT],
    token: Tensor,
    context: ContextT,
    state: StateT,
    position: Tensor,
    output: OutputT | None = None,
) -> tuple[Tensor, StateT]:
    """Return log p (N, V) in float32, or (N, U) of a narrow output, and the next state of a model's step."""
    given = () if output is None else (output,)
    logits, state = model.step(token, context, state, position, *given)
    logits = logits.float()
    return (logits if getattr(model, "normalized", False) else logits.log_softmax(-1)), state


def models_of(model: AnyModel) -> list[AnyModel]:
    """Return the models of an ensemble, or a model alone."""
    return model.models if isinstance(model, Ensemble) else [model]


class Ensemble:
    """Models of one vocabulary whose probabilities are averaged: p(y_t | ..) = mean_m p_m(y_t | ..).

    Their mixers, widths and depths may differ: each has its own context and state.
    """

    normalized = True

    def __init__(self, models: Sequence[AnyModel]) -> None:
        self.models = list(models)

    def context(self, src: Tensor, src_mask: Tensor) -> list[Nested]:
        """Compute the context of each model."""
        return [model.context(src, src_mask) for model in self.models]

    def init_state(self, context: list[Nested], *, beam_size: int, max_len: int) -> list[Nested]:
        """Return the state of each model before the first position."""
        return [
            model.init_state(own, beam_size=beam_size, max_len=max_len)
            for model, own in zip(self.models, context, strict=True)
        ]

    def narrow(self, ids: Tensor, allowed: Tensor) -> list[object]:
        """Return each model's output layer for the tokens ids (U,)."""
        return [model.narrow(ids, allowed) for model in self.models]

    def step(
        self,
        token: Tensor,
        context: list[Nested],
        state: list[Nested],
        position: Tensor,
        output: list[object] | None = None,
    ) -> tuple[Tensor, list[Nested]]:
        """Return log-probabilities (N, V) of the token after `token` (N,) at position (N,), and the next states."""
        log_probs = []
        states = []
        outputs = output or [None] * len(self.models)
        for model, own, old, layer in zip(self.models, context, state, outputs, strict=True):
            scores, new = step_log_probs(model, token, own, old, position, layer)
            log_probs.append(scores)
            states.append(new)
        return torch.stack(log_probs).logsumexp(0) - math.log(len(self.models)), states
