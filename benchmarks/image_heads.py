"""Find which heads of the fully attentional classifier became a tap of a convolution, and draw where they look.

    python -m benchmarks.digits --seeds 1 2 3 4 5 --weights DIR
    python -m benchmarks.image_heads DIR --seeds 1 2 3 4 5 --figure docs/figures/image-heads.png

A head is a tap of a convolution (lemma 1 of Cordonnier et al. 2020) if every position gives its whole weight to the
position at one offset. Its distance from that is the weight elsewhere: one minus the largest, over offsets, of the mean
weight at the offset, over the positions that have a neighbor there (half the L1 distance of the two distributions).
With content, weights are averaged over test images, and `by content` is the mean of half the L1 distance of an image's
weights from that average: 0 if they do not depend on the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import harness
from benchmarks.digits import GRID, SUBJECTS, Attention, Subject, file_of, patches
from seq2seq.analysis.image_maps import busiest_patch, overlay
from seq2seq.images.digits import splits
from seq2seq.images.lines import unpack
from seq2seq.kernels.relative_positions import extents, offsets
from seq2seq.mixers.projections import split
from seq2seq.system.canvas import look, new_figure
from seq2seq.system.markdown import markdown_table

# Test images over which weights are averaged.
IMAGES = 64
# A head this near is called a tap.
NEAR = 0.1
HEADER = ("encoding", "layer", "distance before", "after", "heads within 0.1", "by content", "centers moved", "most")


class Heads(NamedTuple):
    """The heads of a layer.

    Attributes:
        weights: Attention weights (N, H, T, T) on N images.
        centers: Centers (H, 2) in patches, of the quadratic encoding; None for others.
        sharpness: Sharpness (H,) likewise.
    """

    weights: Tensor
    centers: Tensor | None
    sharpness: Tensor | None


def attention_weights(mixer: Any, x: Tensor) -> Tensor:
    """Return the attention weights of `quadratic` or `relative` at input x (N, T, D): (N, H, T, T)."""
    position = torch.arange(x.shape[1])
    offset: Any = offsets(position, position, mixer.grid_width)
    *query_key, _ = (split(part, mixer.num_heads) for part in mixer.inner(x).chunk(3 if mixer.u is not None else 1, -1))
    if hasattr(mixer, "centers"):
        scores = mixer._scores(offset[:, None])  # (H, T, T)
    else:
        query = query_key[0] if query_key else 0.0
        scores = mixer._scores(query + mixer.v[:, None], offset, extents(x.shape[1], mixer.grid_width))
    if query_key:
        q, k = query_key
        scores = scores + (q + mixer.u[:, None]) @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.expand(len(x), -1, -1, -1).softmax(-1)


def heads_of(model: Attention, x: Tensor) -> list[Heads]:
    """Return the heads of every layer on patches x (N, T)."""
    found: list[Heads] = []

    def look_at(mixer: Any, arguments: tuple[Tensor, ...]) -> None:
        weights = attention_weights(mixer, arguments[0])
        quadratic = hasattr(mixer, "centers")
        centers = mixer.centers.detach() if quadratic else None
        found.append(Heads(weights, centers, mixer.sharpness.detach() if quadratic else None))

    handles = [layer.self_mixer.register_forward_pre_hook(look_at) for layer in model.model.encoder.layers]  # type: ignore
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


def distance_from_taps(weights: Tensor, columns: int) -> Tensor:
    """Return each head's distance from the nearest tap: weights (H, T, T) -> (H,)."""
    size = weights.shape[-1]
    position = torch.arange(size)
    offset = offsets(position, position, columns)  # (2, T, T)
    nearest = weights.new_ones(len(weights))
    for row, column in {(int(r), int(c)) for r, c in offset.flatten(1).t()}:
        there = (offset[0] == row) & (offset[1] == column)
        # An offset that few positions have is no tap: a third of the grid must have it
        if 3 * int(there.sum()) >= size:
            nearest = torch.minimum(nearest, 1 - weights[:, there].mean(-1))
    return nearest


def models(subject: Subject, folder: Path, seed: int) -> tuple[Attention, Attention]:
    """Return a model before training, from its seed, and after."""
    torch.manual_seed(seed)
    before: Any = subject.make()
    after: Any = subject.make()
    after.load_state_dict(load_file(folder / file_of(subject.name, seed)), strict=False)
    return before.eval(), after.eval()


def describe(subject: Subject, pairs: Sequence[tuple[list[Heads], list[Heads]]]) -> list[dict[str, Any]]:
    """Return the measures of each layer of one encoding, over the heads of all seeds."""
    rows = []
    for layer in range(len(pairs[0][0])):
        before, after = ([pair[moment][layer] for pair in pairs] for moment in (0, 1))
        means = [each.weights.mean(0) for each in after]
        start = torch.cat([distance_from_taps(each.weights.mean(0), GRID.columns) for each in before])
        end = torch.cat([distance_from_taps(each, GRID.columns) for each in means])
        content = [(each.weights - mean).abs().sum(-1).mean() / 2 for each, mean in zip(after, means, strict=True)]
        row: dict[str, Any] = {"encoding": subject.name, "layer": layer + 1, "heads": len(end)}
        row |= {"before": float(start.mean()), "after": float(end.mean()), "near": int((end < NEAR).sum())}
        row["content"] = float(torch.stack(content).mean())
        if before[0].centers is not None:
            moved = torch.cat([(b.centers - a.centers).norm(dim=-1) for a, b in zip(before, after, strict=True)])  # type: ignore
            row |= {"moved": float(moved.mean()), "most": float(moved.max())}
            row["sharpness"] = [float(each) for each in torch.cat([each.sharpness for each in after])]  # type: ignore
        rows.append(row)
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    moved = [f"{row[name]:.2f}" if name in row else "" for name in ("moved", "most")]
    near = f"{row['near']} of {row['heads']}"
    content = f"{row['content']:.2f}"
    return [row["encoding"], str(row["layer"]), f"{row['before']:.2f}", f"{row['after']:.2f}", near, content, *moved]


def draw(found: dict[str, tuple[list[Heads], list[Heads]]], x: Tensor, path: Path) -> None:
    """Write the figure: centers before and after by layer, then what one patch reads, by encoding, layer and head."""
    from matplotlib.patches import Rectangle

    pixels = unpack(x[:1].numpy(), GRID)[0]
    query = busiest_patch(pixels, GRID)
    figure = new_figure(9.5, 7.9)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 2.7])
    before, after = found["quadratic"]
    panels = above.subplots(1, len(after), sharex=True, sharey=True)
    for number, (axes, start, end) in enumerate(zip(panels, before, after, strict=True), 1):
        _draw_centers(axes, start, end)
        axes.set_title(f"layer {number}", fontsize=8)
    panels[0].set(xlim=(-4.5, 4.5), ylim=(4.5, -4.5))
    panels[0].set_ylabel("rows", fontsize=7)
    parts: Any = below.subfigures(1, len(found))
    for part, (name, (_, trained)) in zip(parts, found.items(), strict=True):
        part.suptitle(name, fontsize=8)
        for row, (line, heads) in enumerate(zip(part.subplots(9, len(trained)).T, trained, strict=True), 1):
            for axes, weights in zip(line, heads.weights[0, :, query], strict=True):
                axes.set_axis_off()
                axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
                axes.imshow(overlay(weights.numpy(), GRID))
                corner = (query % GRID.columns * GRID.size - 0.5, query // GRID.columns * GRID.size - 0.5)
                axes.add_patch(Rectangle(corner, GRID.size, GRID.size, fill=False, edgecolor="orange", linewidth=0.8))
            line[0].set_title(f"{row}", fontsize=6, pad=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_centers(axes: Any, before: Heads, after: Heads) -> None:
    """Draw the way of each center of a layer from its start, and a circle of one standard deviation at its end."""
    from matplotlib.patches import Circle

    assert before.centers is not None
    assert after.centers is not None
    assert after.sharpness is not None
    for head, (start, end, a) in enumerate(zip(before.centers, after.centers, after.sharpness, strict=True)):
        style = look(head)
        (i, j), (row, column) = start.tolist(), end.tolist()
        axes.plot([j, column], [i, row], color=style["color"], linewidth=0.7)
        axes.plot(column, row, marker=style["marker"], markersize=3, color=style["color"])
        radius = float(2 * a) ** -0.5
        axes.add_patch(Circle((column, row), radius, fill=False, color=style["color"], linewidth=0.6, alpha=0.7))
    axes.plot(0, 0, marker="+", color="black")
    axes.set(aspect="equal")
    axes.tick_params(labelsize=6)
    axes.set_xlabel("columns", fontsize=7)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write table and figure if asked to."""
    parser = harness.parser_for("image_heads", __doc__)
    parser.add_argument("weights", type=Path, metavar="DIR", help="of benchmarks.digits --weights")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="the figure shows the first (1)")
    parser.add_argument("--held-out", type=int, default=300, metavar="N", help="as of benchmarks.digits (300)")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    names = [subject.name for subject in SUBJECTS if subject.inputs is patches]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)}")
    options = parser.parse_args(arguments)
    if options.figure and "quadratic" not in options.models:
        parser.error("--figure shows the centers of quadratic: add it to --models")
    test = splits(held_out=options.held_out, seed=1)["test"]
    x = patches(test)[:IMAGES]
    results: list[dict[str, Any]] = []
    shown: dict[str, tuple[list[Heads], list[Heads]]] = {}
    for subject in (each for each in SUBJECTS if each.name in options.models):
        pairs = []
        for seed in options.seeds:
            before, after = (heads_of(model, x) for model in models(subject, options.weights, seed))
            pairs.append((before, after))
        shown[subject.name] = pairs[0]
        results += describe(subject, pairs)
    table = markdown_table(HEADER, [_cells(row) for row in results], right=HEADER[1:])
    print(table)
    harness.write(options.out, "image_heads", results, table)
    if options.figure:
        draw(shown, x, options.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
