"""Every preset in one table: BLEU, parameters and speed of one sweep a corpus, and growth in N from the atlas.

    python -m seq2seq.train -m 'mixer=glob(*)' trainer.max_steps=1000 runs=runs/phrasebook
    python -m seq2seq.train -m 'mixer=glob(*)' experiment=tatoeba trainer.max_time=120s ... runs=runs/tatoeba
    python -m benchmarks.mixers phrasebook=runs/phrasebook Tatoeba=runs/tatoeba --out docs/atlas

writes mixers.md and mixers.json there, rows in the order of the last corpus' BLEU. Growth is that of the encoder's
self mixer (`docs/atlas/atlas.json`): the exponents p of seconds and of bytes ~ N^p.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.config.compose import presets
from seq2seq.experiments.results import RunResult, collect
from seq2seq.files import write_json, write_text
from seq2seq.resources import conf_dir

KEYS = ("parameters", "steps", "target_tokens_per_second", "training_seconds")


def self_mixer(preset: str) -> str:
    """What the preset's encoder is: the name of a file in conf/mixer/self."""
    defaults: Any = OmegaConf.load(conf_dir() / "mixer" / f"{preset}.yaml")["defaults"]
    return next(str(entry["self@encoder"]) for entry in defaults if "self@encoder" in entry)


def of_corpus(runs: str) -> dict[str, dict[str, float]]:
    """By preset, the scores and figures of the one run that it has below the folder `runs`.

    Raises:
        ValueError: a preset has no finished run there, or several.
    """
    found: dict[str, list[RunResult]] = {name: [] for name in presets()}
    for run in collect([runs], "test").runs:
        found.setdefault(run.mixer, []).append(run)
    wrong = {name: len(mine) for name, mine in found.items() if len(mine) != 1}
    if wrong:
        counts = ", ".join(f"{name}: {count}" for name, count in wrong.items())
        raise ValueError(f"{runs}: one finished run of each mixer is needed, but there are of {counts}")
    return {
        name: {metric: mine[0].score("test", metric) for metric in ("bleu", "chrf")}
        | {key: mine[0].number(key) for key in KEYS}
        for name, mine in found.items()
    }


def growth(atlas: Path) -> dict[str, Growth]:
    """By self mixer, its growth as `python -m seq2seq.inspect --atlas` measured it."""
    return {point["name"]: Growth(**point["growth"]) for point in json.loads(atlas.read_text()) if point["growth"]}


def markdown(corpora: dict[str, dict[str, dict[str, float]]], grown: dict[str, Growth]) -> str:
    """The table, best BLEU on the last corpus first, whose updates, speed and sizes are shown."""
    header = ["mixer", *corpora, "updates", "tokens/s", "parameters", "time ~ N^p", "memory ~ N^p"]
    last = corpora[list(corpora)[-1]]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for preset in sorted(last, key=lambda each: -last[each]["bleu"]):
        row = last[preset]
        line = [f"`{preset}`", *(f"{rows[preset]['bleu']:.2f}" for rows in corpora.values())]
        line += [f"{row['steps']:,.0f}", f"{row['target_tokens_per_second']:,.0f}", f"{row['parameters'] / 1e6:.2f}M"]
        mine = grown.get(self_mixer(preset))
        line += [f"{mine.time_exponent:.2f}", f"{mine.memory_exponent:.2f}"] if mine else ["", ""]
        lines.append(line)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    """Read the sweeps, print the table, and write it with its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixers", description=__doc__)
    parser.add_argument("corpora", nargs="+", metavar="NAME=RUNS", help="a corpus and the folder of its runs")
    parser.add_argument("--atlas", type=Path, default=Path("docs/atlas/atlas.json"))
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args()
    if wrong := [each for each in options.corpora if "=" not in each]:
        parser.error(f"{wrong[0]} is not NAME=RUNS")
    try:
        corpora = {name: of_corpus(runs) for name, _, runs in (each.partition("=") for each in options.corpora)}
    except ValueError as error:
        parser.error(str(error))
    text = markdown(corpora, growth(options.atlas))
    print(text, end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(options.out / "mixers.md", text)
        write_json(options.out / "mixers.json", corpora)


if __name__ == "__main__":
    main()
