"""Measure how preparation and batches grow with the corpus: memory, pairs/s, batches/s, seconds for the order.

    python -m benchmarks.data_scale --pairs 500000,5000000
    python -m benchmarks.data_scale --pairs 500000 data.num_proc=2 tokenizer.input_sentence_size=100000

For each size, text is made by a seeded generator (log-normal lengths, 25 words on average, words by Zipf's law), then
prepared by `python -m seq2seq.prepare` and read by another process, so that the peaks are theirs alone. max_rss is
that of the largest process; peak_all that of a process and its workers together, pages that they share counted once.
Both hold the pages of memory-mapped files that were touched, which the system takes back when it needs them; peak_own
does not. KEY=VALUE are settings of seq2seq.train.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness

# Pairs that are generated at a time; each block has a seed of its own.
BLOCK = 16_384
# Size of either vocabulary; rank r of a word has probability ~ 1 / r.
WORDS = 200_000
SPLITS = {"valid": 1000, "test": 1000}
GPU_TOKENS = 866_000  # target tokens/s of a base Transformer on one H200 at 40% of its peak: the goal to feed


def vocabulary(seed: int) -> np.ndarray:
    """Draw WORDS strings of letters, the frequent ones shorter."""
    rng = np.random.default_rng(seed)
    # Letters too by Zipf's law, so that subwords have something to merge
    share = 1 / np.arange(1, 27)
    sizes = np.clip(rng.poisson(2 + np.log2(np.arange(1, WORDS + 1)) / 3), 1, 20)
    letters = rng.choice(list("etaoinshrdlucmfwypvbgkjqxz"), size=sizes.sum(), p=share / share.sum())
    text, ends = "".join(letters.tolist()), np.cumsum(sizes).tolist()
    return np.array([text[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)], dtype=object)


def sentences(ranks: np.ndarray, lengths: np.ndarray, words: np.ndarray) -> bytes:
    """Join the words of these ranks to lines of `lengths` words."""
    stream = iter(words[ranks].tolist())
    return "".join(" ".join(itertools.islice(stream, n)) + "\n" for n in lengths.tolist()).encode()


def generate(folder: Path, pairs: int, seed: int = 0) -> None:
    """Write train, valid and test to `folder`; targets have the source's words, a tenth replaced or left out."""
    german, english = vocabulary(seed), vocabulary(seed + 1)
    for number, (split, size) in enumerate(({"train": pairs} | SPLITS).items()):
        with (folder / f"{split}.de").open("wb") as src, (folder / f"{split}.en").open("wb") as tgt:
            for start in range(0, size, BLOCK):
                rng = np.random.default_rng([seed, number, start])
                rows = min(BLOCK, size - start)
                # The median is e^3.1 = 22 words, the mean exp(3.1 + 0.5^2 / 2) = 25
                lengths = np.clip(np.rint(np.exp(rng.normal(3.1, 0.5, rows))), 2, 200).astype(np.int64)
                # The inverse of the distribution log r / log WORDS
                ranks = (WORDS ** rng.random(lengths.sum())).astype(np.int64) - 1
                src.write(sentences(ranks, lengths, german))
                other = rng.random(len(ranks))
                # 5% of the words become others, 5% are left out
                ranks = np.where(other < 0.05, (WORDS ** rng.random(len(ranks))).astype(np.int64) - 1, ranks)
                left = np.add.reduceat((other < 0.95).astype(np.int64), np.cumsum(lengths) - lengths)
                tgt.write(sentences(ranks[other < 0.95], left, english))


class Peak:
    """Peak memory of a process and its descendants together while the block runs, in GiB, sampled every 0.3 s."""

    def __init__(self, pid: int) -> None:
        self.pid, self.total, self.own = pid, 0.0, 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.3):  # seconds between samples
            sums = [memory(pid) for pid in [self.pid, *descendants(self.pid)]]
            self.total = max(self.total, sum(total for total, _ in sums))
            self.own = max(self.own, sum(own for _, own in sums))


def memory(pid: int) -> tuple[float, float]:
    """Return the memory of a process, and its part that is not backed by files, in GiB; shared pages count in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) / 2**20 for line in lines if line.startswith("Pss")}
    return sizes.get("Pss", 0.0), sizes.get("Pss_Anon", 0.0)


def descendants(pid: int) -> list[int]:
    """List the processes below `pid`."""
    try:
        children = [
            int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [process for child in children for process in (child, *descendants(child))]


def run(command: list[str]) -> dict[str, Any]:
    """Run a child, and return the results that it prints, its wall and CPU seconds, and its peaks in GiB."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with Peak(child.pid) as peak:
        output = child.stdout.read()
        # wait4 returns the usage of this child; `resource` would have the maximum of all children
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output}")
    last = output.strip().splitlines()[-1]
    # `prepare` logs a line for each stage, `--read` prints JSON at the end
    stages = re.findall(r"^made (.+) in ([\d.]+) s$", output, flags=re.MULTILINE)
    result = json.loads(last) if last.startswith("{") else {name: float(seconds) for name, seconds in stages}
    return result | {
        "seconds": time.perf_counter() - start,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss": usage.ru_maxrss / 2**20,  # of one process: itself, or the largest that it waited for
        "peak": peak.total,
        "own": peak.own,
    }


def read(overrides: list[str], most: int) -> None:
    """Time the order of an epoch, then `most` batches with 0 and with 2 workers, and print JSON; runs in a child."""
    from benchmarks.data import data_plan
    from seq2seq.data.batching import token_batches
    from seq2seq.data.preparation import prepare_corpora
    from seq2seq.settings.compose import resolved_settings
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

    result: dict[str, Any] = {}
    for workers in (0, 2):
        prepared = prepare_corpora(data_plan(resolved_settings([*overrides, f"data.num_workers={workers}"])))
        data = TranslationDataModule(prepared)
        data.describe()
        if not workers:
            split = prepared.split("train")
            start = time.perf_counter()
            token_batches(split.src_lengths, split.tgt_lengths, max_tokens=data.max_tokens, seed=1, epoch=1)
            result["order"] = time.perf_counter() - start
        # The first batch comes when the workers have started, which an epoch does once
        batches = iter(data.train_dataloader())
        next(batches)
        tokens = count = 0
        start = time.perf_counter()
        for batch in itertools.islice(batches, most):
            tokens += batch.tgt_mask.numel() - int((~batch.tgt_mask).sum())
            count += 1
        seconds = time.perf_counter() - start
        result |= {f"batches_{workers}": count / seconds, f"tokens_{workers}": tokens / seconds}
        # Ends the workers before those of the next round start
        del batches
    result |= {"batches": data.batches_per_epoch, "kept": prepared.size("train"), "padding": data.padding_share}
    print(json.dumps(result))


def measure(pairs: int, overrides: list[str], most: int) -> dict[str, Any]:
    """Generate, prepare and read a corpus of `pairs` pairs."""
    with tempfile.TemporaryDirectory(prefix="data-scale-") as name:
        folder = Path(name)
        start = time.perf_counter()
        generate(folder, pairs)
        made = time.perf_counter() - start
        text = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
        settings = ["data=files", f"cache={folder / 'cache'}", "data.max_tokens=4096"]
        settings += [f"data.{split}={folder / split}" for split in ("train", *SPLITS)] + overrides
        prepared = run([sys.executable, "-m", "seq2seq.prepare", *settings])
        cache = sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()) / 1e9
        read = run([sys.executable, "-m", "benchmarks.data_scale", "--read", "--batches", str(most), *settings])
    return {
        "pairs": pairs,
        "text_gb": round(text, 2),
        "cache_gb": round(cache, 2),
        "generate_seconds": round(made, 1),
        "prepare_seconds": round(prepared["seconds"], 1),
        "prepare_cpu_seconds": round(prepared["cpu"], 1),
        "of_that_cleaning": prepared["the corpus"],
        "of_that_tokenizer": prepared["the tokenizer"],
        "of_that_encoding": prepared["the ids of train"],
        "prepare_pairs_per_second": round(pairs / prepared["seconds"]),
        "prepare_max_rss_gib": round(prepared["rss"], 2),
        "prepare_peak_all_gib": round(prepared["peak"], 2),
        "prepare_peak_own_gib": round(prepared["own"], 2),
        "kept_pairs": read["kept"],
        "batches_per_epoch": read["batches"],
        "padding": round(read["padding"], 4),
        "order_seconds": round(read["order"], 2),
        "read_max_rss_gib": round(read["rss"], 2),
        "read_peak_all_gib": round(read["peak"], 2),
        "read_peak_own_gib": round(read["own"], 2),
        **{f"batches_per_second_{n}_workers": round(read[f"batches_{n}"], 1) for n in (0, 2)},
        **{f"target_tokens_per_second_{n}_workers": round(read[f"tokens_{n}"]) for n in (0, 2)},
        **{f"times_gpu_goal_{n}_workers": round(read[f"tokens_{n}"] / GPU_TOKENS, 2) for n in (0, 2)},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Format a row per figure, a column per size."""
    lines = [f"{'':<36}" + "".join(f"{row['pairs']:>14,}" for row in results)]
    for name in list(results[0])[1:]:
        lines.append(f"{name:<36}" + "".join(f"{row[name]:>14,}" for row in results))
    return "\n".join(lines)


def main() -> int:
    """Print the table; with --out also write data_scale.json."""
    parser = harness.parser_for("data_scale", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings as of seq2seq.train")
    parser.add_argument("--pairs", default="500000,5000000", metavar="N,...", help="sizes (default %(default)s)")
    parser.add_argument("--batches", type=int, default=5000, metavar="N", help="batches to read (default %(default)s)")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.read:
        read(options.overrides, options.batches)
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = [measure(pairs, options.overrides, options.batches) for pairs in map(int, options.pairs.split(","))]
    print(table(results))
    harness.write(options.out, "data_scale", {"machine": harness.machine(), "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
