"""Read settings from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping of settings.

    Raises:
        ValueError: the file is not YAML, or holds something else.
    """
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8") from None
    except yaml.YAMLError as error:
        # The parser's message has several lines, with a position in the file.
        raise ValueError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from None
    # An empty file is None; a list or a word is valid YAML, too.
    if not isinstance(loaded, dict):
        raise ValueError(f"{path.name} holds no settings")
    return loaded
