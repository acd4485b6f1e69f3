"""Counts of the outcomes, CPU seconds of the refusals, and the defects with the commands that repeat them."""

from __future__ import annotations

import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUTCOMES = ("worked", "refused", "else")
# What is kept of every attempt.
ROW = ("number", "kind", "what", "outcome", "status", "cpu", "megabytes")
# CPU seconds that a wrong value may cost.
GOAL = 3.0


def line(found: Mapping[str, Any]) -> str:
    """Describe an outcome in one line."""
    why = " ".join(str(found.get("why", "")).split())
    return f"{found['number']:5} {found['kind']}: {found.get('what', '?')}: {why[:300]}"


def time_refusals(found: Sequence[Mapping[str, Any]], root: Path, count: int) -> list[dict[str, Any]]:
    """Repeat some refusals in fresh processes and return their CPU seconds.

    Only those whose command needs no file of the attempt can be repeated: settings and options.
    """
    known = [item for item in found if item["kind"] in ("settings", "options") and "command" in item]
    refused = [item for item in known if item["outcome"] == "refused"]
    random.Random(0).shuffle(refused)
    # One for each thing that was wrong, as far as they go
    different = {item["what"]: item for item in reversed(refused)}
    work = root / "fresh"
    times = []
    if different and count:
        work.mkdir(exist_ok=True)
        for name, side in (("input", "de"), ("references", "en")):
            shutil.copyfile(root / "world" / "corpus" / f"test.{side}", work / name)
    for item in list(different.values())[:count]:
        module = item["command"].split()[2]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", module, *item["words"]],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=600,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append({"number": item["number"], "what": item["what"], "status": done.returncode, "cpu": round(cpu, 2)})
    return times


def summarize(found: Sequence[Mapping[str, Any]], fresh: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the outcomes by kind; all that is neither worked nor refused is `else`."""
    kinds: dict[str, dict[str, int]] = {}
    for item in found:
        row = kinds.setdefault(item["kind"], dict.fromkeys(OUTCOMES, 0))
        row[item["outcome"] if item["outcome"] in OUTCOMES else "else"] += 1
    defects = [dict(item) for item in found if item["outcome"] not in ("worked", "refused")]
    refusals = {
        kind: [float(item["cpu"]) for item in found if item["kind"] == kind and item["outcome"] == "refused"]
        for kind in kinds
    }
    return {
        "attempts": len(found),
        "kinds": dict(sorted(kinds.items())),
        **{outcome: sum(row[outcome] for row in kinds.values()) for outcome in OUTCOMES},
        "cpu_of_refusals": {kind: _quantiles(times) for kind, times in sorted(refusals.items()) if times},
        "peak_megabytes": max((item.get("megabytes") or 0 for item in found), default=0),
        "fresh": list(fresh),
        "fresh_cpu": _quantiles([item["cpu"] for item in fresh]) if fresh else None,
        "fresh_over_goal": [item for item in fresh if item["cpu"] > GOAL],
        "defects": defects,
        "outcomes": [{key: item.get(key) for key in ROW} for item in found],
    }


def _quantiles(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": round(statistics.median(ordered), 2),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "most": ordered[-1],
    }


def table(summary: Mapping[str, Any]) -> str:
    """Write the summary as Markdown."""
    machine = summary["machine"]
    lines = [
        f"{summary['attempts']:,} attempts, seed {summary['seed']}, {machine['date']}, torch {machine['torch']}, "
        f"Python {machine['python']}, {summary['seconds']:,} s.",
        "",
        "The seconds are CPU seconds of a refusal, imports not counted: median, 90%, most.",
        "",
        "| kind | attempts | worked | refused in one line | anything else | seconds |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for kind, row in summary["kinds"].items():
        times = summary["cpu_of_refusals"].get(kind)
        shown = f"{times['median']:.2f}, {times['p90']:.2f}, {times['most']:.2f}" if times else ""
        lines.append(
            f"| {kind} | {sum(row.values()):,} | {row['worked']:,} | {row['refused']:,} | {row['else']:,} | {shown} |"
        )
    total = [f"{summary[outcome]:,}" for outcome in OUTCOMES]
    lines += [f"| all | {summary['attempts']:,} | {' | '.join(total)} | |", ""]
    if summary["fresh_cpu"]:
        times, over = summary["fresh_cpu"], len(summary["fresh_over_goal"])
        lines += [
            f"{len(summary['fresh'])} refusals of settings and options again in fresh processes, imports counted: "
            f"median {times['median']:.2f} CPU s, 90% {times['p90']:.2f}, most {times['most']:.2f}; "
            f"{over} over {GOAL:.0f} s.",
            "",
        ]
    for item in summary["defects"]:
        lines.append(f"- {line(item).strip()}")
        if item.get("command"):
            lines.append(f"  `{item['command'][:600]}`")
    return "\n".join(lines)
