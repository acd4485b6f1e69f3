"""Settings of the section `model`: sizes, norms, positions and dropout. The defaults are Transformer base."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from seq2seq.settings.declare import Section, setting

# Choices of `norm`, `tie`, `activation` and `positions`.
NORMS = ("pre", "post", "none")
TIES = ("all", "target", "none")
ACTIVATIONS = ("relu", "gelu", "silu")
POSITIONS = ("sinusoidal", "fairseq", "learned", "none")
# Larger sizes overflow, or take forever to build.
WIDEST = 2**20
_DEEPEST = 1000


@dataclasses.dataclass(frozen=True)
class ModelSettings(Section):
    """Settings of the model, except its mixers."""

    section: ClassVar[str] = "model"

    # Sizes.
    dim: int = setting(512, "model width", least=1, most=WIDEST)
    ffn_dim: int = setting(2048, "inner width of the feed-forward; 0: no feed-forward", least=0, most=WIDEST)
    num_heads: int = setting(8, "heads of every mixer that has heads", least=1, most=WIDEST)
    encoder_layers: int = setting(6, "encoder layers; mixer.extra_encoder_layers is added", least=1, most=_DEEPEST)
    encoder_stages: int = setting(
        1, "stages of the encoder, each with fewer positions than the one before", least=1, most=20
    )
    encoder_pooling: int = setting(
        2,
        "positions pooled into one where a stage begins, along each side of a grid",
        least=2,
        most=1024,
        needs={"encoder_stages": range(2, 21)},
    )
    encoder_growth: int = setting(
        1,
        "factor by which a stage is wider than the one before",
        least=1,
        most=64,
        needs={"encoder_stages": range(2, 21)},
    )
    decoder_layers: int = setting(
        6,
        "decoder layers; 0: a linear classifier of the encoder's mean (one-piece targets)",
        least=0,
        most=_DEEPEST,
    )
    # Layers.
    norm: str = setting("post", "place of the layer norms; post as published", choices=NORMS)
    residual: bool = setting(True, "add the input of a sublayer to its output")
    activation: str = setting("relu", "activation of the feed-forward", choices=ACTIVATIONS)
    # Positions and embeddings.
    positions: str = setting("sinusoidal", "encoding of positions; fairseq: its sinusoids", choices=POSITIONS)
    src_positions: str | None = setting(
        None, "positions of the source, if different; grid: row and column of a patch", choices=("grid", *POSITIONS)
    )
    max_len: int = setting(
        1024, "number of learned positions, and of positions of the mixer lowrank", least=1, most=WIDEST
    )
    scale_embedding: bool = setting(True, "multiply embeddings by sqrt(dim)")
    tie: str = setting("all", "shared embedding tables: all three, or target and output", choices=TIES)
    output_bias: bool = setting(False, "add a bias to a tied output layer (an untied one always has a bias)")
    # Regularization.
    dropout: float = setting(0.1, "dropout after embeddings and sublayers (CPU: multiples of 1/256)", least=0, below=1)
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward", least=0, below=1)
    attention_dropout: float = setting(0.0, "dropout of attention weights", least=0, below=1)
    weight_dropout: float = setting(0.1, "DropConnect on kernels of convolutions (as dropout)", least=0, below=1)
