"""Beam search and sampling; of a model they use only `context`, `init_state` and `step`.

`search` and `sample` decode one padded batch. `search_stream` decodes any number of sentences by continuous batching:
when a sentence is done, the next one takes its row of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from seq2seq.search.constraints import Constrained as Constrained
from seq2seq.search.ensemble import Ensemble as Ensemble
from seq2seq.search.ensemble import models_of as models_of
from seq2seq.search.graphs import Graphs as Graphs
from seq2seq.search.hypothesis import Hypothesis as Hypothesis
from seq2seq.search.hypothesis import NotFiniteScoresError as NotFiniteScoresError
from seq2seq.search.hypothesis import Specials as Specials
from seq2seq.search.hypothesis import length_divisor as length_divisor
from seq2seq.search.hypothesis import longest_target as longest_target
from seq2seq.search.rows import Model as AnyModel
from seq2seq.search.rows import Selection as Selection
from seq2seq.search.running import SHARE, Plan, Running
from seq2seq.search.running import Shortlist as Shortlist
from seq2seq.search.running import Source as Source
from seq2seq.search.running import target_limit as target_limit
from seq2seq.search.selection import BestFirst, Diverse
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
    prefixes: Sequence[Sequence[int]] | None = None,
    suppress: Sequence[int] = (),
    shortlist: Shortlist | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence of src (B, S), best first; beam_size 1 is greedy decoding.

    A sentence is done when beam_size hypotheses have ended, or when no open one can still overtake its n_best.

    Args:
        model: In evaluation mode, or dropout makes the result random.
        src: Source tokens, right-padded.
        src_mask: (B, S), True for real tokens.
        special: Ids of the special tokens.
        settings: Width of the beam, limits of length, ranking, rules.
        prefixes: Tokens that each translation begins with.
        suppress: Tokens that no translation has.
        shortlist: The tokens that the translation of a source may have; the softmax is over them alone.
        graphs: Lets steps be captured and replayed (default: plain steps).

    Returns:
        For each sentence settings.n_best hypotheses, or as many as have ended, which is one at least.

    Raises:
        NotFiniteScoresError: The model's logits are not finite.
    """
    sources = _sources(src, src_mask, prefixes)
    how = {"suppress": suppress, "shortlist": shortlist, "graphs": graphs}
    return _in_order(model, sources, special, settings, src.device, **how)


def sample(
    model: AnyModel,
    src: Tensor,
    src_mask: Tensor,
    *,
    special: Specials,
    settings: SearchSettings | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seeds: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Draw translations of each sentence of src (B, S), each token from softmax(logits / temperature).

    Args:
        special: Ids of the special tokens.
        settings: beam_size is the number of samples (default: one), of which the n_best are returned.
        temperature: Below 1 sharpens the distribution, above 1 flattens it.
        top_k: Draw from the k most probable tokens only (Fan et al. 2018); 0 for all.
        top_p: Draw from the most probable tokens that together have this probability (Holtzman et al. 2020).
        seeds: One for each sentence, on which its samples depend, and on no other sentence (default: from torch's
            generator).

    Returns:
        For each sentence its samples, whose log_prob is the model's own, without temperature; the best first.

    Raises:
        ValueError: The temperature, top_k or top_p is outside its range.
        NotFiniteScoresError: The model's logits are not finite.
    """
    settings = settings or SearchSettings(beam_size=1)
    selection = Drawn(special.eos, temperature, top_k, top_p)
    sources = _sources(src, src_mask, None)
    seeds = torch.randint(1 << 62, (len(sources),)).tolist() if seeds is None else seeds
    sources = [source._replace(seed=seed) for source, seed in zip(sources, seeds, strict=True)]
    return _in_order(model, sources, special, settings, src.device, selection)


def _in_order(
    model: AnyModel,
    sources: list[Source],
    special: Specials,
    settings: SearchSettings,
    device: torch.device,
    selection: Selection | None = None,
    **how: Any,
) -> list[list[Hypothesis]]:
    """Search all sentences at a time; return their hypotheses in their own order."""
    how |= {"special": special, "settings": settings, "device": device, "selection": selection}
    found = dict(search_stream(model, sources, rows=len(sources), **how))
    return [found[row] for row in range(len(sources))]


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
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Search the translations of a stream of sentences by continuous batching.

    Args:
        sources: Best sorted by length, longest first: sentences that are searched together are padded to the longest.
        rows: Most sentences that are searched at a time, or a function of the first sentence's length that returns it.
        selection: How extensions are chosen (default: as `settings` say).
        suppress: Tokens that no translation has.
        shortlist: The tokens that the translation of a source may have; the softmax is over them alone.
        graphs: Captures decoding steps as CUDA graphs and replays them (default: no graphs).

    Yields:
        The index of a sentence, from 0, and its n best hypotheses, as soon as it is done.
    """
    if selection is None and settings.beam_groups > 1:
        selection = Diverse(special.eos, settings.beam_groups, settings.diversity)
    selection = selection or BestFirst(special.eos)
    plan = Plan(model, special, settings, selection, device, suppress, shortlist, graphs)
    waiting = enumerate(sources)
    ahead = list(islice(waiting, 1))
    while ahead:
        most = rows(len(ahead[0][1].ids)) if callable(rows) else rows
        ahead += islice(waiting, most - 1)
        with closing(Running(plan, ahead)) as running:
            ahead = list(islice(waiting, 1))
            while True:
                running.step()
                for sentence in running.finished:
                    found = sentence.best(settings.n_best)
                    if not found:
                        raise _nothing_ended(plan)
                    yield sentence.key, found
                running.finished.clear()
                free = len(running.free)
                if free == len(running.seated) and not (ahead and running.fits(ahead[0][1])):
                    break
                if free * SHARE >= len(running.seated):
                    ahead = _turn_over(running, ahead, waiting, free)


def _turn_over(
    running: Running, ahead: list[tuple[int, Source]], waiting: Iterator[tuple[int, Source]], free: int
) -> list[tuple[int, Source]]:
    """Give free rows to those who wait and fit, or drop them; return the one who waits next."""
    entering: list[tuple[int, Source]] = []
    while ahead and len(entering) < free and running.fits(ahead[0][1]):
        entering += ahead
        ahead = list(islice(waiting, 1))
    if entering:
        running.admit(entering)
    else:
        running.shrink()
    return ahead


def _nothing_ended(plan: Plan) -> Exception:
    """Return the error of a sentence every continuation of which has probability 0."""
    # Of the model's own distribution the end is always a part, unless its scores are damaged
    rules = plan.settings.min_len or plan.settings.no_repeat_ngram or plan.suppress or plan.shortlist
    if rules or isinstance(plan.selection, Constrained):
        return ValueError(
            "no translation meets min_len, no_repeat_ngram, suppressed tokens, phrases and the shortlist together"
        )
    return NotFiniteScoresError()


def _sources(src: Tensor, src_mask: Tensor, prefixes: Sequence[Sequence[int]] | None) -> list[Source]:
    """Return the rows of a padded batch as lists."""
    lengths = src_mask.sum(1).tolist()
    rows: list[Any] = [Source(row[:length]) for row, length in zip(src.tolist(), lengths, strict=True)]
    if prefixes is None:
        return rows
    return [row._replace(prefix=prefix) for row, prefix in zip(rows, prefixes, strict=True)]
