"""Read YAML files of others, in bounded time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.system.errors import visible
from seq2seq.system.files import read_file

# Limits of a file: its bytes, where a run's config.yaml has some thousand, and its aliases.
_LARGEST = 1 << 18
_ALIASES = 20


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping of settings, with control characters in its texts made visible.

    Raises:
        ValueError: The file is not YAML, or holds something else.
    """
    import yaml

    content = read_file(path, _LARGEST)
    try:
        text = content.decode("utf-8")
        # n aliases of each other unfold to up to 3^(n / 3) copies
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)) > _ALIASES:
            raise ValueError(f"it has more than {_ALIASES} aliases (*name)")
        # Recurses without end where an alias stands inside its own anchor
        loaded = visible(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The parser's message has several lines, with a position in the file.
        raise ValueError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
    # An empty file is None; a list or a word is valid YAML, too.
    if not isinstance(loaded, dict):
        raise ValueError(f"{path.name} holds no settings")
    return loaded
