"""The atlas as a page and as data: a row for each self mixer, and the table of Han et al. 2022 for the same points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from seq2seq.analysis.atlas import properties, scaling
from seq2seq.analysis.atlas.properties import Measured, Settings
from seq2seq.analysis.atlas.scaling import Growth
from seq2seq.build import build_self_mixer
from seq2seq.introspection import MixingProperties

PARAMETER_SIZES = {"dim": 512, "heads": 8, "max_len": 1024}
HEADER = ("mixer", "sparse (window)", "shared over positions", "shared over channels", "dynamic", "linear in values",
          "rank", "parameters", "state", "time ~ N^p", "memory ~ N^p")  # fmt: skip
GRAPH = ("point", "sparse over positions", "sparse over channels", "shared over positions", "shared over channels",
         "dynamic weight", "in the paper")  # fmt: skip
# the same five of the points that the paper's table 1 has too: the MLP over positions is its 'separable MLP'
PUBLISHED = {
    "attention": (False, True, False, True, True),
    "local": (True, True, False, True, True),
    "conv": (True, False, True, False, False),
    "depthwise": (True, True, True, False, False),
    "dynamic_depthwise": (True, True, True, False, True),
    "mlp": (False, True, False, True, False),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One self mixer: what its two forms declare (None: nothing, or no such form) and what was measured of them."""

    name: str
    declared: MixingProperties | None
    declared_causal: MixingProperties | None
    bidirectional: Measured
    causal: Measured | None
    state: str | None
    declared_state: str | None
    parameters: int
    growth: Growth | None

    def disagreements(self) -> list[str]:
        """What its declaration says otherwise than was measured, a sentence each."""
        if self.declared is None:
            return [f"{self.name} declares no `properties`: set them in its class (measured: {self._measured()})"]
        wrong = [
            f"{self.name}{form} declares {key}={said}, but measured is {key}={seen} (window {found.window}, "
            f"rank {found.rank})"
            for form, declared, found in (
                ("", self.declared, self.bidirectional),
                (", causal,", self.declared_causal, self.causal),
            )
            if declared is not None and found is not None
            for key, said, seen in zip(MixingProperties._fields, declared, found.properties, strict=True)
            if said != seen
        ]
        if self.state != self.declared_state:
            wrong.append(f"{self.name} declares state_growth {self.declared_state!r}, but measured is {self.state!r}")
        return wrong

    def _measured(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.bidirectional.properties._asdict().items())


def survey(name: str, settings: Settings, *, limit: float | None) -> Point:
    """Measure one mixer; without a `limit` in seconds, not its growth. Errors are told with its name (ValueError)."""
    try:
        found, causal, decoder = properties.measure_forms(settings)
        declared = build_self_mixer(properties.measured_values(settings), dim=properties.DIM, causal=False).properties
        return Point(
            name=name,
            declared=declared,
            declared_causal=None if decoder is None else decoder.properties,
            bidirectional=found,
            causal=causal,
            state=None if decoder is None else properties.state_growth(decoder),
            declared_state=None if decoder is None else decoder.state_growth,
            parameters=properties.parameters(settings, **PARAMETER_SIZES),
            growth=None if limit is None else scaling.measure(settings, limit=limit),
        )
    except ValueError as error:
        raise ValueError(f"mixer/self={name}: {error}") from error


def markdown(points: Sequence[Point]) -> str:
    """Both tables, and how they were measured."""
    lengths = sorted({n for p in points if p.growth for n in p.growth.lengths})
    return "\n".join(
        [
            "# The atlas of self mixers, measured",
            "",
            _table(HEADER, [_row(point) for point in points]),
            "",
            _measured_how(lengths),
            "",
            "## The relation graph's table (Han et al. 2022), measured",
            "",
            _table(GRAPH, [_graph_row(point) for point in points]),
            "",
        ]
    )


def as_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """All that was measured, as plain values."""
    return [_plain(dataclasses.asdict(point) | {"disagreements": point.disagreements()}) for point in points]


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(point: Point) -> list[str]:
    found, causal = point.bidirectional, point.causal
    cells = [_word(value, None if causal is None else causal.properties[i]) for i, value in enumerate(found.properties)]
    if found.properties.sparse:
        cells[0] += f" ({found.window})"
    state = point.state or "encoder-only"
    return [f"`{point.name}`", *cells, str(found.rank), f"{point.parameters:,}", state, *_exponents(point.growth)]


def _exponents(found: Growth | None) -> list[str]:
    if found is None:
        return ["", ""]
    short = f" (to {found.lengths[-1]:,})" if found.lengths and found.lengths[-1] < scaling.LENGTHS[-1] else ""
    return [f"{p:.2f}{short}" if not math.isnan(p) else "?" for p in (found.time_exponent, found.memory_exponent)]


def _graph_row(point: Point) -> list[str]:
    p = point.bidirectional.properties
    cells = (p.sparse, point.bidirectional.sparse_channels, p.shares_positions, p.shares_channels, p.dynamic)
    published = PUBLISHED.get(point.name)
    agrees = "" if published is None else "the same" if published == cells else "not so"
    return [f"`{point.name}`", *("yes" if each else "–" for each in cells), agrees]


def _word(value: bool, causal: bool | None = None) -> str:
    word = "yes" if value else "–"
    return word if causal in (None, value) else f"{word} (causal: {'yes' if causal else '–'})"


def _measured_how(lengths: Sequence[int]) -> str:
    text = (
        f"Bidirectional forms; a causal form is named where it differs. Random parameters and inputs of "
        f"{properties.LENGTH} "
        f"positions, width {properties.DIM}, {properties.HEADS} heads, kernel_size {properties.KERNEL}, "
        f"window {properties.WINDOW}, "
        "float64. Window: the longest span that a position reads, where not all. Rank: of the blocks of a row at equal "
        f"columns, at most {properties.HEADS} where the channels of a head share a matrix, "
        f"at most {properties.DIM} where no "
        "two channels mix outside projections. Linear: in the values, the mixing matrix held; the convolutions' gate "
        "(`glu: true` in their YAML) is not, without it they are. State: of the causal form in decoding, by the "
        "target's length; it is linear where keys or inputs are kept in a cache, however few of them a step reads. "
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
