"""Checks of raw pairs: text in another encoding, and sides that are shifted by some lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from seq2seq.data.cleaning import Pairs
from seq2seq.data.text_files import warn_once

# Pairs that are compared at a time, and the fewest by which a shift is told.
_WINDOW = 100
_FEWEST = 40
_SHIFTS = [shift for size in range(1, 11) for shift in (size, -size)]
# A shift fits where lengths correlate so well with it, and so much better than without it. In 980,000 aligned pairs of
# captions, news, debates, manuals and short sentences, no 100 lost less than 0.2 by any shift.
_FITS = 0.5
_BETTER = 0.3


def checked(blocks: Iterable[Pairs], sides: Sequence[str], *, unit: str, training: bool) -> Iterator[Pairs]:
    """Pass blocks of pairs on, and warn once of lines that are not UTF-8, and of a shift.

    Args:
        sides: Names of source and target in messages.
        unit: What a pair has on each side: a line, or a row of a table.
        training: Of training text single lines are left to cleaning, which counts them.

    Raises:
        ValueError: Much of validation or test text is not UTF-8.
    """
    first = 1
    # What is still looked for: a fault of each side, and a shift
    open_checks = {*sides, "shift"}
    for block in blocks:
        for name, lines in zip(sides, block, strict=True):
            fault, many = encoding_fault(lines, f"{name}: {unit}", first=first)
            if many and not training:
                raise ValueError(fault)
            fault = fault if many >= training else ""
            fault = fault or lone_returns(lines, f"{name}: {unit}", first=first)
            if fault and name in open_checks:
                open_checks.discard(name)
                warn_once(fault)
        if "shift" in open_checks and (shift := find_shift(*block, first=first)):
            open_checks.discard("shift")
            warn_once(f"{sides[0]} and {sides[1]}: {shift}")
        first += len(block[0])
        yield block


def lone_returns(lines: Sequence[str], where: str, *, first: int = 1) -> str:
    """Describe lines that hold carriage returns, where so many do that these may end lines; "" without them."""
    found = [number for number, line in enumerate(lines, first) if "\r" in line]
    if len(found) <= 0.5 * len(lines):
        return ""
    return (
        f"{where} {found[0]:,} holds carriage returns, as {len(found):,} of {len(lines):,} do; lines end at \\n: if "
        "these are ends, convert it, as in tr '\\r' '\\n' < <file> > <new file>"
    )


def encoding_fault(lines: Sequence[str], where: str, *, first: int = 1) -> tuple[str, bool]:
    """Describe the lines that hold U+FFFD, to which readers decode bytes that are not UTF-8.

    Args:
        where: What comes before the number of the first such line.
        first: Number of the first line.

    Returns:
        The description, "" without such lines, and True if they are so many that all is in another encoding.
    """
    invalid = [number for number, line in enumerate(lines, first) if "\ufffd" in line]
    if not invalid:
        return "", False
    many = len(invalid) > max(10, len(lines) / 10)
    remedy = "; convert the file, as in iconv -f LATIN1 -t UTF-8 <file> > <new file>" if many else ""
    return f"{where} {invalid[0]:,} is not UTF-8, or has U+FFFD, as {len(invalid):,} of {len(lines):,} do{remedy}", many


def find_shift(src: Sequence[str], tgt: Sequence[str], *, first: int = 1) -> str:
    """Describe a shift of one side by up to 10 lines, by which lengths correlate clearly better; "" without one.

    Args:
        first: Number of the first line.
    """
    size = min(len(src), len(tgt))
    margin = max(_SHIFTS)
    width = min(_WINDOW, size - 2 * margin)
    if width < _FEWEST:
        return ""
    src_lengths, tgt_lengths = (np.log1p([len(line) for line in side[:size]]) for side in (src, tgt))
    starts = np.append(np.arange(margin, size - margin - width + 1, width), size - margin - width)  # (count,)

    def windows(side: np.ndarray, shift: int) -> np.ndarray:
        """Return windows of lengths, centered and of norm 1, (count, width)."""
        rows = side[shift + starts[:, None] + np.arange(width)]
        rows = rows - rows.mean(1, keepdims=True)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    source = windows(src_lengths, 0)
    aligned = (source * windows(tgt_lengths, 0)).sum(1)  # (count,)
    shifted = np.stack([(source * windows(tgt_lengths, shift)).sum(1) for shift in _SHIFTS])  # (shifts, count)
    found = np.flatnonzero((shifted.max(0) > _FITS) & (shifted.max(0) - aligned > _BETTER))
    if not found.size:
        return ""
    window = int(found[0])
    best = int(shifted[:, window].argmax())
    shift = _SHIFTS[best]
    around = max(0, int(starts[window]) - margin - width), int(starts[window]) + width
    begin = _beginning(src_lengths, tgt_lengths, shift, *around)
    side, other = ("second", "first") if shift > 0 else ("first", "second")
    lines = f"{abs(shift)} line{'s' * (abs(shift) > 1)}"
    return (
        f"from about line {first + begin:,} on, the {side} seems to be {lines} behind the {other} (there, lengths "
        f"correlate at {aligned[window]:.2f}, and at {shifted[best, window]:.2f} if it is moved): is a line missing, "
        "or one too many?"
    )


def _beginning(src: np.ndarray, tgt: np.ndarray, shift: int, start: int, end: int) -> int:
    """Return the line from `start` to `end` from which a shift fits the lengths better than none."""
    rows = np.arange(max(start, -shift), min(end, len(src) - max(shift, 0)))
    offset = np.median(tgt - src)
    without, with_it = ((tgt[rows + by] - src[rows] - offset) ** 2 for by in (0, shift))
    # The sum of both parts for each place between two lines
    costs = np.concatenate([[0.0], np.cumsum(without)]) + np.concatenate([np.cumsum(with_it[::-1])[::-1], [0.0]])
    return int(rows[0] + costs.argmin()) if len(rows) else start
