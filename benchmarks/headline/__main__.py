"""Measure quality and speed of the four mixers in one visit to a GPU.

    python -m benchmarks.headline --prepare CORPORA --data DATA       # here: needs Hydra and SentencePiece
    python -m benchmarks.headline --data DATA --out DIR               # on the GPU: needs torch, numpy and seq2seq
    python -m benchmarks.headline --data DATA --out DIR --score       # here again, if BLEU could not be computed there

The small model of each mixer is trained on German-English for 4 minutes and translates every test set; then base and
big models are timed for 30 seconds each on batches of 27 and of 1,024 tokens a sentence. DIR/headline.json and
DIR/headline.md are written after every part. Parts that DIR has are not run again: where a command may not run for
long, --budget SECONDS starts no further part after that, and the same command continues (exit status 3). --merge
OTHER... adds the parts of other folders first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness

MIXERS = ("transformer", "lightconv", "dynamicconv", "bahdanau")
UNFINISHED = 3  # exit status when --budget has ended the command


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = harness.parser_for("headline", __doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the prepared folder")
    add("--prepare", type=Path, metavar="CORPORA", help="write it from these corpora, and stop")
    add("--vocab-size", type=int, default=8000, help="pieces, with --prepare")
    add("--tiny", action="store_true", help="with --prepare: models that a CPU can try the script with")
    add("--score", action="store_true", help="only compute BLEU of the translations that DIR has")
    add("--merge", type=Path, nargs="+", default=[], metavar="OTHER", help="folders whose parts count as done")
    add("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    add("--sections", nargs="+", choices=("quality", "speed"), default=["quality", "speed"])
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--seconds", type=float, default=240.0, help="training of a small model")
    add("--synthetic-seconds", type=float, default=30.0, help="timing of a base or big model")
    add("--lengths", type=int, nargs="+", default=[27, 1024], help="tokens a sentence of the synthetic batches")
    add("--max-tokens", type=int, default=8192, help="a batch of text: rows * longest side")
    add("--synthetic-tokens", type=int, default=16384, help="target tokens of a synthetic batch")
    add("--beam-size", type=int, default=5)
    add("--no-compile", action="store_true")
    add("--budget", type=float, default=float("inf"), help="seconds after which no further part starts")
    options = parser.parse_args(argv)
    if not options.prepare and not options.out:
        parser.error("give --out DIR for the results, or --prepare CORPORA to make the data")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, run or score, and return the exit status."""
    options = options_of(argv)
    try:
        if options.prepare:
            from benchmarks.headline.prepare import prepare

            made = prepare(options.prepare, options.data, vocab_size=options.vocab_size, tiny=options.tiny)
            print(f"{made['pairs']:,} pairs, {made['tests']}, vocabulary {made['vocab_size']}: {options.data}")
            return 0
        return run(options)
    except ValueError as error:
        print(f"headline: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Run the parts that are missing, score the translations if possible, and report."""
    from benchmarks.headline import report
    from benchmarks.headline.data import Prepared

    began = time.monotonic()
    prepared = Prepared(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    result = _earlier([*options.merge, options.out])
    started = False
    late = False
    if not options.score:
        parts = _parts(options, prepared)
        here = harness.machine(options.device)
        _require_same_device(result, here, "this machine")
        result["device"] = here
        for name, work in parts.items():
            # A part that failed is tried again
            if name in result["parts"] and "error" not in result["parts"][name]:
                continue
            # At least one part a command, or a short budget would never finish
            if started and time.monotonic() - began > options.budget:
                late = True
                break
            started = True
            result["parts"][name] = _attempt(name, work)
            report.write(result, options.out)
    # After the parts, since the GPU machine may lack the packages
    if not report.score(result, prepared):
        print("sacrebleu or sentencepiece is missing here: run again with --score where they are")
    report.write(result, options.out)
    print(report.markdown(result))
    if late:
        print("stopped by --budget; the same command continues")
        return UNFINISHED
    return int(any("error" in part for part in result["parts"].values()))


def _parts(options: argparse.Namespace, prepared: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """List the parts by name, each as a function that runs it."""
    import torch

    from benchmarks.headline.parts import Plan, quality, speed

    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device; run this on a machine with one, or try it with --device cpu")
    plan = Plan(
        device=torch.device(options.device),
        seconds=options.seconds,
        synthetic_seconds=options.synthetic_seconds,
        max_tokens=options.max_tokens,
        synthetic_tokens=options.synthetic_tokens,
        compile=not options.no_compile,
        beam_size=options.beam_size,
    )
    parts: dict[str, Callable[[], dict[str, Any]]] = {}
    if "quality" in options.sections:
        for mixer in options.mixers:
            # Default arguments bind the loop's variables at once
            parts[f"quality/{mixer}"] = lambda mixer=mixer: quality(prepared, mixer, plan, options.out)
    if "speed" in options.sections:
        for size in ("base", "big"):
            for length in options.lengths:
                for mixer in options.mixers:
                    name = f"speed/{size}/{mixer}/{length}"
                    parts[name] = lambda s=size, m=mixer, n=length: speed(prepared, s, m, n, plan)
    return parts


def _attempt(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a part and return its result; an error counts as one, so that the other parts still run."""
    print(f"{name} ...", flush=True)
    try:
        result = work()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    print(f"{name}: {result['target_tokens_per_second']:,.0f} target tokens/s, {result['steps']:,} updates", flush=True)
    return result


def _earlier(folders: list[Path]) -> dict[str, Any]:
    """Read the parts that earlier commands have run; later folders take precedence."""
    result: dict[str, Any] = {"device": {"name": "?", "torch": "?", "date": "?"}, "parts": {}}
    for folder in folders:
        path = folder / "headline.json"
        if path.is_file():
            loaded = json.loads(path.read_text(encoding="utf-8"))
            _require_same_device(result, loaded["device"], folder)
            result = {**loaded, "parts": result["parts"] | loaded["parts"]}
    return result


def _require_same_device(result: dict[str, Any], device: dict[str, Any], where: Path | str) -> None:
    """Check that a result has no figures of another device: those of one table are of one."""
    if result["parts"] and result["device"]["name"] != device["name"]:
        raise ValueError(
            f"figures of {result['device']['name']} and of {device['name']} ({where}) make no table: choose another "
            "--out or --merge"
        )


if __name__ == "__main__":
    sys.exit(main())
