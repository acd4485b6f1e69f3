"""The whole model: layers of mixers and feed-forwards, an encoder, a decoder, and the way one position is decoded."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.embedding import Embedding
from seq2seq.kernels.dropout import Dropout
from seq2seq.mixer import Context, CrossMixer, SelfMixer, State, expand

NORMS = ("pre", "post", "none")
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """FFN(x) = W2 dropout(act(W1 x + b1)) + b2 at every position alone (Vaswani et al. 2017): (..., D) -> (..., D)."""

    def __init__(self, *, dim: int, ffn_dim: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"model.activation is {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
        self.up, self.down = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)
        self.activation, self.dropout = ACTIVATIONS[activation], Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., D)."""
        return self.down(self.dropout(self.activation(self.up(x))))


class Sublayer(nn.Module):
    """What surrounds a mixer or feed-forward f: x + dropout(f(norm(x))) (pre-norm) or norm(x + dropout(f(x))) (post).

    With norm="none" there is no layer norm; with residual=False no sum. A residual needs equal sizes.
    """

    def __init__(self, *, dim: int, out_dim: int, norm: str, dropout: float, residual: bool = True) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"model.norm is {norm!r}; choose one of {', '.join(NORMS)}")
        if residual and dim != out_dim:
            raise ValueError(f"a residual needs equal sizes, not {dim} in and {out_dim} out; set model.residual=false")
        self.pre_norm = nn.LayerNorm(dim) if norm == "pre" else None
        self.post_norm = nn.LayerNorm(out_dim) if norm == "post" else None
        self.dropout, self.residual = Dropout(dropout), residual

    def before(self, x: Tensor) -> Tensor:
        """What f is given."""
        return x if self.pre_norm is None else self.pre_norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The sublayer's output from its input x and y = f(before(x))."""
        y = self.dropout(y)
        if self.residual:
            y = x + y
        return y if self.post_norm is None else self.post_norm(y)


class EncoderLayer(nn.Module):
    """[self mixer] + [feed-forward], each a sublayer; a slot may be empty."""

    def __init__(
        self,
        *,
        dim: int,
        self_mixer: SelfMixer | None,
        feed_forward: FeedForward | None,
        norm: str,
        dropout: float,
        residual: bool = True,
    ) -> None:
        super().__init__()
        around = {"norm": norm, "dropout": dropout, "residual": residual}
        self.out_dim = dim if self_mixer is None else self_mixer.out_dim
        self.self_mixer, self.feed_forward = self_mixer, feed_forward
        self.around_self = Sublayer(dim=dim, out_dim=self.out_dim, **around) if self_mixer else None
        self.around_ffn = Sublayer(dim=self.out_dim, out_dim=self.out_dim, **around) if feed_forward else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Transform x (B, S, D) under mask (B, S)."""
        if self.self_mixer is not None and self.around_self is not None:
            x = self.around_self.after(x, self.self_mixer(self.around_self.before(x), mask))
        if self.feed_forward is not None and self.around_ffn is not None:
            x = self.around_ffn.after(x, self.feed_forward(self.around_ffn.before(x)))
        return x


class LayerState(NamedTuple):
    """A decoder layer's state: its self mixer's (None if the slot is empty) and its cross mixer's."""

    self_mixer: State
    cross_mixer: State


class DecoderLayer(nn.Module):
    """[self mixer] + cross mixer + [feed-forward], each a sublayer; self mixer and feed-forward may be empty."""

    def __init__(
        self,
        *,
        dim: int,
        self_mixer: SelfMixer | None,
        cross_mixer: CrossMixer,
        feed_forward: FeedForward | None,
        norm: str,
        dropout: float,
        residual: bool = True,
    ) -> None:
        super().__init__()
        around = {"norm": norm, "dropout": dropout, "residual": residual}
        middle = dim if self_mixer is None else self_mixer.out_dim
        self.out_dim = cross_mixer.out_dim
        self.self_mixer, self.cross_mixer, self.feed_forward = self_mixer, cross_mixer, feed_forward
        self.around_self = Sublayer(dim=dim, out_dim=middle, **around) if self_mixer else None
        self.around_cross = Sublayer(dim=middle, out_dim=self.out_dim, **around)
        self.around_ffn = Sublayer(dim=self.out_dim, out_dim=self.out_dim, **around) if feed_forward else None

    def forward(self, x: Tensor, mask: Tensor, context: Context) -> Tensor:
        """Transform x (B, T, D) under mask (B, T), reading the source from context."""
        if self.self_mixer is not None and self.around_self is not None:
            x = self.around_self.after(x, self.self_mixer(self.around_self.before(x), mask))
        x = self.around_cross.after(x, self.cross_mixer(self.around_cross.before(x), context))
        return self._feed_forward(x)

    def project(self, memory: Tensor, memory_mask: Tensor) -> Context:
        """What this layer reads of the encoder's output memory (B, S, D), once per source sentence."""
        return self.cross_mixer.project(memory, memory_mask)

    def init_state(self, context: Context, batch_size: int, max_len: int, like: Tensor) -> LayerState:
        """The state before the first position, one row per sentence."""
        own = None
        if self.self_mixer is not None:
            own = self.self_mixer.init_state(batch_size, max_len, device=like.device, dtype=like.dtype)
        return LayerState(own, self.cross_mixer.init_state(context, max_len))

    def step(self, x: Tensor, context: Context, state: LayerState, position: Tensor) -> tuple[Tensor, LayerState]:
        """One position: x (N, D), position (N,)."""
        own = state.self_mixer
        if self.self_mixer is not None and self.around_self is not None:
            y, own = self.self_mixer.step(self.around_self.before(x), own, position)
            x = self.around_self.after(x, y)
        y, cross = self.cross_mixer.step(self.around_cross.before(x), context, state.cross_mixer, position)
        x = self.around_cross.after(x, y)
        return self._feed_forward(x), LayerState(own, cross)

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.around_ffn is None:
            return x
        return self.around_ffn.after(x, self.feed_forward(self.around_ffn.before(x)))


class Encoder(nn.Module):
    """Embedding, layers, and a last layer norm where the layers are pre-norm: tokens (B, S) -> memory (B, S, D)."""

    def __init__(self, *, embedding: Embedding, layers: list[EncoderLayer], final_norm: bool) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, nn.ModuleList(layers)
        self.norm = nn.LayerNorm(layers[-1].out_dim) if final_norm else None

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Encode src (B, S) under src_mask (B, S)."""
        x = self.embedding(src)
        for layer in self.layers:
            x = layer(x, src_mask)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """Embedding, layers, and a last layer norm where the layers are pre-norm: tokens (B, T) -> (B, T, readout_dim)."""

    def __init__(self, *, embedding: Embedding, layers: list[DecoderLayer], final_norm: bool) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, nn.ModuleList(layers)
        self.norm = nn.LayerNorm(layers[-1].out_dim) if final_norm else None

    def forward(self, tgt: Tensor, mask: Tensor, context: list[Context]) -> Tensor:
        """Decode whole sequences tgt (B, T) given the source's context."""
        x = self.embedding(tgt)
        for layer, part in zip(self.layers, context, strict=True):
            x = layer(x, mask, part)
        return x if self.norm is None else self.norm(x)

    def step(
        self, token: Tensor, context: list[Context], state: list[LayerState], position: Tensor
    ) -> tuple[Tensor, list[LayerState]]:
        """Decode one position: token (N,), position (N,) -> (N, readout_dim) and the next state."""
        x, following = self.embedding.step(token, position), []
        for layer, part, old in zip(self.layers, context, state, strict=True):
            x, new = layer.step(x, part, old, position)  # type: ignore[operator]
            following.append(new)
        return (x if self.norm is None else self.norm(x)), following


class Seq2Seq(nn.Module):
    """p(y | x) = prod_t softmax(output(decoder(y_<t, encoder(x))))_{y_t}: an encoder-decoder of any token mixers."""

    def __init__(self, *, encoder: Encoder, decoder: Decoder, output: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.decoder, self.output = encoder, decoder, output

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the token after each of tgt_in (B, T), given src (B, S)."""
        return self.output(self.features(src, src_mask, tgt_in, tgt_mask))

    def features(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """What the output layer is given, (B, T, readout_dim), so that a loss may project real tokens only."""
        mask = tgt_in.new_ones(tgt_in.shape).bool() if tgt_mask is None else tgt_mask
        return self.decoder(tgt_in, mask, self.context(src, src_mask))

    def context(self, src: Tensor, src_mask: Tensor) -> list[Context]:
        """What each decoder layer reads of the source src (B, S), computed once per sentence."""
        memory = self.encoder(src, src_mask)
        return [layer.project(memory, src_mask) for layer in self.decoder.layers]  # type: ignore

    def init_state(self, context: list[Context], *, beam_size: int, max_len: int) -> list[Any]:
        """The state before the first position: beam_size hypotheses per sentence, at most max_len positions."""
        like, batch_size = context[0][0], context[0][0].shape[0]
        pairs = zip(self.decoder.layers, context, strict=True)
        return expand([layer.init_state(part, batch_size, max_len, like) for layer, part in pairs], beam_size)  # type: ignore

    def step(
        self, token: Tensor, context: list[Context], state: list[Any], position: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Logits (N, V) of the token after `token` (N,) at position (N,), and the next state."""
        x, state = self.decoder.step(token, context, state, position)
        return self.output(x), state
