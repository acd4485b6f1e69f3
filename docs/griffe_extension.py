"""Griffe extension: the fields of a NamedTuple may be documented under `Args`, like the fields of a dataclass."""

from __future__ import annotations

import re
from typing import Any

import griffe


class NamedTupleFields(griffe.Extension):
    """Read `Args` of a NamedTuple as its attributes; Griffe knows no constructor that has them."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Rename the section before it is parsed."""
        if cls.docstring and any(str(base).endswith("NamedTuple") for base in cls.bases):
            cls.docstring.value = re.sub(r"^Args:$", "Attributes:", cls.docstring.value, flags=re.MULTILINE)
