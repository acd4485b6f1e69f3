"""Beam search and sampling with any model that has `context`, `init_state` and `step`.

`search` decodes one padded batch, `search_stream` any number of sentences by continuous batching:
when a sentence is done, the next one takes its row of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import itemgetter

import torch
from torch import Tensor

from seq2seq.search.choice import Selection as Selection
from seq2seq.search.constraints import Constrained as Constrained
from seq2seq.search.graphs import Graphs as Graphs
from seq2seq.search.hypothesis import Hypothesis as Hypothesis
from seq2seq.search.hypothesis import NotFiniteScoresError as NotFiniteScoresError
from seq2seq.search.hypothesis import Specials as Specials
from seq2seq.search.hypothesis import length_divisor as length_divisor
from seq2seq.search.hypothesis import longest_target as longest_target
from seq2seq.search.models import AnyModel
from seq2seq.search.models import Ensemble as Ensemble
from seq2seq.search.models import models_of as models_of
from seq2seq.search.running import SHARE, Running, Setup
from seq2seq.search.running import Shortlist as Shortlist
from seq2seq.search.running import Source as Source
from seq2seq.search.running import target_limit as target_limit
from seq2seq.search.selection import BeamSearch, Diverse
from seq2seq.search.selection import Drawn as Drawn
from seq2seq.search.words import Words as Words
from seq2seq.settings.search import SearchSettings


def search(
    model: AnyModel,
    src: Tensor,
    src_mask: Tensor,
    *,
    special: Specials,
    settings: SearchSettings,
    starts: Sequence[Sequence[int]] | None = None,
    selection: Selection | None = None,
    suppress: Sequence[int] = (),
    shortlist: Shortlist | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence of src (B, S), best first; beam_size 1 is greedy decoding.

    A sentence is done when beam_size hypotheses have ended, or when no open hypothesis can still rank among its n_best.

    Args:
        model: In evaluation mode, or dropout makes the result random.
        src: Source tokens, right-padded.
        src_mask: (B, S), True for real tokens.
        special: Ids of the special tokens.
        settings: Width of the beam, limits of length, ranking, rules.
        starts: Tokens that ask for each translation, see `Source`.
        selection: As in `search_stream`, as are suppress, shortlist and graphs.

    Returns:
        For each sentence at most settings.n_best hypotheses, and at least one.

    Raises:
        NotFiniteScoresError: The model's logits are not finite.
    """
    lengths = src_mask.sum(1).tolist()
    sources = [Source(row[:length]) for row, length in zip(src.tolist(), lengths, strict=True)]
    if starts is not None:
        sources = [source._replace(start=start) for source, start in zip(sources, starts, strict=True)]
    found = search_stream(
        model,
        sources,
        special=special,
        settings=settings,
        rows=len(sources),
        device=src.device,
        selection=selection,
        suppress=suppress,
        shortlist=shortlist,
        graphs=graphs,
    )
    return [hypotheses for _, hypotheses in sorted(chain.from_iterable(found), key=itemgetter(0))]


def search_stream(
    model: AnyModel,
    sources: Iterable[Source],
    *,
    special: Specials,
    settings: SearchSettings,
    rows: int | Callable[[int], int],
    device: torch.device,
    selection: Selection | None = None,
    suppress: Sequence[int] = (),
    shortlist: Shortlist | None = None,
    graphs: Graphs | None = None,
) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
    """Search the translations of a stream of sentences by continuous batching.

    Args:
        sources: Sentences, ideally from longest to shortest, since a batch is padded to its longest sentence.
        rows: Maximum sentences in a batch, or a function from the length of a batch's first sentence to this number.
        selection: Chooses among extensions (default: according to `settings`).
        suppress: Tokens that are never generated.
        shortlist: Returns the tokens that the translation of a source may have; the softmax is over these alone.
        graphs: Captures decoding steps as CUDA graphs and replays them (default: no graphs).

    Yields:
        After each step the sentences that it has finished, often none: the index, from 0, and the n best hypotheses.
    """
    if selection is None and settings.beam_groups > 1:
        selection = Diverse(special.eos, settings.diversity, settings.beam_groups)
    selection = selection or BeamSearch(special.eos)
    setup = Setup(model, special, settings, selection, device, suppress, shortlist, graphs)
    waiting = enumerate(sources)
    ahead = list(islice(waiting, 1))
    while ahead:
        most = rows(len(ahead[0][1].ids)) if callable(rows) else rows
        ahead += islice(waiting, most - 1)
        with closing(Running(setup, ahead)) as running:
            ahead = list(islice(waiting, 1))
            while True:
                running.step()
                done = [(sentence.key, sentence.best(settings.n_best)) for sentence in running.finished]
                running.finished.clear()
                if not all(found for _, found in done):
                    raise _nothing_ended(setup)
                yield done
                free = len(running.free)
                if free == len(running.seated) and not (ahead and running.fits(ahead[0][1])):
                    break
                if free * SHARE >= len(running.seated):
                    ahead = _refill_or_shrink(running, ahead, waiting, free)


def _refill_or_shrink(
    running: Running, ahead: list[tuple[int, Source]], waiting: Iterator[tuple[int, Source]], free: int
) -> list[tuple[int, Source]]:
    """Refill free rows from the queue, or shrink the batch if no sentence fits; return the queue's next sentence."""
    entering: list[tuple[int, Source]] = []
    while ahead and len(entering) < free and running.fits(ahead[0][1]):
        entering += ahead
        ahead = list(islice(waiting, 1))
    if entering:
        running.admit(entering)
    else:
        running.shrink()
    return ahead


def _nothing_ended(setup: Setup) -> Exception:
    """Return the error for a sentence all of whose continuations have probability 0."""
    # Without these rules, the end has a probability above 0 unless the model's scores are damaged
    rules = setup.settings.min_len or setup.settings.no_repeat_ngram or setup.suppress or setup.shortlist
    if rules or isinstance(setup.selection, Constrained):
        return ValueError(
            "no translation meets min_len, no_repeat_ngram, suppressed tokens, phrases and the shortlist together"
        )
    return NotFiniteScoresError()
