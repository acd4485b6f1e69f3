"""Names of scores that commands can ask for. Imports nothing."""

from __future__ import annotations

METRICS = ("bleu", "chrf", "ter")
# Tokens that papers computed BLEU on before sacreBLEU.
CONVENTIONS = ("tokenized", "compound-split")
