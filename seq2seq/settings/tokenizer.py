"""Settings of the section `tokenizer`: SentencePiece models, and patches if the source is images."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from seq2seq.settings.declare import Section, internal, setting
from seq2seq.settings.values import shown
from seq2seq.system.packages import require_installed

TYPES = ("unigram", "bpe", "word")
NORMALIZERS = ("identity", "nfc", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
# Default number of pieces of a vocabulary.
VOCAB_SIZE = 8000
# Maximum number of bits of an id of a patch: ids, and the number of different ids, are int64.
_MOST_BITS = 62
FACTOR = "\uffe8"  # stands before each factor of a word, as in OpenNMT
# Maximum number of pixels of an image's side.
_LARGEST = 2**16


@dataclasses.dataclass(frozen=True)
class PatchGrid(Section):
    """Division of images of height x width pixels into patches of size x size pixels, row by row.

    The id of a patch is sum_i level_i 2^(bits i) over the values i of its pixels, row by row, each with 2^bits levels.
    A pixel in color has three values: red, green and blue. A patch of more than 62 bits has several ids, one after the
    other, of equally many values.
    """

    section: ClassVar[str] = "tokenizer.patches"

    height: int = setting(help="pixels of every image from top to bottom", least=1, most=_LARGEST)
    width: int = setting(help="pixels of every image from left to right", least=1, most=_LARGEST)
    size: int = setting(2, "pixels of a patch each way", least=1, most=_LARGEST)
    bits: int = setting(8, "a value has 2^bits levels; a patch of more than 62 bits has several ids", least=1, most=8)
    channels: int = setting(1, "values of a pixel: 1 is gray, 3 is red, green and blue", least=1, most=3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.height % self.size or self.width % self.size:
            raise ValueError(
                f"tokenizer.patches.size: images of {self.width} x {self.height} pixels are not cut into whole patches "
                f"of {self.size} x {self.size}"
            )
        if self.channels == 2:
            raise ValueError("tokenizer.patches.channels=2: choose 1 (gray) or 3 (red, green and blue)")
        if self.length < 2:
            raise ValueError(f"tokenizer.patches.size={self.size}: an image of one patch has nothing to mix")
        # Checked last: installing a package does not help with impossible sizes.
        require_installed("PIL", "a source of images", extra="images")

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.size

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return self.width // self.size

    @property
    def length(self) -> int:
        """Patches of an image: its source positions."""
        return self.rows * self.columns

    @property
    def values(self) -> int:
        """Values of a patch: one for each pixel in gray, three in color."""
        return self.size**2 * self.channels

    @property
    def parts(self) -> int:
        """Ids of a patch, one after the other."""
        return parts_of_patch(self.values, self.bits)[0]

    @property
    def ids(self) -> int:
        """Ids of an image."""
        return self.length * self.parts

    @property
    def vocab_size(self) -> int:
        """Number of different ids."""
        return 1 << (parts_of_patch(self.values, self.bits)[1] * self.bits)


def parts_of_patch(values: int, bits: int) -> tuple[int, int]:
    """Return how many ids hold the `values` of a patch, of `bits` bits each, and how many values an id holds."""
    parts = -(-values // (_MOST_BITS // bits))
    return parts, -(-values // parts)


def _is_trained_already(settings: TokenizerSettings) -> str:
    return f"with the existing {settings.named_models}: leave it out" if settings.ready_models else ""


def _trained_together(settings: TokenizerSettings) -> str:
    # A value that agrees with the models is allowed.
    return "" if settings.joint == (settings.model is not None) else _is_trained_already(settings)


# Limits of settings that only the training of a tokenizer model uses.
_TRAINED = {"idle": _is_trained_already}
_LEARNED = {"idle": lambda settings: "" if settings.extend else _is_trained_already(settings)}


@dataclasses.dataclass(frozen=True)
class TokenizerSettings(Section):
    """Settings of a tokenizer: existing SentencePiece models, or the training of new ones.

    One model serves both sides, or each side has its own. With `patches` the source is images and has no model.

    Args:
        symbols: Tags, each a piece of its own that no text contains.
    """

    section: ClassVar[str] = "tokenizer"

    # Existing models.
    model: str | None = setting(None, "existing SentencePiece model for both sides, instead of training one")
    src_model: str | None = setting(None, "existing model for the source; needs tgt_model")
    tgt_model: str | None = setting(None, "existing model for the target; needs src_model, except with images")
    extend: int | None = setting(None, "maximum pieces to add to an existing model, besides tags", least=0, most=2**20)
    # Training of new models.
    type: str = setting("unigram", "algorithm of a trained model; word: a piece is a word", choices=TYPES, **_TRAINED)
    vocab_size: int = setting(VOCAB_SIZE, "pieces of a trained model, which data.vocab_size sets", least=5, most=2**24)
    joint: bool = setting(True, "one vocabulary for both sides, or one a side", idle=_trained_together)
    byte_fallback: bool = setting(True, "unseen characters become bytes instead of unk", **_TRAINED)
    normalizer: str = setting("identity", "normalization of text; identity: none", choices=NORMALIZERS, **_TRAINED)
    character_coverage: float = setting(0.9995, "share of characters with a piece", above=0, most=1, **_LEARNED)
    input_sentence_size: int = setting(500_000, "lines to learn from, drawn at random", least=1, **_LEARNED)
    sampling_alpha: float = setting(
        0.0, "sampling of segmentations: smoothing (unigram, 0.5) or dropout (bpe, 0.1); 0 = off", least=0, most=1
    )
    seed: int = setting(1, "seed of the lines that are drawn", least=0, most=2**32 - 1, **_LEARNED)
    patches: PatchGrid | None = setting(None, "patches of images as the source: {height, width, size, bits, channels}")
    factors: Mapping[str, Sequence[str]] | None = setting(None, "values of source factors: {pos: [NOUN, VERB]}")
    symbols: tuple[str, ...] = internal(())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model and (self.src_model or self.tgt_model):
            raise ValueError("tokenizer.model (one model for both sides) and src_model/tgt_model exclude each other")
        if self.type == "word" and not self.ready_models:
            self._check_words()
        for name, values in (self.factors or {}).items():
            bad = [each for each, count in Counter(values).items() if count > 1 or re.search(rf"[\s{FACTOR}]", each)]
            if bad or not values:
                raise ValueError(
                    f"tokenizer.factors.{name}={shown(bad or values)}: list words, each once, without {FACTOR}"
                )
        # With images, only the target has a model.
        if self.patches:
            self._check_images()
        elif bool(self.src_model) != bool(self.tgt_model):
            raise ValueError("tokenizer.src_model and tokenizer.tgt_model are given together, or neither")
        for path in self.ready_models:
            # Path.is_file would raise an error for a name that is too long
            if not os.path.isfile(path):
                raise ValueError(f"tokenizer model {shown(path)} does not exist: give a SentencePiece .model file")

    def _check_words(self) -> None:
        # SentencePiece would leave its mark of a space in the text of the bytes, and sample no pieces at all
        if self.byte_fallback:
            raise ValueError(
                "tokenizer.type=word: a word that is not a piece is unknown; set tokenizer.byte_fallback=false"
            )
        if self.sampling_alpha > 0:
            raise ValueError(
                f"tokenizer.sampling_alpha={self.sampling_alpha}: a word (tokenizer.type=word) has one segmentation; "
                "set it to 0"
            )

    def _check_images(self) -> None:
        if self.joint:
            raise ValueError("tokenizer.patches: images share no vocabulary with text; set tokenizer.joint=false")
        if self.model or self.src_model:
            raise ValueError("tokenizer.patches: images have no SentencePiece model; set tokenizer.tgt_model alone")
        if self.symbols:
            raise ValueError(f"tokenizer.patches: images take no tags ({', '.join(self.symbols)}); leave them out")

    @property
    def ready_models(self) -> tuple[str, ...]:
        """Paths of the existing models: none, one (joint, or images) or two (source, target)."""
        return tuple(str(path) for path in (self.model, self.src_model, self.tgt_model) if path)

    @property
    def named_models(self) -> str:
        """The existing models, for messages."""
        return " and ".join(map(shown, self.ready_models))
