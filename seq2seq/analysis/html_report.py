"""What is to be seen of a model and one sentence pair: figures, and one HTML page that holds them all."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seq2seq.analysis import plots
from seq2seq.analysis.mixing_matrix import View, locality, mean_distance
from seq2seq.experiments.figures import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
img { max-width: 100%; border: 1px solid #ddd } table { border-collapse: collapse }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top } .legend { color: #555 }
"""


class Pair(NamedTuple):
    """The pieces that each side's positions read: the source's, and the decoder's input (begin, then the target)."""

    source: list[str]
    target: list[str]


class Section(NamedTuple):
    """A figure's name, its heading, and what it shows in plain sentences."""

    name: str
    heading: str
    text: str
    figure: Figure


MATRIX = (
    "A row is a position that is computed, a column one that it reads; a row sums to 1. The shade is the share of the "
    "block d y_i / d x_j in the norms of row i, with what decides the mixing (queries, keys, predicted kernels) held. "
    "'all' is the whole mixer with its output projection; a head is what reaches the output projection from it, which "
    "for attention is the attention weight itself."
)


def sections(views: Sequence[View], pair: Pair) -> Iterator[Section]:
    """The figures of one pair, in the order of the page."""
    names = {"encoder": (pair.source, pair.source), "decoder": (pair.target, pair.target),
             "cross": (pair.target, pair.source)}  # fmt: skip
    by_part = {part: [view for view in views if view.part == part] for part in names}
    yield Section(
        "alignments", "Source-target alignments",
        "Which source positions each target position reads, by layer. A row is the decoder's input piece; what the "
        f"layer makes of it predicts the next piece. {MATRIX}",
        plots.mixing(by_part["cross"], *names["cross"]),
    )  # fmt: skip
    for part in ("encoder", "decoder"):
        if by_part[part]:
            heading = f"Token mixing in the {part}"
            figure = plots.mixing(by_part[part], *names[part])
            yield Section(f"{part}-mixing", heading, MATRIX, figure)
    own = [*by_part["encoder"], *by_part["decoder"]]
    if own:
        text = (
            "How local each layer is: the mean share of what lies |i - j| positions away, over all rows, and the mean "
            "distance as a part of what it is where all shares are equal (in a decoder, those of the past). "
            + ("In the source the distance is the more of rows and columns apart. " if own[0].columns else "")
            + _locality(own)
        )
        yield Section("distance", "How far layers look", text, plots.distances(own))
    for part, found in by_part.items():
        yield from _portraits(part, found, *names[part])


def _locality(views: Sequence[View]) -> str:
    def told(view: View) -> str:
        far, part = mean_distance(view.total, view.columns), locality(view)
        return f"layer {view.layer} of the {view.part} ({view.kind}: {far:.1f} on average, {part:.0%} of equal shares)"

    near, far = (choose(views, key=locality) for choose in (min, max))
    return f"The most local is {told(near)}, the least local {told(far)}."


def _portraits(part: str, views: Sequence[View], down: list[str], across: list[str]) -> Iterator[Section]:
    """What mixers show of themselves, by name."""
    kinds: dict[str, tuple[str, Callable[[list[View], str], Any]]] = {
        "kernels": ("Learned weights by offset, the same at every position.", plots.kernels),
        "predicted kernels": (
            "A row is a position of the sentence and the kernel that it predicts: the weight of each offset.",
            lambda found, name: plots.predicted_kernels(found, name, down),
        ),
        "weights": (
            "The mixer's own weights. A row is a position that is computed, a column one that it reads.",
            lambda found, name: plots.weights(found, name, down, across),
        ),
        "centers": (
            "Each head's scores are -a |d - c|^2 at offset d: its centre c, and one standard deviation of the bell, "
            "1 / sqrt(2 a), each way, as a bar or, on a grid, a circle.",
            lambda found, name: plots.centers(found),
        ),
    }
    names = dict.fromkeys(name for view in views for name in view.portrait)
    for name in names:
        if name == "sharpness" and "centers" in names:
            continue
        text, draw = kinds.get(name, ("A number for each head, by layer.", plots.numbers))
        found = [view for view in views if name in view.portrait]
        heading = f"{name.capitalize()} of the {'cross mixers' if part == 'cross' else part}"
        yield Section(f"{part}-{name.replace(' ', '-')}", heading, text, draw(found, name))


def write(folder: Path, title: str, facts: Sequence[tuple[str, str]], found: Sequence[Section]) -> Path:
    """Write the figures of `found` and the page `report.html`, which needs no other file; the page's path.

    Figures of an earlier page in `folder` that this one has not are removed.
    """
    from seq2seq.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    earlier = set(re.findall(r'<h2 id="([\w-]+)">', page.read_text("utf-8"))) if page.is_file() else set()
    parts = []
    for section in found:
        path = save(section.figure, folder / section.name)
        image = base64.b64encode(path.read_bytes()).decode("ascii")
        heading = html.escape(section.heading)
        parts.append(
            f'<h2 id="{section.name}">{heading}</h2>\n<p class="legend">{html.escape(section.text)}</p>\n'
            f'<img alt="{heading}" src="data:image/png;base64,{image}">'
        )
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts)
    links = " · ".join(f'<a href="#{section.name}">{html.escape(section.heading)}</a>' for section in found)
    text = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>\n{STYLE}</style>\n<h1>{html.escape(title)}</h1>\n<table>{rows}</table>\n<p>{links}</p>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )
    write_text(page, text)
    for name in earlier - {section.name for section in found}:
        for suffix in ("png", "svg"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)
    return page
