"""Finished runs of experiment=drawn_words: how well each reads the test pictures, and where its heads look.

    python -m benchmarks.images runs/drawn_words-* --figure docs/figures/centres.png

The figure is of the first run whose encoder is `quadratic` on a grid: some pictures with what was read, and by layer
every head's centre (a dot, in patches to the right and below of where it looks from) with a circle of one standard
deviation and a line from where the centre was before training.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from seq2seq import checkpoint
from seq2seq.build import build_model
from seq2seq.data.images import unpack
from seq2seq.experiments.folder import ORIGIN
from seq2seq.experiments.results import RunResult, Unusable, read_run
from seq2seq.model import Seq2Seq

SHOWN = 8  # pictures above the centres


def distance(one: str, other: str) -> int:
    """Characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def finished(path: Path) -> RunResult:
    """The run of a folder, with its test translations; ValueError if it has not come so far."""
    run = read_run(path, "test")
    if isinstance(run, Unusable) or run.test_lines("hyp") is None:
        raise ValueError(f"{path}: {run.reason if isinstance(run, Unusable) else 'has no test translations'}")
    return run


def reading(path: Path) -> dict[str, Any]:
    """The run's scores on the test pictures: whole texts and characters that are right, chrF, and what it took."""
    run = finished(path)
    pairs = list(zip(run.test_lines("ref") or [], run.test_lines("hyp") or [], strict=True))
    wrong, letters = sum(distance(ref, hyp) for ref, hyp in pairs), sum(len(ref) for ref, _ in pairs)
    return {
        "run": run.name,
        "exact": sum(ref == hyp for ref, hyp in pairs) / len(pairs),
        "characters": 1 - wrong / letters,
        "chrf": run.score("test", "chrf"),
        "bleu": run.score("test", "bleu"),
        "updates": run.results["steps"],
        "parameters": run.results["parameters"],
        "seconds": run.number("training_seconds"),
    }


def centres(model: Seq2Seq) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By encoder layer, where each head of a `quadratic` mixer on a grid looks, (H, 2) rows and columns, and a (H,)."""
    mixers: list[Any] = [layer.self_mixer for layer in model.encoder.layers]
    return [(mixer.centers.detach(), mixer.sharpness.detach()) for mixer in mixers if _on_a_grid(mixer)]


def _on_a_grid(mixer: Any) -> bool:
    return getattr(mixer, "centers", None) is not None and mixer.centers.shape[-1] == 2


def before(run: Path) -> Seq2Seq:
    """The run's model as it was made: from its seed."""
    payload = checkpoint.read(run / "checkpoints" / "last.ckpt")
    torch.manual_seed(int(payload[ORIGIN]["settings"]["seed"]))
    return build_model(payload[checkpoint.KEY]["model"])


def draw(run: Path, path: Path) -> None:
    """Write the figure of `run`."""
    from seq2seq.experiments.figures import new_figure

    tested, loaded = finished(run), checkpoint.load(run / "checkpoints" / "best.ckpt")
    found, first = centres(loaded.model), centres(before(run))
    figure = new_figure(1.9 * max(len(found), 4), 3.6)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 2.2])
    assert loaded.tokenizer.patches is not None
    lines, hypotheses = tested.test_lines("src") or [], tested.test_lines("hyp") or []
    pictures = unpack(torch.tensor(loaded.tokenizer.encode_src(lines[:SHOWN])).numpy(), loaded.tokenizer.patches)
    for axes, picture, hyp in zip(above.subplots(2, SHOWN // 2).flat, pictures, hypotheses, strict=False):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=255)
        axes.set_title(hyp, fontsize=7, pad=2)
        axes.set_axis_off()
    panels = below.subplots(1, len(found), sharex=True, sharey=True, squeeze=False)[0]
    for layer, (axes, now, then) in enumerate(zip(panels, found, first, strict=True)):
        _layer(axes, now, then[0])
        axes.set_title(f"layer {layer + 1}", fontsize=8)
    reach = 1 + max(float(places.abs().max()) for layer in (*found, *first) for places in layer[:1])
    panels[0].set(xlim=(-reach, reach), ylim=(reach, -reach))  # of all panels: rows are counted downwards
    panels[0].set_ylabel("rows", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _layer(axes: Any, now: tuple[torch.Tensor, torch.Tensor], then: torch.Tensor) -> None:
    from matplotlib.patches import Circle

    from seq2seq.experiments.figures import look

    for head, ((row, column), a, old) in enumerate(zip(now[0].tolist(), now[1].tolist(), then.tolist(), strict=True)):
        style = look(head)
        axes.plot([old[1], column], [old[0], row], color=style["color"], linewidth=0.6)
        axes.plot(column, row, marker=style["marker"], markersize=3, color=style["color"])
        bell = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 0.7, "alpha": 0.7}
        axes.add_patch(Circle((column, row), (2 * a) ** -0.5, fill=False, **bell))
    axes.plot(0, 0, marker="+", color="black")
    axes.set(aspect="equal")
    axes.tick_params(labelsize=6)
    axes.set_xlabel("columns", fontsize=7)


def main() -> None:
    """Print the table, and write the figure if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="of the first run with centres on a grid")
    options = parser.parse_args()
    print("| run | whole texts | characters | chrF | BLEU | updates | parameters | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for run in options.runs:
        r = reading(run)
        print(
            f"| {r['run']} | {r['exact']:.1%} | {r['characters']:.1%} | {r['chrf']:.2f} | {r['bleu']:.2f} | "
            f"{r['updates']:,} | {r['parameters']:,} | {r['seconds']:.0f} |"
        )
    if options.figure:
        able = [run for run in options.runs if centres(checkpoint.load(run / "checkpoints" / "best.ckpt").model)]
        if not able:
            parser.error("--figure: no run has an encoder of mixer=quadratic on a grid")
        draw(able[0], options.figure)


if __name__ == "__main__":
    main()
