"""Print reports of scores as text."""

from __future__ import annotations

from typing import Any


def report_text(report: dict[str, Any]) -> str:
    """Format a report of `score_file`, `compare_systems` or `score_checkpoint`."""
    # The keys of a report say which command made it
    if "comparison" in report:
        return _comparison(report)
    head = ""
    if "checkpoint" in report:
        head = "{data} {split}, {direction}: {lines:,} sentences in {seconds} s, beam {beam_size}\n".format(**report)
    # Of a score of 100.00, 6 columns
    width = max(6, *(len(s["name"]) for s in report["scores"]))
    rows = [f"{s['name']:<{width}} {s['value']:6.2f}  {s['signature']}" for s in report["scores"]]
    return head + "\n".join(rows)


def _comparison(report: dict[str, Any]) -> str:
    """Format one block for each metric: system, score, mean and 95% interval of the resamples, and p."""
    # Names of systems are paths of any length: align to the longest
    width = max(len(row["system"]) for row in report["comparison"])
    lines = []
    # dict.fromkeys keeps the order of the metrics and drops repetitions
    for name in dict.fromkeys(row["name"] for row in report["comparison"]):
        rows = [row for row in report["comparison"] if row["name"] == name]
        lines.append(f"{name}  {rows[0]['signature']}")
        lines += [f"  {row['system']:<{width}}  {_cells(row)}" for row in rows]
    lines.append("p: paired bootstrap against the first system; * is p < 0.05")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> str:
    # None: the first system, with which the others are compared
    p = row["p_value"]
    last = "baseline" if p is None else f"p = {p:.4f}{' *' if p < 0.05 else ''}"
    return f"{row['value']:6.2f}  ({row['mean']:.2f} ± {row['interval']:.2f})  {last}"
