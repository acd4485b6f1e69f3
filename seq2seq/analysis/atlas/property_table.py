"""Format the atlas as a page and as JSON, with the table of Han et al. 2022 for the same mixers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from seq2seq.analysis.atlas import properties, scaling
from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.analysis.atlas.survey import PARAMETER_SIZES, Point
from seq2seq.system.markdown import markdown_table

# Columns 2 to 6 are the fields of MixingProperties, in order.
HEADER = (
    *("mixer", "sparse (window)", "shared over positions", "shared over channels", "dynamic", "linear in values"),
    *("rank", "parameters", "state", "time ~ N^p", "memory ~ N^p"),
)
GRAPH_HEADER = (
    *("point", "sparse over positions", "sparse over channels", "shared over positions", "shared over channels"),
    *("dynamic weight", "in the paper"),
)
# Columns 2 to 6 of GRAPH_HEADER from tables 1 and 7 of the paper. Its 'separable' or 'spatial-mixing MLP' is our MLP
# over positions, its 'MLP' our full MLP, and its '1 x 1 convolution' our identity, a linear map of each position.
PUBLISHED = {
    "attention": (False, True, False, True, True),
    "local": (True, True, False, True, True),
    "conv": (True, False, True, False, False),
    "depthwise": (True, True, True, False, False),
    "dynamic_depthwise": (True, True, True, False, True),
    "mlp": (False, True, False, True, False),
    "full_mlp": (False, False, False, False, False),
    "local_mlp": (True, True, False, True, False),
    "identity": (True, False, True, False, False),
}


def markdown(points: Sequence[Point]) -> str:
    """Format both tables and the method as a Markdown page."""
    # Mixers reach different lengths within the time limit
    lengths = sorted({n for point in points if point.growth for n in point.growth.lengths})
    return "\n".join(
        [
            "# The atlas of self mixers, measured",
            "",
            markdown_table(HEADER, [_row(point) for point in points]),
            "",
            _method(lengths),
            "",
            "## The relation graph's table (Han et al. 2022), measured",
            "",
            markdown_table(GRAPH_HEADER, [_graph_row(point) for point in points]),
            "",
        ]
    )


def as_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Convert all measurements to plain values for JSON."""
    return [dataclasses.asdict(point) | {"disagreements": point.disagreements()} for point in points]


def _row(point: Point) -> list[str]:
    measured = point.bidirectional
    causal = measured.properties if point.causal is None else point.causal.properties
    cells = [_yes(value, vars(causal)[key]) for key, value in vars(measured.properties).items()]
    if measured.properties.sparse:
        # The first cell is `sparse`
        cells[0] += f" ({measured.window})"
    return [
        f"`{point.name}`",
        *cells,
        str(measured.rank),
        f"{point.parameters:,}",
        point.state or "encoder-only",
        *_exponents(point.growth),
    ]


def _yes(value: bool, causal: bool) -> str:
    """Format a property, with the property of the causal form if it differs."""
    word = "yes" if value else "–"
    return word if causal == value else f"{word} (causal: {'yes' if causal else '–'})"


def _exponents(growth: Growth | None) -> list[str]:
    """Format the exponents of time and memory, with the longest length if the time limit ended the measurement."""
    if growth is None:
        return ["", ""]
    cut = bool(growth.lengths) and growth.lengths[-1] < scaling.LENGTHS[-1]
    until = f" (to {growth.lengths[-1]:,})" if cut else ""
    exponents = (growth.time_exponent, growth.memory_exponent)
    return ["?" if math.isnan(exponent) else f"{exponent:.2f}{until}" for exponent in exponents]


def _graph_row(point: Point) -> list[str]:
    values = point.bidirectional.graph
    # The paper has only nine mixers
    published = PUBLISHED.get(point.name)
    agreement = "" if published is None else "the same" if published == values else "not so"
    return [f"`{point.name}`", *("yes" if value else "–" for value in values), agreement]


def _method(lengths: Sequence[int]) -> str:
    """Describe how the figures of the first table were measured."""
    text = (
        f"Bidirectional forms; a causal form is named where it differs. Random parameters and inputs of "
        f"{properties.LENGTH} positions, width {properties.DIM}, {properties.HEADS} heads, "
        f"kernel_size {properties.KERNEL}, window {properties.WINDOW}, grid_width {properties.GRID_WIDTH}, "
        "float64. Window: the most positions that one reads, where not all. Rank: of the blocks of a row at equal "
        f"columns, at most {properties.HEADS} where the channels of a head share a matrix, "
        f"at most {properties.DIM} where no "
        "two channels mix outside projections. Linear: in the values, the mixing matrix held; the convolutions' gate "
        "(`glu: true` in their YAML) is not, without it they are. State: of the causal form in decoding, by the "
        "target's length. "
        "Parameters: at width "
        "{dim}, {heads} heads, max_len {max_len:,} where the YAML does not say another.".format(**PARAMETER_SIZES)
    )
    if lengths:
        text += (
            f" Growth: of a forward and backward pass of one sequence at width {scaling.DIM} in float32, N from "
            f"{lengths[0]:,} to {lengths[-1]:,}, p fitted to the last {scaling.FITTED} lengths measured; memory is the "
            "peak of torch's CPU allocations."
        )
    return text
