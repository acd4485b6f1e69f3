"""Measure how well finished runs of experiment=drawn_words read the test images, and draw where their heads look.

    python -m benchmarks.images runs/drawn_words-* --figure docs/figures/centers.png

The figure shows the first run whose encoder is `quadratic` on a grid: some images with the text that was read, and by
layer the center of every head (a dot, in patches relative to the position) with a circle of one standard deviation and
its path since the start of training, with a point for each kept checkpoint (trainer.keep_last); below, its distance
from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from seq2seq import checkpoint
from seq2seq.images.lines import unpack
from seq2seq.metadata import KEY
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.runs.averaging import step_checkpoints, update_of
from seq2seq.runs.folder import ORIGIN, RunFolder
from seq2seq.runs.results import RunResult, Unusable, read_run
from seq2seq.runs.training_state import read_state
from seq2seq.system.canvas import look, new_figure
from seq2seq.system.markdown import markdown_table

# Number of images above the centers.
SHOWN = 8
HEADER = ("run", "whole texts", "characters", "chrF", "BLEU", "updates", "parameters", "CPU seconds")


def distance(one: str, other: str) -> int:
    """Count the characters to insert, delete or replace (Levenshtein)."""
    # Only one row of the table of distances is kept
    previous = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a != b)))
        previous = row
    return previous[-1]


def finished(path: Path) -> RunResult:
    """Read a run that has test translations.

    Raises:
        ValueError: The run is not finished, or saved no test translations.
    """
    run = read_run(path, "test")
    if isinstance(run, Unusable) or not run.test_lines("hyp"):
        raise ValueError(f"{path}: {run.reason if isinstance(run, Unusable) else 'has no test translations'}")
    return run


def reading(path: Path) -> dict[str, Any]:
    """Score a run on the test images: shares of whole texts and of characters that are right, chrF, BLEU, cost."""
    run = finished(path)
    pairs = list(zip(run.test_lines("ref"), run.test_lines("hyp"), strict=True))
    wrong = sum(distance(ref, hyp) for ref, hyp in pairs)
    letters = sum(len(ref) for ref, _ in pairs)
    return {
        "run": run.name,
        "exact": sum(ref == hyp for ref, hyp in pairs) / len(pairs),
        "characters": 1 - wrong / letters,
        "chrf": run.score("test", "chrf"),
        "bleu": run.score("test", "bleu"),
        "updates": run.results["steps"],
        "parameters": run.results["parameters"],
        "cpu_seconds": run.number("training_cpu_seconds"),
    }


def centers(model: Seq2Seq) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return centers (H, 2: row, column) and sharpness a (H,) of each encoder layer with `quadratic` on a grid."""
    mixers: list[Any] = [layer.self_mixer for layer in model.encoder.layers]
    centered = [mixer for mixer in mixers if getattr(mixer, "centers", None) is not None]
    return [(each.centers.detach(), each.sharpness.detach()) for each in centered if each.centers.shape[-1] == 2]


def untrained(run: Path) -> Seq2Seq:
    """Build the run's model as it was before training, from its seed."""
    payload = read_state(RunFolder(run).last, mmap=True)
    # A run seeds torch right before it builds its model
    torch.manual_seed(int(payload[ORIGIN]["settings"]["seed"]))
    return build_model(payload[KEY]["model"])


def progress(run: Path) -> list[torch.Tensor]:
    """Return the centers (C, H, 2) of each layer before training, in the kept checkpoints, and in the best one."""
    folder = run / "checkpoints"
    kept = [checkpoint.load(path).model for path in [*step_checkpoints(folder), run]]
    moments = [[positions for positions, _ in centers(model)] for model in (untrained(run), *kept)]
    return [torch.stack(layer) for layer in zip(*moments, strict=True)]


def draw(run: Path, path: Path) -> None:
    """Write the figure of a run."""
    tested = finished(run)
    loaded = checkpoint.load(run)
    trained = centers(loaded.model)
    ways = progress(run)
    updates = [0, *map(update_of, step_checkpoints(run / "checkpoints"))]
    # The panel of distances over time needs kept checkpoints
    heights = [1.0, 2.2, 1.6] if len(updates) > 1 else [1.0, 2.2]
    figure = new_figure(1.9 * max(len(trained), 4), 1.125 * sum(heights))
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
    above, below = parts[:2]
    assert loaded.tokenizer.patches is not None
    lines = tested.test_lines("src")
    hypotheses = tested.test_lines("hyp")
    # Each image is one line of the corpus; `unpack` turns its patches into pixels
    images = unpack(torch.tensor(loaded.tokenizer.encode_src(lines[:SHOWN])).numpy(), loaded.tokenizer.patches)
    for axes, image, hyp in zip(above.subplots(2, SHOWN // 2).flat, images, hypotheses, strict=False):
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(hyp, fontsize=7, pad=2)
        axes.set_axis_off()
    panels = below.subplots(1, len(trained), sharex=True, sharey=True, squeeze=False)[0]
    for layer, (axes, (_, sharpness), way) in enumerate(zip(panels, trained, ways, strict=True), 1):
        _draw_layer(axes, way, sharpness)
        axes.set_title(f"layer {layer}", fontsize=8)
    # One scale for all layers, wide enough for every center before and after training
    reach = 1 + max(float(way.abs().max()) for way in ways)
    # All panels share the axes: rows are counted downwards
    panels[0].set(xlim=(-reach, reach), ylim=(reach, -reach))
    panels[0].set_ylabel("rows", fontsize=7)
    if len(updates) > 1:
        _draw_distances(parts[2], updates, ways)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_layer(axes: Any, way: torch.Tensor, sharpness: torch.Tensor) -> None:
    """Draw the path (C, H, 2) of a layer's centers, a marker for each head at its end, and its standard deviation."""
    from matplotlib.patches import Circle

    for head, (places, a) in enumerate(zip(way.unbind(1), sharpness.tolist(), strict=True)):
        style = look(head)
        rows, columns = places.t().tolist()
        axes.plot(columns, rows, color=style["color"], linewidth=0.6, marker=".", markersize=1.5)
        axes.plot(columns[-1], rows[-1], marker=style["marker"], markersize=3, color=style["color"])
        bell = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 0.7, "alpha": 0.7}
        axes.add_patch(Circle((columns[-1], rows[-1]), (2 * a) ** -0.5, fill=False, **bell))
    # The position that the head looks from
    axes.plot(0, 0, marker="+", color="black")
    axes.set(aspect="equal")
    axes.tick_params(labelsize=6)
    axes.set_xlabel("columns", fontsize=7)


def _draw_distances(part: Any, updates: list[int], ways: list[torch.Tensor]) -> None:
    """Draw the distance of each center from its start by update; the last point of a path (the best) is left out."""
    panels = part.subplots(1, len(ways), sharex=True, sharey=True, squeeze=False)[0]
    for axes, way in zip(panels, ways, strict=True):
        distances = (way[:-1] - way[0]).norm(dim=-1)  # (C, H)
        for head, course in enumerate(distances.unbind(1)):
            style = look(head)
            axes.plot(updates, course.tolist(), color=style["color"], linestyle=style["linestyle"], linewidth=0.8)
        axes.tick_params(labelsize=6)
        axes.set_xlabel("updates", fontsize=7)
    panels[0].set_ylabel("patches from the start", fontsize=7)


def _cells(score: dict[str, Any]) -> list[str]:
    return [
        score["run"],
        f"{score['exact']:.1%}",
        f"{score['characters']:.1%}",
        f"{score['chrf']:.2f}",
        f"{score['bleu']:.2f}",
        f"{score['updates']:,}",
        f"{score['parameters']:,}",
        # Some runs have no CPU time
        "" if math.isnan(score["cpu_seconds"]) else f"{score['cpu_seconds']:.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write table and figure if asked to."""
    parser = harness.parser_for("images", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="of the first run with centers on a grid")
    options = parser.parse_args(arguments)
    try:
        scores = [reading(run) for run in options.runs]
    except ValueError as error:
        parser.error(str(error))
    table = markdown_table(HEADER, [_cells(score) for score in scores], right=HEADER[1:])
    print(table)
    harness.write(options.out, "images", scores, table)
    if options.figure:
        able = [run for run in options.runs if centers(checkpoint.load(run).model)]
        if not able:
            parser.error("--figure: no run has an encoder of mixer=quadratic on a grid")
        draw(able[0], options.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
