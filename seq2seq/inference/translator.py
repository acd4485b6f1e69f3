"""Translate lines of text with a checkpoint that is loaded once."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.build import max_positions
from seq2seq.checkpoint import search_settings
from seq2seq.config.search import SearchSettings
from seq2seq.data.batching import token_batches
from seq2seq.data.images import PictureError
from seq2seq.data.tokenizer import Tokenizer, language_tag
from seq2seq.inference.limits import CPU_TOKENS, DTYPES, GPU_TOKENS, LONGEST_SOURCE
from seq2seq.inference.model_files import load_model, locate, runs_on_cpu_alone
from seq2seq.model import Seq2Seq
from seq2seq.search import Specials, search

log = logging.getLogger(__name__)

_TOKENIZED_CHARACTERS = 1 << 20  # of text that is tokenized at a time
_STEP_NUMBERS = 1 << 28  # that a step of a search computes, 1 GiB in float32; wide beams get smaller batches
_SLOTS = 512  # of attention's cache that a hypothesis reads for each of its beam: 64 positions, 8 heads


class Candidate(NamedTuple):
    """Translation and its length-normalized log-probability (natural logarithm)."""

    text: str
    score: float


class Note(NamedTuple):
    """Problem with one line: only `kept` of its `pieces` were translated, or it failed with `error`."""

    position: int  # of the line, from 0
    pieces: int
    kept: int
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"was not translated and is empty ({self.error})"
        return f"is cut: {self.pieces:,} pieces, the first {self.kept:,} are translated"


class Translator:
    """Translates lists of lines, of any content, with one model.

    Args:
        model: In evaluation mode, on `device`.
        meta: The `seq2seq` entry of the checkpoint.
        settings: Search settings; `max_len` is the model's number of positions.
        max_tokens: Source pieces in a batch, padding counted.
        max_len: Source pieces of a line, its tags and end of sentence counted; a longer line is cut.
        tags: Ids before every source, which ask for a target language.
    """

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        meta: dict[str, Any],
        settings: SearchSettings,
        device: str | torch.device = "cpu",
        max_tokens: int = CPU_TOKENS,
        max_len: int = LONGEST_SOURCE,
        tags: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.meta = meta
        self.settings = settings
        self.device = device
        self.max_tokens = max_tokens
        self.max_len = max_len
        self.tags = list(tags)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: SearchSettings | None = None,
        device: str = "auto",
        dtype: str = "float32",
        trust: Sequence[str] = (),
        max_tokens: int | None = None,
        max_len: int = LONGEST_SOURCE,
        tgt_lang: str | None = None,
    ) -> Translator:
        """Load a checkpoint, a folder that `export` wrote with weights or ONNX graphs, or one on a hub.

        Args:
            path: A file, a folder, or owner/name on the Hugging Face hub (owner/name@revision).
            settings: Search settings (default: the run's, which the checkpoint remembers).
            device: cpu, cuda, cuda:N, or auto for a GPU if there is one.
            dtype: Number format of the weights, one of DTYPES.
            trust: Packages, besides seq2seq, whose mixers the checkpoint may name.
            max_tokens: Source pieces in a batch, padding counted (default: by device).
            tgt_lang: Target language, of a checkpoint that has several (default: the one it names first).

        Raises:
            ValueError: The checkpoint, device, dtype or language cannot be used; the message is one line.
        """
        path = locate(path)
        # before the file is read, which may take long
        device = "cpu" if device == "auto" and runs_on_cpu_alone(path) else choose_device(device)
        loaded = load_model(path, device=device, dtype=dtype, trust=trust)
        _store_weights_in(dtype, loaded.model)
        # None for models without learned positions, which have no limit
        positions = max_positions(loaded.meta["model"], trust=trust)
        return cls(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            meta=loaded.meta,
            settings=dataclasses.replace(settings or search_settings(loaded.meta), max_len=positions),
            device=device,
            max_tokens=max_tokens or (CPU_TOKENS if device == "cpu" else GPU_TOKENS),
            max_len=min(max_len, positions or max_len),
            tags=_target_tags(loaded.meta, loaded.tokenizer, tgt_lang),
        )

    def translate(
        self,
        lines: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        note: Callable[[Note], None] | None = None,
    ) -> list[list[Candidate]]:
        """Translate lines; in float32 a line's text does not depend on the lines beside it.

        Args:
            settings: Search settings of this call (default: the translator's).
            note: Called for every line that is cut or fails (default: log a warning).

        Returns:
            For every line exactly `n_best` candidates, best first; those of a blank line are empty.
        """
        # the caller chooses how to search; the number of positions is the model's
        settings = dataclasses.replace(settings or self.settings, max_len=self.settings.max_len)
        note = note or (lambda n: log.warning("line %d %s", n.position + 1, n))
        # tokenize all, sort by length into batches, and write each result to its line's place
        ids = self._encode(lines, note)
        results: list[list[Candidate]] = [[] for _ in lines]
        for rows in self._batches(ids):
            self._fill(results, ids, rows, settings, note)
        for candidates in results:
            # blank lines, and beams that ended with fewer hypotheses than were asked for
            score = 0.0 if not candidates else float("-inf")
            # exactly n_best for each line, so that N lines in give n_best * N lines out
            candidates += [Candidate("", score)] * (settings.n_best - len(candidates))
        return results

    def texts(self, lines: Sequence[str], *, note: Callable[[Note], None] | None = None) -> list[str]:
        """Return the best translation of every line."""
        return [candidates[0].text for candidates in self.translate(lines, note=note)]

    def decode(self, src: Tensor, src_mask: Tensor, *, settings: SearchSettings | None = None) -> list[list[Candidate]]:
        """Search the translations of padded sources of ids and return them as text, best first.

        Args:
            settings: Search settings of this call (default: the translator's).

        Shape:
            src, src_mask: (B, S), on the model's device.
        """
        settings = settings or self.settings
        tokenizer = self.tokenizer
        # The autocast of a validation would make its score another than that of the text a user gets.
        with torch.autocast(src.device.type, enabled=False):
            hypotheses = [
                beams
                for rows, mask in _row_chunks(src, src_mask, settings.beam_size, tokenizer.tgt_vocab_size)
                for beams in search(
                    self.model,
                    rows,
                    mask,
                    settings=settings,
                    special=Specials(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id),
                )
            ]
        # one call for all hypotheses: the tokenizer's overhead is per call
        texts = iter(tokenizer.decode([hypothesis.ids for beams in hypotheses for hypothesis in beams]))
        return [[Candidate(next(texts), float(hypothesis.score)) for hypothesis in beams] for beams in hypotheses]

    def _encode(self, lines: Sequence[str], note: Callable[[Note], None]) -> list[list[int]]:
        """Tokenize every line to at most `max_len` ids, the last one eos; [] for a line without any piece."""
        ids: list[list[int]] = [[] for _ in lines]
        # a window of huge lines must fit in memory
        for chunk in _chunks(lines, _TOKENIZED_CHARACTERS):
            for i, row in self._source_ids({i: _unicode(lines[i]) for i in chunk}, note):
                longest = max(2, self.max_len - len(self.tags))  # at least one piece and eos
                # pictures have a fixed size and are never cut
                if len(row) > longest and not self.tokenizer.patches:
                    note(Note(i, len(row) - 1, longest - 1))
                    row = [*row[: longest - 1], row[-1]]
                # a row of eos alone has no piece: the line stays empty, tags or not
                ids[i] = [*self.tags, *row] if len(row) > 1 else []
        return ids

    def _source_ids(self, lines: dict[int, str], note: Callable[[Note], None]) -> Iterator[tuple[int, list[int]]]:
        """Yield the number and ids of each line; note and leave out a line that should be a picture and is not."""
        try:
            yield from zip(lines, self.tokenizer.encode_src(list(lines.values())), strict=True)
        except PictureError as error:
            if len(lines) == 1:
                note(Note(next(iter(lines)), 0, 0, error.reason))
                return
            for half in _halves(list(lines)):
                yield from self._source_ids({i: lines[i] for i in half}, note)

    def _batches(self, ids: list[list[int]]) -> Iterator[list[int]]:
        """Yield positions of the lines to translate, lines of similar length together, longest first."""
        rows = np.array([i for i, row in enumerate(ids) if row], dtype=np.int64)  # (rows,)
        if rows.size:
            lengths = np.array([len(ids[i]) for i in rows], dtype=np.int64)
            # the lengths of translations are unknown: the source stands for both sides
            for batch in token_batches(lengths, lengths, max_tokens=self.max_tokens, shuffle=False):
                # batches count from 0 among the rows; back to positions of lines
                yield rows[batch].tolist()

    def _fill(
        self,
        results: list[list[Candidate]],
        ids: list[list[int]],
        rows: list[int],
        settings: SearchSettings,
        note: Callable[[Note], None],
    ) -> None:
        """Write the translations of `rows` into `results`; retry a batch that fails in halves."""
        try:
            with torch.inference_mode():
                src, mask = _padded([ids[i] for i in rows], self.tokenizer.pad_id)  # (B, S)
                candidates = self.decode(src.to(self.device), mask.to(self.device), settings=settings)
        except (RuntimeError, ValueError, MemoryError) as error:
            if len(rows) == 1:
                reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
                note(Note(rows[0], len(ids[rows[0]]) - 1, 0, reason))
                return
            # out of memory, or one bad line among good ones: smaller batches settle both
            for half in _halves(rows):
                self._fill(results, ids, half, settings, note)
            return
        for i, row in zip(rows, candidates, strict=True):
            results[i] = row[: settings.n_best]


def choose_device(name: str) -> str:
    """Resolve `auto` to the GPU if there is one.

    Raises:
        ValueError: The name is not that of a device, or the GPU is missing.
    """
    # "cuda:1" -> "cuda", "1"
    kind, _, number = name.partition(":")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    if kind != "cuda" or (number and not number.isdecimal()):
        raise ValueError(f"unknown device '{name}': choose cpu, cuda, cuda:N or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise ValueError(f"device '{name}' is not there ({count} GPUs are visible to torch); use --device cpu")
    return name


def _target_tags(meta: dict[str, Any], tokenizer: Tokenizer, tgt_lang: str | None) -> list[int]:
    """Return the ids that ask for a target language; none where the model has only one."""
    # only multilingual checkpoints have the entry; the file may have been written by anybody
    languages = meta.get("tgt_langs")
    languages = [str(language) for language in languages] if isinstance(languages, list) else []
    wanted = tgt_lang or meta["tgt_lang"]
    if wanted not in (languages or [meta["tgt_lang"]]):
        known = ", ".join(languages or [meta["tgt_lang"]])
        raise ValueError(f"this checkpoint does not translate to '{wanted}'; it translates to {known}")
    return tokenizer.tag_ids([language_tag(wanted)]) if languages else []


def _store_weights_in(dtype: str, model: Seq2Seq) -> None:
    """Convert the parameters, not the buffers: the rates of sinusoidal positions need float32."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype '{dtype}': choose {' or '.join(DTYPES)}")
    # .data: the parameter objects stay, and with them tied weights
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))


def _padded(rows: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the right; return them and their mask, both (B, S)."""
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    src = torch.full((len(rows), int(lengths.max())), pad_id)  # (B, S)
    for i, row in enumerate(rows):
        src[i, : len(row)] = torch.tensor(row)  # the tail keeps pad_id
    # True at real tokens
    return src, torch.arange(src.shape[1]) < lengths[:, None]


def _row_chunks(src: Tensor, mask: Tensor, beam: int, vocab_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows of a padded batch (B, S) in chunks whose steps compute at most _STEP_NUMBERS, or of one row."""
    # a hypothesis has a score of every token, and of every slot that its beam has filled in each head of attention
    numbers = beam * max(vocab_size, beam * _SLOTS)
    size = max(1, _STEP_NUMBERS // numbers)
    yield from zip(src.split(size), mask.split(size), strict=True)


def _halves(rows: list[int]) -> tuple[list[int], list[int]]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def _unicode(line: str) -> str:
    """Replace lone surrogates, which no UTF-8 tokenizer takes."""
    try:
        # encoding fails for lone surrogates alone
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace").decode()
    return line


def _chunks(lines: Sequence[str], size: int) -> Iterator[list[int]]:
    """Yield positions of the lines that are not blank, in runs of at most `size` characters (or of one line)."""
    chunk: list[int] = []
    total = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        # a single line longer than `size` is a chunk by itself
        if chunk and total + len(line) > size:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += len(line)
    if chunk:
        yield chunk
