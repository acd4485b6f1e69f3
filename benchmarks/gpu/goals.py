"""The goals of benchmarks/README.md, each with what a visit has found."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.gpu.records import Results
from benchmarks.kernels.shapes import FLOORS

# Target tokens/s of a Transformer at 27 tokens a sentence: 40% of 790 TFLOP/s.
_TOKENS = {"base": 866_000, "big": 249_000}
# Least rate of big DynamicConv over that of big Transformer, by length.
_RATIO = {27: 0.95, 1024: 1.2}


class Goal(NamedTuple):
    """Goal, what was found, and a verdict: met, missed, or not measured."""

    name: str
    found: str
    verdict: str


def _judged(name: str, value: float | None, least: float, form: str) -> Goal:
    if value is None:
        return Goal(name, "-", "not measured")
    return Goal(name, format(value, form), "met" if value >= least else "**missed**")


def goals(results: Results) -> Iterator[Goal]:
    """Judge all goals."""
    yield _right(results)
    timings = results.result("kernels").get("timings", [])
    # Of DynamicConv with 31 taps; rows have per cent
    for (direction, length), floor in FLOORS.items():
        row = _timing(timings, length, direction, "ours")
        name = f"DynamicConv {direction}, T {length}: {floor:.0%} of the roofline"
        yield _judged(name, row["roofline"] if row else None, round(100 * floor), ".0f")
    yield _judged("5 times as fast as fairseq's kernel, forward", _over_fairseq(timings), 5, ".1f")
    layers = results.result("kernels").get("layers", [])
    yield _judged("attention layer over DynamicConv layer, T 1,024: 1", _layer_ratio(layers), 1, ".2f")
    yield _judged("layer's cost a token, T 64 over T 16,384: 0.8", _flatness(layers), 0.8, ".2f")
    for size, least in _TOKENS.items():
        yield _judged(f"Transformer {size}: {least:,} tokens/s", _rate(results, size, "transformer", 27), least, ",.0f")
    for length, least in _RATIO.items():
        conv, attention = (_rate(results, "big", mixer, length) for mixer in ("dynamicconv", "transformer"))
        ratio = conv / attention if conv and attention else None
        yield _judged(f"big DynamicConv over Transformer, T {length}: {least}", ratio, least, ".2f")
    yield _same_gradients(results)
    yield from _compilation(results)
    yield from _as_many_updates(results)
    yield _limit_kept(results)
    yield _no_memory_error(results)


def _right(results: Results) -> Goal:
    kernels, tests = results.result("kernels"), results.result("pytest/kernels")
    gpu_tests = results.result("pytest/gpu")
    if "checked" not in kernels and "passed" not in tests:
        return Goal("all kernels right", "-", "not measured")
    failed = tests.get("failed", 0) + gpu_tests.get("failed", 0)
    # A call that is timed is compared first
    untrue = sum(row["error"].startswith("differs") for row in kernels.get("timings", []))
    wrong = len(kernels.get("wrong", [])) + failed + untrue
    checked = kernels.get("checked", 0) + failed + sum(found.get("passed", 0) for found in (tests, gpu_tests)) + untrue
    whole = all(results.state(part) == "done" for part in ("kernels", "pytest/kernels", "pytest/gpu"))
    verdict = "**missed**" if wrong or not checked else "met" if whole else "met so far"
    return Goal("all kernels right", f"{wrong} of {checked} wrong", verdict)


def _timing(rows: list[dict[str, Any]], length: int, direction: str, way: str) -> dict[str, Any] | None:
    for row in rows:
        shape = row["shape"]
        plain = shape["taps"] == 31 and not shape["drop"] and not shape["glu"]
        asked = ("dynamicconv", direction, way, length)
        if plain and (row["op"], row["direction"], row["way"], shape["length"]) == asked and not row["error"]:
            return row
    return None


def _over_fairseq(rows: list[dict[str, Any]]) -> float | None:
    ours, theirs = (_timing(rows, 1024, "forward", way) for way in ("ours", "fairseq kernel"))
    return theirs["us"] / ours["us"] if ours and theirs else None


def _cost(rows: list[dict[str, Any]], op: str, length: int) -> float | None:
    """Return a causal layer's nanoseconds a token."""
    for row in rows:
        shape = row["shape"]
        if (row["op"], row["direction"], shape["length"]) == (op, "causal", length) and row["us"] and not row["error"]:
            return 1e3 * row["us"] / (shape["batch"] * shape["length"])
    return None


def _layer_ratio(rows: list[dict[str, Any]]) -> float | None:
    attention, conv = (_cost(rows, op, 1024) for op in ("attention", "dynamicconv"))
    return attention / conv if attention and conv else None


def _flatness(rows: list[dict[str, Any]]) -> float | None:
    short, long = (_cost(rows, "dynamicconv", length) for length in (64, 16384))
    return short / long if short and long else None


def _rate(results: Results, size: str, mixer: str, length: int) -> float | None:
    """Return the best target tokens/s at 16k tokens, eager, replayed or compiled."""
    model, compiled = f"{size}/{mixer}", results.result(f"compiled/{size}/{mixer}")
    ways = [results.result("eager").get(model, {}).get(f"16384 x {length}"), compiled.get(f"length {length}")]
    ways += [one for one in (results.result("replay").get(model), compiled.get("replayed")) if _of_length(one, length)]
    return max(
        (way["target_tokens_per_second"] for way in ways if way and "target_tokens_per_second" in way), default=None
    )


def _of_length(one: dict[str, Any] | None, length: int) -> bool:
    return one is not None and one.get("length") == length


def _same_gradients(results: Results) -> Goal:
    """Judge the bits of replayed gradients; two plain passes may differ, too, where the GPU adds in any order."""
    name = "replayed gradients have the same bits"
    rows = [one for one in results.result("replay").values() if isinstance(one, dict) and "same" in one]
    if not rows:
        return Goal(name, "-", "not measured")
    good = [one for one in rows if one["seeds differ"] and all(map(operator.ge, one["same"], one["plain twice"]))]
    return Goal(name, f"{len(good)} of {len(rows)} models", "met" if len(good) == len(rows) else "**missed**")


def _commands(results: Results) -> dict[str, dict[str, Any]]:
    """Return what the training command found, by part, if its run ended."""
    found = {name: results.result(name) for name in results.parts if name.startswith("command/")}
    return {name: one for name, one in found.items() if one.get("steps")}


def _as_many_updates(results: Results) -> Iterator[Goal]:
    """Judge the default's updates in the same time by those of uncompiled runs."""
    name, found = "no fewer updates than eager, 16k tokens", _commands(results)
    pairs = {one.split("/")[1]: (found.get(one.removesuffix("/eager")), found[one]) for one in found if "/eager" in one}
    shares = {mixer: own["steps"] / eager["steps"] for mixer, (own, eager) in pairs.items() if own}
    if not shares:
        yield Goal(name, "-", "not measured")
    for mixer, share in shares.items():
        # Hosts are shared: the same run differs by some per cent
        yield Goal(f"{name}: {mixer}", f"{share:.2f}", "met" if share >= 0.98 else "**missed**")


def _limit_kept(results: Results) -> Goal:
    name, found = "the limit of time is kept within max(3 s, 3%)", _commands(results)
    over = {one: found[one]["seconds_over_budget"] - max(3.0, 0.03 * found[one]["max_time"]) for one in found}
    if not over:
        return Goal(name, "-", "not measured")
    worst = max(over, key=lambda one: over[one])
    verdict = "met" if over[worst] <= 0 else "**missed**"
    return Goal(name, f"{worst}: {found[worst]['seconds_over_budget']:.1f} s over", verdict)


def _compilation(results: Results) -> Iterator[Goal]:
    """Judge the compilation of the steps that ran: it works, without breaks, and repeated shapes compile nothing."""
    for mixer in ("transformer", "dynamicconv"):
        name = f"base {mixer} compiles; no break, nothing anew for shapes seen before"
        found = results.result(f"compiled/base/{mixer}")
        if found.get("error"):
            yield Goal(name, "does not compile", "**missed**")
        elif "before" not in (counts := found.get("graphs") or {}):
            yield Goal(name, "-", "not measured")
        else:
            anew = counts["training again"] - counts["training"] + counts["validation again"] - counts["validation"]
            good = not anew and not found["breaks"] and not found["limit"]
            shown = f"{counts['validation again']} graphs, {found['breaks']} breaks, {anew} anew"
            yield Goal(name, shown, "met" if good else "**missed**")


def _no_memory_error(results: Results) -> Goal:
    part, name = "command/dynamicconv/auto", "a run with max_tokens=auto ends well"
    state = results.state(part)
    lacks = "ModuleNotFoundError" in results.parts.get(part, {}).get("error", "")
    if state not in ("done", "failed") or lacks:
        return Goal(name, "-", "not measured")
    found = results.result(part).get("max_tokens")
    return Goal(name, f"max_tokens {found}", "met" if state == "done" else "**missed**")
