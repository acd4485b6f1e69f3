"""Tokenizers: SentencePiece trained on raw text, ready-made ones, and how a checkpoint stores them whole."""

from __future__ import annotations

import hashlib
import io
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
import sentencepiece as spm

from seq2seq.data.factors import Numbers, numbered, read_factors
from seq2seq.data.marks import PIECES, SEPARATOR
from seq2seq.data.moses_bpe import MOSES, MosesBpe, is_moses_bpe
from seq2seq.data.normalization import nfc_rules, normalizer_name, with_normalizer_name
from seq2seq.data.shared_vocabulary import Numbered, VocabularyProcessor, split_vocabulary
from seq2seq.images.lines import encode_images
from seq2seq.settings.declare import read_section
from seq2seq.settings.tokenizer import PatchGrid, TokenizerSettings
from seq2seq.settings.values import check_value
from seq2seq.system.files import read_file

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # the special ids of every model that is trained here
# Part of every fingerprint: raise it when the same model and settings give different ids.
CODE_VERSION = 1
_LONGEST_LINE = 16_384  # bytes; SentencePiece skips longer lines
_SKIPPED = "x" * (_LONGEST_LINE + 1)
_TRAINER_THREADS = 4  # not the machine's core count: the model depends on this number, through sums of floats
_LINE_BREAKS = "\n\r\v\f\x85\u2028\u2029"
# All control characters but the tab, and the other line breaks.
_CONTROLS = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")


class Tokenizer:
    """Tokenizer of both sides, with one model of pieces or one a side, and special ids in common.

    A model is one of SentencePiece or, in some imported checkpoints, a `MosesBpe`. The vocabulary is `joint` if there
    is one model, or two that number their pieces by one vocabulary.

    A special symbol that the models lack (SentencePiece has no pad by default) gets a new id after the last piece.
    With factors, a source id is piece + src_vocab_size * code (see `seq2seq.data.factors`); special ids have code 0.

    Args:
        src_model: Serialized model of the source, or of both sides.
        tgt_model: Serialized model of the target; None for a joint one.
        patches: Grid of images. A source line is then an image, its ids are patches without an eos, and there is no
            `src_model`.
        sampling_alpha: Smoothing of sampled segmentations; 0 turns them off.
        factors: Values of each factor of source words.

    Raises:
        ValueError: The special ids of the two models differ, or one cannot sample segmentations or have these factors.
    """

    def __init__(
        self,
        *,
        src_model: bytes | None = None,
        tgt_model: bytes | None = None,
        patches: PatchGrid | None = None,
        sampling_alpha: float = 0.0,
        factors: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.patches = patches
        self.factors = numbered(factors)
        self._models = [model for model in (src_model, tgt_model) if model is not None]
        vocabularies = [split_vocabulary(model)[0] for model in self._models]
        one = src_model is not None and vocabularies[0] is not None and vocabularies[0] == vocabularies[-1]
        self.joint = tgt_model is None or one
        # With images, `src` is the target's model, which gives the special ids
        processors = [
            MosesBpe.from_bytes(model) if is_moses_bpe(model) else load_model(model) for model in self._models
        ]
        self.src = processors[0]
        self.tgt = processors[-1]
        if isinstance(self.tgt, MosesBpe):
            self.tgt = self.tgt.for_target()
        if sampling_alpha > 0 and any(map(is_moses_bpe, self._models)):
            raise ValueError(
                f"tokenizer.sampling_alpha={sampling_alpha}: segmentations are sampled by SentencePiece, but this "
                "tokenizer is of Moses and BPE; set it to 0"
            )
        # SentencePiece returns nothing for models of characters and of words
        settings = {"out_type": int, "enable_sampling": True, "alpha": sampling_alpha, "nbest_size": -1}
        if sampling_alpha > 0 and not all(model.encode(["a", ""], **settings)[0] for model in processors):
            raise ValueError(
                f"tokenizer.sampling_alpha={sampling_alpha}: a model of characters or words has one segmentation of "
                "a text; set it to 0"
            )
        self.sampling_alpha = sampling_alpha
        # Sources begin with the tag of their own language, and targets with the tag of theirs
        self.tags_targets = bool(getattr(self.tgt, "tags_targets", False))
        self.unk_id = _shared_id("unk", self.src.unk_id(), self.tgt.unk_id())
        size = max(self.src.get_piece_size(), self.tgt.get_piece_size())
        ids: dict[str, int] = {}
        for name in ("pad", "bos", "eos"):
            value = _shared_id(name, getattr(self.src, f"{name}_id")(), getattr(self.tgt, f"{name}_id")())
            # Negative if the models lack the symbol
            ids[name], size = (value, size) if value >= 0 else (size, size + 1)
        self.pad_id, self.bos_id, self.eos_id = ids["pad"], ids["bos"], ids["eos"]
        self.src_vocab_size = max(self.src.get_piece_size(), 1 + max(ids.values()))
        # Packed pixels are a vocabulary of their own, without special ids
        if patches:
            self.src_vocab_size = patches.vocab_size
        self.codes = math.prod(map(len, self.factors.values()))
        if self.factors and (patches or isinstance(self.src, Numbered) or self.src_vocab_size * self.codes > 2**63):
            raise ValueError(
                f"tokenizer.factors={','.join(self.factors)}, {self.codes:,} combinations: leave it out, or list fewer "
                "values; ids have 63 bits, and factors need text and a plain SentencePiece model"
            )
        self.tgt_vocab_size = max(self.tgt.get_piece_size(), 1 + max(ids.values()))
        self._silent = {self.pad_id, self.bos_id, self.eos_id, self.unk_id}
        found = {mark: int(self.src.piece_to_id(piece)) for mark, piece in PIECES.items() if not patches}
        # Ids of the pieces that the model has, by their characters in text
        self.marks = {mark: i for mark, i in found.items() if i != self.unk_id and self.src.is_control(i)}
        self.separator = self.marks.get(SEPARATOR)
        pieces = range(self.tgt.get_piece_size())
        self._silent.update(i for i in pieces if self.tgt.is_control(i))
        # <0x41> is the byte 0x41 of a character that has no piece
        self.byte_of = {i: int(self.tgt.id_to_piece(i)[3:5], 16) for i in pieces if self.tgt.is_byte(i)}
        self._id_of_byte = {byte: i for i, byte in self.byte_of.items()}

    def encode_src(self, lines: Sequence[str], *, seed: int | None = None) -> list[list[int]]:
        """Encode source lines, each with eos at its end, and with pieces for the characters of `marks`.

        Images have neither eos nor segmentations.

        Args:
            seed: Sample segmentations by this seed (None: the best ones).

        Raises:
            LineError: A line should be an image but is not, or has an unknown factor; the error names the first one.
        """
        if self.patches:
            return encode_images(lines, self.patches)
        if not any(mark in line for mark in self.marks for line in lines):
            return self._encode(self.src, lines, seed, self.factors)
        # Texts and marks alternate, and eos stands after the last text only
        parts = [re.split(f"([{''.join(self.marks)}])", line) for line in lines]
        encoded = iter(self._encode(self.src, list(chain.from_iterable(row[::2] for row in parts)), seed))
        rows = []
        for row in parts:
            before = [(*next(encoded)[:-1], self.marks[mark]) for mark in row[1::2]]
            rows.append([*chain.from_iterable(before), *next(encoded)])
        return rows

    def encode_tgt(self, lines: Sequence[str], *, seed: int | None = None) -> list[list[int]]:
        """Encode target lines, each with eos at its end; the decoder reads [bos] + ids[:-1]. See `encode_src`."""
        return self._encode(self.tgt, lines, seed)

    def _encode(
        self, model: Any, lines: Sequence[str], seed: int | None, factors: Numbers | None = None
    ) -> list[list[int]]:
        # SentencePiece encodes a list in one call, on several threads
        lines, codes = read_factors(lines, factors) if factors else (list(lines), [])
        # A proto has the place of each piece in the text, whatever normalization joins or splits
        kind: Any = "immutable_proto" if factors else int
        if seed is None or self.sampling_alpha == 0:
            rows = model.encode(lines, out_type=kind)
        else:
            require_repeatable_sampling()
            # The seed is global to the library, and has 32 bits
            spm.set_random_generator_seed(seed % 2**32)
            # One thread: several would draw from several generators, and results would not repeat. A single line would
            # be encoded in this thread, whose generator keeps its first seed; two lines are encoded in a new thread.
            padded = lines if len(lines) > 1 else [*lines, ""]
            rows = model.encode(
                padded, out_type=kind, enable_sampling=True, alpha=self.sampling_alpha, nbest_size=-1, num_threads=1
            )[: len(lines)]
        if factors:
            size = self.src_vocab_size
            rows = [[p.id + size * own[p.begin] for p in row.pieces] for row, own in zip(rows, codes, strict=True)]
        for row in rows:
            # Not SentencePiece's own add_eos, since eos may be an id that the model lacks
            row.append(self.eos_id)
        return rows

    def tag_ids(self, tags: Iterable[str]) -> list[int]:
        """Look up source pieces that stand for no text, such as language tags.

        Raises:
            ValueError: The model lacks one.
        """
        ids = {tag: int(self.src.piece_to_id(tag)) for tag in tags}
        for tag, number in ids.items():
            # Text has no marks of a model in which they are no control symbols
            if number == self.unk_id or (tag in PIECES.values() and not self.src.is_control(number)):
                raise ValueError(
                    f"the tokenizer has no piece {tag}: leave the tag out (data.tag_target, data.context, "
                    "data.augment.terms, tag of data.corpora), or add it to this tokenizer (tokenizer.extend=0), or "
                    "train a tokenizer with it: in a new model's run with tokenizer.model=null, or by SentencePiece's "
                    f"--control_symbols={tag}"
                )
        return list(ids.values())

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode target ids up to the first eos, without special ids, and with spaces for line breaks.

        Other control characters except tabs are left out, and byte pieces that do not form valid UTF-8.
        """
        size = self.tgt.get_piece_size()
        rows = []
        for row in ids:
            # SentencePiece takes only Python's own integers
            row = [int(i) for i in row]
            row = row[: row.index(self.eos_id)] if self.eos_id in row else row
            # Ids beyond the model's pieces are special ids that were added
            rows.append(self._without_stray_bytes([i for i in row if i < size and i not in self._silent]))
        lines = self.tgt.decode(rows) if rows else []
        return [_CONTROLS.sub(lambda found: " " if found[0] in _LINE_BREAKS else "", line) for line in lines]

    def _without_stray_bytes(self, row: list[int]) -> list[int]:
        """Drop byte pieces outside valid UTF-8, which SentencePiece would decode to U+FFFD."""
        if self.byte_of.keys().isdisjoint(row):
            return row
        kept: list[int] = []
        for are_bytes, run in groupby(row, self.byte_of.__contains__):
            if are_bytes:
                data = bytes(self.byte_of[i] for i in run)
                kept += [self._id_of_byte[byte] for byte in data.decode("utf-8", "ignore").encode()]
            else:
                kept += run
        return kept

    def to_state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as a plain dict of str, int, float, bool and bytes."""
        state: dict[str, Any] = {"format": 1, "joint": self.joint, "sampling_alpha": self.sampling_alpha}
        if self.patches:
            state["patches"] = asdict(self.patches)
        else:
            state["src_model"] = self._models[0]
        if self.factors:
            state["factors"] = {name: list(values)[1:] for name, values in self.factors.items()}
        if self.patches or len(self._models) > 1:
            state["tgt_model"] = self._models[-1]
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Tokenizer:
        """Restore a tokenizer from the result of `to_state`; raise ValueError for anything else."""
        if not isinstance(state, Mapping) or state.get("format") != 1:
            raise ValueError("not a tokenizer state of format 1; it was written by another version or is damaged")
        # Types first: bytes(n) of an integer n would take n bytes of memory
        kinds = {"joint": bool, "sampling_alpha": (int, float)}
        kinds |= {"patches": dict} if "patches" in state else {"src_model": bytes}
        # A joint tokenizer may have one model
        kinds |= {} if state.get("joint") and not {"patches", "tgt_model"} & state.keys() else {"tgt_model": bytes}
        for name, kind in kinds.items():
            if not isinstance(state.get(name), kind):
                raise ValueError(f"its '{name}' is missing or of the wrong type")
        return cls(
            **{name: state[name] for name in ("src_model", "tgt_model") if name in kinds},
            patches=read_section(PatchGrid, state["patches"], "tokenizer.patches") if "patches" in kinds else None,
            sampling_alpha=float(state["sampling_alpha"]),
            factors=check_value(state.get("factors"), Mapping[str, Sequence[str]], {}, "tokenizer.factors"),
        )

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments of `build_model` that depend on the tokenizer."""
        sizes = {name: getattr(self, name) for name in ("src_vocab_size", "tgt_vocab_size", "pad_id", "joint")}
        return sizes | ({"factors": [len(values) - 1 for values in self.factors.values()]} if self.factors else {})

    @property
    def normalizer(self) -> str:
        """Name of the models' text normalization; "source / target" if they differ."""
        names = [MOSES if is_moses_bpe(model) else normalizer_name(model) for model in self._models]
        return " / ".join(dict.fromkeys(names))

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the ids, without sampling."""
        # The length marks the end of the first model's bytes
        digest = hashlib.sha256(repr((CODE_VERSION, self.joint, len(self._models[0]))).encode())
        if self.patches:
            digest.update(repr(self.patches).encode())
        if self.factors:
            digest.update(repr(self.to_state()["factors"]).encode())
        for model in self._models:
            digest.update(model)
        return digest.hexdigest()[:16]


def same_pieces(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if the tokenizers of two states (`Tokenizer.to_state`) are equal except for their sampling."""
    # As text, since the order of the factors counts
    one, other = ({**each, "sampling_alpha": None, "factors": str(each.get("factors"))} for each in (one, other))
    return one == other


def require_repeatable_sampling() -> None:
    """Raise ValueError if SentencePiece samples differently in each process; since 0.2.2 no seed prevents this."""
    numbers = [int(number) for number in spm.__version__.split(".")[:3] if number.isdecimal()]
    if numbers > [0, 2, 1]:
        raise ValueError(
            f"tokenizer.sampling_alpha: SentencePiece {spm.__version__} samples different segmentations in every "
            "process, so runs are not reproducible; pip install 'sentencepiece<0.2.2', or set it to 0"
        )


def make_tokenizer(models: Sequence[bytes], settings: TokenizerSettings) -> Tokenizer:
    """Build a tokenizer from one SentencePiece model (for both sides, or for the target of images) or from two."""
    return Tokenizer(
        src_model=None if settings.patches else models[0],
        tgt_model=models[-1] if settings.patches or len(models) == 2 else None,
        patches=settings.patches,
        sampling_alpha=settings.sampling_alpha,
        factors=settings.factors,
    )


def load_tokenizer(settings: TokenizerSettings) -> Tokenizer:
    """Load the ready-made tokenizer that `settings` name.

    Raises:
        ValueError: A file is not a SentencePiece model, or two models differ in their special ids.
    """
    models = [read_file(path) for path in settings.ready_models]
    try:
        return make_tokenizer(models, settings)
    except RuntimeError as error:
        raise ValueError(f"{' / '.join(settings.ready_models)} is not a SentencePiece model ({error})") from error


class VocabularySizeError(ValueError):
    """Error of a corpus too small for the vocabulary size; `largest` is the largest size that works."""

    def __init__(self, settings: TokenizerSettings, what: str, *, largest: int) -> None:
        super().__init__(
            f"the corpus is too small for data.vocab_size={settings.vocab_size} ({settings.type}, {what}): "
            f"the largest size that works is {largest}, but with half of it, pieces occur more than once: "
            f"set data.vocab_size={max(5, largest // 2)}, or add text"
        )
        self.largest = largest


def train_tokenizer(*, src_lines: Iterable[str], tgt_lines: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
    """Train on raw lines, jointly on both sides or one model a side; deterministic to the byte.

    Args:
        src_lines: Source text, read once; not read if the source is images.
        tgt_lines: Target text, read once.

    Raises:
        VocabularySizeError: The text is too small for the vocabulary.
        ValueError: There is no text, or SentencePiece refuses it for another reason.
    """
    if settings.patches:
        sides = [(tgt_lines, "the target side")]
    elif settings.joint:
        # Lines of both sides alternate, so that a sample has about equally many of each
        both = chain.from_iterable(zip(src_lines, tgt_lines, strict=True))
        sides = [(both, "both sides together")]
    else:
        sides = [(src_lines, "the source side"), (tgt_lines, "the target side")]
    models, refused = [], []
    for lines, what in sides:
        try:
            models.append(_train(lines, settings, what))
        except VocabularySizeError as error:
            refused.append(error)
    # After both sides, so that the message names a size that works for both
    if refused:
        raise min(refused, key=lambda error: error.largest)
    return make_tokenizer(models, settings)


def _train(lines: Iterable[str], settings: TokenizerSettings, what: str) -> bytes:
    """Train one model on a sample of the lines; `what` names their side in messages."""
    # Sampled here and not by SentencePiece: only the sample is in memory
    sample = reservoir(lines, settings.input_sentence_size, settings.seed)
    if not any(line.strip() for line in sample):
        raise ValueError(f"there is no text to train a tokenizer on ({what}); check data.train and data.clean")
    if all(len(line.encode("utf-8", "replace")) > _LONGEST_LINE for line in sample if line.strip()):
        raise ValueError(
            f"every line of {what} is longer than {_LONGEST_LINE:,} bytes, which SentencePiece does not train on: "
            "split the text into sentences, one a line, or set tokenizer.model to a ready tokenizer"
        )
    try:
        if settings.normalizer != "nfc":
            return run_trainer(sample, settings, normalization_rule_name=settings.normalizer)
        # SentencePiece has no rules of this name, and reads others only from a file
        with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
            rules.write(nfc_rules())
            rules.flush()
            model = run_trainer(sample, settings, normalization_rule_tsv=rules.name)
        return with_normalizer_name(model, settings.normalizer)
    except RuntimeError as error:
        raise _explain(str(error), settings, what) from error


def run_trainer(lines: list[str], settings: TokenizerSettings, **more: Any) -> bytes:
    """Run SentencePiece's trainer, and return the serialized model."""
    model = io.BytesIO()
    if settings.type == "word":
        # The size is an upper bound: a text may have fewer words
        more["hard_vocab_limit"] = False
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=settings.type,
        vocab_size=settings.vocab_size,
        character_coverage=settings.character_coverage,
        byte_fallback=settings.byte_fallback,
        **more,
        num_threads=_TRAINER_THREADS,
        max_sentence_length=_LONGEST_LINE,
        # Not user-defined symbols: a line that contains the characters of a tag would be cut into that symbol
        control_symbols=list(settings.symbols),
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        # Errors only
        minloglevel=2,
    )
    return model.getvalue()


def _explain(message: str, settings: TokenizerSettings, what: str) -> ValueError:
    """Translate SentencePiece's message about a vocabulary size to the names of our settings."""
    too_large = re.search(r"set it to a value <= (\d+)", message)
    if too_large:
        return VocabularySizeError(settings, what, largest=int(too_large[1]))
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return ValueError(
            f"data.vocab_size={settings.vocab_size} is too small ({settings.type}, {what}): single characters and "
            f"special pieces alone need {too_small[1]}; raise data.vocab_size, or lower "
            f"tokenizer.character_coverage={settings.character_coverage}"
        )
    return ValueError(f"SentencePiece could not be trained on {what}: {message}")


def reservoir(lines: Iterable[str], size: int, seed: int) -> list[str]:
    """Sample at most `size` lines uniformly, by the seed (Vitter's algorithm R)."""
    # SentencePiece skips longer lines, for which one line stands here, since many would fill the memory
    lines = (line if len(line) <= _LONGEST_LINE else _SKIPPED for line in lines)
    kept = list(islice(lines, size))
    rng = np.random.default_rng(seed)
    seen = len(kept)
    while block := list(islice(lines, 65536)):
        # Line n (from 0) draws one of n + 1 slots, and is kept if the slot is below `size`
        slots = rng.integers(0, seen + 1 + np.arange(len(block)))  # (block,)
        for slot, line in zip(slots.tolist(), block, strict=True):
            if slot < size:
                kept[slot] = line
        seen += len(block)
    return kept


def load_model(model: bytes) -> spm.SentencePieceProcessor:
    """Load a serialized SentencePiece model, with its vocabulary if it has one; raise RuntimeError for other bytes."""
    vocabulary, own = split_vocabulary(model)
    if vocabulary is not None:
        return VocabularyProcessor(own, vocabulary)
    processor = spm.SentencePieceProcessor()
    # Not model_proto, which leaves the processor without a model if the bytes are empty
    processor.load_from_serialized_proto(model)
    return processor


def _shared_id(name: str, src: int, tgt: int) -> int:
    """Return the id that both models have for a special symbol; raise ValueError if they differ."""
    if src != tgt:
        raise ValueError(
            f"the source model has {name}_id {src} and the target model {tgt}: "
            "both must agree; train them with the same --pad_id, --unk_id, --bos_id and --eos_id"
        )
    return src
