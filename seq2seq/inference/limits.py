"""Limits of decoding that commands, training and the translator share. Imports no torch."""

from __future__ import annotations

# Pieces of a source line, its end of sentence counted; a longer line is translated in parts.
# Attention's memory grows with the square of this.
LONGEST_SOURCE = 1024
# A line is translated up to so many times the longest source: what is not text must not keep a machine busy for hours.
MOST_PARTS = 64
# Numbers of a table of alignment that are kept: those of two texts of hundreds of words.
MOST_WEIGHTS = 10_000
# Ways to divide a line into parts that are translated by themselves, see `LineCutter`.
SENTENCES = ("auto", "split", "keep")
# The most that may be asked for instead.
MOST_SOURCE = 10_000
# Source pieces in a batch, padding counted.
# A GPU needs larger batches to be busy.
CPU_TOKENS = 2048
GPU_TOKENS = 8192
# The most of a search on a GPU whose memory holds them.
MOST_GPU_TOKENS = 65_536
# Number formats that weights can be stored in.
DTYPES = ("float32", "bfloat16")
# CPU threads that may be asked for; torch ends the process when the system has no more of them.
MOST_THREADS = 1024


def evaluation_tokens(max_tokens: int, *, gpu: bool) -> int:
    """Return the tokens of a batch in the evaluations of a run whose micro-batches have `max_tokens`.

    Without gradients a batch needs a small part of a micro-batch's memory; a search takes as many of its rows at a time
    as memory holds.
    """
    return min(4 * max_tokens, MOST_GPU_TOKENS) if gpu else min(max_tokens, GPU_TOKENS)
