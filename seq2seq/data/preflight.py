"""Open every corpus once, before any work, without torch."""

from __future__ import annotations

from pathlib import Path

from seq2seq.data.cleaning import Pairs
from seq2seq.data.fingerprints import corpus_fingerprint
from seq2seq.data.multi_corpus import NamedCorpus, naming, parts_of
from seq2seq.data.raw_pairs import is_remote, require_remote, sample_pairs
from seq2seq.data.readers import SIDES
from seq2seq.data.split_files import resolve_path
from seq2seq.data.text_checks import refuse_swapped, warn_of_tokens
from seq2seq.data.text_files import warn_once
from seq2seq.images.lines import ImageError, encode_images
from seq2seq.settings.data import SPLITS, CorpusSettings, DataSettings
from seq2seq.settings.tokenizer import PatchGrid, TokenizerSettings


def open_corpora(data: DataSettings, *, tokenizer: TokenizerSettings, cache_dir: Path) -> tuple[NamedCorpus, ...]:
    """Check languages, files, columns, direction and ready models of all corpora, and return the corpora.

    Raises:
        ValueError: Something is missing or looks swapped; the message says what to change.
    """
    parts = tuple(parts_of(data))
    for part in parts:
        with naming(part.name):
            validate_corpus(part.corpus, cache_dir=cache_dir)
        # First the text itself, then whether a ready tokenizer fits it
        if tokenizer.ready_models or tokenizer.patches:
            split = part.corpus.splits[0]
            sample = sample_pairs(part.corpus, cache_dir=cache_dir, split=split)
            if tokenizer.patches:
                _check_images(tokenizer.patches, sample, split)
            else:
                _check_vocabularies(tokenizer, sample)
    return parts


def _require_apart(cache_dir: Path, folder: Path) -> None:
    """Raise ValueError if a cache lies in the folder of a data set, whose files would then be its own."""
    cache, folder = cache_dir.resolve(), folder.resolve()
    # Hidden folders are no part of a data set
    if cache.is_relative_to(folder) and not any(part.startswith(".") for part in cache.relative_to(folder).parts):
        raise ValueError(f"cache={cache_dir} is in data.path={folder}: set cache=<a folder elsewhere>")


def validate_corpus(settings: CorpusSettings, *, cache_dir: Path) -> None:
    """Check languages, files, columns and direction cheaply; of a remote corpus, the languages and that it is there.

    Raises:
        ValueError: Something is missing or looks swapped; the message says what to change.
    """
    if settings.src == settings.tgt:
        raise ValueError(f"data.src and data.tgt are both {settings.src!r}; a direction has two languages")
    # BLEU's tokenizer, tags and the checkpoint go by the languages' names
    for side, language in (("src", settings.src), ("tgt", settings.tgt)):
        if language.lower() in SIDES and not settings.columns:
            raise ValueError(
                f"data.{side}={language} is not a language: name the languages, and the columns that hold them, as in "
                f"data.src=de data.tgt=en 'data.columns={{de: {settings.src}, en: {settings.tgt}}}'"
            )
    # Known for data sets of conf/data, which list their languages
    for language in (settings.src, settings.tgt):
        if settings.languages and language not in settings.languages:
            raise ValueError(f"this corpus has no language column {language!r}; it has {', '.join(settings.languages)}")
    if settings.train is None and "train" in settings.splits:
        raise ValueError("data.train is not set; give a file, a prefix or a list (see conf/data/files.yaml)")
    for split in SPLITS[1:]:
        # Some learn a few pairs by heart on purpose, as a test of a mixer
        if settings.place(split) is not None and settings.place(split) == settings.place("train"):
            warn_once(
                f"data.{split} is data.train itself ({settings.place(split)}): its scores say nothing of text that the "
                "model has not seen"
            )
    # A name on the hub, or a path
    folder = resolve_path(settings.path) if settings.path else None
    on_hub = folder is not None and not folder.is_dir()
    if folder is not None and not on_hub:
        _require_apart(cache_dir, folder)
    if on_hub and str(settings.path).startswith(("package://", "/", ".", "~")):
        raise ValueError(f"data.path: the folder {folder} does not exist")
    # Text that was prepared before needs neither the hub nor its cache
    if is_remote(settings) and not (cache_dir / f"text-{corpus_fingerprint(settings)}").is_dir():
        require_remote(settings)
    if on_hub:
        return
    for split in settings.splits:
        if settings.place(split) is not None:
            sample = sample_pairs(settings, cache_dir=cache_dir, split=split)
            # Of a remote file there is no sample
            if not sample[0] and "://" not in str(settings.place(split)):
                raise ValueError(f"data.{split}={settings.place(split)}: there are no pairs; the files are empty")
            refuse_swapped(sample, src=settings.src, tgt=settings.tgt, where=f"data.{split}")
            warn_of_tokens(sample, f"data.{split}")


def _check_images(patches: PatchGrid, sample: Pairs, split: str) -> None:
    try:
        encode_images(sample[0], patches)
    except ImageError as error:
        raise ValueError(f"data.{split}: {error}") from None


def _check_vocabularies(settings: TokenizerSettings, sample: Pairs) -> None:
    """Refuse separate ready models that cut the other side's text into fewer pieces than their own."""
    from seq2seq.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(settings)
    if tokenizer.joint:
        return
    src, tgt = sample

    def pieces(source: list[str], target: list[str]) -> int:
        return sum(map(len, tokenizer.encode_src(source))) + sum(map(len, tokenizer.encode_tgt(target)))

    as_set = pieces(src, tgt)
    exchanged = pieces(tgt, src)
    # A model cuts text of a language that it has not seen into far more pieces; 10% allow for names and numbers
    if as_set > 1.1 * exchanged:
        raise ValueError(
            "source and target look swapped: tokenizer.src_model and tokenizer.tgt_model need "
            f"{as_set} pieces for the first {len(src)} pairs, and {exchanged} with the sides exchanged; "
            "exchange data.src and data.tgt, or the models"
        )
