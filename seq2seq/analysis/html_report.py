"""HTML page about a model and one sentence pair, with its figures inside."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seq2seq.analysis import plots
from seq2seq.analysis.mixing_matrix import View, locality, mean_distance
from seq2seq.system.canvas import save
from seq2seq.system.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All CSS of the page, which needs no other file and no network.
STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
img { max-width: 100%; border: 1px solid #ddd } table { border-collapse: collapse }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top } .legend { color: #555 }
"""


class Pair(NamedTuple):
    """Names of the positions of both sides.

    Attributes:
        source: The source's pieces, or an image's patches.
        target: Pieces of the decoder's input: the begin symbol, then the target's pieces.
    """

    source: list[str]
    target: list[str]


class ReportSection(NamedTuple):
    """A figure of the page.

    Attributes:
        name: Stem of its files, and its anchor in the page.
        heading: Heading.
        text: Explanation.
        figure: The figure, not yet saved.
    """

    name: str
    heading: str
    text: str
    figure: Figure


# The legend of all figures of mixing matrices.
MATRIX = (
    "A row is a position that is computed, a column a position that it reads; a row sums to 1. The shade is the norm "
    "of the block d y_i / d x_j as a share of row i, with the sources of the mixing (queries, keys, predicted kernels) "
    "held constant. 'all' is the whole mixer with its output projection. A head is its input to the output projection, "
    "or to the norm before it; for attention this is the attention weight."
)


def sections(views: Sequence[View], pair: Pair) -> Iterator[ReportSection]:
    """Draw the figures of one pair, in the order of the page.

    Args:
        views: Mixers at work on the pair, as `mixing_matrix.views` returns them.
        pair: Names of the positions.

    Yields:
        One section at a time.
    """
    # Names of rows (computed positions) and columns (positions that they read)
    names = {
        "encoder": (pair.source, pair.source),
        "decoder": (pair.target, pair.target),
        "cross": (pair.target, pair.source),
    }
    by_part = {part: [view for view in views if view.part == part] for part in names}
    text = (
        "Which source positions each target position reads, by layer. A row is the decoder's input piece; what the "
        f"layer makes of it predicts the next piece. {MATRIX}"
    )
    yield ReportSection("alignments", "Source-target alignments", text, plots.mixing(by_part["cross"], *names["cross"]))
    # A recurrent decoder has no self mixers
    for part in ("encoder", "decoder"):
        if by_part[part]:
            figure = plots.mixing(by_part[part], *names[part])
            yield ReportSection(f"{part}-mixing", f"Token mixing in the {part}", MATRIX, figure)
    # Distances are defined within one sequence, so not for cross mixers
    own = [*by_part["encoder"], *by_part["decoder"]]
    if own:
        yield ReportSection("distance", "How far layers look", _distance_text(own), plots.distances(own))
    for part, mine in by_part.items():
        yield from _details(part, mine, *names[part])


def _distance_text(views: Sequence[View]) -> str:
    """Explain the figure of distances, and name the most and the least local layer."""
    nearest = min(views, key=locality)
    farthest = max(views, key=locality)
    on_a_grid = "In the source it is the larger of the distances in rows and columns. " if views[0].columns else ""
    return (
        "How local each layer is: the mean share of positions at a distance of |i - j|, and the mean distance relative "
        "to uniform weights (in a decoder, over the past). "
        f"{on_a_grid}The most local is {_locality(nearest)}, the least local {_locality(farthest)}."
    )


def _locality(view: View) -> str:
    distance = mean_distance(view.total, view.columns)
    share = f"{locality(view):.0%} of uniform weights"
    return f"layer {view.layer} of the {view.part} ({view.mixer}: {distance:.1f} on average, {share})"


def _details(part: str, views: Sequence[View], rows: list[str], columns: list[str]) -> Iterator[ReportSection]:
    """Draw the tensors that the mixers' `introspect` returns."""
    # Explanation and function for each name
    drawings: dict[str, tuple[str, Callable[[list[View], str], Any]]] = {
        "kernels": ("Learned weights by offset, the same at every position.", plots.kernels),
        "predicted kernels": (
            "A row is the kernel that a position of the sentence predicts: the weight of each offset.",
            lambda mine, name: plots.predicted_kernels(mine, name, rows),
        ),
        "weights": (
            "The mixer's own weights. A row is a position that is computed, a column a position that it reads.",
            lambda mine, name: plots.weights(mine, name, rows, columns),
        ),
        "centers": (
            "Each head's scores are -a |d - c|^2 at offset d: its center c, and one standard deviation of the bell, "
            "1 / sqrt(2 a), each way, as a bar or, on a grid, a circle.",
            lambda mine, name: plots.centers(mine),
        ),
    }
    # Each name once, in the order of the layers
    names = dict.fromkeys(name for view in views for name in view.details)
    for name in names:
        # The figure of the centers shows the sharpness
        if name == "sharpness" and "centers" in names:
            continue
        # Any other name has a number for each head
        text, draw = drawings.get(name, ("A number for each head, by layer.", plots.numbers))
        mine = [view for view in views if name in view.details]
        heading = f"{name.capitalize()} of the {'cross mixers' if part == 'cross' else part}"
        yield ReportSection(f"{part}-{name.replace(' ', '-')}", heading, text, draw(mine, name))


def require_earlier(folder: Path) -> Path:
    """Check that the folder has no `report.html` of another program, and return the folder.

    Raises:
        ValueError: The folder has such a file, which `write` would replace.
    """
    page = folder / "report.html"
    if page.exists() and (not page.is_file() or STYLE.encode() not in page.read_bytes()):
        raise ValueError(f"--out {folder}: has a report.html of another program; choose another folder")
    return folder


def write(folder: Path, title: str, facts: Sequence[tuple[str, str]], sections: Sequence[ReportSection]) -> Path:
    """Write the figures and the self-contained page `report.html`, and return the page's path.

    Figures of an earlier page that the new one does not have are removed.

    Args:
        folder: The report's folder; made if it does not exist.
        title: Heading of the page.
        facts: Rows of the table below the title.
        sections: The figures, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    # The anchors name the figures of the earlier page; other files stay
    earlier = set(re.findall(r'<h2 id="([\w-]+)">', page.read_text("utf-8"))) if page.is_file() else set()
    figures = []
    # Escape everything: the text comes from users and corpora
    for section in sections:
        path = save(section.figure, folder / section.name)
        # Embedded in the page, so that report.html can be sent alone
        image = base64.b64encode(path.read_bytes()).decode("ascii")
        heading = html.escape(section.heading)
        figures.append(
            f'<h2 id="{section.name}">{heading}</h2>\n<p class="legend">{html.escape(section.text)}</p>\n'
            f'<img alt="{heading}" src="data:image/png;base64,{image}">'
        )
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts)
    links = " · ".join(f'<a href="#{section.name}">{html.escape(section.heading)}</a>' for section in sections)
    text = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>\n{STYLE}</style>\n<h1>{html.escape(title)}</h1>\n<table>{rows}</table>\n<p>{links}</p>\n"
        + "\n".join(figures)
        + "\n</html>\n"
    )
    write_text(page, text)
    for name in earlier - {section.name for section in sections}:
        for suffix in ("png", "svg"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)
    return page
