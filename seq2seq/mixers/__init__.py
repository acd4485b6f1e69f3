"""Token mixers, one file each: `from seq2seq.mixers import DynamicConv` finds a class by the file that defines it.

Type checkers see a class in its own file: `from seq2seq.mixers.dynamicconv import DynamicConv`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any


def _modules() -> dict[str, str]:
    """Return the name of the module of each class of this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    classes = {path.stem: re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE) for path in files}
    return {name: f"{__name__}.{stem}" for stem, names in classes.items() for name in names}


def __getattr__(name: str) -> Any:
    modules = _modules()
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(modules[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
