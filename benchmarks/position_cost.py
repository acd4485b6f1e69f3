"""Measure what a token costs by its position in the translation, in CPU seconds of a beam search.

    python -m benchmarks.position_cost
    python -m benchmarks.position_cost --mixers lightconv gru --length 2000 --beam 5

Random weights; every hypothesis goes on to the last position. A mixer whose state has a constant size costs the same at
every position; attention reads all that came before.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from benchmarks import harness
from seq2seq.network.build import build_model
from seq2seq.search import Source, Specials
from seq2seq.search.running import Running, Setup
from seq2seq.search.selection import BestFirst
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.search import SearchSettings

PAD, BOS, EOS = 0, 2, 3
MIXERS = ("transformer", "lightconv", "dynamicconv", "gru", "retention", "bahdanau")


def seconds_by_position(
    mixer: str, *, length: int, parts: int, sizes: tuple[str, ...], beam: int, rows: int, vocab: int
) -> list[float]:
    """Return the mean CPU seconds of a step in each of `parts` equal parts of `length` positions."""
    settings = resolved_settings((f"mixer={mixer}", *sizes))
    torch.manual_seed(0)
    vocabulary: dict[str, Any] = {"src_vocab_size": vocab, "tgt_vocab_size": vocab, "pad_id": PAD, "joint": True}
    model = build_model({"model": settings["model"], "mixer": settings["mixer"], **vocabulary}).eval()
    how = SearchSettings(
        beam_size=beam, max_len_ratio=0.0, max_len_extra=length + 1, min_len=length, length_penalty=0.0
    )
    setup = Setup(model, Specials(BOS, EOS, PAD), how, BestFirst(EOS), torch.device("cpu"))
    running = Running(setup, [(row, Source([*[5 + row] * 24, EOS])) for row in range(rows)])
    found = []
    for _ in range(parts):
        start = time.process_time()
        for _ in range(length // parts):
            running.step()
        found.append((time.process_time() - start) / (length // parts))
    return found


def main() -> int:
    """Print the table; with --out also write position_cost.json."""
    parser = harness.parser_for("position_cost", __doc__)
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--size", nargs="+", default=["model=base"], help="settings of the model")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=32_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    step = options.length // options.parts
    head = [f"{i * step:,} to {(i + 1) * step:,}" for i in range(options.parts)]
    rows = [
        f"| milliseconds a step at positions | {' | '.join(head)} | last / first |",
        f"|---|{'--:|' * (len(head) + 1)}",
    ]
    print("\n".join(rows), flush=True)
    results = {}
    for mixer in options.mixers:
        results[mixer] = seconds_by_position(
            mixer,
            length=options.length,
            parts=options.parts,
            sizes=tuple(options.size),
            beam=options.beam,
            rows=options.rows,
            vocab=options.vocab,
        )
        cells = " | ".join(f"{1000 * value:.2f}" for value in results[mixer])
        rows.append(f"| {mixer} | {cells} | {results[mixer][-1] / results[mixer][0]:.2f} |")
        print(rows[-1], flush=True)
    result = {"machine": harness.machine(), "beam": options.beam, "rows": options.rows, "seconds": results}
    harness.write(options.out, "position_cost", result, "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
