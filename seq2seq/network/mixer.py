"""The contract of a token mixer: the part of an encoder-decoder that moves information between positions.

Shapes: B sentences, S source length, T target length, D width, H heads, N = B * beam hypotheses; a sentence's
hypotheses are adjacent. Masks are boolean, True at real tokens; batches are right-padded, and each row has at least one
real token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from seq2seq.network.state import Context, Device, DType, NoState, State

# A mixer may name its NamedTuples, as in `SelfMixer[NoState]`, to have the types of `empty_state` and `step` checked.
StateT = TypeVar("StateT", bound=State)
ContextT = TypeVar("ContextT", bound=Context)


class SelfMixer(nn.Module, ABC, Generic[StateT]):
    """Token mixer within one sequence: (B, T, dim) -> (B, T, out_dim).

    In a causal mixer, position t sees positions <= t only. A causal mixer also decodes: starting from `empty_state`,
    `step` computes `forward` one position at a time. An encoder-only mixer raises ValueError if causal is True.

    A mixer also declares `properties` (see `seq2seq.network.introspection`). Further attributes are optional: see
    `seq2seq.network.build.Adaptable`.

    Args (of every constructor; a mixer's own docstring describes the others):
        dim: Width D of the input.
        causal: Position t sees positions <= t only, as a decoder requires.
        out_dim: Width of the output (default: dim); few mixers let the settings choose it.

    Many mixers also take `num_heads`, H, which must divide dim; `dropout`, the probability of dropping an attention
    weight; and `backend`, "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).
    """

    state_growth = "linear"
    """Growth of the decoding state with the target: "linear" or "constant"."""

    def __init__(self, *, dim: int, causal: bool, out_dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.out_dim = dim if out_dim is None else require_positive(out_dim, "out_dim")
        self.causal = causal

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, dim) under mask (B, T); without a mask all positions are real."""

    # The first state has one row per sentence; `seq2seq.network.state.expand` repeats it for a beam.
    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> StateT:
        """Return the state before the first of at most `max_len` positions of `batch_size` sentences."""
        raise self._cannot_decode()

    def step(self, x: Tensor, state: StateT, position: Tensor) -> tuple[Tensor, StateT]:
        """Mix one position, x (N, dim) at position (N,); return the output (N, out_dim) and the next state.

        The old state must not be used again.
        """
        raise self._cannot_decode()

    def _cannot_decode(self) -> Exception:
        return ValueError(f"{type(self).__name__} cannot decode: a causal mixer defines empty_state and step")


class CrossMixer(nn.Module, ABC, Generic[ContextT, StateT]):
    """Token mixer from source to target: (B, T, dim) and a memory (B, S, memory_dim) -> (B, T, out_dim).

    Args (of every constructor; a mixer's own docstring describes the others):
        dim: Width D of the target's side.
        memory_dim: Width M of the encoder's output.
        out_dim: Width of the output (default: dim); few mixers let the settings choose it.
    """

    def __init__(self, *, dim: int, memory_dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.out_dim = dim if out_dim is None else require_positive(out_dim, "out_dim")
        self.memory_dim = memory_dim

    @abstractmethod
    def project(self, memory: Tensor, memory_mask: Tensor) -> ContextT:
        """Project memory (B, S, memory_dim), mask (B, S), to a context, once per source sentence."""

    @abstractmethod
    def forward(self, x: Tensor, context: ContextT) -> Tensor:
        """Mix the source into whole sequences x (B, T, dim)."""

    # Most cross mixers have no state; a recurrence such as Bahdanau's has one.
    def init_state(self, context: ContextT, max_len: int) -> StateT:
        """Return the state before the first position, one row per source sentence; empty by default."""
        return NoState()  # type: ignore[return-value]

    @abstractmethod
    def step(self, x: Tensor, context: ContextT, state: StateT, position: Tensor) -> tuple[Tensor, StateT]:
        """Mix one position, x (N, dim) at position (N,); return the output (N, out_dim) and the next state."""

    def read_weights(self, x: Tensor, context: ContextT) -> Tensor | None:
        """Return the weights of `forward` on the source, (B, heads, T, S); None for a mixer without weights."""
        return None


def real_positions(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask (B, T) of x (B, T, dim); without a mask all positions are real.

    Raises:
        ValueError: The mask is not boolean.
    """
    if mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return require_bool(mask)


def require_bool(mask: Tensor) -> Tensor:
    """Return a boolean mask; raise ValueError for another type, which attention would add to the scores."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"a mask is {mask.dtype}; give torch.bool, True at real positions (mask.bool() converts 0 and 1)"
        )
    return mask


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


def require_divisible(dim: int, num_heads: int, *, what: str = "num_heads", of: str = "dim") -> int:
    """Return dim / num_heads, or raise ValueError with the numbers of heads (`what`) that divide dim (`of`)."""
    if num_heads < 1 or dim % num_heads:
        # At most 64, to keep the message short
        good = [n for n in range(1, min(dim, 64) + 1) if dim % n == 0]
        raise ValueError(f"{of} {dim} is not divisible by {what} {num_heads}; choose {what} from {good}")
    return dim // num_heads


def require_length(length: int, max_len: int) -> None:
    """Raise ValueError if a sequence is longer than the max_len positions that a mixer has weights for."""
    if length > max_len:
        raise ValueError(
            f"a sequence of {length} positions exceeds the {max_len} that the mixer has weights for; "
            "train with a larger max_len in each slot that has one (mixer.encoder.max_len, mixer.decoder.max_len, "
            "mixer.cross.max_len), or shorten the input"
        )
