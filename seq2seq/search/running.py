"""A running search: sentences take rows, are extended step by step, leave when they are done, and others enter."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.search.characters import characters_of
from seq2seq.search.columns import RuleTokens
from seq2seq.search.constraints import STOP, flatten
from seq2seq.search.graphs import Graphs, Steps
from seq2seq.search.hypothesis import NEVER, Specials, longest_target
from seq2seq.search.ledger import Results, Sentence
from seq2seq.search.rows import AnyModel, OpenHypotheses, Rows, Selection
from seq2seq.search.rules import rules_of
from seq2seq.settings.search import SearchSettings

# Rows are refilled or dropped when at least one in so many is free: each time costs a pass of the encoder, or copies.
SHARE = 4


class Source(NamedTuple):
    """A sentence to translate.

    Attributes:
        ids: Its tokens.
        prefix: Tokens that its translation begins with.
        phrases: Tokens that its translation must have somewhere, in any order.
        seed: Of its samples.
    """

    ids: Sequence[int]
    prefix: Sequence[int] = ()
    phrases: Sequence[Sequence[int]] = ()
    seed: int = 0


# From a source's ids to the tokens that its translation may have, True in a new tensor (V,).
Shortlist = Callable[[Sequence[int]], Tensor]


class Plan(NamedTuple):
    """Plan of a search, whatever is searched.

    Attributes:
        suppress: Tokens that no translation has.
        shortlist: The tokens that the translation of a source may have; None for all.
        graphs: Lets steps be captured and replayed; None for plain ones.
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
    """A search in progress: as many rows as there are sources at first, as wide and long as those need.

    Args:
        sources: The first sentences, with their keys.
    """

    @torch.inference_mode()
    def __init__(self, plan: Plan, sources: Sequence[tuple[int, Source]]) -> None:
        self.plan = plan
        self.width = max(len(source.ids) for _, source in sources)
        limits = [target_limit(source, plan.settings) for _, source in sources]
        self.max_len = max(limits)  # slots of the caches
        self.phrase_len = max(len(flatten(source.phrases)) for _, source in sources)
        self.seated: list[Sentence] = self._sentences(sources, limits)
        self.finished: list[Sentence] = []
        # Results that the device has been asked for
        self._asked: deque[tuple[list[Sentence], Tensor, torch.cuda.Event | None]] = deque()
        self._late = steps_late(plan.device)
        of_rules = RuleTokens.of(plan.special, plan.suppress) if plan.shortlist else None
        special, suppress = (of_rules.special, of_rules.suppress) if of_rules else (plan.special, plan.suppress)
        self.characters = characters_of(special.byte_of, suppress, plan.device)
        self.rules = rules_of(plan.settings, special, suppress, plan.device, self.characters)
        src, mask = self._padded(sources)
        self.rows = Rows(
            plan.model,
            plan.model.context(src, mask),
            self._open(sources, limits),
            special=plan.special,
            max_len=self.max_len,
            rules=self.rules,
            # Of columns, where there are lists of tokens
            selection=dataclasses.replace(plan.selection, eos=special.eos) if of_rules else plan.selection,  # type: ignore
            characters=self.characters,
            rule_tokens=None if of_rules is None else torch.tensor(of_rules.ids).to(plan.device),
        )
        self._advance = Steps(self.rows, plan.graphs)

    @property
    def free(self) -> list[int]:
        """Rows whose sentences are done."""
        return [row for row, sentence in enumerate(self.seated) if sentence.done]

    def fits(self, source: Source) -> bool:
        """Return True if a sentence may enter: there is room, and it would not be mostly padding."""
        room = len(source.ids) <= self.width and target_limit(source, self.plan.settings) <= self.max_len
        return room and len(flatten(source.phrases)) <= self.phrase_len and 2 * len(source.ids) >= self.width

    @torch.inference_mode()
    def step(self) -> None:
        """Extend all hypotheses by a token; `finished` gets what is done by then.

        Raises:
            NotFiniteScoresError: The model's scores are not finite.
        """
        # Copied in any case: sentences keep what they read, and replayed steps write to one place
        packed = self._advance().to("cpu", non_blocking=True, copy=True)
        self._asked.append((list(self.seated), packed, _mark(self.plan.device)))
        for sentence in self.seated:
            sentence.steps += 1
        # The only wait of a step
        while len(self._asked) > self._late:
            self._take(*self._asked.popleft())

    def _take(self, seated: list[Sentence], packed: Tensor, mark: torch.cuda.Event | None) -> None:
        """Hand the results of a step to those who had the rows then."""
        if mark is not None:
            mark.synchronize()
        table = packed.numpy()  # (B, 6 beam)
        parts = [part.view(np.float32) if i % 3 == 0 else part for i, part in enumerate(np.split(table, 6, axis=1))]
        waiting = [row for row, sentence in enumerate(seated) if not sentence.done]
        results = Results(tuple(parts[:3]), tuple(parts[3:]), self.plan.special.eos, waiting)
        for row in waiting:
            seated[row].update(results, row, self.plan.settings)
            if seated[row].done:
                self.finished.append(seated[row])

    @torch.inference_mode()
    def admit(self, sources: Sequence[tuple[int, Source]]) -> None:
        """Let sentences that fit take the first free rows."""
        places = self.free[: len(sources)]
        limits = [target_limit(source, self.plan.settings) for _, source in sources]
        for place, sentence in zip(places, self._sentences(sources, limits), strict=True):
            self.seated[place] = sentence
        src, mask = self._padded(sources)
        where = torch.tensor(places).to(self.plan.device)
        self.rows.admit(where, src, mask, self._open(sources, limits), self._longest())

    @torch.inference_mode()
    def shrink(self) -> None:
        """Drop free rows: those that stay move together. On a GPU there are a power of two, or all that there were."""
        live = [row for row, sentence in enumerate(self.seated) if not sentence.done]
        count = len(live)
        if self.plan.device.type == "cuda":
            count = min(1 << (count - 1).bit_length(), len(self.seated))
        if count == len(self.seated):
            return
        sources = [row for row in live if row >= count]
        targets = [row for row in self.free if row < count][: len(sources)]
        for source, target in zip(sources, targets, strict=True):
            self.seated[target] = self.seated[source]
        del self.seated[count:]
        self._advance.release()
        moves = torch.tensor([sources, targets], dtype=torch.int64).to(self.plan.device)
        self.rows.shrink(moves[0], moves[1], count, self._longest())

    def close(self) -> None:
        """End the search."""
        self._advance.release()

    def _longest(self) -> int:
        return max((sentence.steps for sentence in self.seated if not sentence.done), default=0)

    def _sentences(self, sources: Sequence[tuple[int, Source]], limits: list[int]) -> list[Sentence]:
        groups = self.plan.selection.groups
        return [Sentence(key, limit, groups) for (key, _), limit in zip(sources, limits, strict=True)]

    def _padded(self, sources: Sequence[tuple[int, Source]]) -> tuple[Tensor, Tensor]:
        """Pad sources on the right to the width of the search; return them and their mask, both (B, S)."""
        lengths = torch.tensor([len(source.ids) for _, source in sources])  # (B,)
        src = torch.full((len(sources), self.width), self.plan.special.pad)
        for row, (_, source) in enumerate(sources):
            src[row, : len(source.ids)] = torch.tensor(source.ids)
        mask = torch.arange(self.width) < lengths[:, None]
        return src.to(self.plan.device), mask.to(self.plan.device)

    def _open(self, sources: Sequence[tuple[int, Source]], limits: list[int]) -> OpenHypotheses:
        """Return the hypotheses before the first step."""
        rows, size, most = len(sources), self.plan.settings.beam_size, self.max_len
        log_prob = torch.full((rows, size), NEVER)
        # One hypothesis until the first step makes them differ; samples differ by themselves
        log_prob[:, :: size // self.plan.selection.groups if self.plan.selection.reorders else 1] = 0.0
        forced = torch.full((rows, most), -1)
        phrases = torch.full((rows, self.phrase_len), STOP)
        draws = torch.zeros(rows, size, 0 if self.plan.selection.reorders else most, dtype=torch.float64)
        for row, (_, source) in enumerate(sources):
            forced[row, : len(source.prefix)] = torch.tensor(source.prefix, dtype=torch.int64)
            if draws.shape[2]:
                # As many as the sentence may need by itself, whatever the others need
                generator = torch.Generator().manual_seed(source.seed)
                shape = (size, limits[row])
                draws[row, :, : limits[row]] = torch.rand(shape, generator=generator, dtype=torch.float64)
            flat = flatten(source.phrases)
            phrases[row, : len(flat)] = torch.tensor(flat, dtype=torch.int64)
        read = self.plan.selection.reads_tokens or any(rule.reads_tokens for rule in self.rules)
        tokens = torch.zeros(rows, size, most if read else 0, dtype=torch.int64)
        last = torch.full((rows, size), self.plan.special.bos)
        position = torch.zeros(rows, dtype=torch.int64)
        partial = torch.zeros(rows, size if self.characters else 0, dtype=torch.int64)
        allowed = self._allowed(sources)
        fields = last, log_prob, position, torch.tensor(limits), forced, tokens, draws, phrases, partial, allowed
        return OpenHypotheses(*(field.to(self.plan.device) for field in fields))

    def _allowed(self, sources: Sequence[tuple[int, Source]]) -> Tensor:
        """Return the tokens of each sentence's list, with those that its translation must have, (B, V)."""
        if self.plan.shortlist is None:
            return torch.ones(len(sources), 0, dtype=torch.bool)
        rows = []
        for _, source in sources:
            row = self.plan.shortlist(source.ids)  # (V,)
            row[[*source.prefix, *(token for phrase in source.phrases for token in phrase)]] = True
            rows.append(row)
        return torch.stack(rows)


def target_limit(source: Source, settings: SearchSettings) -> int:
    """Return the longest target of a sentence: `longest_target`, but room for its prefix, its phrases and the end."""
    limit = longest_target(len(source.ids), settings)
    required = len(source.prefix) + sum(map(len, source.phrases))
    limit = max(limit, required + 1)
    if settings.max_len is not None and limit > settings.max_len:
        raise ValueError(f"{required} required tokens and the end exceed the model's {settings.max_len} positions")
    return limit


def steps_late(device: torch.device) -> int:
    """Return how many steps late results are read: on a GPU one, so that it computes while the host decides."""
    return int(device.type == "cuda")


def _mark(device: torch.device) -> torch.cuda.Event | None:
    """Mark on a GPU the place that its work has reached, so that one can wait for that alone."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
