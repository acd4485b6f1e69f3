"""The goals of benchmarks/README.md with the results of a visit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.gpu.plan import MIXERS
from benchmarks.gpu.records import Results
from benchmarks.kernels.shapes import FLOORS

# Target tokens/s of the training command, base, by tokens an update: floor, and stretch of the Transformer. 866,000 are
# 40% of 790 TFLOP/s.
_COMMAND = {"16384": (400_000, 700_000), "65536": (560_000, 866_000)}
# Stretch of other mixers, as a share of the Transformer's rate.
_SHARE = 0.95
_BIG = (249_000, 290_000)
# Floor and stretch, in microseconds, of both passes of attention at 585 x 8 x 28 x 28 x 64: the time before the
# one-tile kernels, and the time at 75% of the copy bandwidth; the whole bandwidth would allow 65.
_SHORT_ROWS, _SHORT_US = "B 585 T 28 S 28", (208, 87)
# Stretch goals of DynamicConv at T 1,024, in percent of the roofline.
_STRETCH = {("forward", 1024): 85, ("backward", 1024): 70}


class Goal(NamedTuple):
    """Goal with its result, verdict and limits.

    Attributes:
        verdict: `met`, `met, stretch too`, `**missed**` or `unmeasured`.
        limits: Floor and stretch of a number.
    """

    name: str
    found: str
    verdict: str
    limits: str = ""


def _judged(
    name: str,
    value: float | None,
    floor: float,
    form: str,
    *,
    stretch: float | None = None,
    smaller: bool = False,
    note: str = "",
) -> Goal:
    """Judge a value.

    Args:
        form: How values are formatted.
        smaller: Smaller values are better.
        note: An additional result, or the reason for a missing value.
    """

    def reaches(found: float, limit: float) -> bool:
        return found <= limit if smaller else found >= limit

    limits = format(floor, form) if stretch is None else f"{floor:{form}}; {stretch:{form}}"
    if value is None:
        return Goal(name, "-", f"unmeasured{note and f': {note}'}", limits)
    verdict = "met" if reaches(value, floor) else "**missed**"
    verdict += ", stretch too" if verdict == "met" and stretch is not None and reaches(value, stretch) else ""
    return Goal(name, f"{value:{form}}{note and f' ({note})'}", verdict, limits)


def goals(results: Results) -> Iterator[Goal]:
    """Judge all goals, the command's first."""
    yield from _command_rates(results)
    yield from _starts(results)
    yield from _as_many_updates(results)
    yield _over_marian(results)
    yield _translation(results)
    yield _side_by_side(results)
    yield _tests_pass(results)
    yield _right(results)
    yield from _new_kernels(results)
    timings = results.result("kernels").get("timings", [])
    # Shares of DynamicConv with 31 taps; rows have percentages
    for (direction, length), floor in FLOORS.items():
        row = _timing(timings, length, direction, "ours")
        name = f"DynamicConv {direction}, T {length}: {floor:.0%} of the roofline"
        yield _judged(
            name,
            row["roofline"] if row else None,
            round(100 * floor),
            ".0f",
            stretch=_STRETCH.get((direction, length)),
        )
    yield _judged("5 times as fast as fairseq's kernel, forward", _over_fairseq(timings), 5, ".1f")
    layers = results.result("kernels").get("layers", [])
    yield _judged("attention layer over DynamicConv layer, T 1,024: 1", _layer_ratio(layers), 1, ".2f")
    yield _judged("layer's cost a token, T 64 over T 16,384: 0.8", _flatness(layers), 0.8, ".2f")
    yield _limit_kept(results)
    yield _no_memory_error(results)


def _tests_pass(results: Results) -> Goal:
    """Judge the tests of captured passes and of fused kernels."""
    name, parts = "tests of replay and of fused kernels pass", ("pytest/replay", "pytest/fused")
    counts = [one for one in map(results.result, parts) if one.get("passed") or one.get("failed")]
    if not counts:
        return Goal(name, "-", "unmeasured")
    failed, passed = (sum(one[key] for one in counts) for key in ("failed", "passed"))
    whole = all(results.state(part) == "done" for part in parts)
    verdict = "**missed**" if failed else "met" if whole else "met so far"
    return Goal(name, f"{failed} of {failed + passed} failed", verdict)


def _right(results: Results) -> Goal:
    kernels, tests = results.result("kernels"), results.result("pytest/kernels")
    gpu_tests = results.result("pytest/gpu")
    # Calls are compared with the torch path when they are timed
    untrue = sum(row["error"].startswith("differs") for row in kernels.get("timings", []))
    if "passed" not in tests and not untrue:
        return Goal("all kernels right", "-", "unmeasured")
    failed = tests.get("failed", 0) + gpu_tests.get("failed", 0)
    wrong = failed + untrue
    checked = failed + sum(found.get("passed", 0) for found in (tests, gpu_tests)) + untrue
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


def _commands(results: Results) -> dict[str, dict[str, Any]]:
    """Return the results of the training command, by part, for the runs that ended."""
    found = {name: results.result(name) for name in results.parts if name.startswith("command/")}
    return {name: one for name, one in found.items() if one.get("steps")}


def _command_rates(results: Results) -> Iterator[Goal]:
    """Judge the mean rates that the command reports; note the rate of the later half, after all captures."""
    found = _commands(results)

    def judged(words: str, floor: float, stretch: float | None) -> Goal:
        one = found.get(f"command/{words}", {})
        note = f"later half {one['later tokens/s']:,}" if "later tokens/s" in one else ""
        rate = one.get("target_tokens_per_second")
        return _judged(f"command {words}: tokens/s", rate, floor, ",.0f", stretch=stretch, note=note)

    for tokens, (floor, stretch) in _COMMAND.items():
        attention = found.get(f"command/transformer/{tokens}", {}).get("target_tokens_per_second")
        yield judged(f"transformer/{tokens}", floor, stretch)
        for mixer in ("dynamicconv", "lightconv"):
            yield judged(f"{mixer}/{tokens}", floor, attention and _SHARE * attention)
    yield judged("transformer/32768/big", *_BIG)


def _starts(results: Results) -> Iterator[Goal]:
    """Judge the seconds to update 100, including the compilation of kernels before the clock starts."""
    for mixer in ("transformer", "dynamicconv"):
        one = results.result(f"command/{mixer}/16384")
        trained, compiled = one.get("update 100 s"), one.get("compiled s", 0.0)
        value = None if trained is None else trained + compiled
        note = f"kernels {compiled:.1f}" if value else ""
        name = f"base {mixer}, cold: seconds to update 100"
        yield _judged(name, value, 15, ".1f", stretch=8, smaller=True, note=note)


def _as_many_updates(results: Results) -> Iterator[Goal]:
    """Judge the updates of a minute against runs without captures."""
    for mixer in MIXERS:
        runs = [results.result(f"command/{mixer}/16384{way}") for way in ("", "/eager")]
        counts = [(one["updates in 60 s"], one["of which measured"]) for one in runs if "updates in 60 s" in one]
        value = counts[0][0] / counts[1][0] if len(counts) == len(runs) else None
        note = " : ".join(f"{count:,}, {share:.0%} measured" for count, share in counts)
        # Hosts are shared: repeated runs differ by a few percent
        name = f"updates in 60 s over trainer.graphs=false: {mixer}"
        yield _judged(name, value, 0.98, ".2f", stretch=1.8, note=note)


def _over_marian(results: Results) -> Goal:
    own = results.result("command/transformer/16384").get("target_tokens_per_second")
    found = results.result("marian")
    rates = {
        way: one["target_tokens_per_second"]
        for way, one in found.items()
        if isinstance(one, dict) and "target_tokens_per_second" in one
    }
    best = max(rates, key=lambda way: rates[way], default=None)
    note = f"{found['missing']} missing" if "missing" in found else f"{best} {rates[best]:,}" if best else ""
    value = own / rates[best] if own and best else None
    return _judged("command transformer/16384 over Marian", value, 1.5, ".2f", stretch=3, note=note)


def _translation(results: Results) -> Goal:
    found = results.result("translate")
    note = f"again {found['again s']:.2f}" if "again s" in found else ""
    name = "translate, base, 3,000 sentences of 27, beam 5: seconds"
    return _judged(name, found.get("first s"), 2, ".2f", stretch=1, smaller=True, note=note)


def _side_by_side(results: Results) -> Goal:
    found = results.result("fifteen")
    note = f"{found['ended']} of {found['runs']} ended, {found['epochs']} epochs, scaled" if "runs" in found else ""
    name = "fifteen small runs, 25 epochs: minutes"
    return _judged(name, found.get("minutes"), 4.6, ".1f", stretch=2.5, smaller=True, note=note)


def _new_kernels(results: Results) -> Iterator[Goal]:
    """Judge attention of short rows with a mask, and the kernel of norms by its share of a copy's rate."""
    ours = results.result("attention").get(_SHORT_ROWS, {}).get("one tile, mask")
    name, (most, stretch) = f"attention, both passes, {_SHORT_ROWS}: us", _SHORT_US
    yield _judged(name, ours["both us"] if isinstance(ours, dict) else None, most, ".0f", stretch=stretch, smaller=True)
    copy = results.result("kernels").get("device", {}).get("copy_gb_s")
    rows = [row for shape, row in results.result("norm").items() if shape != "part" and copy]
    # A row that failed is no dict
    rows = [row["kernel"] for row in rows] if all(isinstance(row, dict) for row in rows) else []
    for passes, what in (("forward", "forward"), ("both", "both passes")):
        least = min((100 * row[f"{passes} GB/s"] / copy for row in rows), default=None)
        yield _judged(f"residual_norm, {what}: % of the copy bandwidth", least, 75, ".0f")


def _limit_kept(results: Results) -> Goal:
    name, found = "the limit of time is kept within max(3 s, 3%)", _commands(results)
    over = {one: found[one]["seconds_over_budget"] - max(3.0, 0.03 * found[one]["max_time"]) for one in found}
    if not over:
        return Goal(name, "-", "unmeasured")
    worst = max(over, key=lambda one: over[one])
    verdict = "met" if over[worst] <= 0 else "**missed**"
    return Goal(name, f"{worst}: {found[worst]['seconds_over_budget']:.1f} s over", verdict)


def _no_memory_error(results: Results) -> Goal:
    part, name = "command/dynamicconv/auto", "a run with max_tokens=auto ends well"
    state = results.state(part)
    lacks = "ModuleNotFoundError" in results.parts.get(part, {}).get("error", "")
    if state not in ("done", "failed") or lacks:
        return Goal(name, "-", "unmeasured")
    found = results.result(part).get("max_tokens")
    return Goal(name, f"max_tokens {found}", "met" if state == "done" else "**missed**")
