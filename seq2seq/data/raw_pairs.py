"""Raw pairs of a split, block by block: from files, the hub, or a local folder in the hub's layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from seq2seq.data.cleaning import Pairs
from seq2seq.data.context import ContextWindow
from seq2seq.data.hub import READERS, documents, hub_pairs, remote_pairs, repository_of, splits_of
from seq2seq.data.marks import unmarked
from seq2seq.data.readers import LanguageColumns, text_pairs
from seq2seq.data.split_files import find_files, is_address
from seq2seq.data.text_checks import checked
from seq2seq.data.text_files import warn_once
from seq2seq.settings.data import CorpusSettings


def open_split(
    split: str,
    settings: CorpusSettings,
    *,
    cache_dir: Path,
    streaming: bool = False,
    warn: Callable[[str], None] = warn_once,
) -> Iterator[Pairs]:
    """Read blocks of raw pairs of a split, in their order; with `data.context`, each source has its context.

    Args:
        streaming: Read remote data without downloading it first.
        warn: Called with each warning about the text.

    Raises:
        ValueError: A file is missing or damaged, a column is missing, or the network is unavailable.
    """
    columns = LanguageColumns(settings.src, settings.tgt, settings.columns)
    # Names for messages: two files, or the data and a language
    sides = [f"data.{split}={settings.place(split)} ({language})" for language in (settings.src, settings.tgt)]
    unit = "row"
    if settings.path:
        blocks = hub_pairs(split, settings, columns, cache_dir=cache_dir, streaming=streaming)
    else:
        kind, files = find_files(split, settings)
        repository = repository_of(split, settings)
        # An address with a revision means one text, and the hub's cache may have a copy of it
        files = (repository and repository.copies()) or files
        if is_address(files[0]):
            blocks = remote_pairs(kind, files[0], columns, cache_dir=cache_dir, streaming=streaming)
        elif kind == "text":
            sides = files
            unit = "line"
            blocks = text_pairs(Path(files[0]), Path(files[1]))
        else:
            blocks = documents(READERS[kind](Path(file), columns) for file in files)
    blocks = checked(blocks, sides, unit=unit, training=split == "train", warn=warn)
    return _with_context(blocks, settings.context)


def _with_context(blocks: Iterator[Pairs], size: int) -> Iterator[Pairs]:
    """Put its context before each source; an empty block ends a document, and is left out."""
    window = ContextWindow(size)
    for src, tgt in blocks:
        if src:
            yield list(map(window if size else unmarked, src)), tgt
        else:
            window = ContextWindow(size)


def sample_pairs(settings: CorpusSettings, *, cache_dir: Path, split: str = "train") -> Pairs:
    """Read the first pairs of a split before any work; nothing is downloaded, converted or copied.

    Returns:
        At most 1,000 source lines and target lines; none for a remote split.

    Raises:
        ValueError: A file or a column is missing, or a file is damaged at its beginning.
    """
    if repository_of(split, settings) or (not settings.path and is_address(find_files(split, settings)[1][0])):
        return [], []
    if settings.path:
        # Read train[:1000] from `train`: only whole splits are read without being converted
        settings = replace(settings, **{split: splits_of(str(settings.place(split)))[0]})
    # Readers are lazy: they stop after the first block
    src, tgt = next(open_split(split, settings, cache_dir=cache_dir), ([], []))
    return src[:1000], tgt[:1000]
