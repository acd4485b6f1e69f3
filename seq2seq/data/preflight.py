"""Open every corpus before any work, without torch."""

from __future__ import annotations

from pathlib import Path

from seq2seq.data.cleaning import Pairs
from seq2seq.data.factors import numbered, read_factors
from seq2seq.data.fingerprints import corpus_fingerprint
from seq2seq.data.hub import repository_of, require_remote
from seq2seq.data.multi_corpus import NamedCorpus, naming, parts_of, section_of
from seq2seq.data.raw_pairs import sample_pairs
from seq2seq.data.readers import SIDE_NAMES
from seq2seq.data.split_files import is_address, resolve_path
from seq2seq.data.text_checks import refuse_swapped, warn_of_tokens
from seq2seq.data.text_files import warn_once
from seq2seq.images.lines import encode_images
from seq2seq.settings.data import SPLITS, CorpusSettings, DataSettings
from seq2seq.settings.tokenizer import FACTOR, TokenizerSettings
from seq2seq.system.errors import LineError


def open_corpora(data: DataSettings, *, tokenizer: TokenizerSettings, cache_dir: Path) -> tuple[NamedCorpus, ...]:
    """Check languages, files, columns, direction and ready models of all corpora, and return them.

    Raises:
        ValueError: Something is missing or looks swapped; the message says what to change.
    """
    parts = tuple(parts_of(data))
    for part in parts:
        with naming(part.name):
            sample = validate_corpus(part.corpus, cache_dir=cache_dir)
            _warn_of_factors(tokenizer, sample[0], f"{section_of(part.name)}.{part.corpus.splits[0]}")
            try:
                if tokenizer.patches:
                    encode_images(sample[0], tokenizer.patches)
                # A context is refused later
                elif tokenizer.factors and not data.context:
                    read_factors(sample[0], numbered(tokenizer.factors))
                elif tokenizer.ready_models:
                    _refuse_swapped_models(tokenizer, sample)
            except LineError as error:
                raise ValueError(f"data.{part.corpus.splits[0]}: {error}") from None
    return parts


def validate_corpus(settings: CorpusSettings, *, cache_dir: Path) -> Pairs:
    """Check languages, files, columns and direction by a sample; check only languages and existence if it is remote.

    Returns:
        The first pairs of the first split; empty for a remote corpus.

    Raises:
        ValueError: Something is missing or looks swapped; the message says what to change.
    """
    _check_languages(settings)
    if settings.train is None and "train" in settings.splits:
        raise ValueError("data.train is not set; give a file, a prefix or a list (see conf/data/files.yaml)")
    for split in SPLITS[1:]:
        # Not an error, since memorizing a few pairs is a test of a mixer
        if settings.place(split) is not None and settings.place(split) == settings.place("train"):
            warn_once(
                f"data.{split} is data.train itself ({settings.place(split)}): its scores say nothing about unseen text"
            )
    on_hub = False
    if settings.path:
        # A name on the hub, or a folder
        folder = resolve_path(settings.path)
        on_hub = not folder.is_dir()
        if on_hub and str(settings.path).startswith(("package://", "/", ".", "~")):
            raise ValueError(f"data.path: the folder {folder} does not exist")
        cache = cache_dir.resolve()
        inside = cache.parts[len(folder.resolve().parts) :]
        # Files of the cache would become part of the data set, except in a hidden folder
        if not on_hub and cache.is_relative_to(folder.resolve()) and not any(part.startswith(".") for part in inside):
            raise ValueError(f"cache={cache_dir} is in data.path={folder}: set cache=<a folder elsewhere>")
    # Text that was prepared before needs neither the hub nor a copy
    remote = any(repository_of(split, settings) for split in settings.splits)
    if remote and not (cache_dir / f"text-{corpus_fingerprint(settings)}").is_dir():
        require_remote(settings)
    first: Pairs = [], []
    for split in () if on_hub else settings.splits:
        place = settings.place(split)
        if place is not None:
            sample = sample_pairs(settings, cache_dir=cache_dir, split=split)
            # A remote file has no sample
            if not sample[0] and not is_address(str(place)):
                raise ValueError(f"data.{split}={place}: there are no pairs; the files are empty")
            refuse_swapped(sample, src=settings.src, tgt=settings.tgt, where=f"data.{split}")
            warn_of_tokens(sample, f"data.{split}")
            first = sample if split == settings.splits[0] else first
    return first


def _check_languages(settings: CorpusSettings) -> None:
    """Raise ValueError if languages are equal, are names of sides (such as src), or are missing from the corpus."""
    if settings.src == settings.tgt:
        raise ValueError(f"data.src and data.tgt are both {settings.src!r}; a direction has two languages")
    for side, language in (("src", settings.src), ("tgt", settings.tgt)):
        # BLEU's tokenizer, tags and the checkpoint need the languages' names
        if language.lower() in SIDE_NAMES and not settings.columns:
            raise ValueError(
                f"data.{side}={language} is not a language: name the languages, and the columns that hold them, as in "
                f"data.src=de data.tgt=en 'data.columns={{de: {settings.src}, en: {settings.tgt}}}'"
            )
        # Data sets of conf/data list their languages
        if settings.languages and language not in settings.languages:
            raise ValueError(f"this corpus has no language column {language!r}; it has {', '.join(settings.languages)}")


def _warn_of_factors(settings: TokenizerSettings, sources: list[str], name: str) -> None:
    """Warn of a sample without the factors of the settings, and of one with factors that the settings lack."""
    share = sum(FACTOR in line for line in sources) / max(1, len(sources))
    if settings.factors and sources and not share:
        warn_once(
            f"{name}: the first {len(sources):,} sources have no factors ({FACTOR}), and tokenizer.factors is set"
        )
    # Text without factors hardly has this sign
    if not settings.factors and share > 0.5:
        warn_once(f"{name}: the sources have factors ({FACTOR}), which are read as text: set tokenizer.factors")


def _refuse_swapped_models(settings: TokenizerSettings, sample: Pairs) -> None:
    """Raise ValueError if ready models of two sides encode the other side's text in fewer pieces than their own."""
    from seq2seq.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(settings)
    if tokenizer.joint:
        return
    src, tgt = sample

    def pieces(source: list[str], target: list[str]) -> int:
        return sum(map(len, tokenizer.encode_src(source))) + sum(map(len, tokenizer.encode_tgt(target)))

    given = pieces(src, tgt)
    exchanged = pieces(tgt, src)
    # An unseen language takes far more pieces; 10% allow for names and numbers
    if given > 1.1 * exchanged:
        raise ValueError(
            "source and target look swapped: tokenizer.src_model and tokenizer.tgt_model need "
            f"{given} pieces for the first {len(src)} pairs, and {exchanged} with the sides exchanged; "
            "exchange data.src and data.tgt, or the models"
        )
