"""Read settings from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Bytes of a file, and values in it with every alias (`*name`) written out; a run's config.yaml has some hundred values.
_LARGEST = 1 << 18
_VALUES = 100_000


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping of settings.

    Raises:
        ValueError: the file is not YAML, or holds something else.
    """
    import yaml

    size = path.stat().st_size
    # A pipe or a device would be read without end.
    if not path.is_file() or size > _LARGEST:
        raise ValueError(f"{path.name} is not a file of at most {_LARGEST:,} bytes")
    try:
        loaded = _load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The parser's message has several lines, with a position in the file.
        raise ValueError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
    # An empty file is None; a list or a word is valid YAML, too.
    if not isinstance(loaded, dict):
        raise ValueError(f"{path.name} holds no settings")
    return loaded


def _load(text: str) -> Any:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        # Before it is constructed: aliases of aliases unfold to more than any memory holds.
        if _values(node, {}) > _VALUES:
            raise ValueError(f"its aliases unfold to more than {_VALUES:,} values")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: Any, known: dict[int, int]) -> int:
    """Count the values below a node, an alias as often as it is used."""
    if id(node) not in known:
        # A node that contains itself would unfold without end.
        known[id(node)] = _VALUES + 1
        children = node.value if node is not None and not isinstance(node.value, str) else ()
        # A mapping's children are pairs.
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]
