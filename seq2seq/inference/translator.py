"""Translate lines of text with a checkpoint that is loaded once."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import torch
from torch import Tensor

from seq2seq.checkpoint import Loaded
from seq2seq.data.context import ContextWindow, context_size
from seq2seq.data.factors import without_factors
from seq2seq.data.languages import NO_TAGS, Tags, has_spaces, tags_of, target_languages
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.data.marks import TERM, TERM_END, unmarked
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.batch_rows import fitting_rows, most_rows
from seq2seq.inference.encoding import encode_pieces, source_pieces, target_ids, target_pieces
from seq2seq.inference.forced import SourceAttention, read_attention
from seq2seq.inference.forced_text import Alignment, ForcedLine, encoded_pairs, force_lines
from seq2seq.inference.glossary import Glossary
from seq2seq.inference.lexical_shortlist import Shortlist
from seq2seq.inference.limits import CPU_TOKENS, GPU_TOKENS, LEAST_SOURCE, LONGEST_SOURCE, MOST_GPU_TOKENS, TERMS_BEAM
from seq2seq.inference.mbr import rank_by_agreement, utility
from seq2seq.inference.model_files import choose_device, load_model, locate, runs_on_cpu_alone
from seq2seq.inference.notes import Note as Note
from seq2seq.inference.omissions import note_omissions
from seq2seq.inference.parts import LineCutter, SourcePart, add_context
from seq2seq.inference.search_parts import (
    Joined,
    Part,
    as_text,
    choose_selection,
    join_parts,
    make_parts,
    unplaceable,
)
from seq2seq.inference.search_parts import TranslatedText as TranslatedText
from seq2seq.metadata import search_settings
from seq2seq.network.build import max_positions
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Drawn, Ensemble, Graphs, Hypothesis, Selection, Specials, models_of, search, search_stream
from seq2seq.search.graphs import choose_graphs
from seq2seq.search.running import Source
from seq2seq.settings.declare import keys
from seq2seq.settings.search import SamplingSettings, SearchSettings, chosen_search
from seq2seq.settings.values import check_value, require_list, shown, suggestion
from seq2seq.system.errors import first_line

log = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Translator:
    """Translates lists of lines, of any content, with one model; see `load` for its other arguments.

    Args:
        model: In evaluation mode, on `device`.
        meta: The `seq2seq` entry of the checkpoint.
        settings: Search settings; `max_len` is the model's number of positions.
        max_tokens: Source pieces in a batch, padding counted; 0 goes by device, on a GPU by its free memory.
        max_len: Longest source in pieces, its tags and end of sentence counted; a longer one is translated in parts.
        sentences: How a line is divided into parts, one of SENTENCES, see `LineCutter`.
        tgt_lang: Target language; "" for the first one that the checkpoint names.
        src_lang: Source language, likewise.
        tags: Ids before every source and every target that name the languages.
        glossary_by: tags or search, see `load`.
        graphs: Captures and replays decoding steps; None runs them one by one.
    """

    model: Seq2Seq | Ensemble
    tokenizer: Tokenizer
    meta: dict[str, Any]
    settings: SearchSettings
    device: str | torch.device = "cpu"
    max_tokens: int = 0
    max_len: int = LONGEST_SOURCE
    sentences: str = "auto"
    tgt_lang: str = ""
    src_lang: str = ""
    tags: Tags = NO_TAGS
    shortlist: Shortlist | None = None
    graphs: Graphs | None = None
    glossary: Glossary | None = None
    glossary_by: str = "search"

    def __post_init__(self) -> None:
        self.max_tokens = check_value(self.max_tokens, int, {"least": 0}, "max_tokens")
        self.max_len = check_value(self.max_len, int, {"least": LEAST_SOURCE}, "max_len")
        gpu = torch.device(self.device).type == "cuda"
        self.by_memory = gpu and not self.max_tokens
        self.max_tokens = self.max_tokens or (GPU_TOKENS if gpu else CPU_TOKENS)
        self.statistics = LineStatistics.of_checkpoint(self.meta)
        self.tgt_lang = self.tgt_lang or str(self.meta["tgt_lang"])
        self.src_lang = self.src_lang or str(self.meta["src_lang"])
        self.context = context_size(self.meta) if self.tokenizer.separator is not None else 0

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: SearchSettings | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        trust: Sequence[str] = (),
        max_tokens: int | None = None,
        max_len: int = LONGEST_SOURCE,
        sentences: str = "auto",
        tgt_lang: str | None = None,
        src_lang: str | None = None,
        ensemble: Sequence[str | os.PathLike[str]] = (),
        shortlist: str | os.PathLike[str] | None = None,
        cuda_graphs: bool | None = None,
        glossary: str | os.PathLike[str] | None = None,
        glossary_by: str | None = None,
    ) -> Translator:
        """Load a checkpoint, a folder that `export` wrote with weights or ONNX graphs, or a model from a hub.

        Args:
            path: A file, a folder, or owner/name on the Hugging Face hub (owner/name@revision).
            settings: Search settings (default: the run's, stored in the checkpoint).
            device: cpu, cuda, cuda:N, or auto, which takes a GPU if there is one.
            dtype: Number format of the weights, one of DTYPES (default: float32 on a CPU, bfloat16 on a GPU).
            trust: Packages besides seq2seq whose mixers the checkpoint may name.
            ensemble: Further checkpoints with the same tokenizer, of any mixers; probabilities are averaged.
            shortlist: File written by `python -m seq2seq.shortlist`.
            cuda_graphs: Capture decoding steps once and replay them (default: on a GPU, where that is possible).
            glossary: File of terms, see `Glossary.read`.
            glossary_by: search requires the targets of terms (default), tags writes them into the source.

        Raises:
            ValueError: The checkpoint, device, dtype, language, shortlist, trust or ensemble cannot be used; the
                message is one line.
        """
        # Read first: mistakes in it are cheap
        terms = None if glossary is None else Glossary.read(glossary)
        trust = require_list(trust, "trust")
        ensemble = require_list(ensemble, "ensemble", object)
        paths = [locate(path), *map(locate, ensemble)]
        device = "cpu" if device == "auto" and any(map(runs_on_cpu_alone, paths)) else choose_device(device)
        dtype = str(dtype or ("float32" if device == "cpu" else "bfloat16")).removeprefix("torch.")
        members = [load_model(each, device=device, dtype=dtype, trust=trust) for each in paths]
        loaded = members[0]
        for member, each in zip(members, paths, strict=True):
            _require_same_task(member, each, loaded, paths[0])
            if shortlist is not None:
                # Fails here, before any translation, if a folder of graphs lacks the weights of the output layer
                member.model.narrow(torch.arange(1, device=device), torch.ones(1, 1, dtype=torch.bool, device=device))
        marked = {TERM, TERM_END} <= loaded.tokenizer.marks.keys()
        by = ["search", "tags"] if marked and all(each.meta.get("terms") is True for each in members) else ["search"]
        if glossary_by not in (None, *by):
            needs = "tags need a model that was trained with data.augment.terms"
            raise ValueError(f"glossary_by={glossary_by}: choose {' or '.join(by)}; {needs}")
        limits = [max_positions(member.meta["model"], trust=trust) for member in members]
        positions = min((limit for limit in limits if limit is not None), default=None)
        made = cls(
            model=Ensemble([member.model for member in members]) if ensemble else loaded.model,
            tokenizer=loaded.tokenizer,
            meta=loaded.meta,
            settings=dataclasses.replace(
                settings or search_settings(loaded.meta),
                # A classifier's target is a class and the end
                max_len=2 if loaded.meta["model"]["model"]["decoder_layers"] == 0 else positions,
            ),
            device=device,
            max_tokens=max_tokens or 0,
            max_len=min(max_len, positions or max_len),
            sentences=sentences,
            tgt_lang=tgt_lang or "",
            src_lang=src_lang or "",
            tags=tags_of(loaded.meta, loaded.tokenizer, tgt_lang, src_lang),
            shortlist=None if shortlist is None else Shortlist.load(shortlist, loaded.tokenizer),
            graphs=choose_graphs(torch.device(device), cuda_graphs),
            glossary=terms,
            glossary_by=glossary_by or "search",
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
        samples: int | None = None,
        before: Sequence[str] = (),
        document: bool | Collection[int] = True,
        glossary: Glossary | Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
        **options: Any,
    ) -> list[list[TranslatedText]]:
        """Translate lines.

        In float32 a line's text does not depend on the other lines, except on the lines of its context. A line
        is translated in parts where it has line breaks, and where the model was not trained on lines like it (see
        `LineCutter`). The translations are joined by the white space between the parts.

        Args:
            settings: Search settings of this call (default: the translator's).
            sampling: Draw beam_size translations of each line instead of searching.
            mbr: Rank the samples by how well they agree with each other, measured by "chrf" or "bleu"; their scores
                are then the mean agreement. Needs sampling.
            prefixes: For each line the beginning of its translation.
            phrases: For each line the phrases that its translation must contain.
            suppress: Pieces of the target vocabulary that no translation may contain.
            note: Called for every line that is cut, that fails, or whose translation may lack something (default: log
                a warning).
            progress: Called after each step of the search with the number of lines that it finished, often 0. An error
                that it raises ends the call.
            sentences: How lines are divided into parts, one of SENTENCES (default: the translator's).
            samples: Draw this many translations of each line instead of searching.
            before: Lines before the first one in its document, which a model with `data.context` reads.
            document: For such a model: True for lines of one document, in which a blank line begins another; False for
                lines that are separate documents; or the positions of the lines that begin documents.
            glossary: Terms that the translation of each part with their source must contain (default: the
                translator's, in a beam search of one group).
            options: Settings of the search or of the sampling by name, such as beam_size or temperature; they override
                `settings`.

        Returns:
            For every line exactly `n_best` translations, best first. A blank line has empty translations of score 0,
            a line that fails has empty translations of score -inf.

        Examples:
            >>> translator.translate(["Es regnet."], beam_size=8, n_best=3)[0][0].text  # doctest: +SKIP
            'It is raining.'
        """
        tokenizer = self.tokenizer
        note = note or self._warn
        lines = require_list(lines, "lines")
        suppress = require_list(suppress, "suppress")
        before = require_list(before, "before")
        if prefixes is not None:
            prefixes = _one_for_each(lines, prefixes, "prefixes")
        if phrases is not None:
            rows = _one_for_each(lines, phrases, "phrases", object)
            phrases = [require_list(row, f"phrases[{number}]") for number, row in enumerate(rows)]
        if options or samples is not None:
            known = [*keys(SearchSettings), *keys(SamplingSettings)]
            for name in options:
                if name not in known:
                    raise TypeError(f"translate has no option {name}{suggestion(name, known)}")
            if sampling is not None:
                raise ValueError(
                    "sampling excludes options given by name: leave it out, and give samples, temperature, ... by name"
                )
            asked = {"samples": samples, "mbr": mbr, "phrases": phrases, "glossary": glossary}
            settings, sampling = chosen_search(settings or self.settings, options | asked)
        # The caller chooses how to search; the number of positions belongs to the model
        settings = dataclasses.replace(settings or self.settings, max_len=self.settings.max_len)
        agreement = None
        if mbr:
            if not sampling:
                raise ValueError(f"mbr={mbr} compares samples with each other, so it needs sampling")
            # A slow import: sacreBLEU
            from seq2seq.metrics.scorers import tokenize_of

            agreement = utility(mbr, tokenize_of(self.meta, self.tgt_lang))
        choose = functools.partial(choose_selection, settings, tokenizer, sampling)
        selection = choose(constrained=phrases is not None)
        if glossary is None and not sampling and settings.beam_groups == 1:
            glossary = self.glossary
        book = Glossary.of(glossary or ())
        placed = choose(constrained=True) if len(book) and self.glossary_by == "search" else None
        # Keep all samples: the best samples of the parts need not form the best sample of the line
        kept = settings if sampling is None else dataclasses.replace(settings, n_best=settings.beam_size)
        suppressed = target_ids(tokenizer, suppress)
        failed: set[int] = set()

        def noted(told: Note) -> None:
            if told.kind == "failed":
                failed.add(told.position)
            note(told)

        cutter = LineCutter(translator=self, mode=sentences or self.sentences, note=noted)
        # Cut and tokenize all lines, search their parts in order of length, and join the results line by line
        whole = unplaceable(len(lines), tokenizer, prefixes, phrases, self.tgt_lang)
        cut = cutter(lines, whole)
        if self.context:
            quiet = dataclasses.replace(cutter, note=lambda told: None)
            numbers = range(0 if document else len(lines)) if isinstance(document, bool) else document
            begins = {len(before) + number for number in numbers}
            cut = add_context([*quiet(before), *cut], self.context, begins=begins)[len(before) :]
        if len(book):
            find = functools.partial(self._with_terms, book, cutter.longest)
            cut = [line._replace(parts=list(map(find, line.parts))) for line in cut]
        given: dict[str, Any] = {"prefixes": prefixes, "phrases": phrases, "whole": whole, "suppress": suppressed}
        parts = make_parts(cut, cutter, settings=settings, sampling=sampling, **given)
        found: dict[int, list[Hypothesis]] = {}
        left = Counter(part.line for part in parts)
        with torch.autocast(torch.device(self.device).type, enabled=False):
            for done in self._search_with_terms(parts, kept, selection, placed, suppressed, note):
                found.update(done)
                lines_of = [parts[number].line for number, _ in done]
                left.subtract(lines_of)
                progress(sum(not left[line] for line in set(lines_of)))
        joined = join_parts(parts, found, len(lines), kept, drawn=isinstance(selection, Drawn))
        results = as_text(tokenizer, joined, cut, spaces=has_spaces(self.tgt_lang))
        best: list[Joined | None] = []
        for line, row in enumerate(results):
            texts = [each.text for each in row]
            if agreement and row:
                row[:] = rank_by_agreement(row, agreement)
            best.append(joined[line][texts.index(row[0].text)] if row else None)
            # An invalid image or factor leaves no parts either
            blank = not cut[line].parts and line not in failed
            # Every line needs n_best translations; a line that failed and a short beam have fewer
            filler = TranslatedText(cut[line].end, 0.0) if blank else TranslatedText("", float("-inf"))
            row += [filler] * (settings.n_best - len(row))
            del row[settings.n_best :]
        note_omissions(self, cut, best, note, progress)
        return results

    @property
    def nbytes(self) -> int:
        """Bytes of the model's weights."""
        models = cast("list[Any]", models_of(self.model))
        tensors = [each for model in models for each in (*model.parameters(), *model.buffers())]
        stored = sum(getattr(model, "file_bytes", 0) for model in models)
        return stored + sum(each.nbytes for each in tensors if not each.is_meta)

    def _with_terms(self, book: Glossary, longest: int, part: SourcePart) -> SourcePart:
        """Find the terms of a part; a model that reads them in its source has them there, if there is room."""
        terms = book.find(without_factors(part.text, self.tokenizer.factors))
        marked: list[int] = []
        if terms and self.glossary_by == "tags":
            (marked,) = encode_pieces(self.tokenizer, [book.write_into(part.text)], note=lambda note: None)
        return part._replace(terms=terms, marked=marked if len(marked) <= longest else [])

    def _search_with_terms(
        self,
        parts: list[Part],
        settings: SearchSettings,
        selection: Selection | None,
        placed: Selection | None,
        suppress: Sequence[int],
        note: Callable[[Note], None],
    ) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
        """Search as `_search` does, and the parts with terms of a glossary apart from the others, by `placed`.

        Parts that cannot be translated with their terms are searched without them.
        """
        sources = {number: part.source for number, part in enumerate(parts)}
        asked = {
            number: part.source._replace(phrases=[*part.source.phrases, *part.terms])
            for number, part in enumerate(parts)
            if placed and part.terms
        }
        if asked:
            wide = dataclasses.replace(settings, beam_size=max(settings.beam_size, TERMS_BEAM))
            for done in self._search(asked, wide, placed, suppress, lambda number, reason, by_input: None):
                translated = [(number, hypotheses) for number, hypotheses in done if hypotheses]
                for number, _ in translated:
                    del sources[number]
                yield translated

        def failed(number: int, reason: str, by_input: bool) -> None:
            note(Note.failed(parts[number].line, reason, by_input=by_input))

        yield from self._search(sources, settings, selection, suppress, failed)

    def _search(
        self,
        sources: Mapping[int, Source],
        settings: SearchSettings,
        selection: Selection | None,
        suppress: Sequence[int],
        failed: Callable[[int, str, bool], None],
    ) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
        """Yield after each step the numbers of the finished sources with their translations; [] if the search fails."""
        # Longest first: parts that are searched together have similar lengths, and rows are refilled by shorter ones
        waiting = [sorted(sources, key=lambda number: -len(sources[number].ids))]
        while waiting:
            numbers = waiting.pop()
            left = dict.fromkeys(numbers)
            reason, by_input = "", False
            try:
                found = search_stream(
                    self.model,
                    [sources[number] for number in numbers],
                    special=self.special,
                    settings=settings,
                    rows=functools.partial(self.rows, settings=settings, waiting=len(numbers)),
                    device=torch.device(self.device),
                    selection=selection,
                    suppress=suppress,
                    shortlist=self.shortlist,
                    graphs=self.graphs,
                )
                for done in found:
                    finished = [(numbers[row], hypotheses) for row, hypotheses in done]
                    for number, _ in finished:
                        del left[number]
                    yield finished
            except (RuntimeError, ValueError, MemoryError) as error:
                reason = first_line(error)
                by_input = isinstance(error, ValueError)
            # Outside the `except` block, in which the exception keeps the memory of the search alive
            if reason and len(left) == 1:
                (number,) = left
                failed(number, reason, by_input)
                yield [(number, [])]
            elif reason:
                # Out of memory, or one bad line among good ones: smaller batches solve both
                rest = list(left)
                middle = len(rest) // 2
                waiting += [rest[middle:], rest[:middle]]

    @overload
    def texts(self, lines: str, **options: Any) -> str: ...

    @overload
    def texts(self, lines: Sequence[str], **options: Any) -> list[str]: ...

    def texts(self, lines: str | Sequence[str], **options: Any) -> str | list[str]:
        """Return the best translation of every line, or of one text, with the options of `translate`."""
        if isinstance(lines, str):
            return self.texts([lines], **options)[0]
        return [row[0].text for row in self.translate(lines, **options)]

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float | None]:
        """Return log p(translation | source) in nats for each pair; None for a blank source."""
        return [each.log_prob for each in self._forced(pairs)]

    def align(self, pairs: Iterable[tuple[str, str]]) -> list[Alignment | None]:
        """Align the words of each pair of a source and a translation; None for a blank source."""
        return [each.words for each in self._forced(pairs, align=True)]

    def attention(self, pairs: Iterable[tuple[str, str]]) -> list[SourceAttention | None]:
        """Return how each layer and head of the decoder reads the source for each translation; None if it is blank.

        Raises:
            ValueError: The model is an ensemble or a folder of ONNX graphs, or a layer has no weights over the source.
        """
        model = self.model
        if not self.can_force or isinstance(model, Ensemble):
            raise ValueError("only the attention of a single checkpoint can be read, not of ensembles or ONNX graphs")
        tokenizer = self.tokenizer
        found: list[SourceAttention | None] = []
        for src, tgt in encoded_pairs(self, self.in_context(pairs), note=self._warn):
            if not src:
                found.append(None)
                continue
            weights = read_attention(model, src, tgt, special=self.special, device=torch.device(self.device))
            found.append(SourceAttention(source_pieces(tokenizer, src), target_pieces(tokenizer, tgt), weights))
        return found

    def in_context(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield the pairs of a document, each source with the context that the model was trained with."""
        read = ContextWindow(self.context) if self.context else unmarked
        for number, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
                raise ValueError(f"pairs[{number}] is {shown(repr(pair))}; give a pair (source, translation) of str")
            yield read(pair[0]), pair[1]

    def between(self, src_lang: str, tgt_lang: str) -> Translator:
        """Return a translator between two languages of the checkpoint, which shares the model.

        A glossary belongs to a pair of languages, so the translator of another pair has none.

        Raises:
            ValueError: The checkpoint does not translate between them.
        """
        if (src_lang, tgt_lang) == (self.src_lang, self.tgt_lang):
            return self
        other = copy.copy(self)
        other.src_lang = src_lang
        other.tgt_lang = tgt_lang
        other.glossary = None
        other.tags = tags_of(self.meta, self.tokenizer, tgt_lang, src_lang)
        return other

    def _forced(self, pairs: Iterable[tuple[str, str]], *, align: bool = False) -> Iterator[ForcedLine]:
        return force_lines(self, self.in_context(pairs), note=self._warn, align=align)

    def _warn(self, told: Note) -> None:
        log.warning("line %d %s", told.position + 1, told.text)

    def __repr__(self) -> str:
        count = sum(parameter.numel() for each in models_of(self.model) for parameter in each.parameters())  # type: ignore
        return f"Translator({self.src_lang} to {self.tgt_lang}, {count:,} parameters, {self.dtype} on {self.device})"

    def decode(self, src: Tensor, src_mask: Tensor, starts: Tensor | None = None) -> list[list[TranslatedText]]:
        """Search the translations of padded sources of ids and return them as text, best first.

        Shape:
            src, src_mask: (B, S), on the model's device.
            starts: The tags of the targets, (B, tags); None for none.
        """
        size = most_rows(self.settings.beam_size, self.tokenizer.tgt_vocab_size)
        if self.by_memory:
            size = self.rows(src.shape[1], self.settings, len(src))
        how: dict[str, Any] = {"special": self.special, "shortlist": self.shortlist, "graphs": self.graphs}
        given = (src, src_mask, src[:, :0] if starts is None else starts)
        # Under the autocast of a validation the scores would differ from a user's translation
        with torch.autocast(src.device.type, enabled=False):
            found = [
                beams
                for rows, mask, start in zip(*(each.split(size) for each in given), strict=True)
                for beams in search(self.model, rows, mask, settings=self.settings, starts=start.tolist(), **how)
            ]
        texts = iter(self.tokenizer.decode([each.ids for beams in found for each in beams]))
        return [[TranslatedText(next(texts), float(each.score)) for each in beams] for beams in found]

    def rows(self, width: int, settings: SearchSettings, waiting: int) -> int:
        """Return how many of `waiting` sentences with at most `width` pieces are searched together."""
        vocab_size = self.tokenizer.tgt_vocab_size
        rows = max(1, self.max_tokens // width)
        # The free memory of a GPU matters only if more sentences wait
        if self.by_memory and waiting > rows:
            fitting = fitting_rows(self.model, width, settings, vocab_size, torch.device(self.device))
            rows = max(1, min(fitting, MOST_GPU_TOKENS // width))
        return min(rows, most_rows(settings.beam_size, vocab_size))

    @property
    def dtype(self) -> str:
        """Number format of the weights; float32 for ONNX graphs, whatever their own format."""
        model: Any = models_of(self.model)[0]
        return str(next(model.parameters()).dtype).removeprefix("torch.")

    @property
    def can_force(self) -> bool:
        """True if given translations can be scored and aligned; ONNX graphs of single steps cannot do this."""
        return not any(getattr(member, "stepwise", False) for member in models_of(self.model))

    @property
    def special(self) -> Specials:
        """Ids of the special tokens."""
        tokenizer = self.tokenizer
        return Specials(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.byte_of)


def _require_same_task(member: Loaded, path: Path, first: Loaded, first_path: Path) -> None:
    """Raise ValueError unless a model has the vocabulary and the languages of the first model of its ensemble."""
    if member.tokenizer.fingerprint != first.tokenizer.fingerprint:
        raise ValueError(f"{path} has another tokenizer than {first_path}: an ensemble needs one vocabulary")
    # A fine-tuned model names its own language first
    own, wanted = (
        f"{each.meta['src_lang']} to {', '.join(sorted(target_languages(each.meta)))}" for each in (member, first)
    )
    contexts = context_size(member.meta), context_size(first.meta)
    if contexts[0] != contexts[1]:
        raise ValueError(
            f"{path} was trained with data.context={contexts[0]}, and {first_path} with {contexts[1]}: an ensemble "
            "needs one context"
        )
    if own != wanted:
        raise ValueError(f"{path} translates {own}, and {first_path} {wanted}: an ensemble needs one direction")


def _one_for_each(lines: Sequence[str], value: Any, name: str, of: type = str) -> list[Any]:
    """Return a list that must have an entry of type `of` for each line."""
    entries = require_list(value, name, of)
    if len(entries) != len(lines):
        raise ValueError(f"{name} has {len(entries):,} entries for {len(lines):,} lines; give one for each")
    return entries
