"""Format a run's result as a page of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.kernels.layers import ATTENTION
from benchmarks.kernels.session import Row
from benchmarks.kernels.shapes import PASSES, Shape
from seq2seq.kernels.launch_config import Config


def report(result: dict[str, Any], makers: Mapping[str, Callable[[Any], list[str]]]) -> list[str]:
    """Format the whole page.

    Args:
        result: The results by section.
        makers: Function that formats a section's rows, by the section's name.
    """
    name = result.get("device", {}).get("name", "unknown device")
    lines = [f"# Kernels of LightConv and DynamicConv: {name}, {result['date']}, torch {torch.__version__}", ""]
    for section in makers:
        if section in result:
            lines += [f"## {section.capitalize()}", "", *makers[section](result[section])]
    for title in ("errors", "left_out", "log"):
        if result[title]:
            lines += [f"## {title.replace('_', ' ').capitalize()}", "", *(f"- {line}" for line in result[title]), ""]
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Format a Markdown table; all columns but the first are aligned to the right."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    return [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows), ""]


def number(value: float, form: str = ",.1f") -> str:
    """Format a number for a table, or a dash."""
    return f"{value:{form}}" if math.isfinite(value) else "-"


def device_lines(facts: dict[str, Any]) -> list[str]:
    """Format the description of the machine."""
    return table(("device", ""), ((k, number(v) if isinstance(v, float) else v) for k, v in facts.items()))


def timing_lines(rows: list[Row], title: str = "bf16, causal") -> list[str]:
    """Format one line per operator, direction and shape: our time, then the other ways with their ratio to ours."""
    groups: dict[tuple[str, str, Shape], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.direction, row.shape), {})[row.way] = row
    others = [way for way in dict.fromkeys(row.way for row in rows) if way != "ours"]
    # Order of the rows: forward, backward, mask, decoding step
    order = (*PASSES, "mask", "step").index
    lines = []
    for op, direction, shape in sorted(groups, key=lambda g: (g[0], order(g[1]), g[2].glu, g[2].drop, g[2])):
        found = groups[op, direction, shape]
        ours = found["ours"]
        time = number(ours.us) + (f" ({ours.error})" if ours.error else "")
        rates = (number(ours.host_us), number(ours.gb_s, ",.0f"), number(ours.roofline, ",.0f"))
        rest = [cell(found.get(way), ours.us) for way in others]
        lines.append((f"{op} {direction}, {shape}", time, *rates, *rest))
    head = (title, "ours us", "host us", "GB/s", "roofline %", *(f"{way} us" for way in others))
    return table(head, lines)


def cell(row: Row | None, ours: float) -> str:
    """Format another way's time and its ratio to ours."""
    if row is None:
        return "-"
    if not math.isfinite(row.us):
        return row.error or "-"
    ratio = f" ({row.us / ours:.1f}x)" if math.isfinite(ours) else ""
    return number(row.us) + ratio + (f", {row.error}" if row.error else "")


def layer_lines(rows: list[Row]) -> list[str]:
    """Format one line per mixer and length, with the ratio to attention and SDPA's choice."""
    # Each row is compared with attention of the same shape and mask
    base = {(row.shape, row.direction): row.us for row in rows if row.op == ATTENTION}
    lines = []
    for row in sorted(rows, key=lambda row: (row.op, row.direction, row.shape.length)):
        ratio = row.us / base.get((row.shape, row.direction), math.nan)
        times = (number(row.us / 1e3, ",.2f"), number(1e3 * row.us / row.shape.tokens), number(ratio, ",.2f"))
        name = row.op + (f" ({row.error})" if row.error else "")
        lines.append((name, row.direction == "causal", row.shape.length, row.shape.tokens, *times, row.detail or ""))
    head = ("mixer, forward + backward, bf16 autocast", "causal", "T", "tokens", "ms", "ns a token")
    return table((*head, "of attention's", "SDPA"), lines)


def tune_lines(rows: list[Row]) -> list[str]:
    """Format the default and the five best candidates of each operator and shape."""
    lines = []
    for name in dict.fromkeys(row[:2] + row[3:4] for row in rows):
        group = [row for row in rows if row[:2] + row[3:4] == name]
        # Fastest first; candidates that failed have no time
        tried = sorted((row for row in group if math.isfinite(row.us) and row.way != "default"), key=lambda row: row.us)
        failed = sum(bool(row.error) for row in group)
        for row in [row for row in group if row.way == "default"] + tried[:5]:
            notes = {"default": f"default; {len(tried)} ran, {failed} failed", "candidate": ""}
            lines.append(
                (f"{row.op} {row.direction}, {row.shape}", *row.detail, number(row.us), notes.get(row.way, row.way))
            )
    return table(("launch settings", *Config._fields, "us", ""), lines)
