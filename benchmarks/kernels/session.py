"""One run of the benchmark: where, with which kernel, how much, until when, and what was found."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.kernels.shapes import Shape, Sizes


@dataclasses.dataclass
class Session:
    """A run; result has an entry per section, whose rows are filled in, and lists "errors", "left_out" and "log"."""

    device: torch.device
    ours: str
    sizes: Sizes
    out: Path
    sections: Sequence[str] = ()
    deadline: float = math.inf
    rows: list[Any] = dataclasses.field(default_factory=list)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    def late(self, what: str) -> bool:
        """Whether the section's time is used up; then `what` is noted as left out."""
        if time.perf_counter() < self.deadline:
            return False
        self.result["left_out"].append(what)
        return True

    def save(self) -> None:
        """Write what numbers there are so far."""
        self.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(self.result), indent=1) + "\n"
        (self.out / "kernels.json").write_text(text, encoding="utf-8")


class Row(NamedTuple):
    """One measurement; error says why there is none or what is off, detail is SDPA's backend or launch settings."""

    op: str
    direction: str
    way: str
    shape: Shape
    detail: Any = None
    us: float = math.nan  # on the device
    host_us: float = math.nan  # until the call returned
    rounds: int = 0
    error: str = ""
    gb_s: float = math.nan
    roofline: float = math.nan


def guarded(fill: Callable[..., Row]) -> Callable[..., Row]:
    """The same function, but an error ends up in the row; memory it used goes back to the device."""

    @functools.wraps(fill)
    def wrapped(row: Row, *rest: Any) -> Row:
        try:
            return fill(row, *rest)
        except Exception as error:
            return row._replace(error=reason(error))
        finally:
            torch.cuda.empty_cache()

    return wrapped


def plain(value: Any) -> Any:
    """JSON's types: named tuples become objects, NaN and infinity null."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else type_name(value)


def type_name(dtype: torch.dtype) -> str:
    """float32 rather than torch.float32."""
    return str(dtype).removeprefix("torch.")


def reason(error: BaseException) -> str:
    """The first line of an error, with its type."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}".replace("|", "/")  # fits a table
