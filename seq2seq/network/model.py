"""The whole model: layers of mixers and feed-forwards, an encoder, a decoder, and decoding one position at a time.

Shapes: B sentences, S source length, T target length, D width, N = B * beam hypotheses, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.dropout import Dropout
from seq2seq.kernels.layer_norm import LayerNorm
from seq2seq.kernels.residual_norm import residual_norm, skip_and_norm
from seq2seq.network.embedding import Embedding
from seq2seq.network.mixer import CrossMixer, SelfMixer, real_positions
from seq2seq.network.pooling import Pooling
from seq2seq.network.state import Context, State, expand

ModuleT = TypeVar("ModuleT", bound=nn.Module)

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """Feed-forward network of each position, W2 dropout(act(W1 x + b1)) + b2: (..., D) -> (..., D).

    Reference: Vaswani et al. 2017, section 3.3.
    """

    def __init__(self, *, dim: int, ffn_dim: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(dim, ffn_dim)  # W1, b1
        self.down = nn.Linear(ffn_dim, dim)  # W2, b2
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., D)."""
        return self.down(self.dropout(self.activation(self.up(x))))


class Sublayer(nn.Module, Generic[ModuleT]):
    """A mixer or feed-forward f with its norm, dropout and residual.

    Pre-norm: x + dropout(f(norm(x))). Post-norm: norm(x + dropout(f(x))), as in Vaswani et al. 2017.

    Args:
        f: Module (..., dim) -> (..., out_dim); it also gets the further arguments of a call.
        dim: Width of x.
        out_dim: Width of f(x); a residual needs it to be `dim`.
        norm: "pre", "post" or "none".
        dropout: Probability of dropping a number of f's output.
        residual: Add x to the output.
    """

    def __init__(self, *, f: ModuleT, dim: int, out_dim: int, norm: str, dropout: float, residual: bool = True) -> None:
        super().__init__()
        if residual and dim != out_dim:
            raise ValueError(f"a residual needs equal sizes, not {dim} in and {out_dim} out; set model.residual=false")
        self.f = f
        self.out_dim = out_dim
        self.pre_norm = LayerNorm(dim) if norm == "pre" else None
        self.post_norm = LayerNorm(out_dim) if norm == "post" else None
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, *others: Tensor | Context) -> Tensor:
        """Apply the sublayer to x (..., dim); f also gets the other arguments."""
        x, z = self._norm(x)
        return self._add(x, self.f(z, *others))

    def step(self, x: Tensor, *others: Tensor | Context | State | None) -> tuple[Tensor, State]:
        """Apply one step of the mixer f to x (N, dim); return its output and its next state."""
        x, z = self._norm(x)
        y, state = self.f.step(z, *others)  # type: ignore[operator]
        return self._add(x, y), state

    def _norm(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x for the residual, and the input of f."""
        return (x, x) if self.pre_norm is None else skip_and_norm(x, self.pre_norm)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return residual_norm(x if self.residual else None, y, dropout=self.dropout, norm=self.post_norm)  # (..., D)


class EmptySlot(nn.Module):
    """Stand-in for the sublayer of a slot that a layer leaves empty: it returns x (..., dim)."""

    f = None

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.out_dim = dim

    def forward(self, x: Tensor, *others: Tensor | Context) -> Tensor:
        """Return x."""
        return x

    def step(self, x: Tensor, *others: Tensor | Context | State | None) -> tuple[Tensor, None]:
        """Return x and no state."""
        return x, None


# A slot of a layer, which may be empty
MixerSlot: TypeAlias = Sublayer[SelfMixer[Any]] | EmptySlot
FeedForwardSlot: TypeAlias = Sublayer[FeedForward] | EmptySlot


class EncoderLayer(nn.Module):
    """Encoder layer: [self mixer] + [feed-forward], each a sublayer; a slot may be empty."""

    def __init__(self, *, mix: MixerSlot, transform: FeedForwardSlot) -> None:
        super().__init__()
        self.mix = mix
        self.transform = transform
        self.out_dim = transform.out_dim

    @property
    def self_mixer(self) -> SelfMixer[Any] | None:
        """The self mixer, None if the slot is empty."""
        return self.mix.f

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Transform x (B, S, D) under mask (B, S)."""
        return self.transform(self.mix(x, mask))  # (B, S, out_dim)


class LayerState(NamedTuple):
    """The states of a decoder layer's self mixer (None if its slot is empty) and cross mixer."""

    self_mixer: State | None
    cross_mixer: State


class DecoderLayer(nn.Module):
    """Decoder layer: [self mixer] + cross mixer + [feed-forward], each a sublayer; a slot in brackets may be empty."""

    def __init__(self, *, mix: MixerSlot, read: Sublayer[CrossMixer[Any, Any]], transform: FeedForwardSlot) -> None:
        super().__init__()
        self.mix = mix
        self.read = read
        self.transform = transform
        self.out_dim = transform.out_dim

    @property
    def self_mixer(self) -> SelfMixer[Any] | None:
        """The self mixer, None if the slot is empty."""
        return self.mix.f

    @property
    def cross_mixer(self) -> CrossMixer[Any, Any]:
        """The cross mixer."""
        return self.read.f

    def forward(self, x: Tensor, mask: Tensor, context: Context) -> Tensor:
        """Transform x (B, T, D) under mask (B, T), reading the source from context."""
        x = self.mix(x, mask)  # (B, T, out_dim of the self mixer)
        x = self.read(x, context)  # (B, T, out_dim)
        return self.transform(x)

    def project(self, memory: Tensor, memory_mask: Tensor) -> Context:
        """Project memory (B, S, M), the encoder's output, once per source sentence."""
        return self.cross_mixer.project(memory, memory_mask)

    def init_state(
        self, context: Context, batch_size: int, max_len: int, *, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """Return the state before the first position, one row per sentence."""
        own = None
        if self.self_mixer is not None:
            own = self.self_mixer.empty_state(batch_size, max_len, device=device, dtype=dtype)
        return LayerState(own, self.cross_mixer.init_state(context, max_len))

    def step(self, x: Tensor, context: Context, state: LayerState, position: Tensor) -> tuple[Tensor, LayerState]:
        """Transform one position: x (N, D), position (N,)."""
        x, own = self.mix.step(x, state.self_mixer, position)
        x, cross = self.read.step(x, context, state.cross_mixer, position)
        return self.transform(x), LayerState(own, cross)


class Encoder(nn.Module):
    """Encoder: embedding, layers, optional poolings before layers, and a final norm if the layers are pre-norm.

    A stage begins with a pooling and, if it is wider than the last, a linear map to its width.

    Shape:
        tokens (B, S), mask (B, S) -> memory (B, S', M) and its mask; M is the width of the last layer.
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: list[EncoderLayer],
        poolings: dict[int, Pooling],
        widenings: dict[int, nn.Linear],
        final_norm: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        # By the index of the layer that follows
        self.poolings = poolings
        self.widenings = nn.ModuleDict({str(number): layer for number, layer in widenings.items()})
        self.out_dim = layers[-1].out_dim
        # Pre-norm layers do not normalize their output
        self.norm = LayerNorm(self.out_dim) if final_norm else None

    def forward(self, src: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode src (B, S) under src_mask (B, S)."""
        x, mask = self.embedding(src), self.position_mask(src_mask)  # (B, S, D)
        for number, layer in enumerate(self.layers):
            if number in self.poolings:
                x, mask = self.poolings[number](x, mask)
            if str(number) in self.widenings:
                x = self.widenings[str(number)](x)
            x = layer(x, mask)
        return (x if self.norm is None else self.norm(x)), mask

    def position_mask(self, src_mask: Tensor) -> Tensor:
        """Return the mask of the first layer's positions; a position may have several ids, as patches in color do."""
        parts = self.embedding.parts
        return src_mask[:, ::parts] if parts > 1 else src_mask


class Decoder(nn.Module):
    """Decoder: embedding, layers, and a final norm if the layers are pre-norm.

    Shape:
        tokens (B, T), mask (B, T), a context for each layer -> (B, T, readout_dim), as wide as the last layer.
    """

    def __init__(self, *, embedding: Embedding, layers: list[DecoderLayer], final_norm: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.out_dim = layers[-1].out_dim
        self.norm = LayerNorm(self.out_dim) if final_norm else None

    def forward(self, tgt: Tensor, mask: Tensor, context: list[Context]) -> Tensor:
        """Decode whole sequences tgt (B, T) from the layers' contexts."""
        x = self.embedding(tgt)  # (B, T, D)
        for layer, part in zip(self.layers, context, strict=True):
            x = layer(x, mask, part)
        return x if self.norm is None else self.norm(x)

    def step(
        self, token: Tensor, context: list[Context], state: list[LayerState], position: Tensor
    ) -> tuple[Tensor, list[LayerState]]:
        """Decode one position: token (N,), position (N,) -> (N, readout_dim) and the next state."""
        x = self.embedding.step(token, position)  # (N, D)
        following = []
        for layer, part, old in zip(self.layers, context, state, strict=True):
            x, new = layer.step(x, part, old, position)  # type: ignore[operator]
            following.append(new)
        return (x if self.norm is None else self.norm(x)), following


class NarrowOutput:
    """Output layer of U tokens: (N, readout_dim) -> (N, U), -inf for tokens outside a sentence's shortlist.

    Args:
        project: Maps (N, readout_dim) to the logits of the U tokens.
        allowed: Mask (B, U) of each sentence's shortlist.
    """

    def __init__(self, *, project: Callable[[Tensor], Tensor], allowed: Tensor) -> None:
        self.project = project
        self.forbidden = ~allowed[:, None]  # (B, 1, U)

    def __call__(self, x: Tensor) -> Tensor:
        """Project x (N, readout_dim), in which a sentence's hypotheses are adjacent."""
        logits = self.project(x).unflatten(0, (len(self.forbidden), -1))  # (B, beam, U)
        return logits.masked_fill_(self.forbidden, float("-inf")).flatten(0, 1)


class Seq2Seq(nn.Module):
    """An encoder-decoder with any token mixers: p(y | x) = prod_t softmax(output(decoder(y_<t, encoder(x))))_{y_t}.

    Whole sequences go through `forward`; decoding calls `context` once, then `init_state`, then `step` per position.
    """

    def __init__(self, *, encoder: Encoder, decoder: Decoder, output: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output  # readout_dim -> V, often tied to the target's table

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) of the token after each of tgt_in (B, T), from src (B, S)."""
        return self.output(self.features(src, src_mask, tgt_in, tgt_mask))

    def features(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Return the input of the output layer, (B, T, readout_dim), so that a loss may project real tokens only."""
        return self.decoder(tgt_in, real_positions(tgt_in, tgt_mask), self.context(src, src_mask))

    def context(self, src: Tensor, src_mask: Tensor) -> list[Context]:
        """Encode src (B, S) and project the memory for each decoder layer, once per sentence."""
        memory, mask = self.encoder(src, src_mask)  # (B, S', M)
        return [layer.project(memory, mask) for layer in self.decoder.layers]  # type: ignore

    def init_state(self, context: list[Context], *, beam_size: int, max_len: int) -> list[LayerState]:
        """Return the state before the first position: beam_size hypotheses per sentence, at most max_len positions.

        States have the type of the first floating-point tensor of the context, in which the layers compute even under
        autocast.
        """
        like = next(part for part in context[0] if part.is_floating_point())
        states: list[LayerState] = [
            layer.init_state(part, len(like), max_len, device=like.device, dtype=like.dtype)  # type: ignore[operator]
            for layer, part in zip(self.decoder.layers, context, strict=True)
        ]
        return expand(states, beam_size)  # B rows become N

    def narrow(self, ids: Tensor, allowed: Tensor) -> NarrowOutput:
        """Return an output layer for the tokens ids (U,); allowed (B, U) is True where a sentence may use a token."""
        weight = self.output.weight[ids]  # (U, readout_dim)
        bias = None if self.output.bias is None else self.output.bias[ids]
        return NarrowOutput(project=lambda x: F.linear(x, weight, bias), allowed=allowed)

    def step(
        self,
        token: Tensor,
        context: list[Context],
        state: list[LayerState],
        position: Tensor,
        output: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, list[LayerState]]:
        """Return logits (N, V) of the token after `token` (N,) at position (N,), and the next state.

        Args:
            output: An output layer to use in place of the model's own, such as one made by `narrow`.
        """
        x, state = self.decoder.step(token, context, state, position)
        return (self.output if output is None else output)(x), state
