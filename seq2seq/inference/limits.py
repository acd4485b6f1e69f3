"""Limits of decoding that commands, training and the translator share. Imports no torch."""

from __future__ import annotations

# Pieces of a source line, its end of sentence counted; a longer line is translated in parts.
# Attention's memory grows with the square of this.
LONGEST_SOURCE = 1024
# Parts of a line that are translated: what is not text at all must not keep a machine busy for hours.
MOST_PARTS = 64
# The most that may be asked for instead.
MOST_SOURCE = 10_000
# Source pieces in a batch, padding counted.
# A GPU needs larger batches to be busy.
CPU_TOKENS = 2048
GPU_TOKENS = 8192
# Number formats that weights can be stored in.
DTYPES = ("float32", "bfloat16")
# CPU threads that may be asked for; torch ends the process when the system has no more of them.
MOST_THREADS = 1024
