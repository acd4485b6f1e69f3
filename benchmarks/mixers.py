"""Compare all presets in one table: scores, parameters and time of one sweep, and growth from the atlas.

    python -m seq2seq.train -m 'mixer=glob(*)' trainer.max_steps=1000 runs=runs/presets
    python -m benchmarks.mixers runs/presets --out presets

writes mixers.md and mixers.json, the best BLEU first. The growth of the encoder's self mixer is from
`docs/atlas/atlas.json`: the exponents p of seconds and bytes ~ N^p.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.comparable import require_comparable
from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.runs.results import RunResult, collect
from seq2seq.settings.compose import presets
from seq2seq.system.markdown import markdown_table
from seq2seq.system.resources import conf_dir
from seq2seq.system.yaml_file import read_yaml

SCORES = ("bleu", "chrf", "perplexity")
KEYS = ("parameters", "steps", "target_tokens_per_second", "training_cpu_seconds")
HEADER = ["mixer", "BLEU", "chrF", "perplexity", "parameters", "CPU seconds", "time ~ N^p", "memory ~ N^p"]
# Figures of a preset's run, by metric or key.
Figures = dict[str, float]


def self_mixer(preset: str) -> str:
    """Return the self mixer of the preset's encoder, which names a file in conf/mixer/self."""
    defaults = read_yaml(conf_dir() / "mixer" / f"{preset}.yaml")["defaults"]
    return next(str(entry["self@encoder"]) for entry in defaults if "self@encoder" in entry)


def read_figures(runs: str, split: str) -> dict[str, Figures]:
    """Read the figures of the one run that each preset has below the folder `runs`.

    Args:
        split: The set whose scores are read, "test" or "valid".

    Raises:
        ValueError: A preset has no finished run there, or several runs, or the runs are not comparable.
    """
    by_preset: dict[str, list[RunResult]] = {name: [] for name in presets()}
    for run in collect([runs], split).runs:
        # Mixers that are not presets have no row
        if run.mixer in by_preset:
            by_preset[run.mixer].append(run)
    wrong = {name: len(mine) for name, mine in by_preset.items() if len(mine) != 1}
    if wrong:
        counts = ", ".join(f"{name}: {count}" for name, count in wrong.items())
        raise ValueError(f"{runs}: one finished run of each mixer is needed, but found {counts}")
    require_comparable([run for (run,) in by_preset.values()], split)
    return {name: _figures(run, split) for name, (run,) in by_preset.items()}


def _figures(run: RunResult, split: str) -> Figures:
    # Some kept runs have no perplexity
    scores = {metric: float(run.results[split].get(metric, math.nan)) for metric in SCORES}
    return scores | {key: run.number(key) for key in KEYS}


def growth(atlas: Path) -> dict[str, Growth]:
    """Read the growth of each self mixer as `python -m seq2seq.inspect --atlas` measured it."""
    points = json.loads(atlas.read_text(encoding="utf-8"))
    return {point["name"]: Growth(**point["growth"]) for point in points if point["growth"]}


def markdown(figures: dict[str, Figures], grown: dict[str, Growth]) -> str:
    """Format the table, best BLEU first."""
    rows = [_cells(name, figures[name], grown) for name in sorted(figures, key=lambda name: -figures[name]["bleu"])]
    return markdown_table(HEADER, rows, right=HEADER[1:]) + "\n"


def _cells(preset: str, figures: Figures, grown: dict[str, Growth]) -> list[str]:
    of_encoder = grown.get(self_mixer(preset))
    exponents = [of_encoder.time_exponent, of_encoder.memory_exponent] if of_encoder else []
    seconds = figures["training_cpu_seconds"]
    return [
        f"`{preset}`",
        *(f"{figures[metric]:.2f}" for metric in SCORES),
        f"{figures['parameters'] / 1e6:.2f}M",
        "" if math.isnan(seconds) else f"{seconds:,.0f}",
        *([f"{exponent:.2f}" for exponent in exponents] or ["", ""]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the sweep, print the table, and write it with its figures."""
    parser = harness.parser_for("mixers", __doc__)
    parser.add_argument("runs", metavar="RUNS", help="the folder of the runs")
    parser.add_argument("--split", choices=("test", "valid"), default="test", help="whose scores (test)")
    parser.add_argument("--atlas", type=Path, default=Path("docs/atlas/atlas.json"), help="measured growth")
    options = parser.parse_args(arguments)
    try:
        figures = read_figures(options.runs, options.split)
    except ValueError as error:
        parser.error(str(error))
    table = markdown(figures, growth(options.atlas))
    print(table, end="")
    # JSON has no nan
    plain = {name: {key: None if math.isnan(x) else x for key, x in each.items()} for name, each in figures.items()}
    harness.write(options.out, "mixers", plain, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
