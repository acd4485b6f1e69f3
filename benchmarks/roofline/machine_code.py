"""Read the machine code of a kernel: the path that a warp takes, its loops, and the cycles that the warp needs alone.

The path is a guess by rules. Of two branches that meet again, the longer one is taken; other branches forward are not;
branches backward make loops. Instructions whose predicate is false count as if it were true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Cycles from the issue of an instruction until its result can be read: rounded from published microbenchmarks of
# Hopper, except for global memory, whose value is the latency under load. ARITHMETIC is an addition.
ARITHMETIC = 5
GLOBAL_MEMORY = 600
CYCLES = {"LDG": GLOBAL_MEMORY, "LDGSTS": GLOBAL_MEMORY, "LDL": 40, "LDS": 30, "LDSM": 33, "SHFL": 24, "HMMA": 33}
CYCLES |= {"MUFU": 20, "LDC": 30, "ULDC": 30, "S2R": 30, "S2UR": 30, "I2F": 20, "F2I": 20, "BAR": 30}
# Instructions that write no register
SILENT = ("STG", "STS", "STSM", "STL", "BRA", "EXIT", "BAR", "DEPBAR", "LDGDEPBAR", "LDGSTS", "RED")
# Iterations of a loop that are simulated one by one; later iterations take as long as the last of these
FOLLOWED = 4


class Instruction(NamedTuple):
    """Instruction of a kernel; `reads` and `writes` are names of registers and predicates."""

    code: str  # name without suffixes, such as LDG
    reads: frozenset[str]
    writes: frozenset[str]
    level: int = 0  # groups of asynchronous copies that a DEPBAR leaves unfinished


class Loop(NamedTuple):
    """Loop of a path; its body ends with the branch back."""

    body: tuple[Instruction | Loop, ...]


Path = Sequence[Instruction | Loop]


class _Line(NamedTuple):
    text: str
    target: int  # line number of a branch's target; -1 for other instructions
    conditional: bool


def path(listing: str) -> list[Instruction | Loop]:
    """Return the path of a warp from the output of `nvdisasm -c` for a kernel."""
    lines = _lines(listing)
    taken = _taken(lines)
    # Place on the path by line number
    places = {number: place for place, number in enumerate(taken)}
    backward = {places[n]: places[lines[n].target] for n in taken if 0 <= lines[n].target <= n}
    return _nest([_instruction(lines[n].text) for n in taken], backward, 0, len(taken))


def flatten(items: Path) -> Iterator[Instruction]:
    """Yield the instructions of a path; the instructions of a loop count once."""
    for item in items:
        if isinstance(item, Loop):
            yield from flatten(item.body)
        else:
            yield item


def loops(items: Path, depth: int = 1) -> Iterator[tuple[int, Loop]]:
    """Yield the loops of a path with their depths; an outermost loop has depth 1."""
    for item in items:
        if isinstance(item, Loop):
            yield depth, item
            yield from loops(item.body, depth + 1)


def executed(items: Path, trips: Sequence[float], code: str = "") -> float:
    """Count the instructions that a warp runs, with one code or with all.

    Args:
        trips: Iterations of a loop, by its depth.
    """
    total = 0.0
    for item in items:
        if isinstance(item, Loop):
            total += trips[0] * executed(item.body, trips[1:], code)
        else:
            total += not code or item.code == code
    return total


def cycles_alone(items: Path, trips: Sequence[float]) -> float:
    """Return the cycles of a warp alone on its scheduler: an instruction a cycle, in order, when its data are ready."""
    return _Warp().run(items, trips)


class _Warp:
    """Registers of a warp with the cycle in which each is ready, and its asynchronous copies."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: dict[str, float] = {}
        self.copies: list[float] = []  # the end of each group of copies
        self.group = 0.0  # the end of the group that is not yet closed

    def run(self, items: Path, trips: Sequence[float]) -> float:
        for item in items:
            if isinstance(item, Loop):
                self._repeat(item.body, trips)
            else:
                self._issue(item)
        return self.now

    def _repeat(self, body: Path, trips: Sequence[float]) -> None:
        begin = self.now
        for _ in range(min(FOLLOWED, max(1, round(trips[0])))):
            begin = self.now
            self.run(body, trips[1:])
        self._skip((self.now - begin) * max(0.0, trips[0] - FOLLOWED))

    def _skip(self, cycles: float) -> None:
        """Advance by some cycles."""
        self.now += cycles
        self.ready = {name: time + cycles for name, time in self.ready.items()}
        self.copies = [time + cycles for time in self.copies]
        self.group += cycles

    def _issue(self, one: Instruction) -> None:
        self.now = max([self.now + 1, *(self.ready.get(name, 0.0) for name in one.reads | one.writes)])
        done = self.now + CYCLES.get(one.code, ARITHMETIC)
        if one.code == "LDGSTS":
            self.group = max(self.group, done)
        elif one.code == "LDGDEPBAR":
            self.copies, self.group = [*self.copies, self.group], 0.0
        elif one.code == "DEPBAR":
            waited = self.copies[: len(self.copies) - one.level]
            self.now, self.copies = max([self.now, *waited]), self.copies[len(waited) :]
        elif one.code == "BAR":
            # Other warps arrive, and their results can be read
            self.now = done
        self.ready |= dict.fromkeys(one.writes, done)


def _lines(listing: str) -> list[_Line]:
    """List the instructions, with the targets of branches as numbers of lines."""
    labels: dict[str, int] = {}
    texts: list[str] = []
    for line in listing.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(texts)
        elif code := re.match(r"\s*/\*[0-9a-f]+\*/\s*(\S.*?)\s*;", line):
            texts.append(code[1])
    found = []
    for text in texts:
        label = re.search(r"\bBRA\b.*\((\.L_x_\d+)\)", text)
        found.append(_Line(text, labels[label[1]] if label else -1, text.startswith("@")))
    return found


def _taken(lines: Sequence[_Line]) -> list[int]:
    """List the numbers of the lines that a warp runs."""
    taken, number = [], 0
    while number < len(lines):
        line, taken = lines[number], [*taken, number]
        if line.text.endswith("EXIT") and not line.conditional:
            break
        number = _next(lines, number)
    return taken


def _next(lines: Sequence[_Line], number: int) -> int:
    """Return the number of the line that runs after this one, as if loops had ended."""
    line = lines[number]
    if line.target <= number:
        return number + 1
    if not line.conditional:
        return line.target
    # An alternative of two branches: the branch right before the target leads past it
    other = lines[line.target - 1]
    if line.target - 1 > number and other.target > line.target and not other.conditional:
        return line.target if other.target - line.target > line.target - number else number + 1
    return number + 1


def _nest(flat: Sequence[Instruction], backward: dict[int, int], start: int, stop: int) -> list[Instruction | Loop]:
    """Gather the loops between two places of a path; `backward` maps the last place of a loop to its first."""
    # Of loops that begin at the same place, the one that ends last is the outer one
    ends = {first: last for last, first in sorted(backward.items()) if start <= first and last < stop}
    items: list[Instruction | Loop] = []
    place = start
    while place < stop:
        last = ends.get(place, -1)
        if last < place:
            items.append(flat[place])
            place += 1
            continue
        inner = {end: first for end, first in backward.items() if end != last}
        items.append(Loop((*_nest(flat, inner, place, last), flat[last])))
        place = last + 1
    return items


def _instruction(text: str) -> Instruction:
    """Read an instruction such as `@P0 LDG.E.64 R2, desc[UR4][R6.64]`."""
    predicate, code, suffixes, operands = re.fullmatch(r"(@\S+\s+)?([A-Z0-9]+)(\S*)\s*(.*)", text).groups()
    names = _registers(operands)
    written: set[str] = set()
    if names and code not in SILENT:
        written = _wide(names[0], suffixes, code)
        names = names[1:]
    read = set(names) | set(_registers(predicate or ""))
    if re.search(r"\.(64|128|M88\.[24])", suffixes) and code in SILENT:  # stored vectors
        read |= {other for name in names for other in _wide(name, suffixes, code)}
    level = re.search(r"0x([0-9a-f]+)", operands) if code == "DEPBAR" else None
    return Instruction(code, frozenset(read), frozenset(written), int(level[1], 16) if level else 0)


def _registers(operands: str) -> list[str]:
    return re.findall(r"\b(U?[RP]\d+)\b", operands)


def _wide(name: str, suffixes: str, code: str) -> set[str]:
    """Return a register and those that follow it in the same operand."""
    kind, number = re.fullmatch(r"(U?[RP])(\d+)", name).groups()
    width = 4 if re.search(r"\.128|M88\.4", suffixes) or code == "HMMA" else 1
    if width == 1 and re.search(r"\.64|\.WIDE|M88\.2", suffixes):
        width = 2
    return {f"{kind}{int(number) + more}" for more in range(width if "P" not in kind else 1)}
