"""Settings that have another name now: new runs are refused with it, old files are read under it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

# Old and new keys. `*` stands for any number of parts and is kept.
MOVED = (
    ("model.peak_lr", "optim.peak_lr"),
    ("mixer.*.kernel", "mixer.*.backend"),
)


def new_name(key: str) -> str | None:
    """Return the present name of a key that has moved; None for any other."""
    for old, new in MOVED:
        pattern = re.escape(old).replace(r"\*", "(.+)")
        if match := re.fullmatch(pattern, key):
            return new.replace("*", match[1]) if "*" in new else new
    return None


def modernize(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an older run's nested settings under the present names.

    Settings of a mixer are renamed where the class is one of this package: another package's may have any name.
    """
    result = copy.deepcopy(dict(config))
    _rename(result, result, prefix="")
    return result


def _rename(root: dict[str, Any], node: dict[str, Any], prefix: str) -> None:
    ours = "_target_" not in node or str(node["_target_"]).startswith("seq2seq.")
    for key in list(node):
        path = f"{prefix}{key}"
        if isinstance(node[key], dict):
            _rename(root, node[key], f"{path}.")
        elif ours and (new := new_name(path)):
            _put(root, new, node.pop(key))


def _put(root: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        root = root.setdefault(parent, {})
    root.setdefault(leaf, value)
