"""Guided alignment: train the weights of a decoder layer over the source on word alignments.

Reference:
    Garg et al. 2019, 'Jointly Learning to Align and Translate with Transformer Models', section 4.2.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.batching import Batch
from seq2seq.data.cache_folder import cached
from seq2seq.data.context import sentence_of, sentence_start
from seq2seq.data.fingerprints import file_fingerprint
from seq2seq.data.ibm1 import lexical_table
from seq2seq.data.preparation import PreparedData
from seq2seq.data.ragged import Ragged
from seq2seq.data.raw_pairs import open_split
from seq2seq.data.text_files import read_lines
from seq2seq.data.token_cache import map_rows, write_lengths
from seq2seq.inference.encoding import source_pieces, target_pieces
from seq2seq.inference.forced import words_of
from seq2seq.network.mixer import CrossMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.network.pooling import spread
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.loss import LossSums

# Pairs, evenly spaced, that IBM Model 1 is estimated from, and its iterations.
_PAIRS, _ITERATIONS = 500_000, 5
# How fast the prior of a link falls with its distance from the diagonal, as in fast_align (Dyer et al. 2013).
_TENSION = 4.0
_BLOCK = 1000  # pairs in memory at a time


def guided_mixer(model: Seq2Seq) -> CrossMixer[Any, Any]:
    """Return the cross mixer that is guided, of the last layer but one."""
    return model.decoder.layers[max(len(model.decoder.layers) - 2, 0)].cross_mixer  # type: ignore[return-value]


def guided_losses(
    model: Seq2Seq, batch: Batch, settings: OptimSettings, links: Ragged, *, teacher: Seq2Seq | None = None
) -> LossSums:
    """Add weight sum_bts -a_ts log w_ts to the losses of a batch.

    w is the mean of the heads' weights, divided by its sum over s; a are the `shares` of links.
    """
    mixer = guided_mixer(model)
    reads: list[Any] = []
    handle = mixer.register_forward_hook(lambda _, inputs, output: reads.append(inputs))
    try:
        sums = sum_losses(model, batch, settings, teacher=teacher)
    finally:
        handle.remove()
    # Fused attention returns no weights, so this layer computes them again
    weights: Any = mixer.read_weights(*reads[0])
    mean = spread(weights.float().mean(1), model.encoder.poolings.values(), batch.src_mask)  # (B, T, S)
    # Weights by ReLU have no fixed sum, so that larger scores alone would lower the loss
    mean = mean / mean.sum(-1, keepdim=True).clamp_min(1e-9)
    loss = -(shares(links, batch) * mean.clamp_min(1e-9).log()).sum()
    return sums._replace(loss=sums.loss + settings.guided_alignment * loss)


def shares(links: Ragged, batch: Batch) -> Tensor:
    """Return the share of each source piece in each target piece, (B, T, S); rows sum to 1, or to 0 without links.

    Args:
        links: Row i has t * 2^32 + s for linked pieces t and s of training pair i.
    """
    found = np.zeros((*batch.tgt_out.shape, batch.src.shape[1]), np.float32)
    for row, index in enumerate(batch.index.tolist()):
        # An idle micro-batch has index -1
        if index >= 0:
            found[row, *np.divmod(links.row(index), 1 << 32)] = 1.0
    return torch.from_numpy(found / np.maximum(found.sum(-1, keepdims=True), 1.0)).to(batch.src.device)


def align_pieces(prepared: PreparedData) -> Ragged:
    """Link the pieces of the training pairs by the file `data.alignment`, or else by IBM Model 1; see `shares`.

    Raises:
        ValueError: The file does not belong to the training text, or there are no links.
    """
    file = prepared.plan.data.alignment
    origin = file_fingerprint(Path(file)) if file else f"{_PAIRS} {_ITERATIONS} {_TENSION}"
    # Rules on lengths choose the pairs
    key = hashlib.sha256(f"3 {prepared.fingerprint} {prepared.tokenizer.fingerprint} {origin}".encode())
    for _, pairs in prepared.corpora("train"):
        key.update(b"all" if pairs.rows is None else pairs.rows.data)

    def build(folder: Path) -> None:
        lengths = array("i")
        with (folder / "links.ids").open("wb") as links:
            for row in _read(prepared, file) if file else _estimated(prepared):
                links.write(row.tobytes())
                lengths.append(len(row))
        if not any(lengths):
            if file:
                raise ValueError(f"data.alignment={file} links no words of the training text")
            raise ValueError(
                "IBM Model 1 links no pieces of the training text: set data.alignment=<file> to word alignments, or "
                "optim.guided_alignment=0"
            )
        write_lengths(folder, "links", np.asarray(lengths))

    def read(folder: Path) -> Ragged:
        return map_rows(folder, "links", np.int64)

    folder = prepared.plan.cache_dir / f"alignment-{key.hexdigest()[:16]}"
    links = cached(folder, "word alignments", build=build, read=read)
    # A file aligns all of the text, and rules on lengths have chosen rows of it
    rows = prepared.corpora("train")[0][1].rows if file else None
    return links if rows is None else links.select(rows)


def _estimated(prepared: PreparedData) -> Iterator[np.ndarray]:
    """Link each target piece to argmax_s t(y_t | x_s) d(s, t), unless the empty word is more probable.

    d(s, t) = exp(-tension |s / S - t / T|) / Z, whose sum over s is 1; the empty word has 1 / S.
    A context has no links.
    """
    data, tokenizer = prepared.split("train"), prepared.tokenizer
    empty, size = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size

    def blocks(most: int) -> Iterator[tuple[list[Any], list[Any], list[int]]]:
        chosen = np.linspace(0, len(data) - 1, min(len(data), most)).astype(np.int64)
        for start in range(0, len(chosen), _BLOCK):
            sides = data.ids(chosen[start : start + _BLOCK])
            src, tgt = ([side.row(i).tolist() for i in range(len(side.lengths))] for side in sides)
            src = [[i % empty for i in row] for row in src]
            starts = [sentence_start(row, tokenizer.separator, ()) for row in src]
            yield [row[start:] for row, start in zip(src, starts, strict=True)], tgt, starts

    table = lexical_table(
        lambda: (block[:2] for block in blocks(_PAIRS)), src_size=empty, tgt_size=size, iterations=_ITERATIONS
    )
    for src, tgt, start in itertools.chain.from_iterable(zip(*block, strict=True) for block in blocks(len(data))):
        wanted = np.array([*src, empty])[:, None] * size + np.array(tgt)  # (S + 1, T)
        at = np.minimum(np.searchsorted(table.keys, wanted), len(table.keys) - 1)
        probs = np.where(table.keys[at] == wanted, table.probs[at], 0.0)
        s, t = ((np.arange(len(side)) + 0.5) / len(side) for side in (src, tgt))
        prior = np.exp(-_TENSION * np.abs(s[:, None] - t))
        scores = probs[:-1] * prior / prior.sum(0)
        linked = scores.max(0) > probs[-1] / len(src)
        yield (np.flatnonzero(linked) << 32) + start + scores.argmax(0)[linked]


def _read(prepared: PreparedData, file: str) -> Iterator[np.ndarray]:
    """Link the pieces of linked words in each row of the training text; words are the text between spaces."""
    ((part, pairs),) = prepared.corpora("train")
    kept = (pair for block in pairs.text.iter(_BLOCK) for pair in zip(block["src"], block["tgt"], strict=True))
    blocks = open_split("train", part.corpus, cache_dir=prepared.plan.cache_dir)
    raw = itertools.chain.from_iterable(zip(*block, strict=True) for block in blocks)
    row, awaited = 0, next(kept)
    for number, (pair, line) in enumerate(itertools.zip_longest(raw, read_lines(file)), 1):
        if pair is None or line is None:
            raise ValueError(
                f"data.alignment={file} has {'fewer' if line is None else 'more'} lines than the training text has "
                "pairs: align the whole text, before cleaning"
            )
        # Cleaning drops pairs, and keeps the order
        if pair != awaited:
            continue
        src, tgt = pairs.src.row(row).tolist(), pairs.tgt.row(row).tolist()
        start, first = sentence_start(src, prepared.tokenizer.separator, pairs.tags.source), len(pairs.tags.target)
        sources = words_of(source_pieces(prepared.tokenizer, src[start:-1]))
        targets = words_of(target_pieces(prepared.tokenizer, tgt[first:-1]))
        found: list[tuple[list[int], list[int]]] = []
        # Where the tokenizer has other words, a pair is not guided
        if [len(sources), len(targets)] == [len(sentence_of(text).split()) for text in pair]:
            try:
                found = [(sources[int(i)], targets[int(j)]) for i, j in (each.split("-") for each in line.split())]
            except (ValueError, IndexError):
                raise ValueError(
                    f"data.alignment={file}, line {number}: {line} does not link {len(sources)} source and "
                    f"{len(targets)} target words; write source-target from 0 for words between spaces, as in 0-0 1-2"
                ) from None
        links = [((t + first) << 32) + s + start for one, other in found for s in one for t in other]
        yield np.array(links, np.int64)
        row, awaited = row + 1, next(kept, None)
