"""Session of the benchmark: device, kernel, sizes, deadline and results."""

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
    """One run of the benchmark.

    Attributes:
        device: Device that everything runs on.
        ours: Backend of our own operators, "triton" or "torch".
        sizes: Shapes and amounts.
        out: Folder of the results.
        sections: Names of the sections that run.
        deadline: Value of `time.perf_counter` after which the current section starts nothing new.
        rows: Rows of the current section, which are an entry of `result`.
        result: An entry per section, and the lists "errors", "left_out" and "log".
    """

    device: torch.device
    ours: str
    sizes: Sizes
    out: Path
    sections: Sequence[str] = ()
    deadline: float = math.inf
    rows: list[Any] = dataclasses.field(default_factory=list)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    def late(self, what: str) -> bool:
        """Return True if the section has no time left, and record `what` as left out."""
        if time.perf_counter() < self.deadline:
            return False
        self.result["left_out"].append(what)
        return True

    def save(self) -> None:
        """Write the results so far."""
        self.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(self.result), indent=1) + "\n"
        (self.out / "kernels.json").write_text(text, encoding="utf-8")


class Row(NamedTuple):
    """One measurement; `error` explains a missing or wrong result, `detail` is SDPA's backend or launch settings."""

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
    """Decorate a function so that its row records an error, and its memory is released."""

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
    """Convert a value to JSON's types: named tuples become objects, NaN and infinity null."""
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
    """Return a type's name without its module, such as float32."""
    return str(dtype).removeprefix("torch.")


def reason(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    # A vertical bar would end a cell of a table
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}".replace("|", "/")
