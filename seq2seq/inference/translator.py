"""Translate lines of text with a checkpoint that is loaded once."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.data.languages import target_languages, target_tags
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.batch_rows import most_rows, search_rows
from seq2seq.inference.candidates import Candidate as Candidate
from seq2seq.inference.candidates import as_text
from seq2seq.inference.limits import CPU_TOKENS, DTYPES, GPU_TOKENS, LONGEST_SOURCE
from seq2seq.inference.line_search import translate_lines
from seq2seq.inference.model_files import load_model, locate, runs_on_cpu_alone
from seq2seq.inference.notes import Note as Note
from seq2seq.inference.search_jobs import (
    Joined,
)
from seq2seq.inference.shortlist import Shortlist
from seq2seq.metadata import search_settings
from seq2seq.network.build import max_positions
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Ensemble, Graphs, Specials, models_of, search
from seq2seq.search.graphs import choose_graphs
from seq2seq.settings.search import SamplingSettings, SearchSettings

log = logging.getLogger(__name__)

_GPU = re.compile(r"cuda(?::(0|[1-9][0-9]*))?")  # cuda, cuda:0, cuda:1, ...


class Translator:
    """Translates lists of lines, of any content, with one model.

    Args:
        model: In evaluation mode, on `device`.
        meta: The `seq2seq` entry of the checkpoint.
        settings: Search settings; `max_len` is the model's number of positions.
        max_tokens: Source pieces in a batch, padding counted (default: by device, on a GPU as many as memory holds).
        max_len: Source pieces of a line, its tags and end of sentence counted; a longer one is translated in parts.
        sentences: How a line is divided into parts, one of SENTENCES, see `LineCutter`.
        tgt_lang: Target language (default: the one that the checkpoint names first).
        tags: Ids before every source, which ask for it.
        shortlist: The pieces that translations may have, by their sources; None for all.
        graphs: Lets decoding steps be captured and replayed; None for plain ones.
    """

    def __init__(
        self,
        *,
        model: Seq2Seq | Ensemble,
        tokenizer: Tokenizer,
        meta: dict[str, Any],
        settings: SearchSettings,
        device: str | torch.device = "cpu",
        max_tokens: int | None = None,
        max_len: int = LONGEST_SOURCE,
        sentences: str = "auto",
        tgt_lang: str | None = None,
        tags: Sequence[int] = (),
        shortlist: Shortlist | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.meta = meta
        self.settings = settings
        self.device = device
        gpu = torch.device(device).type == "cuda"
        self.max_tokens = max_tokens or (GPU_TOKENS if gpu else CPU_TOKENS)
        self.by_memory = gpu and max_tokens is None
        self.max_len = max_len
        self.sentences = sentences
        self.statistics = LineStatistics.of_checkpoint(meta)
        self.tgt_lang = tgt_lang or str(meta["tgt_lang"])
        self.tags = list(tags)
        self.shortlist = shortlist
        self.graphs = graphs

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: SearchSettings | None = None,
        device: str = "auto",
        dtype: str | None = None,
        trust: Sequence[str] = (),
        max_tokens: int | None = None,
        max_len: int = LONGEST_SOURCE,
        sentences: str = "auto",
        tgt_lang: str | None = None,
        ensemble: Sequence[str | os.PathLike[str]] = (),
        shortlist: str | os.PathLike[str] | None = None,
        cuda_graphs: bool | None = None,
    ) -> Translator:
        """Load a checkpoint, a folder that `export` wrote with weights or ONNX graphs, or one on a hub.

        Args:
            path: A file, a folder, or owner/name on the Hugging Face hub (owner/name@revision).
            settings: Search settings (default: the run's, which the checkpoint remembers).
            device: cpu, cuda, cuda:N, or auto for a GPU if there is one.
            dtype: Number format of the weights, one of DTYPES (default: float32 on a CPU, bfloat16 on a GPU).
            trust: Packages, besides seq2seq, whose mixers the checkpoint may name.
            sentences: How a line is divided into parts: auto, split or keep.
            tgt_lang: Target language, of a checkpoint that has several (default: the one it names first).
            ensemble: Further checkpoints with the same tokenizer, of any mixers, whose probabilities are averaged.
            shortlist: File of `python -m seq2seq.shortlist`, whose pieces alone translations may have.
            cuda_graphs: Replay decoding steps that are captured once (default: on a GPU, where that is possible).

        Raises:
            ValueError: The checkpoint, device, dtype, language or shortlist cannot be used; the message is one line.
        """
        paths = [locate(path), *map(locate, ensemble)]
        device = "cpu" if device == "auto" and any(map(runs_on_cpu_alone, paths)) else choose_device(device)
        dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
        members = [load_model(each, device=device, dtype=dtype, trust=trust) for each in paths]
        loaded = members[0]
        for member, each in zip(members, paths, strict=True):
            _require_same_task(member, each, loaded, paths[0])
            store_weights_in(dtype, member.model)
            if shortlist is not None:
                _require_narrow(member.model, device)
        positions = _fewest_positions(members, trust)
        made = cls(
            model=Ensemble([member.model for member in members]) if ensemble else loaded.model,
            tokenizer=loaded.tokenizer,
            meta=loaded.meta,
            settings=dataclasses.replace(settings or search_settings(loaded.meta), max_len=positions),
            device=device,
            max_tokens=max_tokens,
            max_len=min(max_len, positions or max_len),
            sentences=sentences,
            tgt_lang=tgt_lang,
            tags=target_tags(loaded.meta, loaded.tokenizer, tgt_lang),
            shortlist=None if shortlist is None else Shortlist.load(shortlist, loaded.tokenizer),
            graphs=choose_graphs(torch.device(device), cuda_graphs),
        )
        made.statistics = LineStatistics.common([LineStatistics.of_checkpoint(each.meta) for each in members])
        return made

    def translate(
        self,
        lines: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        sampling: SamplingSettings | None = None,
        mbr: str | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        suppress: Sequence[str] = (),
        note: Callable[[Note], None] | None = None,
        progress: Callable[[int], None] = lambda done: None,
        sentences: str | None = None,
    ) -> list[list[Candidate]]:
        """Translate lines; in float32 a line's text does not depend on the lines beside it.

        A line is translated in parts if the model has seen no such lines (see `LineCutter`), and where it has line
        breaks; the translations are joined by the white space that stands between the parts.

        Args:
            settings: Search settings of this call (default: the translator's).
            sampling: Draw beam_size translations of each line instead of searching.
            mbr: Rank candidates by how well they agree with each other, as "chrf" or "bleu" measures it; their scores
                are then the mean agreement. Needs sampling.
            prefixes: What the translation of each line begins with.
            phrases: What the translation of each line has somewhere.
            suppress: Pieces of the target's vocabulary that no translation has.
            note: Called for every line that is cut or fails, or of which something may be missing (default: log a
                warning).
            progress: Called with the number of lines that are done since the last call.
            sentences: How lines are divided into parts, one of SENTENCES (default: the translator's).

        Returns:
            For every line exactly `n_best` candidates, best first; those of a blank line are empty with the score 0,
            those of one that fails are empty with the score -inf.
        """
        return translate_lines(
            self,
            lines,
            settings=settings or self.settings,
            sampling=sampling,
            mbr=mbr,
            prefixes=prefixes,
            phrases=phrases,
            suppress=suppress,
            note=note or (lambda told: log.warning("line %d %s", told.position + 1, told)),
            progress=progress,
            sentences=sentences or self.sentences,
        )

    def texts(self, lines: Sequence[str], *, note: Callable[[Note], None] | None = None) -> list[str]:
        """Return the best translation of every line."""
        return [candidates[0].text for candidates in self.translate(lines, note=note)]

    def decode(self, src: Tensor, src_mask: Tensor) -> list[list[Candidate]]:
        """Search the translations of padded sources of ids and return them as text, best first.

        Shape:
            src, src_mask: (B, S), on the model's device.
        """
        size = most_rows(self.settings.beam_size, self.tokenizer.tgt_vocab_size)
        if self.by_memory:
            size = search_rows(self, src.shape[1], self.settings, len(src))
        how: dict[str, Any] = {"special": self.special, "shortlist": self.shortlist, "graphs": self.graphs}
        # The autocast of a validation would make its score another than that of the text a user gets.
        with torch.autocast(src.device.type, enabled=False):
            hypotheses = [
                [Joined([each.ids], each.score) for each in beams]
                for rows, mask in zip(src.split(size), src_mask.split(size), strict=True)
                for beams in search(self.model, rows, mask, settings=self.settings, **how)
            ]
        return as_text(self.tokenizer, hypotheses)

    @property
    def dtype(self) -> str:
        """Number format of the weights; float32 for graphs, which have their own."""
        model: Any = models_of(self.model)[0]
        return str(next(model.parameters()).dtype).removeprefix("torch.")

    @property
    def can_force(self) -> bool:
        """True if given translations can be scored and aligned, which graphs of single steps cannot."""
        return not any(getattr(member, "stepwise", False) for member in models_of(self.model))

    @property
    def special(self) -> Specials:
        """Ids of the special tokens."""
        tokenizer = self.tokenizer
        return Specials(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.byte_of)


def _fewest_positions(members: Sequence[Loaded], trust: Sequence[str]) -> int | None:
    """Return how many positions all of some models have; None for models without learned ones, which have no limit."""
    limits = [max_positions(member.meta["model"], trust=trust) for member in members]
    return min((limit for limit in limits if limit is not None), default=None)


def _require_same_task(member: Loaded, path: Path, first: Loaded, first_path: Path) -> None:
    """Check that a model has vocabulary and languages of the first of its ensemble; ValueError if it does not."""
    if member.tokenizer.fingerprint != first.tokenizer.fingerprint:
        raise ValueError(f"{path} has another tokenizer than {first_path}: an ensemble needs one vocabulary")
    # A fine-tuned model names its own language first
    own, wanted = (
        f"{each.meta['src_lang']} to {', '.join(sorted(target_languages(each.meta)))}" for each in (member, first)
    )
    if own != wanted:
        raise ValueError(f"{path} translates {own}, and {first_path} {wanted}: an ensemble needs one direction")


def choose_device(name: str) -> str:
    """Resolve `auto` to the GPU if there is one.

    Raises:
        ValueError: The name is not that of a device, or the GPU is missing.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    found = _GPU.fullmatch(name)
    if not found:
        raise ValueError(f"unknown device '{name}': choose cpu, cuda, cuda:N or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(found[1] or 0) >= count:
        raise ValueError(f"device '{name}' is not there ({count} GPUs are visible to torch); use --device cpu")
    return name


def _require_narrow(model: Seq2Seq, device: str) -> None:
    """Check that a model can score a part of the vocabulary; ValueError if a folder of graphs lacks what it takes."""
    model.narrow(torch.arange(1, device=device), torch.ones(1, 1, dtype=torch.bool, device=device))


def store_weights_in(dtype: str, model: Seq2Seq) -> None:
    """Convert the parameters, not the buffers: the rates of sinusoidal positions need float32."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype '{dtype}': choose {' or '.join(DTYPES)}")
    # .data: the parameter objects stay, and with them tied weights
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
