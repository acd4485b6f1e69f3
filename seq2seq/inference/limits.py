"""Limits of decoding that commands, training and the translator share. Imports no torch."""

from __future__ import annotations

# Pieces of a source, end of sentence included; a longer line is translated in parts. Attention's memory grows with the
# square of this number.
LONGEST_SOURCE = 1024
# A line is translated up to this many times the longest source: input that is not text must not take hours.
MOST_PARTS = 64
# Most numbers of an alignment table that is kept: two texts of about a hundred words each.
MOST_WEIGHTS = 10_000
# Ways to divide a line into parts that are translated separately, see `LineCutter`.
SENTENCES = ("auto", "split", "keep")
# Range of --max-len; the least has room for a piece and its end.
LEAST_SOURCE = 2
MOST_SOURCE = 10_000
# Source pieces in a batch, padding included. A GPU needs larger batches to be busy.
CPU_TOKENS = 2048
GPU_TOKENS = 8192
# Most source pieces in a batch on a GPU whose memory allows more.
MOST_GPU_TOKENS = 65_536
# Least beam of parts with terms of a glossary: the terms divide the beam.
TERMS_BEAM = 10
# Number formats that weights can be stored in.
DTYPES = ("float32", "bfloat16")
# Largest value of --threads; torch ends the process when the system runs out of threads.
MOST_THREADS = 1024


def evaluation_tokens(max_tokens: int, *, gpu: bool) -> int:
    """Return the tokens of a batch in the evaluations of a run whose micro-batches have `max_tokens`.

    Without gradients a batch needs little memory, and a search takes only as many rows as memory holds.
    """
    return min(4 * max_tokens, MOST_GPU_TOKENS) if gpu else min(max_tokens, GPU_TOKENS)
