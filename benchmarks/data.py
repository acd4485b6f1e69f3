"""Measure the way from raw text to batches: seconds of preparation, padding, shapes in an epoch, batches a second.

    python -m benchmarks.data
    python -m benchmarks.data data=files data.train=corpus/train data.max_tokens=1500 --out results

It takes the settings of `python -m seq2seq.train`; mixer and model make no difference. It uses the cache of earlier
runs; `cache=<empty folder>` measures the whole preparation.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import prepare_corpora
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.run import read_settings
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule


def data_plan(config: dict[str, Any]) -> DataPlan:
    """Read the data settings of a composed run."""
    settings = read_settings(config)
    cache, seed = Path(settings.run.cache), settings.run.seed
    return DataPlan.of(settings.data, tokenizer=settings.tokenizer, seed=seed, cache_dir=cache)


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """Prepare the data, then read the first epoch once."""
    settings = data_plan(config)
    start = time.perf_counter()
    data = prepare_corpora(settings)
    module = TranslationDataModule(data)
    module.describe()
    prepared = time.perf_counter() - start
    rows, widths, tokens, count = set(), set(), 0, 0
    start = time.perf_counter()
    # This times reading alone; no model runs
    for batch in module.train_dataloader():
        # Distinct widths and shapes count, since torch.compile may specialize on them
        width = (batch.src.shape[1], batch.tgt_in.shape[1])
        rows.add((len(batch.src), *width))
        widths.add(width)
        tokens += int(batch.tgt_mask.sum())
        count += 1
    seconds = time.perf_counter() - start
    return {
        "data": config["data"]["name"],
        "direction": f"{settings.data.src}-{settings.data.tgt}",
        "pairs": data.size("train"),
        "vocabulary": [data.tokenizer.src_vocab_size, data.tokenizer.tgt_vocab_size],
        "max_tokens": module.max_tokens,
        "prepare_seconds": round(prepared, 2),
        "padding": round(module.padding_share, 4),
        "batches": count,
        "widths": len(widths),
        "shapes": len(rows),
        "epoch_seconds": round(seconds, 2),
        "batches_per_second": round(count / seconds, 1),
        "target_tokens_per_second": round(tokens / seconds),
    }


def main() -> int:
    """Print the table; with --out also write data.json."""
    parser = harness.parser_for("data", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings as of seq2seq.train")
    options = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        result = measure(resolved_settings(options.overrides))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in result.items():
        print(f"{name:<26}{value}")
    harness.write(options.out, "data", {"machine": harness.machine(), **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
