"""Read the small JSON files of runs and sweeps, which anything may have happened to since they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Bytes; results.json of a run has some thousand.
_LARGEST = 1 << 22


def read_json(path: Path) -> dict[str, Any]:
    """Read a dictionary.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read or holds something else; begins with the file's name.
    """
    try:
        size = path.stat().st_size
        # A pipe or a device would be read without end
        if not path.is_file() or size > _LARGEST:
            raise ValueError(f"no file of at most {_LARGEST:,} bytes")
        loaded = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(loaded, dict):
            raise ValueError("it holds no dictionary")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path.name} is damaged: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    return loaded


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """Read a dictionary; None if the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None
