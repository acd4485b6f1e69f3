"""A checkpoint, loaded once, that translates lists of lines."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from seq2seq.config.search import SearchSettings
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model import Seq2Seq
    from seq2seq.search import Hypothesis

log = logging.getLogger(__name__)

CPU_TOKENS, GPU_TOKENS = 2048, 8192  # source pieces in a batch
DTYPES = ("float32", "bfloat16")
_TOKENIZED_CHARACTERS = 1 << 20  # of text that is tokenized at a time


class Candidate(NamedTuple):
    """A translation and its length-normalised log-probability (natural logarithm)."""

    text: str
    score: float


class Note(NamedTuple):
    """What happened to line `position`, from 0: `kept` of its `pieces` were translated, or it failed."""

    position: int
    pieces: int
    kept: int
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"was not translated and is empty ({self.error})"
        return f"is cut: {self.pieces:,} pieces, the first {self.kept:,} are translated"


class Translator:
    """A checkpoint, loaded once, that translates any number of lists of lines, whatever is in them."""

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        meta: dict[str, Any],
        settings: SearchSettings,
        device: str | torch.device = "cpu",
        max_tokens: int = 2048,
        max_len: int = 1024,
        tags: Sequence[int] = (),
    ) -> None:
        self.tags = list(tags)  # ids before every source
        self.model, self.tokenizer, self.meta, self.settings = model, tokenizer, meta, settings
        self.device, self.max_tokens, self.max_len = device, max_tokens, max_len

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
        max_len: int = 1024,
        tgt_lang: str | None = None,
    ) -> Translator:
        """Open the checkpoint `path`; ValueError, in one line, for a checkpoint, device or dtype that cannot be used.

        Without `settings` the search is the run's: what the checkpoint says, else SearchSettings' defaults. A batch
        holds at most `max_tokens` source pieces, padding counted (default: by device); a line, `max_len`.
        `tgt_lang` chooses among the languages of a checkpoint that has several (default: the one it names first).
        """
        place = choose_device(device)
        from seq2seq.build import max_positions
        from seq2seq.checkpoint import load, search_settings

        loaded = load(path, device=place, trust=trust)
        _convert(loaded.model, dtype)
        positions = max_positions(loaded.meta["model"])
        return cls(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            meta=loaded.meta,
            settings=dataclasses.replace(settings or search_settings(loaded.meta), max_len=positions),
            device=place,
            max_tokens=max_tokens or (CPU_TOKENS if place == "cpu" else GPU_TOKENS),
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
        """For every line exactly `n_best` candidates, best first; a blank line's are empty.

        `note` is told of lines that were cut or failed (default: a logged warning). In float32 a line's text does not
        depend on the lines beside it.
        """
        settings = dataclasses.replace(settings or self.settings, max_len=self.settings.max_len)
        note = note or (lambda n: log.warning("line %d %s", n.position + 1, n))
        ids = self._encode(lines, note)
        found: list[list[Candidate]] = [[] for _ in lines]
        for rows in self._batches(ids):
            self._fill(found, ids, rows, settings, note)
        for candidates in found:
            # blank lines, and beams that ended with fewer hypotheses than were asked for
            score = 0.0 if not candidates else float("-inf")
            candidates += [Candidate("", score)] * (settings.n_best - len(candidates))
        return found

    def texts(self, lines: Sequence[str], *, note: Callable[[Note], None] | None = None) -> list[str]:
        """The best translation of every line."""
        return [candidates[0].text for candidates in self.translate(lines, note=note)]

    def _encode(self, lines: Sequence[str], note: Callable[[Note], None]) -> list[list[int]]:
        """Source ids of every line, at most `max_len` with the final eos; [] for a line that has nothing to translate.

        At most a megabyte of text is tokenised at a time, so that a window of huge lines fits in memory.
        """
        ids: list[list[int]] = [[] for _ in lines]
        for chosen in _chunks(lines, _TOKENIZED_CHARACTERS):
            for i, row in self._source_ids({i: _unicode(lines[i]) for i in chosen}, note):
                longest = max(2, self.max_len - len(self.tags))
                if len(row) > longest and not self.tokenizer.patches:
                    note(Note(i, len(row) - 1, longest - 1))
                    row = [*row[: longest - 1], row[-1]]
                ids[i] = [*self.tags, *row] if len(row) > 1 else []
        return ids

    def _source_ids(self, lines: dict[int, str], note: Callable[[Note], None]) -> Iterator[tuple[int, list[int]]]:
        """The number and ids of each line; what is no picture, where there should be one, is noted and left out."""
        from seq2seq.data.images import PictureError

        try:
            yield from zip(lines, self.tokenizer.encode_src(list(lines.values())), strict=True)
        except PictureError as error:
            if len(lines) == 1:
                note(Note(next(iter(lines)), 0, 0, error.reason))
                return
            numbers = list(lines)
            for half in (numbers[: len(lines) // 2], numbers[len(lines) // 2 :]):
                yield from self._source_ids({i: lines[i] for i in half}, note)

    def _batches(self, ids: list[list[int]]) -> Iterator[list[int]]:
        """Positions of the lines to translate, those of similar length together, longest first."""
        import numpy as np

        from seq2seq.data.batching import token_batches

        rows = np.array([i for i, row in enumerate(ids) if row], dtype=np.int64)
        if rows.size:
            lengths = np.array([len(ids[i]) for i in rows], dtype=np.int64)
            for batch in token_batches(lengths, lengths, max_tokens=self.max_tokens, shuffle=False):
                yield rows[batch].tolist()

    def _fill(
        self,
        found: list[list[Candidate]],
        ids: list[list[int]],
        rows: list[int],
        settings: SearchSettings,
        note: Callable[[Note], None],
    ) -> None:
        """Translate `rows` into `found`; a batch that fails, for want of memory say, is halved and tried again."""
        try:
            hypotheses = self._search([ids[i] for i in rows], settings)
        except (RuntimeError, ValueError, MemoryError) as error:
            if len(rows) == 1:
                reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
                note(Note(rows[0], len(ids[rows[0]]) - 1, 0, reason))
                return
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                self._fill(found, ids, half, settings, note)
            return
        texts = iter(self.tokenizer.decode([h.ids for beams in hypotheses for h in beams]))
        for i, beams in zip(rows, hypotheses, strict=True):
            found[i] = [Candidate(next(texts), float(h.score)) for h in beams[: settings.n_best]]

    def _search(self, rows: list[list[int]], settings: SearchSettings) -> list[list[Hypothesis]]:
        import torch

        from seq2seq.search import search

        t = self.tokenizer
        lengths = torch.tensor([len(row) for row in rows])
        src = torch.full((len(rows), int(lengths.max())), t.pad_id)  # (B, S)
        for i, row in enumerate(rows):
            src[i, : len(row)] = torch.tensor(row)
        mask = torch.arange(src.shape[1]) < lengths[:, None]  # (B, S)
        with torch.inference_mode():
            src, mask = src.to(self.device), mask.to(self.device)
            return search(self.model, src, mask, settings=settings, bos_id=t.bos_id, eos_id=t.eos_id, pad_id=t.pad_id)


def choose_device(name: str) -> str:
    """`auto` is the GPU if there is one; ValueError for a GPU that is not there or a name that is no device."""
    import torch

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
    """The ids that ask for a target language; none where the model has only one."""
    from seq2seq.data.tokenizer import language_tag

    languages = meta.get("tgt_langs")
    languages = [str(language) for language in languages] if isinstance(languages, list) else []
    wanted = tgt_lang or meta["tgt_lang"]
    if wanted not in (languages or [meta["tgt_lang"]]):
        known = ", ".join(languages or [meta["tgt_lang"]])
        raise ValueError(f"this checkpoint does not translate to '{wanted}'; it translates to {known}")
    return tokenizer.tag_ids([language_tag(wanted)]) if languages else []


def _convert(model: Seq2Seq, dtype: str) -> None:
    """Store the weights in `dtype`; buffers stay as they are (the rates of sinusoidal positions need float32)."""
    import torch

    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype '{dtype}': choose {' or '.join(DTYPES)}")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))


def _unicode(line: str) -> str:
    """The line without lone surrogates, which no UTF-8 tokeniser takes."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace").decode()
    return line


def _chunks(lines: Sequence[str], size: int) -> Iterator[list[int]]:
    """Positions of the lines that are not blank, in runs of at most `size` characters (or of one line)."""
    chosen: list[int] = []
    total = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        if chosen and total + len(line) > size:
            yield chosen
            chosen, total = [], 0
        chosen.append(i)
        total += len(line)
    if chosen:
        yield chosen
