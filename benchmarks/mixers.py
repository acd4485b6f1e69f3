"""Compare all presets in one table: BLEU, parameters and speed of one sweep a corpus, and growth from the atlas.

    python -m seq2seq.train -m 'mixer=glob(*)' trainer.max_steps=1000 runs=runs/phrasebook
    python -m seq2seq.train -m 'mixer=glob(*)' experiment=tatoeba trainer.max_time=120s ... runs=runs/tatoeba
    python -m benchmarks.mixers phrasebook=runs/phrasebook Tatoeba=runs/tatoeba --out docs/atlas

writes mixers.md and mixers.json there, rows in the order of BLEU on the last corpus. Growth is that of the encoder's
self mixer (`docs/atlas/atlas.json`): the exponents p of seconds and of bytes ~ N^p.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.config.compose import presets
from seq2seq.config.yaml_file import read_yaml
from seq2seq.experiments.results import RunResult, collect
from seq2seq.experiments.tables import markdown_table
from seq2seq.resources import conf_dir

KEYS = ("parameters", "steps", "target_tokens_per_second", "training_seconds")
# Figures of a preset's run, by metric or key.
Figures = dict[str, float]


def self_mixer(preset: str) -> str:
    """Return the preset's encoder, the name of a file in conf/mixer/self."""
    defaults = read_yaml(conf_dir() / "mixer" / f"{preset}.yaml")["defaults"]
    return next(str(entry["self@encoder"]) for entry in defaults if "self@encoder" in entry)


def of_corpus(runs: str) -> dict[str, Figures]:
    """Read the figures of the one run that each preset has below the folder `runs`.

    Raises:
        ValueError: A preset has no finished run there, or several.
    """
    by_preset: dict[str, list[RunResult]] = {name: [] for name in presets()}
    for run in collect([runs], "test").runs:
        by_preset.setdefault(run.mixer, []).append(run)
    wrong = {name: len(mine) for name, mine in by_preset.items() if len(mine) != 1}
    if wrong:
        counts = ", ".join(f"{name}: {count}" for name, count in wrong.items())
        raise ValueError(f"{runs}: one finished run of each mixer is needed, but there are of {counts}")
    return {name: _figures(run) for name, (run,) in by_preset.items()}


def _figures(run: RunResult) -> Figures:
    scores = {metric: run.score("test", metric) for metric in ("bleu", "chrf")}
    return scores | {key: run.number(key) for key in KEYS}


def growth(atlas: Path) -> dict[str, Growth]:
    """Read the growth of each self mixer as `python -m seq2seq.inspect --atlas` measured it."""
    points = json.loads(atlas.read_text(encoding="utf-8"))
    return {point["name"]: Growth(**point["growth"]) for point in points if point["growth"]}


def markdown(corpora: dict[str, dict[str, Figures]], grown: dict[str, Growth]) -> str:
    """Format the table, best BLEU on the last corpus first, whose updates, speed and sizes it shows."""
    header = ["mixer", *corpora, "updates", "tokens/s", "parameters", "time ~ N^p", "memory ~ N^p"]
    last = list(corpora.values())[-1]
    rows = []
    for preset in sorted(last, key=lambda name: -last[name]["bleu"]):
        figures = last[preset]
        of_encoder = grown.get(self_mixer(preset))
        exponents = [of_encoder.time_exponent, of_encoder.memory_exponent] if of_encoder else []
        rows.append(
            [
                f"`{preset}`",
                *(f"{corpus[preset]['bleu']:.2f}" for corpus in corpora.values()),
                f"{figures['steps']:,.0f}",
                f"{figures['target_tokens_per_second']:,.0f}",
                f"{figures['parameters'] / 1e6:.2f}M",
                *([f"{exponent:.2f}" for exponent in exponents] or ["", ""]),
            ]
        )
    return markdown_table(header, rows, right=header[1:]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the sweeps, print the table, and write it with its figures."""
    parser = harness.parser_for("mixers", __doc__)
    parser.add_argument("corpora", nargs="+", metavar="NAME=RUNS", help="a corpus and the folder of its runs")
    parser.add_argument("--atlas", type=Path, default=Path("docs/atlas/atlas.json"), help="measured growth")
    options = parser.parse_args(arguments)
    if wrong := [word for word in options.corpora if "=" not in word]:
        parser.error(f"{wrong[0]} is not NAME=RUNS")
    folders = dict(word.split("=", 1) for word in options.corpora)
    try:
        corpora = {name: of_corpus(runs) for name, runs in folders.items()}
    except ValueError as error:
        parser.error(str(error))
    table = markdown(corpora, growth(options.atlas))
    print(table, end="")
    harness.write(options.out, "mixers", corpora, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
