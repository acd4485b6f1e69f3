"""The page of verdicts: results of a visit in under 10,000 characters, and the missing parts with reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.goals import goals
from benchmarks.gpu.plan import parts_of
from benchmarks.gpu.records import DONE, Results

LONGEST = 9_900


def page(results: Results) -> str:
    """Format the page; empty sections say that they did not run."""
    sections: list[tuple[str, Callable[[Results], Iterator[str]]]] = [
        ("Goals", _goals),
        ("Parts that are not done", _missing),
        ("Correct?", _correct),
        ("Fast?", _fast),
        ("Training command", _commands),
        ("Attention", _attention),
        ("Dropout, sum and norm of a sublayer", _norms),
        ("Marian, translate, fifteen runs", _comparisons),
        ("Launch settings", _tuned),
    ]
    blocks = ["\n".join(_head(results))]
    for title, lines in sections:
        found = list(lines(results)) or ["- did not run"]
        blocks.append("\n".join([f"## {title}", "", *found]))
    return _shortened(blocks)


def _shortened(blocks: list[str]) -> str:
    """Join the blocks; if the page is too long, drop the last lines of the longest blocks, but keep head and goals."""
    while len(text := "\n\n".join(blocks) + "\n") > LONGEST:
        longest = max(range(2, len(blocks)), key=lambda number: len(blocks[number]))
        lines = blocks[longest].removesuffix("\n- ...").split("\n")
        blocks[longest] = "\n".join([*lines[:-1], "- ..."])
    return text


def number(value: Any, form: str = ",.0f") -> str:
    """Format a number, or a dash."""
    return f"{value:{form}}" if isinstance(value, int | float) and math.isfinite(value) else "-"


def _head(results: Results) -> Iterator[str]:
    facts = results.result("machine")
    names = {name: results.state(name) for name in (part.name for part in parts_of("cuda"))}
    done = sum(state == DONE for state in names.values())
    yield f"# A visit to {facts.get('name', 'an unknown machine')}, {facts.get('date', results.data['began'])}"
    yield ""
    versions = {key: value for key, value in facts.get("packages", {}).items() if value}
    shown = ", ".join(f"{key} {versions[key]}" for key in ("triton", "numpy", "lightning") if key in versions)
    lacking = [key for key, value in facts.get("packages", {}).items() if not value]
    seconds = ", ".join(number(took) for took in results.data["visits"])
    yield f"- torch {facts.get('torch', '?')}, {shown}; missing: {', '.join(lacking) or 'nothing'}"
    yield f"- {done} of {len(names)} parts done; seconds of the visits: {seconds or '-'}"
    if results.data.get("device") == "cpu":
        yield "- **A rehearsal on a CPU with tiny sizes: no figure means anything.**"


def _goals(results: Results) -> Iterator[str]:
    yield "| goal | found | verdict | floor; stretch |"
    yield "|---|--:|---|--:|"
    for goal in goals(results):
        yield f"| {goal.name} | {goal.found} | {goal.verdict} | {goal.limits} |"


def _missing(results: Results) -> Iterator[str]:
    # Parts with the same reason share a line
    reasons: dict[str, list[str]] = {}
    for part in parts_of("cuda"):
        record = results.parts.get(part.name, {})
        if record.get("state") != DONE:
            reason = f"{record.get('state') or 'did not run'}: {_cell(record.get('error') or 'no time was left')[:160]}"
            reasons.setdefault(reason, []).append(part.name)
    for reason, names in reasons.items():
        yield f"- {', '.join(names)}: {reason}"
    if not reasons:
        yield "- none"


def _correct(results: Results) -> Iterator[str]:
    kernels = results.result("kernels")
    for error in kernels.get("errors", [])[:5]:
        yield f"  - {_cell(error)[:180]}"
    if kernels.get("left_out"):
        yield f"- left out for lack of time: {len(kernels['left_out'])}, such as {_cell(kernels['left_out'][0])[:100]}"
    for name in (f"pytest/{suite}" for suite in ("replay", "fused", "gpu", "kernels")):
        found = results.result(name)
        if "passed" in found:
            yield f"- {name}: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"
            for failure in found["failures"][:6]:
                yield f"  - {_cell(failure)[:200]}"


def _fast(results: Results) -> Iterator[str]:
    kernels = results.result("kernels")
    if "device" in kernels:
        facts = kernels["device"]
        copy, product = facts.get("copy_gb_s"), facts.get("matmul_bf16_tflop_s")
        yield f"- copy {number(copy)} GB/s, bf16 product {number(product)} TFLOP/s; % = of the roofline at that copy"
    rows = [row for row in kernels.get("timings", []) if row["way"] == "ours" and row["us"]]
    if rows:
        yield "- us (%), forward; backward:"
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        shape = row["shape"]
        extra = (f" drop {shape['drop']}" if shape["drop"] else "") + (" GLU" if shape["glu"] else "")
        key = row["op"], f"T {shape['length']} K {shape['taps']}{extra}"
        cell = f"{number(row['us'])} ({number(row['roofline'])}%)"
        pairs.setdefault(key, {})[row["direction"]] = cell + (" WRONG" if row["error"] else "")
    for (op, shape), cells in pairs.items():
        yield f"  - {op} {shape}: " + "; ".join(
            f"{way} {cell}" if way == "mask" else cell for way, cell in cells.items()
        )
    layers = [row for row in kernels.get("layers", []) if row["us"] and row["direction"] == "causal"]
    if layers:
        yield "- whole causal layers, forward + backward, ns a token:"
    for op in dict.fromkeys(row["op"] for row in layers):
        costs = [
            f"T {row['shape']['length']} {number(1e3 * row['us'] / (row['shape']['batch'] * row['shape']['length']))}"
            for row in layers
            if row["op"] == op
        ]
        yield f"  - {op}: {', '.join(costs)}"


def _commands(results: Results) -> Iterator[str]:
    found = [(name, results.result(name)) for name in results.parts if name.startswith("command/")]
    rows = [(name, one) for name, one in found if "rates" in one]
    if rows:
        yield "| mixer, tokens | updates | first, s | tokens/s, later half | BLEU | over the limit, s | test, s |"
        yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, one in rows:
        keys = (
            "steps",
            "start_seconds",
            "target_tokens_per_second",
            "test bleu",
            "seconds_over_budget",
            "test_seconds",
        )
        steps, start, rate, bleu, over, test = (one.get(key) for key in keys)
        cells = [
            " ".join(name.split("/")[1:]),
            number(steps if steps is not None else one["updates so far"]),
            number(start, ".1f"),
            f"{number(rate)}, {number(one['later tokens/s'])}",
            number(bleu, ".1f"),
            f"{number(over, '.1f')} of {number(one.get('max_time'))}",
            number(test, ".1f"),
        ]
        yield f"| {' | '.join(cells)} |"


def _attention(results: Results) -> Iterator[str]:
    for shape, ways in results.result("attention").items():
        if shape != "part":
            times = [
                f"{way} {number(one['forward us'])}, {number(one['both us'])} ({number(one.get('GB/s'))})"
                if isinstance(one, dict)
                else f"{way} -"
                for way, one in ways.items()
            ]
            yield f"- {shape}, us forward, both (GB/s): {'; '.join(times)}"


def _norms(results: Results) -> Iterator[str]:
    copy = results.result("kernels").get("device", {}).get("copy_gb_s")
    for shape, found in results.result("norm").items():
        if isinstance(found, str) and shape != "part":
            yield f"- {shape}: **FAILED**, {found}"
        elif shape != "part":
            times = [
                f"{way} {number(found[way]['forward us'])}, {number(found[way]['both us'])}" for way in found["ways"]
            ]
            rates = [found["kernel"][f"{part} GB/s"] for part in ("forward", "both")]
            shares = ", ".join(
                f"{number(rate)}" + (f" ({rate / copy:.0%} of a copy)" if copy else "") for rate in rates
            )
            wrong = "" if found["error"] < found["limit"] else f", **WRONG: {found['error']:.1g}**"
            yield f"- {shape}, us forward, both: {'; '.join(times)}; the kernel's GB/s {shares}{wrong}"


def _comparisons(results: Results) -> Iterator[str]:
    for way, one in results.result("marian").items():
        if way != "part":
            shown = ", ".join(f"{key} {value}" for key, value in one.items()) if isinstance(one, dict) else one
            yield f"- Marian, {way}: {_cell(shown)[:160]}"
    for part in ("translate", "fifteen"):
        if found := {key: value for key, value in results.result(part).items() if key != "part"}:
            yield f"- {part}: " + ", ".join(f"{key} {value}" for key, value in found.items())


def _tuned(results: Results) -> Iterator[str]:
    rows = results.result("tune").get("tune", [])
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["us"] and not row["error"]:
            groups.setdefault((row["op"], row["direction"], str(row["shape"])), []).append(row)
    for group, mine in groups.items():
        default = [row for row in mine if row["way"] == "default"]
        others = sorted((row for row in mine if row["way"] != "default"), key=lambda row: row["us"])
        if default and others:
            best, shape = others[0], default[0]["shape"]
            settings = ", ".join(f"{name} {value}" for name, value in best["detail"].items())
            times = f"{number(default[0]['us'], '.1f')} us by default, {number(best['us'], '.1f')} with {settings}"
            yield f"- {group[0]} {group[1]} T {shape['length']} K {shape['taps']}: {times}"


def _cell(text: str) -> str:
    """Return one line that a table can hold."""
    return " ".join(str(text).split()).replace("|", "/")
