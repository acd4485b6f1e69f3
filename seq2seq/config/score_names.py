"""Names and limits of scores that commands can ask for. Imports nothing."""

from __future__ import annotations

METRICS = ("bleu", "chrf", "chrf++", "ter")
# Those that are computed where none is named.
USUAL_METRICS = ("bleu", "chrf", "ter")
# Tokens that papers computed BLEU on before sacreBLEU.
CONVENTIONS = ("tokenized", "compound-split")
# Bootstrap resamples: of each, the number of every sentence is in memory at once.
MOST_SAMPLES = 100_000
