"""Read the small JSON files of runs and sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seq2seq.system.errors import visible
from seq2seq.system.files import read_file


def read_json(path: Path) -> dict[str, Any]:
    """Read a dictionary from a JSON file, with control characters in its texts made visible.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file holds something else; the message begins with the file's name.
    """
    text = read_file(path)
    try:
        loaded = json.loads(text)
        if not isinstance(loaded, dict):
            raise ValueError("it holds no dictionary")
        return visible(loaded)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """Read a dictionary; None if the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None
