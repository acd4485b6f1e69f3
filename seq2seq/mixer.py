"""The contract of a token mixer: the part of an encoder-decoder that moves information between positions.

Shapes: B sentences, S source length, T target length, D width, N = B * beam hypotheses, a sentence's adjacent.
Masks are boolean, True = a real token; batches are right-padded, and each row has at least one real token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from seq2seq.introspection import MixingProperties
from seq2seq.kernels.dispatch import portable
from seq2seq.state import Context, NoState, State

# NamedTuples of a mixer that names them, as `SelfMixer[NoState]`: its `step` is then checked against its `init_state`.
StateT = TypeVar("StateT", bound=State)
ContextT = TypeVar("ContextT", bound=Context)


class SelfMixer(nn.Module, ABC, Generic[StateT]):
    """Token mixer within one sequence: (B, T, dim) -> (B, T, out_dim).

    A causal one lets position t see positions <= t only, and decodes: `init_state` and `step` compute `forward`
    one position at a time. An encoder-only mixer raises ValueError on causal=True.

    Args (of every constructor, besides a mixer's own):
        dim: Width of the input.
        causal: Position t sees positions <= t only, as a decoder needs it.
    """

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix x (B, T, dim) under mask (B, T)."""

    # Decoding: one row of state per sentence first, which `seq2seq.state.expand` repeats for a beam.
    def init_state(
        self,
        batch_size: int,
        max_len: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> StateT:
        """Return the state before the first of at most `max_len` positions of `batch_size` sentences."""
        if not self.causal:
            raise ValueError(f"{type(self).__name__} cannot decode step by step; build it with causal=True")
        return self.empty_state(batch_size, max_len, device=device, dtype=dtype)

    def step(self, x: Tensor, state: StateT, position: Tensor) -> tuple[Tensor, StateT]:
        """Mix one position: x (N, dim), position (N,) -> (N, out_dim) and the next state; the old one is used up."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step; build it with causal=True")

    @classmethod
    def decodes(cls) -> bool:
        """Return True for a class with a `step` and a first state of its own, as a causal mixer needs them."""
        first = any(getattr(cls, name) is not getattr(SelfMixer, name) for name in ("empty_state", "init_state"))
        return first and cls.step is not SelfMixer.step

    # Declarations, read by the builder, `inspect` and decoding; subclasses set them in __init__ or on the class.

    dim: int
    out_dim: int
    causal: bool
    # How the state grows with the target: "linear" (it has a Cache) or "constant".
    state_growth = "linear"
    # True if a compiler unrolls `forward` position by position, anew for every length: a loop in Python, or a recurrent
    # layer of torch, which it takes apart.
    unrolls = False
    # The properties that `python -m seq2seq.inspect --atlas` checks; None checks nothing.
    properties: MixingProperties | None = None

    def empty_state(self, batch_size: int, max_len: int, *, device: Any, dtype: Any) -> StateT:
        """Return the state of a causal mixer that has seen nothing: what `init_state` is asked for."""
        raise NotImplementedError(f"{type(self).__name__} is causal, so it must define empty_state and step")

    def introspect(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return what `python -m seq2seq.inspect` plots besides the mixing matrix, by name; nothing by default.

        Returns:
            "kernels": fixed ones (H, K); "predicted kernels": along x, (B, T, H, K); "weights": (B, H, T, T). Any
            other name: a number for each head, (H,), where "centers" c, (H,) or (H, 2: row, column), and "sharpness"
            a of scores -a |d - c|^2 are plotted together.
        """
        return {}

    # Constructor arguments that bound the length of a sequence, such as "max_len".
    length_arguments: tuple[str, ...] = ()

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Return constructor arguments for a source that fills a grid of `columns` row by row, from `values`."""
        return dict(values)

    @classmethod
    def portable_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return constructor arguments that every machine can serve, from those that the training machine served.

        A demand for Triton kernels (`backend`) is dropped; a mixer with other demands overrides this.
        """
        return portable(values)


class CrossMixer(nn.Module, ABC, Generic[ContextT, StateT]):
    """Token mixer from source to target: (B, T, dim) and a memory (B, S, memory_dim) -> (B, T, out_dim).

    Args (of every constructor, besides a mixer's own):
        dim: Width of the target's side.
        memory_dim: Width of the encoder's output.
    """

    @abstractmethod
    def project(self, memory: Tensor, memory_mask: Tensor) -> ContextT:
        """Compute what is read of memory (B, S, memory_dim), mask (B, S), once per source sentence."""

    @abstractmethod
    def forward(self, x: Tensor, context: ContextT) -> Tensor:
        """Mix the source into x (B, T, dim), whole sequences."""

    # Most cross mixers read the source afresh at each step; a recurrence such as Bahdanau's has a state.
    def init_state(self, context: ContextT, max_len: int) -> StateT:
        """Return the state before the first position, one row per source sentence; nothing by default."""
        return NoState()  # type: ignore[return-value]

    @abstractmethod
    def step(self, x: Tensor, context: ContextT, state: StateT, position: Tensor) -> tuple[Tensor, StateT]:
        """Mix one position: x (N, dim), position (N,) -> (N, out_dim) and the next state; the old one is used up."""

    # Declarations; see SelfMixer.

    dim: int
    out_dim: int
    memory_dim: int
    state_growth = "constant"
    unrolls = False
    length_arguments: tuple[str, ...] = ()

    @classmethod
    def portable_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return constructor arguments that every machine can serve; see SelfMixer."""
        return portable(values)

    @classmethod
    def shortened_values(cls, values: Mapping[str, Any], factor: int) -> dict[str, Any]:
        """Return constructor arguments for a memory that is `factor` times shorter than the source, from `values`."""
        return dict(values)

    def read_weights(self, x: Tensor, context: ContextT) -> Tensor | None:
        """Return the weights over the source (B, heads, T, S) that `forward` reads it by; None where there are none."""
        return None

    def introspect(self, x: Tensor, context: ContextT) -> dict[str, Tensor]:
        """Return what SelfMixer.introspect returns; weights over the source are (B, heads, T, S)."""
        return {}


def require_probability(value: float, what: str) -> float:
    """Return `value` if 0 <= value < 1, else raise ValueError."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{what} is {value}; choose a probability from 0 up to, not including, 1")
    return value


def require_positive(value: int, what: str) -> int:
    """Return `value` if it is 1 or more, else raise ValueError."""
    if value < 1:
        raise ValueError(f"{what} is {value}; choose 1 or more")
    return value


def require_divisible(dim: int, num_heads: int) -> int:
    """Return dim / num_heads, else raise ValueError with the numbers of heads that divide it."""
    if num_heads < 1 or dim % num_heads:
        # Short enough to print.
        good = [n for n in range(1, min(dim, 64) + 1) if dim % n == 0]
        raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; choose num_heads from {good}")
    return dim // num_heads


def require_length(length: int, max_len: int) -> None:
    """Raise ValueError if a mixer with weights for max_len positions does not reach to `length`."""
    if length > max_len:
        raise ValueError(
            f"a sequence of {length} positions exceeds the {max_len} that the mixer has weights for; "
            "train with a larger max_len of the mixer (e.g. mixer.encoder.max_len), or shorten the input"
        )


def in_blocks(layer: nn.Linear, *sizes: int) -> nn.Linear:
    """Record that a layer's weight is several matrices, concatenated along outputs of these sizes; return the layer.

    Muon orthogonalizes each of them alone, so it makes no difference which matrices a mixer stores together.
    """
    layer.blocks = sizes  # type: ignore[assignment]
    return layer


def blocks_of(layer: nn.Linear) -> tuple[int, ...]:
    """Return the sizes that `in_blocks` has recorded; a layer without a record is one matrix."""
    return getattr(layer, "blocks", (layer.out_features,))
