"""Settings of the section `model`: sizes, norms, positions and dropout; the defaults are the base size."""

from __future__ import annotations

import dataclasses

from seq2seq.config.settings import setting

# Choices of `norm`, and of `tie`.
NORMS = ("pre", "post", "none")
TIES = ("all", "target", "none")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of everything in the model but its mixers.

    Raises:
        ValueError: an unknown name, or a value outside its range.
    """

    # Sizes.
    dim: int = setting(512, "model width")
    ffn_dim: int = setting(2048, "inner width of the feed-forward; 0: no feed-forward")
    num_heads: int = setting(8, "heads of every mixer that has heads")
    encoder_layers: int = setting(6, "encoder layers; mixer.extra_encoder_layers is added")
    decoder_layers: int = setting(6, "decoder layers")
    # Layers.
    norm: str = setting("post", "pre, post (as published) or none")
    residual: bool = setting(True, "add the input of a sublayer to its output")
    activation: str = setting("relu", "activation of the feed-forward")
    # Positions and embeddings.
    positions: str = setting("sinusoidal", "sinusoidal, learned or none")
    src_positions: str | None = setting(
        None, "positions of the source where they differ: grid (row and column of a patch), sinusoidal, learned, none"
    )
    max_len: int = setting(1024, "number of learned positions; also the size of a mixer of bounded length")
    scale_embedding: bool = setting(True, "multiply embeddings by sqrt(dim)")
    tie: str = setting("all", "all: source, target and output share one table; target: target and output; none")
    # Regularization.
    dropout: float = setting(0.1, "dropout after embeddings and sublayers")
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward")
    attention_dropout: float = setting(0.0, "dropout of attention weights")
    weight_dropout: float = setting(0.1, "DropConnect on the normalized kernels of convolutions")

    def __post_init__(self) -> None:
        for key in ("dim", "encoder_layers", "decoder_layers", "max_len"):
            if not isinstance(getattr(self, key), int) or getattr(self, key) < 1:
                raise ValueError(f"model.{key} is {getattr(self, key)!r}; choose a whole number from 1")
        if not isinstance(self.ffn_dim, int) or self.ffn_dim < 0:
            raise ValueError(f"model.ffn_dim is {self.ffn_dim!r}; choose a whole number (0 for no feed-forward)")
        for key, names in (("tie", TIES), ("norm", NORMS)):
            if getattr(self, key) not in names:
                raise ValueError(f"model.{key} is {getattr(self, key)!r}; choose one of {', '.join(names)}")
