"""A running search: sentences take rows, grow token by token, leave when they are done, and others take their rows."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.search.characters import characters_of
from seq2seq.search.choice import OpenHypotheses, Selection
from seq2seq.search.constraints import STOP, flatten
from seq2seq.search.graphs import Graphs, Steps
from seq2seq.search.hypothesis import NEVER, Specials, longest_target
from seq2seq.search.ledger import Results, Sentence
from seq2seq.search.models import AnyModel
from seq2seq.search.rows import Rows
from seq2seq.search.rules import RuleTokens, rules_of
from seq2seq.settings.search import SearchSettings

# Rows are refilled or dropped when 1 / SHARE of them are free: a refill costs an encoder pass, a drop costs copies.
SHARE = 4


class Source(NamedTuple):
    """A sentence to translate.

    Attributes:
        ids: Its tokens.
        prefix: Tokens that its translation begins with.
        phrases: Sequences of tokens that its translation must contain, in any order.
        seed: Seed of its samples.
        start: Tokens after bos that ask for its translation, such as the tag of a language. They are not a part of it,
            and their log-probability is 0, but they count in its length.
        allowed: Tokens that its translation may have though they are not in its shortlist.
    """

    ids: Sequence[int]
    prefix: Sequence[int] = ()
    phrases: Sequence[Sequence[int]] = ()
    seed: int = 0
    start: Sequence[int] = ()
    allowed: Sequence[int] = ()

    @property
    def given(self) -> list[int]:
        """Tokens that the target has before the first one that is searched."""
        return [*self.start, *self.prefix]


# Maps a source's ids to a new mask (V,) of the tokens that its translation may have.
Shortlist = Callable[[Sequence[int]], Tensor]


class Setup(NamedTuple):
    """A search without its sentences: the model, the settings and the device.

    Attributes:
        suppress: Tokens that are never generated.
        shortlist: Returns the tokens that the translation of a source may have; None for all tokens.
        graphs: Captures and replays steps; None for plain steps.
    """

    model: AnyModel
    special: Specials
    settings: SearchSettings
    selection: Selection
    device: torch.device
    suppress: Sequence[int] = ()
    shortlist: Shortlist | None = None
    graphs: Graphs | None = None


class Running:
    """A search in progress, with one row for each of the first sources, and room for the longest of them.

    Args:
        sources: The first sentences, with their keys.
    """

    @torch.inference_mode()
    def __init__(self, setup: Setup, sources: Sequence[tuple[int, Source]]) -> None:
        self.setup = setup
        self.width = max(len(source.ids) for _, source in sources)
        limits = [target_limit(source, setup.settings) for _, source in sources]
        self.max_len = max(limits)  # slots of the caches
        self.phrase_len = max(len(flatten(source.phrases)) for _, source in sources)
        self.seated: list[Sentence] = self._sentences(sources, limits)
        self.finished: list[Sentence] = []
        # Steps whose results the host has not read yet
        self._asked: deque[tuple[list[Sentence], Tensor, torch.cuda.Event | None]] = deque()
        self._late = steps_late(setup.device)
        of_rules = RuleTokens.of(setup.special, setup.suppress) if setup.shortlist else None
        special, suppress = (of_rules.special, of_rules.suppress) if of_rules else (setup.special, setup.suppress)
        self.characters = characters_of(special.byte_of, suppress, setup.device)
        self.rules = rules_of(setup.settings, special, suppress, setup.device, self.characters)
        src, mask = self._padded(sources)
        self.rows = Rows(
            setup.model,
            setup.model.context(src, mask),
            self._open(sources, limits),
            max_len=self.max_len,
            rules=self.rules,
            # With a shortlist, rules and selections know tokens by their columns
            selection=dataclasses.replace(setup.selection, eos=special.eos) if of_rules else setup.selection,  # type: ignore
            characters=self.characters,
            rule_tokens=None if of_rules is None else torch.tensor(of_rules.ids).to(setup.device),
        )
        self._advance = Steps(self.rows, setup.graphs)

    @property
    def free(self) -> list[int]:
        """Rows whose sentences are done."""
        return [row for row, sentence in enumerate(self.seated) if sentence.done]

    def fits(self, source: Source) -> bool:
        """Return True if there is room for a sentence, and its row would not be mostly padding."""
        room = len(source.ids) <= self.width and target_limit(source, self.setup.settings) <= self.max_len
        return room and len(flatten(source.phrases)) <= self.phrase_len and 2 * len(source.ids) >= self.width

    @torch.inference_mode()
    def step(self) -> None:
        """Extend all hypotheses by a token, and move sentences that are done to `finished`.

        Raises:
            NotFiniteScoresError: The model's scores are not finite.
        """
        # Always a copy: sentences keep their results, and replayed steps write to the same memory
        packed = self._advance().to("cpu", non_blocking=True, copy=True)
        self._asked.append((list(self.seated), packed, _mark(self.setup.device)))
        for sentence in self.seated:
            sentence.steps += 1
        # The only wait of a step
        while len(self._asked) > self._late:
            self._take(*self._asked.popleft())

    def _take(self, seated: list[Sentence], packed: Tensor, mark: torch.cuda.Event | None) -> None:
        """Assign the results of a step to the sentences that had the rows at that step."""
        if mark is not None:
            mark.synchronize()
        waiting = [row for row, sentence in enumerate(seated) if not sentence.done]
        parts = packed.numpy().reshape(len(packed), 6, -1).swapaxes(0, 1)  # as `Rows.advance` packs them
        results = Results(parts, self.setup.special.eos, waiting)
        for row in waiting:
            seated[row].update(results, row, self.setup.settings)
            if seated[row].done:
                self.finished.append(seated[row])

    @torch.inference_mode()
    def admit(self, sources: Sequence[tuple[int, Source]]) -> None:
        """Give the first free rows to sentences that fit."""
        places = self.free[: len(sources)]
        limits = [target_limit(source, self.setup.settings) for _, source in sources]
        for place, sentence in zip(places, self._sentences(sources, limits), strict=True):
            self.seated[place] = sentence
        src, mask = self._padded(sources)
        where = torch.tensor(places).to(self.setup.device)
        self.rows.admit(where, src, mask, self._open(sources, limits), self._longest())

    @torch.inference_mode()
    def shrink(self) -> None:
        """Drop free rows and move the others together; on a GPU, keep a power of two rows, or all."""
        live = [row for row, sentence in enumerate(self.seated) if not sentence.done]
        count = len(live)
        if self.setup.device.type == "cuda":
            count = min(1 << (count - 1).bit_length(), len(self.seated))
        if count == len(self.seated):
            return
        sources = [row for row in live if row >= count]
        targets = [row for row in self.free if row < count][: len(sources)]
        for source, target in zip(sources, targets, strict=True):
            self.seated[target] = self.seated[source]
        del self.seated[count:]
        self._advance.release()
        moves = torch.tensor([sources, targets], dtype=torch.int64).to(self.setup.device)
        self.rows.shrink(moves[0], moves[1], count, self._longest())

    def close(self) -> None:
        """End the search."""
        self._advance.release()

    def _longest(self) -> int:
        return max((sentence.steps for sentence in self.seated if not sentence.done), default=0)

    def _sentences(self, sources: Sequence[tuple[int, Source]], limits: list[int]) -> list[Sentence]:
        groups = self.setup.selection.groups
        return [
            Sentence(key, limit, groups, start=len(source.start))
            for (key, source), limit in zip(sources, limits, strict=True)
        ]

    def _padded(self, sources: Sequence[tuple[int, Source]]) -> tuple[Tensor, Tensor]:
        """Pad sources on the right to the width of the search; return them and their mask, both (B, S)."""
        lengths = torch.tensor([len(source.ids) for _, source in sources])  # (B,)
        src = torch.full((len(sources), self.width), self.setup.special.pad)
        for row, (_, source) in enumerate(sources):
            src[row, : len(source.ids)] = torch.tensor(source.ids)
        mask = torch.arange(self.width) < lengths[:, None]
        return src.to(self.setup.device), mask.to(self.setup.device)

    def _open(self, sources: Sequence[tuple[int, Source]], limits: list[int]) -> OpenHypotheses:
        """Return the hypotheses before the first step."""
        rows = len(sources)
        size = self.setup.settings.beam_size
        most = self.max_len
        # A group of a beam starts with one hypothesis, from which the first step makes several; each sample starts
        # with its own
        apart = size // self.setup.selection.groups if self.setup.selection.reorders else 1
        # The default type is bfloat16 in validations with trainer.precision=bf16-true
        log_prob = torch.full((rows, size), NEVER, dtype=torch.float32)
        log_prob[:, ::apart] = 0.0
        forced = torch.full((rows, most), -1)
        phrases = torch.full((rows, self.phrase_len), STOP)
        draws = torch.zeros(rows, size, 0 if self.setup.selection.reorders else most, dtype=torch.float64)
        for row, (_, source) in enumerate(sources):
            given = source.given
            forced[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
            # At its limit a hypothesis must end, so that it is not lost
            forced[row, limits[row] - 1 :] = self.setup.special.eos
            if draws.shape[2]:
                # The shape depends on this sentence alone, so that its samples do not depend on other sentences
                generator = torch.Generator().manual_seed(source.seed)
                shape = (size, limits[row])
                draws[row, :, : limits[row]] = torch.rand(shape, generator=generator, dtype=torch.float64)
            flat = flatten(source.phrases)
            phrases[row, : len(flat)] = torch.tensor(flat, dtype=torch.int64)
        read = self.setup.selection.reads_tokens or any(rule.reads_tokens for rule in self.rules)
        tokens = torch.zeros(rows, size, most if read else 0, dtype=torch.int64)
        last = torch.full((rows, size), self.setup.special.bos)
        position = torch.zeros(rows, dtype=torch.int64)
        partial = torch.zeros(rows, size if self.characters else 0, dtype=torch.int64)
        allowed = self._allowed(sources)
        start = torch.tensor([len(source.start) for _, source in sources])
        fields = last, log_prob, position, torch.tensor(limits), forced, tokens, draws, phrases, partial, allowed, start
        return OpenHypotheses(*(field.to(self.setup.device) for field in fields))

    def _allowed(self, sources: Sequence[tuple[int, Source]]) -> Tensor:
        """Return a mask (B, V) of each sentence's shortlist and its further tokens."""
        if self.setup.shortlist is None:
            return torch.ones(len(sources), 0, dtype=torch.bool)
        rows = []
        for _, source in sources:
            row = self.setup.shortlist(source.ids)  # (V,)
            row[[*source.given, *source.allowed, *(token for phrase in source.phrases for token in phrase)]] = True
            rows.append(row)
        return torch.stack(rows)


def target_limit(source: Source, settings: SearchSettings) -> int:
    """Return the longest target of a source: `longest_target`, or more if its given tokens and the end need it."""
    required = max(len(source.given) + sum(map(len, source.phrases)), len(source.start) + settings.min_len)
    limit = max(longest_target(len(source.ids), settings), required + 1)
    if settings.max_len is not None and limit > settings.max_len:
        raise ValueError(f"{required} required tokens and the end exceed the model's {settings.max_len} positions")
    return limit


def steps_late(device: torch.device) -> int:
    """Return by how many steps the host lags: one on a GPU, which then computes while the host decides."""
    return int(device.type == "cuda")


def _mark(device: torch.device) -> torch.cuda.Event | None:
    """Record an event after the work queued on a GPU so far, so that the host can wait for this work alone."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
